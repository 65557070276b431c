"""Workers and parameter servers join and leave while a coordinator has functions run: each counts once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster.processes import DEADLINE, LOST_LATE, Cluster
from distribute.counting import Counters, Gated, resolver_for, restart
from leaks import leak_check

import penstock as tf
from penstock.distribute.coordinator.queue import DEPTH
from penstock.eager.cluster import disconnect
from penstock.errors import FailedPreconditionError
from penstock.master.cluster import ClusterSpec
from penstock.wire.control import ControlClient

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two parameter servers and two workers, each a process. There is a place for one more worker."""
    with leak_check(), Cluster(tmp_path, ps=2, workers=3, **LOST_LATE) as found:
        found.start("ps0", "ps1", "worker0", "worker1", mode="join")
        yield found
        disconnect()


@pytest.fixture
def strategy(cluster: Cluster) -> Any:
    return tf.distribute.ParameterServerStrategy(resolver_for(spec(cluster, 2)))


@pytest.fixture
def coordinator(strategy: Any) -> Any:
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def spec(cluster: Cluster, workers: int, ps: int = 2) -> dict[str, list[str]]:
    return {"ps": cluster.spec["ps"][:ps], "worker": cluster.spec["worker"][:workers]}


def resize(cluster: Cluster, workers: int, ps: int = 2) -> Any:
    """Asks the first parameter server for other members, as a launcher does."""
    client = ControlClient(cluster.spec["ps"][0])
    try:
        return client.resize(ClusterSpec(spec(cluster, workers, ps)).as_cluster_def(), 2 * DEADLINE)
    finally:
        client.close()


def wait(coordinator: Any, ready: Any) -> None:
    with coordinator._changed:
        assert coordinator._changed.wait_for(ready, DEADLINE)


def has(coordinator: Any, workers: int) -> None:
    """Waits until a coordinator is connected to so many workers."""
    wait(coordinator, lambda: coordinator.worker_count == workers == sum(coordinator._queue.present))


@tf.function
def where() -> Any:
    return tf.distribute.coordinator.experimental_get_current_worker_index()


def uses(coordinator: Any, workers: set[int], function: Any = where, args: Any = ()) -> None:
    """Schedules functions until these workers have run some, and checks that no other one does."""
    seen: set[int] = set()
    end = time.monotonic() + DEADLINE
    while seen != workers:
        seen |= {int(result.fetch()) for result in [coordinator.schedule(function, args=args) for _ in range(20)]}
        assert seen <= workers
        assert time.monotonic() < end


