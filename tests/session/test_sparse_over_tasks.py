"""Sparse training over tasks has the same results as in one: rows are dealt out, summed before sending, and padded."""

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


def _looked_up(table: Any, ids: tf.Tensor, each_once: bool) -> tf.Tensor:
    if not each_once:
        return tf.nn.embedding_lookup(table, ids, partition_strategy="div")
    places = tf.range(tf.size(ids, out_type=tf.int64))
    sparse = tf.SparseTensor(tf.stack([places, places], 1), ids, tf.fill([2], tf.size(ids, out_type=tf.int64)))
    return tf.nn.embedding_lookup_sparse(table, sparse, None, partition_strategy="div", combiner="sum")


def _trained(target: str, devices: Any, rule: str, use_resource: bool, each_once: bool = False) -> np.ndarray:
    with tf.Graph().as_default(), tf.device(devices):
        initial = np.random.RandomState(9).rand(ROWS, WIDTH).astype(np.float32)
        table = tf.get_variable(
            "table",
            initializer=lambda shape, dtype=None, partition_info=None: tf.constant(
                initial[partition_info.var_offset[0] : partition_info.var_offset[0] + shape[0]]
            ),
            shape=[ROWS, WIDTH],
            partitioner=tf.fixed_size_partitioner(2),
            use_resource=use_resource,
        )
        ids = tf.placeholder(tf.int64, [None])
        rows = _looked_up(table, ids, each_once)
        loss = tf.reduce_sum(tf.square(rows - 0.3))
        train = RULES[rule]().minimize(loss)
        with tf.Session(target) as session:
            session.run(tf.global_variables_initializer())
            for batch in BATCHES:
                session.run(train, {ids: batch})
            return np.concatenate(session.run(list(table)))


@pytest.mark.parametrize("each_once", [False, True])
@pytest.mark.parametrize(
    ("rule", "use_resource"),
    [("adagrad", False), ("adagrad", True), ("adam", False), ("gradient_descent", True), ("momentum", False)],
)
def test_as_in_one_task(rule: str, use_resource: bool, each_once: bool) -> None:
    with ExitStack() as servers:
        addresses = free_addresses(3)
        cluster = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:]})
        for task in (("ps", 0), ("ps", 1), ("worker", 0)):
            server = servers.enter_context(tf.train.Server(cluster, *task))
        setter = tf.train.replica_device_setter(cluster=cluster)
        over_tasks = _trained(server.target, setter, rule, use_resource, each_once)
    np.testing.assert_allclose(over_tasks, _trained("", None, rule, use_resource, each_once), rtol=2e-5, atol=1e-6)


def test_a_row_out_of_range_changes_nothing() -> None:
    with ExitStack() as servers, tf.Graph().as_default():
        addresses = free_addresses(2)
        cluster = tf.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
        for job in ("ps", "worker"):
            server = servers.enter_context(tf.train.Server(cluster, job, 0))
        with tf.device("/job:ps"):
            table = tf.get_variable("table", initializer=np.ones((4, 2), np.float32))
        values, ids = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.int64, [None])
        optimizer = tf.train.AdagradOptimizer(1.0, initial_accumulator_value=1.0)
        train = optimizer.apply_gradients([(tf.IndexedSlices(values, ids, tf.constant([4, 2])), table)])
        slot = optimizer.get_slot(table, "accumulator")
        with tf.Session(server.target) as session:
            session.run(tf.global_variables_initializer())
            for bad in ([0, 4], [-1, 2]):
                with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 4\)"):
                    session.run(train, {values: np.ones((2, 2)), ids: bad})
            np.testing.assert_array_equal(session.run(table), np.ones((4, 2)))
            np.testing.assert_array_equal(session.run(slot), np.ones((4, 2)))
            session.run(train, {values: np.ones((3, 2)), ids: [1, 3, 1]})
            np.testing.assert_allclose(session.run(slot)[:, 0], [1, 5, 1, 2])
            np.testing.assert_allclose(session.run(table)[:, 0], [1, 1 - 2 / 5**0.5, 1, 1 - 1 / 2**0.5], rtol=1e-6)
