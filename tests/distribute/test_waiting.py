"""Long waits say what they wait for; a coordinator that has failed, or is closed, lets nobody wait."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.processes import DEADLINE, Cluster
from leaks import leak_check

import penstock as tf
from penstock.distribute.coordinator import waiting
from penstock.distribute.coordinator.closures import Closure, RemoteValue
from penstock.distribute.coordinator.queue import ClosureQueue
from penstock.distribute.coordinator.rounds import Rounds
from penstock.distribute.synchronous import GradientExchange
from penstock.eager.cluster import disconnect

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with leak_check(), Cluster(tmp_path_factory.mktemp("cluster"), ps=1, workers=1) as found:
        found.start("ps0", "worker0", mode="join")
        yield found


@pytest.fixture
def resolver(cluster: Cluster) -> Iterator[Any]:
    with leak_check():
        yield tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster.spec))
        disconnect()


@pytest.fixture
def coordinator(resolver: Any) -> Any:
    return tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))


@tf.function
def one() -> Any:
    return tf.constant(1)


class Lines(logging.Handler):
    """The lines that penstock logs."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self._lines.append(f"{record.levelname} {record.getMessage()}")
            self._changed.notify_all()

    def wait_for(self, pattern: str) -> None:
        with self._changed:
            found = self._changed.wait_for(lambda: any(re.search(pattern, line) for line in self._lines), DEADLINE)
            assert found, self._lines


@pytest.fixture
def lines() -> Iterator[Lines]:
    found = Lines()
    logger = logging.getLogger("penstock")
    logger.addHandler(found)
    yield found
    logger.removeHandler(found)


class Named:
    """A function of which only the name is asked for."""

    name = "step"
    exchanges = ()


def test_the_state_of_a_queue_in_words() -> None:
    queue = ClosureQueue(3, Rounds(3, 0))
    queue.back(1)
    queue.back(2)
    for _ in range(3):
        queue.add(Closure(Named(), [], RemoteValue()))  # type: ignore[arg-type]
    taken = queue.take(1)
    assert taken is not None
    taken.sent_at = 25.0
    assert waiting.state_of(queue, now=100.0) == (
        "3 functions are left; worker 0 is not connected; worker 1 has had 'step' for 75 s; worker 2 has nothing to run"
    )


@pytest.mark.parametrize("how", ["join", "RemoteValue.get"])
def test_a_long_wait_says_what_it_waits_for(
    coordinator: Any, how: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SAY_SECS", 0.05)
    with tf.device("/job:ps/task:0"):
        gate = tf.queue.FIFOQueue(10, tf.int32)

    @tf.function
    def slow() -> Any:
        return gate.dequeue()

    result = coordinator.schedule(slow)
    waiter = threading.Thread(target=coordinator.join if how == "join" else result.get)
    waiter.start()
    lines.wait_for(rf"WARNING {how} waits: 1 function is left; worker 0 has had 'slow' for \d+ s\.")
    gate.enqueue(7)
    waiter.join(DEADLINE)
    assert not waiter.is_alive()
    assert result.fetch() == 7


def raising(*args: Any, **kwargs: Any) -> Any:
    raise KeyError("a defect")


@pytest.mark.parametrize("place", ["_connect", "_has_work"])
def test_a_defect_in_a_thread_reaches_the_program(resolver: Any, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    kind = tf.distribute.coordinator.ClusterCoordinator
    monkeypatch.setattr(kind, place, raising)
    coordinator = kind(strategy)
    for _ in range(2):
        with pytest.raises(tf.errors.InternalError, match=r"coordinator has failed in .*KeyError: 'a defect'"):
            coordinator.schedule(one)
            coordinator.join()


def test_a_defect_in_the_thread_that_reads_answers(coordinator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(coordinator), "_answered", raising)
    result = coordinator.schedule(one)
    with pytest.raises(tf.errors.InternalError, match="a defect"):
        result.fetch()
    with pytest.raises(tf.errors.InternalError, match="a defect"):
        coordinator.join()
    with pytest.raises(tf.errors.InternalError, match="a defect"):
        coordinator.schedule(one)


def test_a_defect_while_gradients_are_applied(resolver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver, synchronous=True)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variable = tf.Variable(0.0)
    exchange = GradientExchange(strategy, [variable], lambda means: variable.assign_sub(means[0]))

    @tf.function
    def step() -> None:
        exchange.add([tf.constant(1.0)])

    monkeypatch.setattr(Rounds, "next", raising)
    coordinator.schedule(step)
    with pytest.raises(tf.errors.InternalError, match="a defect"):
        coordinator.join()


@pytest.mark.long
def test_a_defect_of_the_recovery(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with leak_check(), Cluster(tmp_path, ps=1, workers=1) as own:
        own.start("ps0", "worker0", mode="join")
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(own.spec))
        strategy = tf.distribute.ParameterServerStrategy(resolver, ps_recovery=tmp_path / "state")
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            variable = tf.Variable(0)

        @tf.function
        def add() -> Any:
            return variable.assign_add(1).read_value()

        coordinator.schedule(add)
        coordinator.join()
        monkeypatch.setattr(ClosureQueue, "repeat", raising)
        own.kill("ps0")
        own.start("ps0")
        coordinator.schedule(add)
        with pytest.raises(tf.errors.InternalError, match="a defect"):
            coordinator.join()
        disconnect()


def test_a_closed_coordinator_lets_nobody_wait(coordinator: Any) -> None:
    with tf.device("/job:ps/task:0"):
        gate = tf.queue.FIFOQueue(10, tf.int32)

    @tf.function
    def slow() -> Any:
        return gate.dequeue()

    results = [coordinator.schedule(slow) for _ in range(8)]
    disconnect()
    for result in results:
        with pytest.raises(tf.errors.CancelledError, match="left the cluster"):
            result.fetch()
    with pytest.raises(tf.errors.CancelledError, match="left the cluster"):
        coordinator.join()
    with pytest.raises(tf.errors.CancelledError, match="left the cluster"):
        coordinator.schedule(one)
