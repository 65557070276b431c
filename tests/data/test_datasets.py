"""Datasets have the same elements as in TensorFlow."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.data import nodes
from penstock.data.fuse import fuse

D = tf.data.Dataset
X = tf.data.experimental
Point = collections.namedtuple("Point", "x y")


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    with tf.Graph().as_default():
        yield
    left = [t for t in set(threading.enumerate()) - before if t.is_alive()]
    assert not left, f"threads are left over: {left}"


def plain(value: Any) -> Any:
    """An element as Python values."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*map(plain, value))
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def elements(dataset: Any, limit: int = 100) -> list[Any]:
    """The elements of a dataset, up to `limit`."""
    following = tf.data.make_one_shot_iterator(dataset).get_next()
    found: list[Any] = []
    with tf.Session() as sess:
        while len(found) < limit:
            try:
                found.append(plain(sess.run(following)))
            except tf.errors.OutOfRangeError:
                break
    return found


def rows(count: int) -> Any:
    """The vectors [], [1], [2, 2], ..."""
    return D.range(count).map(lambda n: tf.fill([n], n))


DATASETS: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "tensors": (lambda: D.from_tensors(([1, 2], {"a": 3.0})), [([1, 2], {"a": 3.0})]),
    "slices of a namedtuple": (lambda: D.from_tensor_slices(Point([1, 2], [3, 4])), [Point(1, 3), Point(2, 4)]),
    "slices of a dict": (
        lambda: D.from_tensor_slices({"b": [1, 2], "a": ["x", "y"]}),
        [{"b": 1, "a": b"x"}, {"b": 2, "a": b"y"}],
    ),
    "range": (lambda: D.range(7, 1, -2), [7, 5, 3]),
    "zip": (
        lambda: D.zip((D.range(3), (D.range(5, 9), D.from_tensors(1).repeat()))),
        [(0, (5, 1)), (1, (6, 1)), (2, (7, 1))],
    ),
    "concatenate": (lambda: D.range(2).concatenate(D.range(5, 7)), [0, 1, 5, 6]),
    "map of a tuple": (lambda: D.zip((D.range(2), D.range(2))).map(lambda a, b: (a + 1, b - 1)), [(1, -1), (2, 0)]),
    "map of a dict": (lambda: D.from_tensor_slices({"a": [1, 2]}).map(lambda d: d["a"] * 2), [2, 4]),
    "map in parallel": (lambda: D.range(50).map(lambda n: n * n, num_parallel_calls=4), [n * n for n in range(50)]),
    "map to a list": (lambda: D.range(2).map(lambda n: [n, [n, n]]), [(0, [0, 0]), (1, [1, 1])]),
    "flat_map": (lambda: D.range(4).flat_map(lambda n: D.range(n)), [0, 0, 1, 0, 1, 2]),
    "interleave": (
        lambda: D.range(1, 5).interleave(lambda n: D.from_tensors(n).repeat(6), 2, 4),
        [1] * 4 + [2] * 4 + [1] * 2 + [2] * 2 + [3] * 4 + [4] * 4 + [3] * 2 + [4] * 2,
    ),
    "interleave uneven": (
        lambda: D.range(4).interleave(lambda n: D.range(10 * n, 11 * n), 3),
        [10, 20, 30, 21, 31, 32],
    ),
    "interleave in parallel": (
        lambda: D.range(4).interleave(lambda n: D.range(10 * n, 11 * n), 3, 1, 2),
        [10, 20, 30, 21, 31, 32],
    ),
    "parallel_interleave": (
        lambda: D.range(2).apply(X.parallel_interleave(lambda n: D.from_tensors(n).repeat(3), 2)),
        [0, 1, 0, 1, 0, 1],
    ),
    "filter": (lambda: D.range(6).filter(lambda n: n % 2 < 1), [0, 2, 4]),
    "batch": (lambda: D.range(5).batch(2), [[0, 1], [2, 3], [4]]),
    "batch without remainder": (lambda: D.range(5).batch(2, drop_remainder=True), [[0, 1], [2, 3]]),
    "batch of strings": (lambda: D.from_tensor_slices(["a", "bc"]).batch(3), [[b"a", b"bc"]]),
    "padded_batch": (lambda: rows(4).padded_batch(2, [None]), [[[0], [1]], [[2, 2, 0], [3, 3, 3]]]),
    "padded_batch to a size": (
        lambda: rows(3).padded_batch(3, [3], np.int64(-1)),
        [[[-1, -1, -1], [1, -1, -1], [2, 2, -1]]],
    ),
    "unbatch": (lambda: D.range(5).batch(3).unbatch(), [0, 1, 2, 3, 4]),
    "window": (lambda: D.range(7).window(3, 2, 2).flat_map(lambda w: w.batch(3)), [[0, 2, 4], [2, 4, 6], [4, 6], [6]]),
    "repeat": (lambda: D.range(2).repeat(2), [0, 1, 0, 1]),
    "repeat nothing": (lambda: D.range(0).repeat(), []),
    "take and skip": (lambda: D.range(9).skip(2).take(3), [2, 3, 4]),
    "take all, skip all": (lambda: D.range(3).take(-1).concatenate(D.range(3).skip(-1)), [0, 1, 2]),
    "shard": (lambda: D.range(7).shard(3, 1), [1, 4]),
    "cache": (lambda: D.range(3).cache().repeat(2), [0, 1, 2, 0, 1, 2]),
    "prefetch": (lambda: D.range(3).prefetch(1), [0, 1, 2]),
    "enumerate": (lambda: D.from_tensor_slices([7, 8]).enumerate(3), [(3, 7), (4, 8)]),
    "generator": (
        lambda: D.from_generator(
            lambda n: ((i, [i] * i) for i in range(n)), (tf.int32, tf.float32), ([], [None]), args=(3,)
        ),
        [(0, []), (1, [1.0]), (2, [2.0, 2.0])],
    ),
    "generator twice": (lambda: D.from_generator(lambda: iter("ab"), tf.string).repeat(2), [b"a", b"b"] * 2),
    "map_and_batch": (lambda: D.range(5).apply(X.map_and_batch(lambda n: n + 1, 2)), [[1, 2], [3, 4], [5]]),
    "ignore_errors": (
        lambda: (
            D.from_tensor_slices([1.0, 0.0, 2.0]).map(lambda v: tf.check_numerics(1 / v, "x")).apply(X.ignore_errors())
        ),
        [1.0, 0.5],
    ),
    "group_by_window": (
        lambda: D.range(7).apply(X.group_by_window(lambda n: n % 2, lambda _, w: w.batch(3), 3)),
        [[0, 2, 4], [1, 3, 5], [6]],
    ),
    "bucket_by_sequence_length": (
        lambda: rows(5).apply(X.bucket_by_sequence_length(tf.size, [2, 4], [2, 2, 2])),
        [[[0], [1]], [[2, 2, 0], [3, 3, 3]], [[4, 4, 4, 4]]],
    ),
    "scan": (lambda: D.range(4).apply(X.scan(np.int64(10), lambda s, n: (s + n, s * n))), [0, 10, 22, 39]),
    "take_while": (lambda: D.range(9).apply(X.take_while(lambda n: n < 2)), [0, 1]),
    "unique": (lambda: D.from_tensor_slices([1, 2, 1]).apply(X.unique()), [1, 2]),
    "choose_from_datasets": (
        lambda: X.choose_from_datasets([D.range(3), D.range(9, 12)], D.from_tensor_slices(np.int64([1, 1, 0]))),
        [9, 10, 0],
    ),
    "Counter": (lambda: X.Counter(5, 2).take(2), [5, 7]),
    "nothing": (lambda: D.from_tensor_slices(np.zeros((0, 3))).batch(2), []),
}


