"""Datasets with visit_once=True: which elements functions get, and which datasets are refused."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distribute.golden import Clusters, clusters, namespace

import penstock as tf
from penstock.distribute.coordinator.queue import DEPTH

RECORDS = 300


@pytest.fixture(scope="module")
def known() -> Iterator[Clusters]:
    with clusters() as found:
        yield found


@pytest.fixture
def coordinator(known: Clusters, tmp_path: Path) -> Any:
    return namespace({}, known, tmp_path)["coordinator"]


class Ledger:
    """Counts how often each record was visited, by functions that take several elements."""

    def __init__(self, coordinator: Any, elements: int = 1) -> None:
        with coordinator.strategy.scope():
            self.visits = tf.Variable(tf.zeros([RECORDS], tf.int32))

        @tf.function
        def visit(iterator: Any) -> None:
            for _ in range(elements):
                batch = next(iterator)
                self.visits.scatter_add(tf.IndexedSlices(tf.ones_like(batch, tf.int32), batch))

        self.visit = visit

    def counts(self) -> set[int]:
        """The numbers of visits that occur."""
        return set(self.visits.numpy().tolist())


def batches() -> Any:
    """All records twice, in batches: workers must find out how many there are."""
    halves = tf.data.Dataset.range(2 * RECORDS).filter(lambda x: x % 2 == 0)
    return halves.map(lambda x: x // 2).shuffle(70).repeat(2).batch(5)


@pytest.mark.parametrize("elements", [1, 2, 3])
@pytest.mark.parametrize("is_function", [False, True])
def test_functions_past_the_end_fail_after_all_elements_were_visited(
    coordinator: Any, elements: int, is_function: bool
) -> None:
    ledger = Ledger(coordinator, elements)
    dataset = coordinator.create_per_worker_dataset(batches if is_function else batches(), visit_once=True)
    iterator = iter(dataset)
    with pytest.raises(tf.errors.OutOfRangeError):
        for _ in range(2 * RECORDS // 5 // elements + 50):
            coordinator.schedule(ledger.visit, args=(iterator,))
        coordinator.join()
    assert ledger.counts() == {2}


def test_an_error_of_a_function_takes_no_elements_from_others(coordinator: Any) -> None:
    ledger = Ledger(coordinator)
    iterator = iter(coordinator.create_per_worker_dataset(batches, visit_once=True))

    @tf.function
    def fail(x: Any) -> None:
        tf.debugging.assert_greater(x, 1)

    with pytest.raises(tf.errors.InvalidArgumentError):
        for i in range(40):
            coordinator.schedule(ledger.visit, args=(iterator,))
            if i == 10:
                coordinator.schedule(fail, args=(tf.constant(0),))
        coordinator.join()
    with pytest.raises(tf.errors.OutOfRangeError):
        for _ in range(2 * RECORDS):
            coordinator.schedule(ledger.visit, args=(iterator,))
        coordinator.join()
    assert ledger.counts() == {2}


def test_an_error_of_a_function_leaves_workers_their_iterators(coordinator: Any) -> None:
    calls, may_go_on = itertools.count(), threading.Event()

    def first_at_once(x: np.ndarray) -> np.ndarray:
        assert next(calls) == 0 or may_go_on.wait(60)
        return x

    def slow() -> Any:
        return tf.data.Dataset.range(tf.numpy_function(first_at_once, [tf.constant(50, tf.int64)], tf.int64))

    @tf.function
    def fail(x: Any) -> None:
        tf.debugging.assert_greater(x, 1)

    @tf.function
    def take(iterator: Any) -> Any:
        return next(iterator)

    iterator = iter(coordinator.create_per_worker_dataset(slow, visit_once=True))
    with pytest.raises(tf.errors.InvalidArgumentError), ThreadPoolExecutor(2 * DEPTH) as pool:
        # More than one worker takes at once, so that the one that has made its iterator runs some of them. Once one has
        # failed, scheduling raises.
        for _ in range(2 * DEPTH):
            failing = coordinator.schedule(fail, args=(tf.constant(0),))
            pool.submit(failing.fetch).add_done_callback(lambda _: may_go_on.set())
        coordinator.join()
    taken = [coordinator.schedule(take, args=(iterator,)) for _ in range(50)]
    coordinator.join()
    assert sorted(int(value.fetch()) for value in taken) == list(range(50))


def test_a_function_that_calls_another_twice_visits_two_elements(coordinator: Any) -> None:
    ledger = Ledger(coordinator)
    iterator = iter(
        coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(RECORDS).batch(5), visit_once=True)
    )

    @tf.function
    def twice(iterator: Any) -> None:
        ledger.visit(iterator)
        ledger.visit(iterator)

    for _ in range(RECORDS // 10):
        coordinator.schedule(twice, args=(iterator,))
    coordinator.join()
    assert ledger.counts() == {1}


def test_an_element_that_cannot_be_made_is_no_element_of_another_number(coordinator: Any) -> None:
    def checked(x: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_none_equal(x, tf.constant(3, tf.int64))]):
            return tf.identity(x)

    iterator = iter(
        coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(6).map(checked), visit_once=True)
    )

    @tf.function
    def take(iterator: Any) -> Any:
        return next(iterator)

    seen = []
    for _ in range(6):
        try:
            seen.append(int(coordinator.schedule(take, args=(iterator,)).fetch()))
        except tf.errors.InvalidArgumentError:
            with pytest.raises(tf.errors.InvalidArgumentError):
                coordinator.join()
    assert sorted(seen) == [0, 1, 2, 4, 5]


@pytest.mark.parametrize(
    "step",
    [
        lambda it: tf.cond(tf.constant(True), lambda: next(it), lambda: tf.constant(0, tf.int64)),
        lambda it: tf.while_loop(lambda s: s < 5, lambda s: [s + next(it)], [tf.constant(0, tf.int64)]),
        lambda it: it.get_next_as_optional().has_value(),
    ],
    ids=["branch", "loop", "optional"],
)
def test_a_function_must_visit_the_same_number_of_elements_each_time(coordinator: Any, step: Any) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(9), visit_once=True))
    with pytest.raises(NotImplementedError, match=r"next\(\)"):
        coordinator.schedule(tf.function(step), args=(iterator,))


@pytest.mark.parametrize(
    ("dataset_fn", "reason"),
    [
        (lambda: tf.data.Dataset.range(4).interleave(lambda x: tf.data.Dataset.range(x)), "cycle_length"),
        (lambda: tf.data.Dataset.range(4).filter(lambda x: tf.random.uniform([]) > 0.5), "random numbers"),
        (lambda: tf.data.Dataset.range(4).flat_map(lambda x: tf.data.Dataset.range(9).shuffle(3)), "without a seed"),
    ],
)
def test_a_dataset_without_one_order_is_refused(coordinator: Any, dataset_fn: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        coordinator.create_per_worker_dataset(dataset_fn, visit_once=True)


@pytest.mark.parametrize(
    "dataset_fn",
    [
        lambda: tf.data.Dataset.range(4).flat_map(lambda x: tf.data.Dataset.range(9).shuffle(3, seed=1)),
        lambda: tf.data.Dataset.range(4).shuffle(2).map(lambda x: tf.random.uniform([])),
    ],
)
def test_a_dataset_with_one_order_is_taken(coordinator: Any, dataset_fn: Any) -> None:
    coordinator.create_per_worker_dataset(dataset_fn, visit_once=True)


def test_shards_for_sessions_refer_eager_programs_to_visit_once() -> None:
    with pytest.raises(RuntimeError, match="visit_once"):
        tf.compat.v1.data.Shards(RECORDS, 10)
