"""Lookups that ask for each id once give the same rows and updates, and are left alone where the difference shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loopback import free_addresses

import penstock.v1 as tf
from penstock.errors import InvalidArgumentError
from penstock.ops.nn.sharded_lookups import spread_rows, sum_rows
from penstock.passes import pipeline
from penstock.passes.ask_once import ask_once
from penstock.passes.gather_once import gather_once

ON_CPU = tf.ConfigProto(device_count={"GPU": 0})  # what looks rows up on a GPU asks as it did
PASSES = (ask_once, gather_once)
ROWS, WIDTH = 11, 3
TABLE = np.random.RandomState(0).rand(ROWS, WIDTH).astype("f")
BATCHES = ([[7, 3], [3, 10], [7, 7]], [[0, 0], [0, 0]], [[1, 2], [3, 4]], np.zeros((0, 2)))
RULES = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
}


class Cluster:
    """Two parameter servers and a worker, in this process."""

    def __init__(self) -> None:
        addresses = free_addresses(3)
        self.spec = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:]})
        jobs = [("ps", 0), ("ps", 1), ("worker", 0)]
        self.servers = [tf.train.Server(self.spec, job, number, config=ON_CPU) for job, number in jobs]
        self.worker = self.servers[-1]

    def ops(self) -> set[str]:
        """The ops of all graphs that the worker has run."""
        graphs = [graph.executable for graph in self.worker.worker._graphs.values()]
        return {i.node.op.name for graph in graphs for i in graph.instructions if hasattr(i, "node")}


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    found = Cluster()
    yield found
    for server in found.servers:
        server.stop()


@pytest.fixture
def cluster(servers: Cluster) -> Iterator[Cluster]:
    with tf.Graph().as_default(), tf.device(tf.train.replica_device_setter(cluster=servers.spec)):
        yield servers
    tf.Session.reset(servers.worker.target)
    servers.worker.worker.forget_graphs()


class Model:
    """A lookup of pairs of ids in a table, of two shards or whole."""

    def __init__(self, strategy: str, use_resource: bool = True, kind: tf.DType = tf.int64) -> None:
        self.ids = tf.placeholder(kind, [None, 2])
        parts = {"mod": [TABLE[i::2] for i in range(2)], "div": np.array_split(TABLE, 2), "whole": [TABLE]}[strategy]
        self.parts = [
            tf.get_variable(f"part{i}", initializer=part, use_resource=use_resource) for i, part in enumerate(parts)
        ]
        self.found = tf.nn.embedding_lookup(
            self.parts, self.ids, partition_strategy="mod" if strategy == "mod" else "div"
        )
        self.loss = tf.reduce_sum(tf.square(self.found) * tf.constant([[1.0], [2.0]]))


def _trained(cluster: Cluster, rule: str, *settings: Any) -> tuple[list[np.ndarray], set[str]]:
    with tf.Session(cluster.worker.target) as session:
        model = Model(*settings)
        train = RULES[rule]().minimize(model.loss)
        session.run(tf.global_variables_initializer())
        seen = [session.run([model.found, train], {model.ids: batch})[0] for batch in BATCHES]
        return [*seen, *session.run(model.parts)], cluster.ops()


@pytest.mark.parametrize("kind", [tf.int32, tf.int64])
@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("strategy", ["div", "mod", "whole"])
@pytest.mark.parametrize("rule", RULES)
def test_rows_and_updates_are_the_same(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, rule: str, strategy: str, use_resource: bool, kind: tf.DType
) -> None:
    ours, ops = _trained(cluster, rule, strategy, use_resource, kind)
    assert ("_SumRows" in ops) == (rule != "sgd")  # which adds rows as they come, and sums nothing before
    assert not {"Unique", "_SumRows"} <= ops  # one op has dealt out the ids
    tf.Session.reset(cluster.worker.target)
    cluster.worker.worker.forget_graphs()
    monkeypatch.setattr(pipeline, "PLACED", tuple(p for p in pipeline.PLACED if p not in PASSES))
    with tf.Graph().as_default(), tf.device(tf.train.replica_device_setter(cluster=cluster.spec)):
        theirs, ops = _trained(cluster, rule, strategy, use_resource, kind)
    assert "_SumRows" not in ops
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("strategy", ["div", "whole"])
@pytest.mark.parametrize("seen", ["norm", "gradient", "row numbers", "count", "nothing"])
def test_a_gradient_whose_rows_are_seen_stays_as_it_is(cluster: Cluster, seen: str, strategy: str) -> None:
    model = Model(strategy)
    optimizer = tf.train.AdagradOptimizer(0.1)
    pairs = optimizer.compute_gradients(model.loss)
    gradients = [gradient for gradient, _ in pairs]
    shown: Any = tf.no_op()
    if seen == "norm":
        gradients, shown = tf.clip_by_global_norm(gradients, 1e6)
    elif seen != "nothing":
        parts = [g.values if seen == "gradient" else g.indices for g in gradients]
        shown = [tf.size(part) for part in parts] if seen == "count" else parts
    train = optimizer.apply_gradients(zip(gradients, model.parts, strict=True))
    with tf.Session(cluster.worker.target) as session:
        session.run(tf.global_variables_initializer())
        value = session.run([shown, train], {model.ids: BATCHES[0]})[0]
        # Sums are made of a gradient, whoever else sees it, unless the lookup must ask anew for it.
        assert ("_SumRows" in cluster.ops()) == (seen == "nothing" or strategy == "whole")
    rows = np.array(BATCHES[0])
    each = 2 * TABLE[rows] * np.array([[1.0], [2.0]])
    if seen == "norm":
        np.testing.assert_allclose(value, np.sqrt(np.square(each).sum()), rtol=1e-6)
    elif seen == "gradient":
        assert [len(piece) for piece in value] == ([2, 4] if strategy == "div" else [6])
    elif seen == "count":
        assert value == ([2, 4] if strategy == "div" else [6])
    elif seen == "row numbers":
        expected = [[3, 3], [1, 4, 1, 1]] if strategy == "div" else [rows.reshape(-1).tolist()]
        assert [piece.tolist() for piece in value] == expected


@pytest.mark.parametrize("strategy", ["div", "whole"])
def test_a_lookup_without_training_asks_as_it_did(cluster: Cluster, strategy: str) -> None:
    model = Model(strategy)
    with tf.Session(cluster.worker.target) as session:
        session.run(tf.global_variables_initializer())
        assert (session.run(model.found, {model.ids: BATCHES[0]}) == TABLE[np.array(BATCHES[0])]).all()
        assert not {"Unique", "_DealIds"} & cluster.ops()


def test_an_id_that_is_out_of_range(cluster: Cluster) -> None:
    model = Model("div")
    train = tf.train.AdagradOptimizer(0.1).minimize(model.loss)
    with tf.Session(cluster.worker.target) as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(InvalidArgumentError, match=f"{ROWS}"):
            session.run(train, {model.ids: [[0, ROWS]]})


def test_rows_that_do_not_fit_the_ids() -> None:
    rows, places = np.ones((2, 3), "f"), np.array([0, 2, 1], np.int32)
    with pytest.raises(InvalidArgumentError, match="There are 2 rows, row 2 was asked for"):
        spread_rows.kernel(rows, places)
    with pytest.raises(InvalidArgumentError, match="There are 2 rows for 3 ids"):
        sum_rows.kernel(rows, places)
