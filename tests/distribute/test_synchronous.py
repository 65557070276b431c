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
        assert rounds.may_take(worker, 10 + worker)
        rounds.took(worker, 10 + worker)
        assert not rounds.may_take(worker, 20)
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


def test_another_worker_runs_the_closure_of_a_lost_one_in_the_same_round() -> None:
    rounds = Rounds(workers=2, backup=0)
    rounds.took(0, 1)
    rounds.took(1, 2)
    rounds.ended(1)
    assert not rounds.may_take(0, 3)
    assert rounds.may_take(0, 2)
    rounds.took(0, 2)
    assert rounds.gradients(present={0}, more_come=True) == 0
    rounds.ended(2)
    assert rounds.gradients(present={0}, more_come=True) == 2


def test_a_closure_that_runs_in_a_later_round_counts_in_none() -> None:
    rounds = Rounds(workers=2, backup=1)
    rounds.took(0, 1)
    rounds.took(1, 2)
    rounds.ended(1)
    assert rounds.gradients(present={0}, more_come=True) == 1
    rounds.next()
    rounds.took(0, 3)
    assert rounds.may_take(0, 2)
    rounds.took(0, 2)
    rounds.ended(2)
    assert rounds.gradients(present={0}, more_come=True) == 0
    rounds.ended(3)
    assert rounds.gradients(present={0}, more_come=True) == 1


def test_a_closure_that_fails_is_not_waited_for_and_another_one_takes_its_place() -> None:
    rounds = Rounds(workers=2, backup=0)
    rounds.took(0, 1)
    rounds.took(1, 2)
    rounds.ended(1)
    rounds.failed(2)
    assert rounds.gradients(present={0, 1}, more_come=False) == 1
    assert rounds.may_take(1, 3)
    rounds.took(1, 3)
    rounds.ended(3)
    assert rounds.gradients(present={0, 1}, more_come=True) == 2


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
    rounds.ended(1)
    rounds.ended(2)
    assert rounds.gradients(present={0}, more_come=True) == 3
    rounds.next()
    rounds.took(0, 4)
    rounds.ended(4)
    assert rounds.gradients(present={0}, more_come=True) == 1


def test_a_round_that_begins_again_knows_no_closure() -> None:
    rounds = Rounds(workers=2, backup=1)
    assert rounds.is_new
    for closure in (1, 2):
        rounds.took(closure - 1, closure)
    assert not rounds.is_new
    rounds.ended(1)
    rounds.next()  # the second one is late
    rounds.took(0, 3)
    rounds.restart()
    assert rounds.is_new and not rounds.may_be_over
    assert not any(rounds.has(closure) for closure in (1, 2, 3))
    for closure in (2, 3):  # other closures have got these numbers
        assert rounds.may_take(closure - 2, closure)
        rounds.took(closure - 2, closure)
        rounds.ended(closure)
    assert rounds.gradients(present={0, 1}, more_come=True) == 2


@given(st.lists(st.tuples(st.sampled_from(["take", "end", "lose", "fail", "resize"]), st.integers(0, 3)), max_size=80))
def test_the_gradients_that_count_were_added_in_their_round(events: list[tuple[str, int]]) -> None:
    """Gradients are added when a closure is first taken, which is the soonest: those of it count there or nowhere."""
    rounds, number, running, waiting = Rounds(4, 1), 0, {}, []
    added: set[int] = set()  # in this round
    for event, worker in events:
        if event == "take" and worker not in running:
            closure = waiting[0] if waiting else number + 1
            if rounds.may_take(worker, closure):
                if waiting:
                    waiting.pop(0)
                else:
                    number = closure
                    added.add(closure)
                rounds.took(worker, closure)
                running[worker] = closure
        elif event in ("end", "fail") and worker in running:
            (rounds.ended if event == "end" else rounds.failed)(running.pop(worker))
        elif event == "lose" and worker in running:
            waiting = sorted([*waiting, running.pop(worker)])
        elif event == "resize":
            rounds.resize(worker + 1)
        count = rounds.gradients(present=range(4), more_come=True)
        assert count <= len(added)
        if count:
            added.clear()
            rounds.next()
    for closure in (*waiting, *running.values()):
        rounds.ended(closure)
    assert rounds.gradients(present=(), more_come=False) <= len(added)


@pytest.fixture(scope="module")
def known() -> Iterator[Clusters]:
    with clusters() as found:
        yield found


def _coordinator(known: Clusters, **settings: Any) -> tuple[Any, Any]:
    """A strategy with its coordinator, once both workers are there: until then rounds are smaller."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(known.spec(2, 2))
    strategy = tf.distribute.ParameterServerStrategy(resolver, synchronous=True, **settings)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with coordinator._changed:
        assert coordinator._changed.wait_for(lambda: all(coordinator._queue.present), 60.0)
    return strategy, coordinator


def _trained(known: Clusters, closures: int, **settings: Any) -> tuple[list[float], int]:
    strategy, coordinator = _coordinator(known, **settings)
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


@pytest.mark.parametrize("bad", [[0.0, -1.0], [2.0, -1.0], [2.0, 3.0]])
def test_training_goes_on_after_functions_of_a_round_have_failed(known: Clusters, bad: list[float]) -> None:
    strategy, coordinator = _coordinator(known)
    with strategy.scope():
        w, refused = tf.Variable(0.0), tf.Variable([-1.0, -1.0])

    @tf.function
    def step(x: Any) -> None:
        with tf.control_dependencies([tf.debugging.assert_none_equal(refused, x)]):
            synchronized(strategy, "step", [tf.identity(1.0)], [w], lambda means: w.assign_sub(means[0]))

    def epoch() -> None:
        for x in range(4):
            coordinator.schedule(step, args=(tf.constant(float(x)),))
        coordinator.join()

    refused.assign(bad)
    with pytest.raises(tf.errors.InvalidArgumentError):
        epoch()
    refused.assign([-1.0, -1.0])
    epoch()
    (exchange,) = strategy.extended.exchanges.values()
    assert exchange.updates >= 2
    assert float(w.numpy()) == -float(exchange.updates)


def test_a_function_that_another_one_has_called_first_makes_updates(known: Clusters) -> None:
    strategy, coordinator = _coordinator(known)
    with strategy.scope():
        w = tf.Variable(0.0)

    @tf.function
    def step() -> None:
        synchronized(strategy, "step", [tf.constant(1.0)], [w], lambda means: w.assign_sub(means[0]))

    @tf.function
    def twice() -> None:
        step()
        step()

    for scheduled in (twice, step):
        coordinator.schedule(scheduled)
        coordinator.schedule(scheduled)
        coordinator.join()
    (exchange,) = strategy.extended.exchanges.values()
    assert (exchange.updates, float(w.numpy())) == (2, -2.0)
