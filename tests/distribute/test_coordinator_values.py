"""Values that differ from worker to worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from distribute.golden import Clusters, clusters

import penstock as tf


@pytest.fixture(scope="module")
def coordinator() -> Iterator[Any]:
    with clusters() as known:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(Clusters.spec(known, 2, 1))
        yield tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))


def test_a_function_sees_the_value_of_its_worker(coordinator: Any) -> None:
    values = tf.distribute.coordinator.PerWorkerValue([10, 11])

    @tf.function
    def where(value: Any) -> Any:
        return value, tf.distribute.coordinator.experimental_get_current_worker_index()

    results = [coordinator.schedule(where, args=(values,)).fetch() for _ in range(20)]
    assert all(value == 10 + worker for value, worker in results)


def test_the_number_of_values_is_that_of_the_workers(coordinator: Any) -> None:
    with pytest.raises(ValueError, match="2 workers, received 3"):
        coordinator.schedule(tf.function(lambda x: x), args=(tf.distribute.coordinator.PerWorkerValue([1, 2, 3]),))


def test_values_of_workers_are_of_one_type() -> None:
    with pytest.raises(ValueError, match="one type and shape"):
        tf.distribute.coordinator.PerWorkerValue([1, 2.0])


def test_outside_of_a_function_there_is_no_worker() -> None:
    with pytest.raises(RuntimeError, match="schedule"):
        tf.distribute.coordinator.experimental_get_current_worker_index()