@pytest.mark.parametrize("name", DATASETS)
def test_elements(name: str) -> None:
    make, expected = DATASETS[name]
    assert elements(make()) == expected


def test_shapes_and_types() -> None:
    dataset = D.from_tensor_slices({"x": np.zeros((6, 3), np.float32), "y": np.zeros(6, np.int64)}).batch(2, True)
    assert {k: v.as_list() for k, v in dataset.output_shapes.items()} == {"x": [2, 3], "y": [2]}
    assert dataset.output_types == tf.data.get_output_types(dataset) == {"x": tf.float32, "y": tf.int64}
    assert dataset.output_classes == {"x": tf.Tensor, "y": tf.Tensor}
    assert D.range(3).batch(2).output_shapes.as_list() == [None]


def test_node_names() -> None:
    dataset = D.from_tensor_slices((np.arange(7), np.arange(7))).shuffle(9).map(lambda a, b: a).batch(2).repeat()
    dataset.make_one_shot_iterator().get_next()
    names = [op.name for op in tf.get_default_graph().get_operations()]
    assert names == [
        "normalize_element/component_0",
        "normalize_element/component_1",
        "TensorSliceDataset",
        "buffer_size",
        "seed",
        "seed2",
        "ShuffleDataset",
        "MapDataset",
        "batch_size",
        "drop_remainder",
        "BatchDatasetV2",
        "count",
        "RepeatDataset",
        "OneShotIterator",
        "IteratorToStringHandle",
        "IteratorGetNext",
    ]


