"""Each record is visited once per epoch, though workers die: in TensorFlow a coordinator gives no such guarantee."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.processes import Cluster
from distribute.counting import resolver_for, restart

import penstock as tf

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def strategy(cluster: Cluster) -> Any:
    return tf.distribute.ParameterServerStrategy(resolver_for(cluster.spec))


@pytest.fixture
def coordinator(strategy: Any) -> Any:
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


class Ledger:
    """Counts on a parameter server how often each record was visited."""

    def __init__(self, strategy: Any, records: int, elements_per_closure: int = 1) -> None:
        with strategy.scope():
            self.visits = tf.Variable(tf.zeros([records], tf.int32))

        @tf.function
        def visit(iterator: Any) -> Any:
            seen = []
            for _ in range(elements_per_closure):
                batch = next(iterator)
                self.visits.scatter_add(tf.IndexedSlices(tf.ones_like(batch, tf.int32), batch))
                seen.append(batch)
            return seen

        self.visit = visit

    def counts(self) -> list[int]:
        """The numbers of visits that occur."""
        return sorted(set(self.visits.numpy().tolist()))


def shuffled_batches(records: int) -> Any:
    return tf.data.Dataset.range(records).shuffle(50).map(lambda x: x * 1).batch(5)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_each_record_is_visited_once_per_epoch_though_workers_die(
    cluster: Cluster, strategy: Any, coordinator: Any, seed: int
) -> None:
    chance, records = random.Random(seed), 1000
    ledger = Ledger(strategy, records)
    dataset = coordinator.create_per_worker_dataset(lambda: shuffled_batches(records), visit_once=True)
    for epoch in (1, 2):
        iterator = iter(dataset)
        results = [coordinator.schedule(ledger.visit, args=(iterator,)) for _ in range(records // 5)]
        for name in chance.choice((["worker0"], ["worker1"], ["worker0", "worker1"])):
            results[chance.randrange(100)].fetch()  # some have run, some run, some wait
            restart(cluster, name)
        coordinator.join()
        assert ledger.counts() == [epoch]


def test_epochs_of_repeat_are_shuffled_alike_on_all_workers(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    records = 300
    ledger = Ledger(strategy, records)
    dataset = tf.data.Dataset.range(records).shuffle(records).repeat(2).batch(5)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: dataset, visit_once=True))
    results = [coordinator.schedule(ledger.visit, args=(iterator,)) for _ in range(2 * records // 5)]
    results[30].fetch()
    restart(cluster, "worker0")
    coordinator.join()
    assert ledger.counts() == [2]
    seen = np.concatenate([np.concatenate(r.fetch()) for r in results])
    assert sorted(seen.tolist()) == sorted([*range(records), *range(records)])


def test_several_elements_of_a_closure_stay_with_it(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    records = 600
    ledger = Ledger(strategy, records, elements_per_closure=3)
    dataset = coordinator.create_per_worker_dataset(lambda: shuffled_batches(records), visit_once=True)
    iterator = iter(dataset)
    results = [coordinator.schedule(ledger.visit, args=(iterator,)) for _ in range(records // 15)]
    results[10].fetch()
    restart(cluster, "worker1")
    coordinator.join()
    assert ledger.counts() == [1]


@pytest.mark.parametrize("each", [1, pytest.param(2, marks=pytest.mark.long)])
def test_more_closures_than_elements_end_when_all_were_visited(
    cluster: Cluster, strategy: Any, coordinator: Any, each: int
) -> None:
    records = 200
    ledger = Ledger(strategy, records, each)
    dataset = coordinator.create_per_worker_dataset(
        lambda: tf.data.Dataset.range(2 * records).filter(lambda x: x % 2 == 0).map(lambda x: x // 2).batch(5),
        visit_once=True,
    )
    iterator = iter(dataset)
    results = [coordinator.schedule(ledger.visit, args=(iterator,)) for _ in range(records // 5 // each)]
    results[3].fetch()
    cluster.kill("worker0")
    with pytest.raises(tf.errors.OutOfRangeError):
        coordinator.join()
        for _ in range(100):
            coordinator.schedule(ledger.visit, args=(iterator,))
        coordinator.join()
    assert ledger.counts() == [1]
    cluster.start("worker0")
    again = iter(dataset)
    for _ in range(records // 5 // each):
        coordinator.schedule(ledger.visit, args=(again,))
    coordinator.join()
    assert ledger.counts() == [2]


@pytest.mark.long
def test_a_dataset_object_and_a_function_that_calls_another(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    ledger = Ledger(strategy, 100)
    iterator = iter(coordinator.create_per_worker_dataset(shuffled_batches(100), visit_once=True))

    @tf.function
    def twice(iterator: Any) -> None:
        ledger.visit(iterator)
        ledger.visit(iterator)

    for _ in range(10):
        coordinator.schedule(twice, args=(iterator,))
    coordinator.join()
    assert ledger.counts() == [1]


def test_closures_that_run_again_for_a_lost_parameter_server_visit_the_same_elements(
    cluster: Cluster, tmp_path: Path
) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver_for(cluster.spec), ps_recovery=tmp_path / "state")
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    ledger = Ledger(strategy, 200)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: shuffled_batches(200), visit_once=True))
    results = [coordinator.schedule(ledger.visit, args=(iterator,)) for _ in range(40)]
    results[10].fetch()
    restart(cluster, "ps0")
    coordinator.join()
    assert ledger.counts() == [1]
