"""Lookup tables are on the workers: in TensorFlow they are on the coordinator, and each lookup asks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distribute.golden import Clusters, clusters, namespace

import penstock as tf
from penstock.distribute.coordinator.closures import Closure, SentFunction
from penstock.eager import cluster
from penstock.ops.lookup.mutable import MutableHashTable


@pytest.fixture(scope="module")
def known() -> Iterator[Clusters]:
    with clusters() as found:
        yield found


@pytest.fixture
def coordinator(known: Clusters, tmp_path: Path) -> Any:
    return namespace({}, known, tmp_path)["coordinator"]


def table(values: list[int]) -> Any:
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant(values, tf.int64))
    return tf.lookup.StaticHashTable(initializer, default_value=-1)


def tasks(function: SentFunction) -> set[str]:
    """The jobs that nodes of a function name; the worker itself has no name there."""
    return {node.device.partition("/replica")[0] for node in function.subgraph.nodes}


def sent(coordinator: Any, function: Any, *args: Any) -> SentFunction:
    """The form in which workers have got a function."""
    found: SentFunction = function.traced(args, {})[0].derived[coordinator]
    return found


def test_a_lookup_in_a_function_asks_no_other_task(coordinator: Any) -> None:
    names = table([1, 2])

    @tf.function
    def look_up(keys: Any) -> Any:
        return names.lookup(keys)

    results = [coordinator.schedule(look_up, args=(tf.constant(["b", "x", "a"]),)) for _ in range(20)]
    assert [r.fetch().tolist() for r in results] == [[2, -1, 1]] * 20
    assert tasks(sent(coordinator, look_up, tf.constant(["b", "x", "a"]))) == {""}
    chief = cluster._connected[-1][0].worker
    chief.watched, before = True, chief.counters.steps
    coordinator.schedule(look_up, args=(tf.constant(["a", "a", "a"]),))
    coordinator.join()
    assert chief.counters.steps == before


def test_a_lookup_in_a_dataset_asks_no_other_task(coordinator: Any) -> None:
    names = table([3, 4])

    def dataset_fn() -> Any:
        return tf.data.Dataset.from_tensor_slices(["b", "a"]).map(names.lookup).repeat()

    @tf.function
    def step(iterator: Any) -> Any:
        return next(iterator), next(iterator)

    made = [dataset_fn, dataset_fn()]  # with eager execution the dataset is made here, and again by each worker
    for dataset in made:
        per_worker = coordinator.create_per_worker_dataset(dataset)
        iterator = iter(per_worker)
        results = [coordinator.schedule(step, args=(iterator,)) for _ in range(10)]
        assert [[int(x) for x in r.fetch()] for r in results] == [[4, 3]] * 10
        making: Closure = per_worker._making(0, iterator._name)
        assert tasks(making.function) == {""}


def test_a_table_of_a_text_file_goes_by_its_contents(coordinator: Any, tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("one\ntwo\n")
    index = tf.lookup.TextFileIndex
    initializer = tf.lookup.TextFileInitializer(str(path), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    words = tf.lookup.StaticHashTable(initializer, -1)
    path.unlink()  # the file need not be on the workers

    @tf.function
    def look_up(keys: Any) -> Any:
        return words.lookup(keys)

    assert coordinator.schedule(look_up, args=(tf.constant(["two", "one"]),)).fetch().tolist() == [1, 0]


def test_tables_that_change_stay_where_they_are(coordinator: Any) -> None:
    with tf.device("/job:ps/task:1"):
        counts = MutableHashTable(tf.string, tf.int64, 0)
        fixed = table([5, 6])

    @tf.function
    def look_up(keys: Any) -> Any:
        counts.insert(keys, fixed.lookup(keys))
        return counts.lookup(keys)

    assert coordinator.schedule(look_up, args=(tf.constant(["a", "b"]),)).fetch().tolist() == [5, 6]
    assert counts.lookup(tf.constant(["b"])).numpy().tolist() == [6]
    assert tasks(sent(coordinator, look_up, tf.constant(["a", "b"]))) == {"", "/job:ps"}