def test_workers_join_before_functions_and_while_they_run(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    counters = Counters(strategy)
    cluster.start("worker2")
    assert resize(cluster, 1).version == 1  # nothing has run yet
    has(coordinator, 1)
    uses(coordinator, {0})
    coordinator.schedule(counters.add).fetch()
    rates = tf.distribute.coordinator.PerWorkerValue([0.5])
    waiting = [coordinator.schedule(counters.add) for _ in range(200)]
    assert resize(cluster, 3).pause == 0
    has(coordinator, 3)
    uses(coordinator, {0, 1, 2})

    @tf.function
    def rated(rate: Any) -> Any:
        return tf.cast(rate, tf.int64) + where()

    uses(coordinator, {0}, rated, (rates,))  # for the one that there was
    with pytest.raises(ValueError, match="There are 3 workers, received 5 values"):
        coordinator.schedule(rated, args=(tf.distribute.coordinator.PerWorkerValue([1.0] * 5),))
    assert resize(cluster, 2).version == 3
    has(coordinator, 2)
    uses(coordinator, {0, 1})
    coordinator.join()
    assert counters.values() == [1 + len(waiting)] * 2
    coordinator._threads[2].join(DEADLINE)
    assert not coordinator._threads[2].is_alive()


def occupy(coordinator: Any, gated: Gated) -> int:
    """Has both workers run a function that waits at a gate. Returns the number of functions, of which some wait."""
    for _ in range(DEPTH + 1):
        coordinator.schedule(gated.step)
    gated.arrive()
    gated.arrive()
    assert all(coordinator._queue.running)
    return DEPTH + 1


def leave_while_both_run(cluster: Cluster, strategy: Any, coordinator: Any) -> tuple[Gated, int]:
    """Has one of two workers leave in the middle of a function. Returns the gate, and the number of functions."""
    gated = Gated(strategy)
    has(coordinator, 2)
    count = occupy(coordinator, gated)
    resize(cluster, 1)
    wait(coordinator, lambda: coordinator.worker_count == 1)
    return gated, count


@pytest.mark.long
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_worker_that_leaves_ends_what_it_runs_or_others_do(
    cluster: Cluster, strategy: Any, coordinator: Any, is_killed: bool
) -> None:
    gated, count = leave_while_both_run(cluster, strategy, coordinator)
    if is_killed:
        cluster.kill("worker1")
        wait(coordinator, lambda: not coordinator._queue.running[1])
    for _ in range(count + is_killed):  # a parameter server may not have noticed yet that it is lost
        gated.open()
    coordinator.join()
    assert gated.values() == [count, count]
    coordinator._threads[1].join(DEADLINE)
    assert not coordinator._threads[1].is_alive()
    if is_killed:
        cluster.start("worker1")
    resize(cluster, 2)
    uses(coordinator, {0, 1})


@pytest.mark.long
def test_one_joins_in_the_place_of_one_that_still_runs_something(
    cluster: Cluster, strategy: Any, coordinator: Any
) -> None:
    gated, count = leave_while_both_run(cluster, strategy, coordinator)
    resize(cluster, 2)
    gated.arrive()  # it begins anew what it has not ended
    for _ in range(count + 1):
        gated.open()
    coordinator.join()
    uses(coordinator, {0, 1})
    assert gated.values() == [count, count]


@pytest.mark.long
def test_a_worker_that_is_killed_when_it_joins(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    counters = Counters(strategy)
    coordinator.schedule(counters.add).fetch()
    cluster.start("worker2")
    cluster["worker2"].wait_for("is listening")
    resize(cluster, 3)
    cluster.kill("worker2")
    for _ in range(100):
        coordinator.schedule(counters.add)
    coordinator.join()
    cluster.start("worker2")
    has(coordinator, 3)
    uses(coordinator, {0, 1, 2})
    assert counters.values() == [101, 101]


@pytest.mark.long
def test_a_parameter_server_is_restored_after_workers_have_joined(cluster: Cluster, tmp_path: Path) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver_for(spec(cluster, 2)), ps_recovery=tmp_path / "state")
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    counters = Counters(strategy)
    coordinator.schedule(counters.add).fetch()
    cluster.start("worker2")
    resize(cluster, 3)
    has(coordinator, 3)
    for _ in range(100):
        coordinator.schedule(counters.add)
    restart(cluster, "ps1")
    coordinator.join()
    uses(coordinator, {0, 1, 2})
    resize(cluster, 1)
    coordinator.schedule(counters.add)
    coordinator.join()
    assert counters.values() == [102, 102]


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_server_leaves_when_functions_have_ended(
    cluster: Cluster, strategy: Any, coordinator: Any, is_killed: bool
) -> None:
    """A function that is half done is ended first, by another worker if its own is killed. Others wait."""
    gated = Gated(strategy)
    has(coordinator, 2)
    count = occupy(coordinator, gated)
    with ThreadPoolExecutor(1) as pool:
        resizing = pool.submit(resize, cluster, 2, ps=1)
        wait(coordinator, lambda: coordinator._queue.is_held)
        later = [coordinator.schedule(gated.step) for _ in range(3)]
        if is_killed:
            cluster.kill("worker1")
            wait(coordinator, lambda: not coordinator._queue.running[1])
        for _ in range(count + is_killed):  # a parameter server may not have noticed yet that it is lost
            gated.open()
        resized = resizing.result(DEADLINE)
    assert (resized.version, resized.resources) == (1, 1)
    for _ in later:
        gated.open()
    coordinator.join()
    assert gated.values() == [count + 3] * 2
    assert gated.behind.device.startswith("/job:ps/replica:0/task:1")  # for the program it is where it was


@pytest.mark.long
@pytest.mark.usefixtures("silent_tasks_are_lost")
def test_a_frozen_worker_comes_back_after_servers_have_changed(
    cluster: Cluster, strategy: Any, coordinator: Any
) -> None:
    """What it does late is refused, since others have run its functions before the change."""
    gated = Gated(strategy)
    has(coordinator, 2)
    count = occupy(coordinator, gated)
    cluster["worker1"].signal(signal.SIGSTOP)
    wait(coordinator, lambda: not coordinator._queue.running[1])
    for _ in range(count + 1):
        gated.open()
    coordinator.join()
    resize(cluster, 2, ps=1)
    cluster["worker1"].signal(signal.SIGCONT)
    has(coordinator, 2)
    gated.open()
    gated.open()
    uses(coordinator, {0, 1})
    coordinator.schedule(gated.step)
    coordinator.join()
    assert gated.values() == [count + 1] * 2


@pytest.mark.long
def test_servers_stay_if_functions_do_not_end(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    gated = Gated(strategy)
    has(coordinator, 2)
    count = occupy(coordinator, gated)
    with pytest.raises(FailedPreconditionError, match=r"Functions were still running .* of /job:chief.*Nothing has"):
        resize(cluster, 2, ps=1)
    for _ in range(count):
        gated.open()
    coordinator.join()
    assert gated.values() == [count] * 2
