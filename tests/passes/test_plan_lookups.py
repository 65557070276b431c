"""Lookups of several features that are made at once give the rows and updates that each of them gives alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.errors import InvalidArgumentError
from penstock.passes.deal_ids import deal_ids
from penstock.passes.optimize import optimize
from penstock.passes.place import place
from penstock.passes.plan_lookups import plan_lookups
from penstock.passes.prune import prune

ROWS = (11, 7, 9)
RANDOM = np.random.RandomState(1)
TABLES = [RANDOM.rand(rows, 3).astype("f") for rows in ROWS]
IDS = [[[7, 3, 3], [10], [0, 7], [3]], [[6], [6, 0, 1, 6], [2]], [[8, 8], [0], [4, 5, 8], [1], [7]]]
OPS = ("_PlanLookups", "_CombineLookups", "_SpreadLookups")


def value_of(rows: list[list[int]], kind: Any = np.int64) -> tf.SparseTensorValue:
    places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    ids = np.array([i for row in rows for i in row], kind)
    return tf.SparseTensorValue(np.array(places, np.int64).reshape(-1, 2), ids, np.array([len(rows), 4], np.int64))


def shards_of(table: np.ndarray, strategy: str, count: int = 2) -> list[Any]:
    rows = [table[i::count] for i in range(count)] if strategy == "mod" else np.array_split(table, count)
    return [tf.Variable(part) for part in rows]


def whole(strategy: str, parts: list[np.ndarray]) -> np.ndarray:
    if strategy == "div":
        return np.concatenate(parts)
    table = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), "f")
    for i, part in enumerate(parts):
        table[i :: len(parts)] = part
    return table


def ops_of(fetches: Any, targets: Any = (), feeds: Any = ()) -> dict[str, int]:
    subgraph = optimize(prune(feeds, fetches, targets))
    subgraph = place(subgraph, ["/job:localhost/replica:0/task:0/device:CPU:0"], False)
    names = [node.op.name for node in plan_lookups(deal_ids(subgraph)).nodes]
    return {name: names.count(name) for name in (*OPS, "_DealIds")}


def expected(table: np.ndarray, rows: list[list[int]], power: float) -> np.ndarray:
    return np.array([table[row].sum(0) / len(row) ** power for row in rows])


def feeds_of(features: list[Any]) -> list[Any]:
    return [part for ids in features for part in (ids.indices, ids.values, ids.dense_shape)]


@pytest.mark.parametrize("kind", [tf.int32, tf.int64])
@pytest.mark.parametrize(("combiner", "power"), [("sum", 0.0), ("mean", 1.0), ("sqrtn", 0.5)])
@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_rows_and_updates_are_those_of_each_feature(strategy: str, combiner: str, power: float, kind: tf.DType) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        features = [tf.sparse_placeholder(kind) for _ in TABLES]
        parts = [shards_of(table, strategy) for table in TABLES]
        sums = [
            tf.nn.embedding_lookup_sparse(shards, ids, None, partition_strategy=strategy, combiner=combiner)
            for shards, ids in zip(parts, features, strict=True)
        ]
        loss = tf.add_n([tf.reduce_sum(each * each) for each in sums])
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        assert ops_of(sums, [train], feeds_of(features)) == {**dict.fromkeys(OPS, 1), "_DealIds": 0}
        session.run(tf.global_variables_initializer())
        fed = {ids: value_of(rows, kind.as_numpy_dtype) for ids, rows in zip(features, IDS, strict=True)}
        before = session.run(sums, fed)
        session.run(train, fed)
        after = [whole(strategy, found) for found in session.run(parts)]
        for table, rows, got, changed in zip(TABLES, IDS, before, after, strict=True):
            totals = expected(table, rows, power)
            np.testing.assert_allclose(got, totals, rtol=1e-6)
            new = table.copy()
            for row, total in zip(rows, totals, strict=True):
                np.subtract.at(new, row, 0.2 * total / len(row) ** power)
            np.testing.assert_allclose(changed, new, rtol=1e-5, atol=1e-6)
        empty = session.run(sums, {**fed, features[1]: value_of([], kind.as_numpy_dtype)})
        assert [len(each) for each in empty] == [4, 0, 5]


def test_features_whose_rows_differ_in_width_are_planned_apart() -> None:
    with tf.Graph().as_default():
        ids = tf.SparseTensor(*value_of(IDS[0]))
        narrow, wide = (np.ones((12, width), "f") for width in (2, 3))
        sums = [tf.nn.embedding_lookup_sparse(shards_of(t, "div"), ids, None, "div") for t in (narrow, wide, wide)]
        assert ops_of(sums) == {"_PlanLookups": 2, "_CombineLookups": 2, "_SpreadLookups": 0, "_DealIds": 0}


def test_ids_that_follow_from_another_lookup_are_looked_up_after_it() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.SparseTensor(*value_of([[1], [4]]))
        first = tf.nn.embedding_lookup_sparse(
            shards_of(np.arange(12, dtype="f").reshape(6, 2), "div"), ids, None, "div"
        )
        then = tf.SparseTensor(ids.indices, tf.cast(first[:, 0], tf.int64), ids.dense_shape)
        second = tf.nn.embedding_lookup_sparse(
            shards_of(np.arange(20, dtype="f").reshape(10, 2), "div"), then, None, "div"
        )
        assert ops_of([second])["_PlanLookups"] == 1
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(second), [[4, 5], [16, 17]])


def test_a_lookup_whose_rows_are_fetched_is_left_as_it_is() -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        ids = tf.SparseTensor(*value_of(IDS[0]))
        sums = tf.nn.embedding_lookup_sparse(shards_of(TABLES[0], "div"), ids, None, "div", name="sums")
        rows = graph.get_tensor_by_name("sums/embedding_lookup/Reshape_1:0")
        assert ops_of([sums, rows])["_PlanLookups"] == 0
        session.run(tf.global_variables_initializer())
        assert session.run([sums, rows])[1].shape == (4, 3)


@pytest.mark.parametrize("wrong", [-1, 7])
def test_an_error_names_the_lookup_that_it_is_about(wrong: int) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        features = [tf.sparse_placeholder(tf.int64) for _ in range(2)]
        sums = [
            tf.nn.embedding_lookup_sparse(shards_of(table, "div"), ids, None, "div", name=name)
            for table, ids, name in zip(TABLES[:2], features, ("one", "two"), strict=True)
        ]
        session.run(tf.global_variables_initializer())
        good = {features[0]: value_of(IDS[0])}
        with pytest.raises(InvalidArgumentError, match=r"is not in \[0, 7\)") as raised:
            session.run(sums, {**good, features[1]: value_of([[0, wrong]])})
        assert raised.value.op is not None and raised.value.op.name == "two/Unique"
        unsorted = value_of([[1], [2]])
        unsorted = tf.SparseTensorValue(unsorted.indices[::-1], unsorted.values, unsorted.dense_shape)
        with pytest.raises(InvalidArgumentError, match="not increasing") as raised:
            session.run(sums, {**good, features[1]: unsorted})
        assert raised.value.op is not None and raised.value.op.name == "two"
