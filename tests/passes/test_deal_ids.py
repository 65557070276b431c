"""If one op distributes ids to the shards of a table, rows and updates are the same, in any order of ids."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.errors import InvalidArgumentError
from penstock.passes.deal_ids import deal_ids
from penstock.passes.optimize import optimize
from penstock.passes.place import place
from penstock.passes.prune import prune
from penstock.passes.sparse_updates import sum_before_sending

ROWS, WIDTH = 11, 3
TABLE = np.random.RandomState(0).rand(ROWS, WIDTH).astype("f")
IDS = [[7, 3, 3], [10], [0, 7, 5, 1], [3]]


def sparse_ids(kind: Any = np.int64, rows: list[list[int]] | None = None) -> tf.SparseTensorValue:
    rows = IDS if rows is None else rows
    places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    values = np.array(list(itertools.chain(*rows)), kind)
    return tf.SparseTensorValue(np.array(places, np.int64).reshape(-1, 2), values, np.array([len(rows), 4], np.int64))


def shards(strategy: str, count: int) -> list[Any]:
    rows = [TABLE[i::count] for i in range(count)] if strategy == "mod" else np.array_split(TABLE, count)
    return [tf.Variable(part) for part in rows]


def whole(strategy: str, parts: list[np.ndarray]) -> np.ndarray:
    if strategy == "div":
        return np.concatenate(parts)
    table = np.empty_like(TABLE)
    for i, part in enumerate(parts):
        table[i :: len(parts)] = part
    return table


def ops_of(*fetches: Any, targets: Any = (), feeds: Any = ()) -> list[str]:
    subgraph = optimize(prune(feeds, fetches, targets))
    subgraph = place(subgraph, ["/job:localhost/replica:0/task:0/device:CPU:0"], False)
    return [node.op.name for node in deal_ids(subgraph).nodes]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [tf.int32, tf.int64])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_rows_and_updates_are_those_of_the_whole_table(
    strategy: str, count: int, kind: tf.DType, weighted: bool
) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.sparse_placeholder(kind)
        weights = tf.SparseTensor(ids.indices, tf.ones(tf.shape(ids.values)), ids.dense_shape) if weighted else None
        parts = shards(strategy, count)
        sums = tf.nn.embedding_lookup_sparse(parts, ids, weights, partition_strategy=strategy, combiner="sum")
        train = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(sums * sums))
        fed = [ids.indices, ids.values, ids.dense_shape]
        assert "_DealIds" in ops_of(sums, feeds=fed) and "_DealIds" in ops_of(targets=[train], feeds=fed)
        assert not {"Unique", "DynamicPartition"} & set(ops_of(sums, feeds=fed))
        session.run(tf.global_variables_initializer())
        feed = {ids: sparse_ids(kind.as_numpy_dtype)}
        expected = np.array([TABLE[row].sum(0) for row in IDS])
        np.testing.assert_allclose(session.run(sums, feed), expected, rtol=1e-6)
        session.run(train, feed)
        changed = TABLE.copy()
        for row, total in zip(IDS, expected, strict=True):
            np.subtract.at(changed, row, 2 * total)
        np.testing.assert_allclose(whole(strategy, session.run(parts)), changed, rtol=1e-5, atol=1e-6)
        empty = session.run(sums, {ids: sparse_ids(kind.as_numpy_dtype, [])})
        assert empty.shape == (0, WIDTH)


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("wrong", [-1, ROWS, 10**9])
def test_an_id_that_the_table_does_not_have_is_an_error(strategy: str, wrong: int) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.sparse_placeholder(tf.int64)
        rows = tf.nn.embedding_lookup_sparse(shards(strategy, 2), ids, None, partition_strategy=strategy)
        session.run(tf.global_variables_initializer())
        with pytest.raises(InvalidArgumentError, match=r"is not in \[0, "):
            session.run(rows, {ids: sparse_ids(rows=[[1, wrong]])})


def test_distinct_ids_that_are_fetched_are_in_the_order_of_their_first_appearance() -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        rows = tf.nn.embedding_lookup_sparse(shards("div", 2), tf.SparseTensor(*sparse_ids()), None, "div", name="rows")
        distinct, idx = (graph.get_tensor_by_name(f"rows/Unique:{i}") for i in (0, 1))
        assert "_DealIds" not in ops_of(rows, distinct)
        session.run(tf.global_variables_initializer())
        values, places, _ = session.run([distinct, idx, rows])
        assert values.tolist() == [7, 3, 10, 0, 5, 1]
        assert values[places].tolist() == list(itertools.chain(*IDS))


def test_shards_that_were_not_cut_evenly_are_left_alone() -> None:
    """With "mod" the ids alone decide the rows of a shard, for any sizes of the other shards."""
    with tf.Graph().as_default(), tf.Session() as session:
        long, short = tf.Variable(TABLE[:9]), tf.Variable(TABLE[9:])
        rows = tf.nn.embedding_lookup_sparse([long, short], tf.SparseTensor(*sparse_ids(rows=[[16], [3]])), None, "mod")
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(rows), [TABLE[8], TABLE[10]])


@pytest.mark.parametrize("is_read_whole", [False, True])
def test_rows_that_were_dealt_out_are_not_summed_unless_compiled_code_takes_the_table(is_read_whole: bool) -> None:
    with tf.Graph().as_default():
        ids = tf.sparse_placeholder(tf.int64)
        with tf.device("/job:ps/task:0"):
            parts = shards("div", 2)
        with tf.device("/job:worker/task:0"):
            rows = tf.nn.embedding_lookup_sparse(parts, ids, None, partition_strategy="div", combiner="sum")
            train = tf.train.AdagradOptimizer(0.5).minimize(tf.reduce_sum(rows))
        fetched = [tf.reduce_sum(part) for part in parts] if is_read_whole else []
        feeds = [ids.indices, ids.values, ids.dense_shape]
        devices = [f"/job:{job}/replica:0/task:0/device:CPU:0" for job in ("ps", "worker")]
        placed = place(optimize(prune(feeds, fetched, [train])), devices, False)
        ops = [node.op.name for node in sum_before_sending(deal_ids(placed)).nodes]
    assert ops.count("_DealIds") == 1
    assert ops.count("SumDuplicateRowsOnHost") == (2 if is_read_whole else 0)
