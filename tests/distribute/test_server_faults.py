"""A coordinator whose parameter servers are killed or frozen, or that is killed itself: each closure counts once."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.processes import DEADLINE, Cluster, Process
from distribute import counting
from distribute.counting import Counters, Gated, resolver_for, restart

import penstock as tf
from penstock.checkpoint.bundle import BundleWriter
from penstock.distribute.recovery import KeptState
from penstock.eager.cluster import disconnect

pytestmark = pytest.mark.timeout(240)
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError)


def coordinator_of(cluster: Cluster, **settings: Any) -> Any:
    strategy = tf.distribute.ParameterServerStrategy(resolver_for(cluster.spec), **settings)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


# Without recovery


@pytest.mark.usefixtures("silent_tasks_are_lost")
@pytest.mark.parametrize("fault", ["kill", pytest.param("freeze", marks=pytest.mark.long)])
def test_a_lost_parameter_server_is_an_error_of_join_and_schedule(cluster: Cluster, fault: str) -> None:
    coordinator = coordinator_of(cluster)
    counters = Counters(coordinator.strategy)
    coordinator.schedule(counters.add)
    coordinator.join()
    getattr(cluster, fault)("ps1")
    with pytest.raises(LOST, match="ps"):
        coordinator.schedule(counters.add)  # raises if a worker was still taking the function
        coordinator.join()
    end = time.monotonic() + DEADLINE
    with pytest.raises(LOST, match="ps"):  # of `schedule`, which tells of a function that has failed before
        while time.monotonic() < end:
            coordinator.schedule(counters.add)
            with coordinator._changed:
                coordinator._changed.wait_for(lambda: coordinator._error is not None, DEADLINE)


# With recovery


def test_recovery_of_a_parameter_server_without_restarting_the_coordinator(cluster: Cluster, tmp_path: Path) -> None:
    coordinator = coordinator_of(cluster, ps_recovery=tmp_path / "state")
    counters = Counters(coordinator.strategy)
    for _ in range(30):
        coordinator.schedule(counters.add)
    coordinator.join()
    restart(cluster, "ps1")
    results = [coordinator.schedule(counters.add) for _ in range(30)]
    results[10].fetch()
    restart(cluster, "ps0")
    coordinator.join()
    assert counters.values() == [60, 60]


@pytest.mark.long
@pytest.mark.parametrize("victims", [("ps0", "ps1"), pytest.param(("ps1", "worker0"), marks=pytest.mark.long)])
def test_two_tasks_killed_at_once(cluster: Cluster, tmp_path: Path, victims: tuple[str, str]) -> None:
    coordinator = coordinator_of(cluster, ps_recovery=tmp_path / "state")
    counters = Counters(coordinator.strategy)
    results = [coordinator.schedule(counters.add) for _ in range(40)]
    results[20].fetch()
    for name in victims:
        cluster.kill(name)
    cluster.start(*victims)
    coordinator.join()
    assert counters.values() == [40, 40]


def test_a_parameter_server_killed_in_a_function(cluster: Cluster, tmp_path: Path) -> None:
    coordinator = coordinator_of(cluster, ps_recovery=tmp_path / "state")
    gated = Gated(coordinator.strategy)
    coordinator.schedule(gated.step)
    gated.arrive()
    restart(cluster, "ps1")  # the gate is on the other one
    for _ in range(3):  # the run that is lost may have passed it
        gated.open()
    coordinator.join()
    assert gated.values() == [1, 1]


def test_no_checkpoint_has_half_of_a_function(cluster: Cluster, tmp_path: Path) -> None:
    """What lost workers had is run to its end before variables are saved: it would run again after a recovery."""
    coordinator = coordinator_of(cluster, ps_recovery=tmp_path / "state")
    gated = Gated(coordinator.strategy)
    coordinator.schedule(gated.step)
    gated.arrive()  # the first of its two writes is made
    cluster.kill("worker0")
    cluster.kill("worker1")
    with coordinator._changed:
        assert coordinator._changed.wait_for(lambda: not coordinator._queue.runs, DEADLINE)
    coordinator._kept._saved_at = None  # it is time for the next one
    coordinator._save_if_due()
    cluster.start("worker0", "worker1")
    restart(cluster, "ps1")
    for _ in range(3):  # the run that is lost may have passed it
        gated.open()
    coordinator.join()
    assert gated.values() == [1, 1]


@pytest.mark.long
def test_a_variable_that_is_read_after_its_server_was_restarted(cluster: Cluster, tmp_path: Path) -> None:
    """It has its value again: the functions that have run since the checkpoint have run once more."""
    coordinator = coordinator_of(cluster, ps_recovery=tmp_path / "state")
    counters = Counters(coordinator.strategy)
    for _ in range(30):
        coordinator.schedule(counters.add)
    coordinator.join()
    restart(cluster, "ps1")
    assert int(counters.second.numpy()) == 30
    assert counters.values() == [30, 30]


@pytest.mark.long
@pytest.mark.usefixtures("silent_tasks_are_lost")
def test_a_frozen_parameter_server_that_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    coordinator = coordinator_of(cluster, ps_recovery=tmp_path / "state")
    counters = Counters(coordinator.strategy)
    results = [coordinator.schedule(counters.add) for _ in range(40)]
    results[20].fetch()
    cluster.freeze("ps1")
    with coordinator._changed:
        assert coordinator._changed.wait_for(lambda: coordinator._recovering, DEADLINE)
    cluster.thaw("ps1")
    coordinator.join()
    assert counters.values() == [40, 40]


@pytest.mark.parametrize(
    "written", [pytest.param(0, marks=pytest.mark.long), 1, pytest.param(2, marks=pytest.mark.long)]
)
def test_a_parameter_server_killed_during_a_checkpoint(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Kills it before the first variable is written, between two of them, and before the file is complete."""
    coordinator = coordinator_of(cluster, ps_recovery=tmp_path / "state")
    counters = Counters(coordinator.strategy)
    for _ in range(20):
        coordinator.schedule(counters.add)
    coordinator.join()  # a checkpoint was written
    kills = [True]
    write, close = BundleWriter.add, BundleWriter.__exit__

    def kill(count: int) -> None:
        if kills and count == written:
            kills.clear()
            restart(cluster, "ps1")

    def add(writer: Any, name: str, value: Any) -> None:
        write(writer, name, value)
        counts.append(name)
        kill(len(counts))

    def exit_(writer: Any, *args: Any) -> Any:
        kill(2)
        return close(writer, *args)

    save = KeptState.save

    def saving(kept: Any) -> None:
        counts.clear()
        kill(0)
        save(kept)

    counts: list[str] = []
    monkeypatch.setattr(KeptState, "save", saving)
    monkeypatch.setattr(BundleWriter, "add", add)
    monkeypatch.setattr(BundleWriter, "__exit__", exit_)
    coordinator._kept._saved_at = None  # it is time for the next one
    for _ in range(20):
        coordinator.schedule(counters.add)
    coordinator.join()
    assert not kills
    assert counters.values() == [40, 40]


