"""Sparse training over tasks gives what it gives in one: rows are dealt out, summed before they travel, and padded."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from loopback import free_addresses

import penstock.v1 as tf

ROWS, WIDTH = 40, 3
BATCHES = [np.random.RandomState(i).randint(0, ROWS, size) for i, size in enumerate((12, 30, 7, 30, 1, 19))]
RULES = {
    "adagrad": lambda: tf.train.AdagradOptimizer(0.5),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "gradient_descent": lambda: tf.train.GradientDescentOptimizer(0.5),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
}


def _trained(target: str, devices: Any, rule: str, use_resource: bool) -> np.ndarray:
    with tf.Graph().as_default(), tf.device(devices):
        initial = np.random.RandomState(9).rand(ROWS, WIDTH).astype(np.float32)
        table = tf.get_variable(
            "table", initializer=lambda shape, dtype=None, partition_info=None: tf.constant(
                initial[partition_info.var_offset[0] : partition_info.var_offset[0] + shape[0]]
            ),
            shape=[ROWS, WIDTH], partitioner=tf.fixed_size_partitioner(2), use_resource=use_resource,
        )  # fmt: skip
        ids = tf.placeholder(tf.int64, [None])
        rows = tf.nn.embedding_lookup(table, ids, partition_strategy="div")
        loss = tf.reduce_sum(tf.square(rows - 0.3))
        train = RULES[rule]().minimize(loss)
        with tf.Session(target) as session:
            session.run(tf.global_variables_initializer())
            for batch in BATCHES:
                session.run(train, {ids: batch})
            return np.concatenate(session.run(list(table)))


@pytest.mark.parametrize(
    ("rule", "use_resource"),
    [("adagrad", False), ("adagrad", True), ("adam", False), ("gradient_descent", True), ("momentum", False)],
)
def test_as_in_one_task(rule: str, use_resource: bool) -> None:
    with ExitStack() as servers:
        addresses = free_addresses(3)
        cluster = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:]})
        for task in (("ps", 0), ("ps", 1), ("worker", 0)):
            server = servers.enter_context(tf.train.Server(cluster, *task))
        setter = tf.train.replica_device_setter(cluster=cluster)
        over_tasks = _trained(server.target, setter, rule, use_resource)
    np.testing.assert_allclose(over_tasks, _trained("", None, rule, use_resource), rtol=2e-5, atol=1e-6)
