"""Loops and conditionals over tasks in separate processes: their results, and the loss of a task."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cluster.gates import gate
from cluster.processes import DEADLINE, KEEPALIVE, LOST, Cluster, when_back
from leaks import leak_check

import penstock.v1 as tf

PS0, PS1, WORKER = "/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"
TASKS = ("ps0", "ps1", "worker0")
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two parameter servers and a worker that do nothing by themselves."""
    with leak_check(), Cluster(tmp_path_factory.mktemp("tasks"), ps=2, workers=1, **LOST) as cluster:
        cluster.start(*TASKS, mode="join")
        for name in TASKS:
            cluster[name].wait_for("serves")
        yield cluster


@pytest.fixture
def cluster(tasks: Cluster) -> Iterator[Cluster]:
    with tf.Graph().as_default():
        yield tasks
    tasks.show()


def variable(name: str, value: Any, device: str) -> Any:
    with tf.device(device):
        return tf.get_variable(name, initializer=value)


class Background:
    """Runs a step in a separate thread; `error` waits until it fails."""

    def __init__(self, session: Any, fetches: Any, feeds: Any) -> None:
        self._error: BaseException | None = None

        def run() -> None:
            try:
                session.run(fetches, feeds)
            except tf.errors.OpError as error:
                self._error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def error(self) -> BaseException | None:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        return self._error


def test_moving_averages_loops_and_branches(cluster: Cluster) -> None:
    setter = tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(cluster.spec), worker_device=WORKER)
    go = tf.placeholder(tf.bool, [])
    with tf.device(setter):
        weights = [tf.get_variable(f"w{i}", initializer=np.full(20000, i + 1.0, np.float32)) for i in range(2)]
        averages = tf.train.ExponentialMovingAverage(0.5)
        update = averages.apply(weights)
        either = tf.cond(
            go, lambda: weights[0].read_value()[:3] * 2.0, lambda: tf.assign_add(weights[1], weights[0])[:3]
        )
        _, total = tf.while_loop(
            lambda i, _: i < 20,
            lambda i, t: (i + 1, t + tf.assign_add(weights[0], weights[1].read_value())[0]),
            [0, 0.0],
        )
    assert {w.device for w in weights} == {PS0, PS1}
    with tf.Session(cluster.target("worker0")) as session:
        session.run(tf.global_variables_initializer())
        session.run(update)
        assert [session.run(averages.average(w))[-1] for w in weights] == [1.0, 2.0]
        assert session.run(either, {go: True}).tolist() == [2.0] * 3
        assert session.run(either, {go: False}).tolist() == [3.0] * 3
        assert session.run(total) == 20 * 1.0 + 3.0 * 210
        assert [session.run(w)[0] for w in weights] == [61.0, 3.0]


@pytest.mark.parametrize("victim", ["ps1", pytest.param("worker0", marks=pytest.mark.long)])
def test_a_task_is_lost_in_a_body(cluster: Cluster, victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEEPALIVE_SECS", str(KEEPALIVE))
    counter, seen = variable("counter", 0, PS0), variable("seen", 0, PS1)
    limit = tf.placeholder(tf.int32, [])

    def body(i: Any, total: Any) -> Any:
        # The third iteration waits at a gate of the first parameter server.
        with tf.device(PS0):
            wait = tf.cond(tf.equal(i, 2), lambda: tf.group(gate("loop")), tf.no_op)
        with tf.control_dependencies([wait]):
            return i + 1, total + tf.assign_add(counter, 1) + tf.assign_add(seen, 1)

    with tf.device(WORKER):
        loop = tf.while_loop(lambda i, _: i < limit, body, [0, 0])

    def lost(fault: str) -> BaseException | None:
        step = Background(session, loop, {limit: 5})
        cluster.at_gate("loop")
        getattr(cluster, fault)(victim)
        return step.error()

    # A session on the first parameter server, so that the lost task is another one.
    with tf.Session(cluster.target("ps0")) as session:
        session.run(tf.global_variables_initializer())
        assert session.run(loop, {limit: 2}) == [2, 6]
        assert isinstance(lost("freeze"), tf.errors.UnavailableError)
        cluster.thaw(victim)
        # The connection was lost, the task was not.
        assert when_back(lambda: session.run(loop, {limit: 2}))[0] == 2
        assert isinstance(lost("kill"), tf.errors.UnavailableError)
        cluster.start(victim)
        cluster[victim].wait_for("serves")
        with pytest.raises((tf.errors.AbortedError, tf.errors.UnavailableError)):
            session.run(loop, {limit: 2})
    with tf.Session(cluster.target("ps0")) as another:
        another.run(tf.global_variables_initializer())
        assert another.run(loop, {limit: 2}) == [2, 6]


def test_a_deadline_passes_in_a_loop(cluster: Cluster) -> None:
    counter = variable("counter", 0, PS1)
    with tf.device(WORKER):
        forever = tf.while_loop(lambda i: i >= 0, lambda i: i + 0 * tf.assign_add(counter, 1), [0])
    with tf.Session(cluster.target("worker0")) as session:
        session.run(counter.initializer)
        reached, seconds = 0, 1
        while not reached and seconds < DEADLINE:  # it may take long until the loop begins
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(forever, options=tf.RunOptions(timeout_in_ms=1000 * seconds))
            reached, seconds = session.run(counter), 4 * seconds
        assert 0 < reached == session.run(counter)
