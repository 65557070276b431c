"""Synchronous parameter-server training, which TensorFlow's ParameterServerStrategy lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from distribute.golden import Clusters, clusters
from hypothesis import given
from hypothesis import strategies as st

import penstock as tf
from penstock.distribute.coordinator.rounds import Rounds
from penstock.distribute.synchronous import synchronized


def test_a_round_is_over_when_enough_workers_have_ended() -> None:
    rounds = Rounds(workers=3, backup=1)
    for worker in range(3):
        assert rounds.may_take(worker)
        rounds.took(worker, 10 + worker)
        assert not rounds.may_take(worker)
    rounds.ended(10)
    assert rounds.gradients(present={0, 1, 2}, more_come=True) == 0
    rounds.ended(12)
    assert rounds.gradients(present={0, 1, 2}, more_come=True) == 2
    rounds.next()
    rounds.ended(11)  # it was late: its gradient is dropped, and it does not count in this round
    assert rounds.gradients(present={0, 1, 2}, more_come=False) == 0


def test_the_last_round_may_be_smaller() -> None:
    rounds = Rounds(workers=3, backup=0)
    rounds.took(0, 1)
    assert rounds.gradients(present={0, 1, 2}, more_come=False) == 0
    rounds.ended(1)
    assert rounds.gradients(present={0, 1, 2}, more_come=True) == 0
    assert rounds.gradients(present={0, 1, 2}, more_come=False) == 1


def test_a_lost_worker_is_not_waited_for() -> None:
    rounds = Rounds(workers=2, backup=0)
    rounds.took(0, 1)
    rounds.took(1, 2)
    rounds.ended(1)
    rounds.lost(1)
    assert rounds.gradients(present={0}, more_come=True) == 1


def test_what_a_lost_worker_has_ended_counts_and_the_others_are_waited_for() -> None:
    rounds = Rounds(workers=3, backup=0)
    for worker in range(3):
        rounds.took(worker, worker)
    rounds.ended(0)
    rounds.ended(1)
    rounds.lost(1)
    assert rounds.gradients(present={0, 2}, more_come=True) == 0
    rounds.ended(2)
    assert rounds.gradients(present={0, 2}, more_come=True) == 3


def test_a_worker_that_joins_is_in_the_round() -> None:
    rounds = Rounds(workers=1, backup=0)
    rounds.took(0, 1)
    rounds.resize(2)
    rounds.ended(1)
    assert rounds.gradients(present={0}, more_come=True) == 1  # it is not connected yet
    assert rounds.gradients(present={0, 1}, more_come=True) == 0
    rounds.took(1, 2)
    rounds.ended(2)
    assert rounds.gradients(present={0, 1}, more_come=True) == 2


def test_the_gradients_of_workers_that_leave_count() -> None:
    rounds = Rounds(workers=3, backup=0)
    for worker in range(3):
        rounds.took(worker, worker)
    rounds.resize(1)
    rounds.ended(0)
    assert rounds.gradients(present={0}, more_come=True) == 0
    rounds.lost(1)  # it was ended before it was done
    rounds.ended(2)
    assert rounds.gradients(present={0}, more_come=True) == 2
    rounds.next()
    rounds.took(0, 4)
    rounds.ended(4)
    assert rounds.gradients(present={0}, more_come=True) == 1


@given(st.lists(st.tuples(st.sampled_from(["take", "end", "lose", "resize"]), st.integers(0, 3)), max_size=80))
def test_no_gradient_counts_in_two_rounds(events: list[tuple[str, int]]) -> None:
    rounds, number, running, counted, ended = Rounds(4, 1), 0, {}, 0, 0
    for event, worker in events:
        if event == "take" and worker not in running and rounds.may_take(worker):
            number += 1
            running[worker] = number
            rounds.took(worker, number)
        elif event == "end" and worker in running:
            rounds.ended(running.pop(worker))
            ended += 1
        elif event == "lose" and worker in running:
            rounds.lost(worker)
            running.pop(worker)
        elif event == "resize":
            rounds.resize(worker + 1)
        count = rounds.gradients(present=range(4), more_come=True)
        if count:
            counted += count
            rounds.next()
    assert counted <= ended


@pytest.fixture(scope="module")
def known() -> Iterator[Clusters]:
    with clusters() as found:
        yield found


def _trained(known: Clusters, closures: int, **settings: Any) -> tuple[list[float], int]:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(known.spec(2, 2))
    strategy = tf.distribute.ParameterServerStrategy(resolver, synchronous=True, **settings)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        w, table = tf.Variable([0.0, 0.0]), tf.Variable(tf.zeros([3, 1]))

    def update(means: list[Any]) -> None:
        w.assign_sub(means[0])
        table.assign_sub(means[1])

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * x) + tf.reduce_sum(tf.gather(table, [0, 2]))
        synchronized(strategy, "step", tape.gradient(loss, [w, table]), [w, table], update)

    for i in range(closures):
        coordinator.schedule(step, args=(tf.constant([1.0, float(i)]),))
    coordinator.join()
    (exchange,) = strategy.extended.exchanges.values()
    return [*w.numpy().tolist(), *table.numpy().ravel().tolist()], exchange.updates


def test_synchronous_training_is_not_supported(known: Clusters) -> None:
    """The gradients of two workers make one update, with their mean."""
    values, updates = _trained(known, closures=6)
    assert updates == 3
    assert values == [-3.0, -(0.5 + 2.5 + 4.5), -3.0, 0.0, -3.0]


def test_an_odd_number_of_closures_ends(known: Clusters) -> None:
    values, updates = _trained(known, closures=5)
    assert updates == 3
    assert values[0] == -3.0


def test_with_a_backup_worker_a_round_has_one_gradient_less(known: Clusters) -> None:
    values, updates = _trained(known, closures=8, backup_workers=1)
    assert 4 <= updates <= 8  # one gradient each, or both if both are there when the update begins
    assert values[0] == -float(updates)
