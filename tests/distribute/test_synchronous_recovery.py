"""Synchronous training goes on when parameter servers are killed: each update has the gradients of one whole round."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from cluster.processes import DEADLINE, Cluster
from distribute.counting import resolver_for, restart

import penstock as tf
from penstock.distribute.recovery import KeptState
from penstock.distribute.synchronous import GradientExchange, synchronized

pytestmark = pytest.mark.timeout(240)


class Training:
    """A variable on each of two parameter servers. Each update takes 1 from both, and so tells if it was made once."""

    def __init__(self, cluster: Cluster, folder: Path, every_secs: float = 60.0) -> None:
        recovery = tf.distribute.experimental.PSRecovery(folder / "state", every_secs)
        self.strategy = tf.distribute.ParameterServerStrategy(
            resolver_for(cluster.spec), synchronous=True, ps_recovery=recovery
        )
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        with self.coordinator._changed:  # until both workers are there, rounds are smaller
            assert self.coordinator._changed.wait_for(lambda: all(self.coordinator._queue.present), DEADLINE)
        with self.strategy.scope():
            self.first, self.second = tf.Variable(0.0), tf.Variable(0.0)

        def update(means: list[Any]) -> None:
            self.first.assign_sub(means[0])
            self.second.assign_sub(means[1])

        @tf.function
        def step() -> Any:
            ones = [tf.constant(1.0), tf.constant(1.0)]
            synchronized(self.strategy, "step", ones, [self.first, self.second], update)
            return self.first.read_value()

        self._step = step

    def schedule(self, count: int) -> list[Any]:
        return [self.coordinator.schedule(self._step) for _ in range(count)]

    @property
    def exchange(self) -> GradientExchange:
        (found,) = self.strategy.extended.exchanges.values()
        return found

    def updates(self) -> int:
        """The number of updates, which both variables have had."""
        updates = self.exchange.updates
        assert [float(self.first.numpy()), float(self.second.numpy())] == [-updates, -updates]
        return updates


@pytest.mark.parametrize("lost", ["ps0", pytest.param("ps1", marks=pytest.mark.long)])
def test_a_server_killed_between_functions_and_while_they_run(cluster: Cluster, tmp_path: Path, lost: str) -> None:
    training = Training(cluster, tmp_path)
    training.schedule(40)
    training.coordinator.join()
    restart(cluster, lost)
    results = training.schedule(40)
    results[10].fetch()
    restart(cluster, lost)
    training.coordinator.join()
    assert training.updates() == 40


def test_a_variable_is_read_after_the_last_round_was_repeated(cluster: Cluster, tmp_path: Path) -> None:
    """The last of three rounds has one gradient, since no more functions were scheduled."""
    training = Training(cluster, tmp_path)
    training.schedule(5)
    training.coordinator.join()
    restart(cluster, "ps0")
    assert float(training.first.numpy()) == -3.0
    assert training.updates() == 3


@pytest.mark.parametrize("lost", ["ps0", pytest.param("ps1", marks=pytest.mark.long)])
def test_a_server_killed_before_the_gradients_of_a_round_are_applied(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    training = Training(cluster, tmp_path)
    apply, rounds = GradientExchange.apply, []

    def applied(exchange: GradientExchange, count: int) -> None:
        rounds.append(count)
        if len(rounds) == 3:
            restart(cluster, lost)
        apply(exchange, count)

    monkeypatch.setattr(GradientExchange, "apply", applied)
    training.schedule(10)
    training.coordinator.join()
    assert training.updates() == 5
    assert rounds == [2] * 8  # the third was in vain, and the first two were made again


def test_a_checkpoint_comes_between_rounds(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that wait for others of their round are in no checkpoint, and the functions that made them had run."""
    training = Training(cluster, tmp_path, every_secs=0.1)
    save, waiting = KeptState.save, []

    def saving(kept: KeptState) -> None:
        if training.strategy.extended.exchanges:
            added = [accumulator.num_accumulated() for accumulator in training.exchange._accumulators]
            waiting.append([int(count.numpy()) for count in added])
        save(kept)

    monkeypatch.setattr(KeptState, "save", saving)
    scheduled = 0
    while len(waiting) < 4:  # more than the first one, which is written before there are gradients
        results = training.schedule(100)
        scheduled += 100
        results[50].fetch()
    restart(cluster, "ps1")
    training.coordinator.join()
    assert training.updates() == scheduled / 2
    assert all(counts == [0, 0] for counts in waiting)


def test_variables_that_are_made_later_are_in_a_checkpoint_before_functions_use_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    training = Training(cluster, tmp_path)
    training.schedule(4)
    training.coordinator.join()
    with training.strategy.scope():
        later = tf.Variable(7)

    @tf.function
    def add() -> None:
        later.assign_add(1)

    for _ in range(3):
        training.coordinator.schedule(add)
    training.coordinator.join()
    restart(cluster, "ps0")
    assert int(later.numpy()) == 10
    assert training.updates() == 2


@pytest.mark.parametrize("seed", range(int(os.environ.get("COORDINATOR_CHAOS", "1"))))
def test_any_mix_of_kills_in_synchronous_training(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    """Rounds are smaller while a worker is away."""
    chance = random.Random(seed)
    training = Training(cluster, tmp_path, every_secs=0.5)
    scheduled = 0
    for _ in range(3):
        results = training.schedule(100)
        scheduled += len(results)
        results[chance.randrange(60)].fetch()
        for name in chance.sample(["ps0", "ps1", "worker0", "worker1"], chance.choice([1, 2])):
            restart(cluster, name)
    training.coordinator.join()
    assert scheduled / 2 <= training.updates() <= scheduled