def test_files(tmp_path: Path) -> None:
    for name in "ab":
        with tf.python_io.TFRecordWriter(str(tmp_path / f"{name}.rec"), "GZIP") as writer:
            for i in range(2):
                writer.write(f"{name}{i}".encode())
    (tmp_path / "text").write_bytes(b"one\r\ntwo\n\nthree")
    (tmp_path / "fixed").write_bytes(b"HEADabcdefF")
    paths = [str(tmp_path / f"{name}.rec") for name in "ab"]
    assert elements(tf.data.TFRecordDataset(paths, "GZIP")) == [b"a0", b"a1", b"b0", b"b1"]
    assert elements(tf.data.TFRecordDataset(paths, "GZIP", num_parallel_reads=2)) == [b"a0", b"b0", b"a1", b"b1"]
    assert elements(tf.data.TextLineDataset(str(tmp_path / "text"))) == [b"one", b"two", b"", b"three"]
    fixed = tf.data.FixedLengthRecordDataset(str(tmp_path / "fixed"), 2, header_bytes=4, footer_bytes=1)
    assert elements(fixed) == [b"ab", b"cd", b"ef"]
    assert elements(D.list_files(str(tmp_path / "*.rec"), shuffle=False)) == [p.encode() for p in paths]
    assert sorted(elements(D.list_files(str(tmp_path / "*.rec")))) == [p.encode() for p in paths]


def test_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,y,z\n1,2.5,"a,b"\n2,,c\n')
    dataset = X.make_csv_dataset(str(tmp_path / "*.csv"), 2, label_name="z", num_epochs=1, shuffle=False)
    assert elements(dataset) == [({"x": [1, 2], "y": [2.5, 0.0]}, [b"a,b", b"c"])]


def test_cache_in_a_file(tmp_path: Path) -> None:
    calls: list[int] = []

    def note(n: Any) -> Any:
        calls.append(int(n))
        return np.int64(n)

    def make() -> Any:
        dataset = D.range(2).map(lambda n: (tf.py_func(note, [n], tf.int64), tf.as_string(n)))
        return dataset.cache(str(tmp_path / "kept")).repeat(2)

    assert elements(make()) == elements(make()) == [(0, b"0"), (1, b"1")] * 2
    assert calls == [0, 1]


def test_sparse_components() -> None:
    dataset = D.range(3).map(lambda n: tf.SparseTensor([[n]], [n * 10], [n + 1])).batch(3)
    assert dataset.output_classes is tf.SparseTensor
    assert elements(dataset.map(tf.sparse.to_dense)) == [[[0, 0, 0], [0, 10, 0], [0, 0, 20]]]


@pytest.mark.parametrize("again", [True, False])
def test_shuffle_is_a_permutation_that_seeds_repeat(again: bool) -> None:
    def run(seed: int | None) -> list[Any]:
        return elements(D.range(20).shuffle(7, seed, reshuffle_each_iteration=again).repeat(2))

    first, second = run(3), run(3)
    assert first == second != run(4)
    assert sorted(first[:20]) == sorted(first[20:]) == list(range(20)) != first[:20]
    assert (first[:20] == first[20:]) is not again
    # An element cannot come earlier than the buffer allows.
    assert all(first.index(n) > n - 7 for n in range(20))


def test_a_graph_seed_repeats_a_shuffle() -> None:
    def run() -> list[Any]:
        with tf.Graph().as_default():
            tf.set_random_seed(5)
            return elements(D.range(20).shuffle(20))

    assert run() == run()


def test_batches_of_rows_are_the_batches_of_slices() -> None:
    def make(identity: bool) -> Any:
        dataset = D.from_tensor_slices((np.arange(40), np.arange(80).reshape(40, 2)))
        dataset = dataset.shuffle(10, seed=1).repeat(3).shard(2, 1).skip(3).take(50)
        return (dataset.map(lambda a, b: (a, b)) if identity else dataset).batch(8)

    assert elements(make(False)) == elements(make(True))
    slices = nodes.Slices((np.arange(3),))
    assert isinstance(
        fuse(nodes.Repeated(nodes.Batched(nodes.Shuffled(slices, 2, 0, 0, True), 2, False), -1)).input,
        nodes.BatchedRows,
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_of_a_parallel_map(threads: int) -> None:
    checked = tf.data.Dataset.range(700).map(
        lambda n: tf.check_numerics(1.0 / tf.cast(n - 450, tf.float32), "inf"), num_parallel_calls=threads
    )
    following = checked.batch(300).make_one_shot_iterator().get_next()
    with tf.Session() as sess:
        sizes = [len(sess.run(following))]
        with pytest.raises(tf.errors.InvalidArgumentError):
            sess.run(following)
        sizes.append(len(sess.run(following)))  # it goes on after the element that failed
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(following)
    assert sizes == [300, 249]