@pytest.mark.long
def test_a_parameter_server_killed_again_during_its_recovery(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = coordinator_of(cluster, ps_recovery=tmp_path / "state")
    counters = Counters(coordinator.strategy)
    for _ in range(20):
        coordinator.schedule(counters.add)
    coordinator.join()
    restore, kills = KeptState.restore, [True]

    def restoring(kept: Any) -> None:
        if kills:
            kills.clear()
            restart(cluster, "ps1")
        restore(kept)

    monkeypatch.setattr(KeptState, "restore", restoring)
    restart(cluster, "ps1")
    for _ in range(20):
        coordinator.schedule(counters.add)
    coordinator.join()
    assert not kills
    assert counters.values() == [40, 40]


@pytest.mark.long
def test_a_recovery_that_fails_ends_the_functions_that_ran(cluster: Cluster, tmp_path: Path) -> None:
    coordinator = coordinator_of(cluster, ps_recovery=tmp_path / "state")
    gated = Gated(coordinator.strategy)
    results = [coordinator.schedule(gated.step) for _ in range(12)]
    gated.arrive()
    for file in (tmp_path / "state").iterdir():
        file.write_bytes(b"no index")
    restart(cluster, "ps0")
    with pytest.raises(tf.errors.DataLossError, match=r"state.index' is damaged"):
        coordinator.join()
    for result in results:
        with pytest.raises(tf.errors.CancelledError, match=r"state.index' is damaged"):
            result.fetch()


@pytest.mark.parametrize("seed", range(int(os.environ.get("COORDINATOR_CHAOS", "1"))))
def test_any_mix_of_server_and_worker_kills(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    coordinator = coordinator_of(cluster, ps_recovery=tf.distribute.experimental.PSRecovery(tmp_path / "state", 0.5))
    counters = Counters(coordinator.strategy)
    scheduled = 0
    for _ in range(3):
        results = [coordinator.schedule(counters.add) for _ in range(100)]
        scheduled += len(results)
        results[chance.randrange(60)].fetch()
        for name in chance.sample(["ps0", "ps1", "worker0", "worker1"], chance.choice([1, 2])):
            restart(cluster, name)
    coordinator.join()
    assert counters.values() == [scheduled, scheduled]


@pytest.mark.long
@pytest.mark.parametrize("damage", [pytest.param("another model", marks=pytest.mark.long), "damaged files"])
def test_a_directory_that_is_not_of_this_job(cluster: Cluster, tmp_path: Path, damage: str) -> None:
    def model(size: int) -> Any:
        strategy = tf.distribute.ParameterServerStrategy(resolver_for(cluster.spec), ps_recovery=tmp_path / "state")
        with strategy.scope():
            strategy.made = tf.Variable(np.zeros(size, "f"), name="w")
        return strategy

    model(3).kept_state.save()
    disconnect()
    if damage == "another model":
        with pytest.raises(ValueError, match=r"'w#1' has shape \(3,\) in .* another model. Use another directory"):
            model(4)
    else:
        restart(cluster, "ps0")
        for file in (tmp_path / "state").iterdir():
            file.write_bytes(b"no index")
        with pytest.raises(tf.errors.DataLossError, match=r"state.index' is damaged"):
            model(3)


# The coordinator


def test_a_restarted_coordinator_finds_the_variables(cluster: Cluster, tmp_path: Path) -> None:
    def trained(count: int) -> list[int]:
        coordinator = coordinator_of(cluster, ps_recovery=tmp_path / "state")
        counters = Counters(coordinator.strategy)
        for _ in range(count):
            coordinator.schedule(counters.add)
        coordinator.join()
        return counters.values()

    assert trained(10) == [10, 10]
    disconnect()
    assert trained(5) == [15, 15]


def test_a_coordinator_that_is_killed_and_started_again(cluster: Cluster, tmp_path: Path) -> None:
    """No update that it was told of is lost, and the count ends where it should."""

    def start(total: int) -> Process:
        command = [sys.executable, counting.__file__, f"--folder={tmp_path}", f"--total={total}"]
        command.append(f"--cluster={tf.train.ClusterSpec(cluster.spec).as_dict()}".replace("'", '"'))
        process = Process("coordinator", command, tmp_path / "coordinator.log", **cluster.settings)
        cluster._all.append(process)
        return process

    first = start(10**9)  # it has more to do than it can before it is killed
    first.wait_for("acknowledged", 30)
    first.signal(9)
    acknowledged = max(int(match[1]) for match in first.find(r"acknowledged (\d+)"))
    assert acknowledged >= 30
    total = acknowledged + 100
    second = start(total)
    assert acknowledged <= int(second.wait_for(r"begins at (\d+)")[1]) < total
    assert second.wait_for(r"ends at (\d+)")[1] == str(total)
    assert second.end() == 0
