"""Lookup tables: initializers, lookups, and errors."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf

lookup = tf.contrib.lookup


def static(keys: Any, values: Any, default: Any = -1) -> Any:
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default)


def found(table: Any, keys: Any, *first: Any) -> Any:
    with tf.Session() as session:
        session.run(tf.tables_initializer())
        for step in first:
            session.run(step)
        return session.run(table.lookup(keys)).tolist()


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def words(tmp_path: Path) -> str:
    path = tmp_path / "words.txt"
    path.write_text("x 10 1.5\ny 20 2.5\n")
    return str(path)


def test_static_tables() -> None:
    assert found(static(["a", "b"], tf.constant([1, 2], tf.int64)), tf.constant([["a", "z"], ["b", "a"]])) == [
        [1, -1],
        [2, 1],
    ]
    assert found(static(tf.constant([1, 2], tf.int64), ["x", "y"], "?"), tf.constant([2, 5], tf.int64)) == [b"y", b"?"]
    assert found(static(tf.constant([1, 2], tf.int64), [0.5, 1.5]), tf.zeros([0, 2], tf.int64)) == []


def test_sparse_keys_keep_their_places() -> None:
    table = static(["a", "b"], tf.constant([1, 2], tf.int64))
    values = table.lookup(tf.SparseTensor([[0, 3], [1, 0]], ["b", "?"], [2, 4]))
    with tf.Session() as session:
        session.run(table.init)
        result = session.run(values)
    assert [np.asarray(part).tolist() for part in result] == [[[0, 3], [1, 0]], [2, -1], [2, 4]]


def test_buckets_follow_the_vocabulary() -> None:
    keys = tf.constant(["a", "zz", "c", "yy"])
    assert found(lookup.index_table_from_tensor(["a", "b", "c"], num_oov_buckets=3), keys) == [0, 4, 2, 4]
    strong = lookup.StrongHashSpec([1, 2])
    table = lookup.index_table_from_tensor(["a", "b", "c"], num_oov_buckets=3, hasher_spec=strong)
    assert found(table, keys) == [0, 4, 2, 5]
    numbers = lookup.index_table_from_tensor([10, 20], num_oov_buckets=3, dtype=tf.int32)
    assert found(numbers, tf.constant([10, 33, 20])) == [0, 4, 1]


def test_files(words: str) -> None:
    index = tf.lookup.TextFileIndex
    assert found(lookup.index_table_from_file(words), tf.constant(["y 20 2.5", "x"])) == [1, -1]
    assert found(lookup.index_to_string_table_from_file(words), tf.constant([0, 7], tf.int64)) == [b"x 10 1.5", b"UNK"]
    column = tf.lookup.TextFileInitializer(words, tf.string, 0, tf.float32, 2, delimiter=" ")
    assert found(tf.lookup.StaticHashTable(column, -1), tf.constant(["x", "y"])) == [1.5, 2.5]
    numbered = tf.lookup.TextFileInitializer(words, tf.string, 0, tf.int64, index.LINE_NUMBER, delimiter=" ")
    assert found(tf.lookup.StaticHashTable(numbered, -1), tf.constant(["x", "y"])) == [0, 1]


@pytest.mark.parametrize(
    "text, kwargs, error, message",
    [
        ("x\n\ny\n", {}, tf.errors.InvalidArgumentError, "empty line found at position 2"),
        ("x\n", {"vocab_size": 2}, tf.errors.InvalidArgumentError, "expected 2 but got 1"),
        ("x y\nz\n", {"key_column_index": 1, "delimiter": " "}, tf.errors.InvalidArgumentError, "number of columns"),
        ("x\n", {"key_dtype": tf.int64}, tf.errors.InvalidArgumentError, "not a valid int64"),
        (None, {}, tf.errors.NotFoundError, "words"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, text: str | None, kwargs: Any, error: Any, message: str) -> None:
    path = tmp_path / "words.txt"
    if text is not None:
        path.write_text(text)
    table = lookup.index_table_from_file(str(path), **kwargs)
    with tf.Session() as session, pytest.raises(error, match=message):
        session.run(table.init)


def test_mutable_tables() -> None:
    table = lookup.MutableHashTable(tf.string, tf.int64, -1)
    steps = [
        table.insert(["a", "b"], tf.constant([1, 2], tf.int64)),
        table.insert(["a"], tf.constant([7], tf.int64)),
        table.remove(["b", "q"]),
    ]
    assert found(table, ["a", "b"], *steps) == [7, -1]
    rows = lookup.MutableHashTable(tf.int64, tf.float32, [0.0, 1.0])
    assert rows.lookup(tf.constant([3], tf.int64)).shape.as_list() == [1, 2]
    assert found(rows, tf.constant([3, 4], tf.int64), rows.insert([3], [[5.0, 6.0]])) == [[5.0, 6.0], [0.0, 1.0]]


def test_dense_tables_refuse_two_keys() -> None:
    table = lookup.MutableDenseHashTable(tf.int64, tf.int64, -1, empty_key=0, deleted_key=-2, initial_num_buckets=4)
    insert = table.insert([1, 2, 3, 4, 5], [10, 20, 30, 40, 50])
    assert found(table, tf.constant([1, 6, 5], tf.int64), insert) == [10, -1, 50]
    for wrong in (0, -2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="_key as a table key is not allowed"):
            found(table, tf.constant([wrong], tf.int64))


def test_tables_live_in_their_session_and_are_shared_by_name() -> None:
    first = lookup.MutableHashTable(tf.string, tf.int64, -1, shared_name="t")
    second = lookup.MutableHashTable(tf.string, tf.int64, 5, shared_name="t")
    other = lookup.MutableHashTable(tf.string, tf.string, "", shared_name="t")
    with tf.Session() as session:
        session.run(first.insert(["a"], tf.constant([1], tf.int64)))
        assert session.run(second.lookup(["a", "b"])).tolist() == [1, 5]
        with pytest.raises(tf.errors.InvalidArgumentError, match="other types"):
            session.run(other.size())
    with tf.Session() as session:
        assert session.run(first.size()) == 0


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: static(["a"], [1]).lookup(tf.constant([1])), TypeError),
        (lambda: static(["a"], [1, 2]), ValueError),
        (lambda: static(["a"], [1], [1]), ValueError),
        (lambda: tf.lookup.TextFileInitializer("", tf.string, -2, tf.int64, -1), ValueError),
        (lambda: tf.lookup.TextFileInitializer("f", tf.string, -1, tf.int64, -1), ValueError),
        (lambda: lookup.index_table_from_tensor(["a"], dtype=tf.int64), ValueError),
    ],
)
def test_what_does_not_fit_fails_when_built(make: Any, error: Any) -> None:
    with pytest.raises(error):
        make()


def test_static_tables_are_filled_once() -> None:
    table = static(["a", "a"], [1, 2])
    with tf.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="not initialized"):
            session.run(table.lookup(tf.constant(["a"])))
        with pytest.raises(tf.errors.FailedPreconditionError, match="different value for same key"):
            session.run(table.init)
    table = static(["a"], [1])
    with tf.Session() as session:
        session.run([table.init])
        session.run([table.init])
        assert session.run(table.size()) == 1


def test_steps_may_insert_at_once() -> None:
    table = lookup.MutableHashTable(tf.int64, tf.int64, -1)
    keys = tf.placeholder(tf.int64, [None])
    insert, size = table.insert(keys, keys), table.size()
    with tf.Session() as session:
        threads = [
            threading.Thread(target=lambda k=k: [session.run(insert, {keys: [k * 20 + i]}) for i in range(20)])
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.run(size) == 80
