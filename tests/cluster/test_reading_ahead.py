"""What makes steps over parameter servers short: variables come ahead, and each server has cores of its own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cluster.processes import LOST_LATE, Cluster
from leaks import leak_check
from stale_workers import until

import penstock.v1 as tf
from penstock.master import ahead
from penstock.master.links import Link
from penstock.wire.messages import RunGraph

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two parameter servers; the worker is this process."""
    with leak_check(), Cluster(tmp_path_factory.mktemp("ahead"), ps=2, workers=1, **LOST_LATE) as started:
        started.start("ps0", "ps1", mode="join")
        for name in ("ps0", "ps1"):
            started[name].wait_for("serves")
        yield started


class Training:
    """A model on one parameter server or two, which moves to the mean of what it is fed."""

    def __init__(self, server: Any, servers: int = 1) -> None:
        with tf.device(tf.train.replica_device_setter(servers)):
            self.count = tf.train.get_or_create_global_step()
            self.weights = [tf.get_variable(f"w{i}", initializer=np.zeros(3, np.float32)) for i in range(2)]
            self.fed = tf.placeholder(tf.float32, [None, None])
            loss = tf.add_n([tf.reduce_mean(tf.square(self.fed - w)) for w in self.weights])
            self.step = tf.train.GradientDescentOptimizer(0.3).minimize(loss, self.count)
            self.clear = [w.assign([5.0, 5.0, 5.0]) for w in self.weights]
        self.sessions = [tf.Session(server.target) for _ in range(2)]
        self.sessions[0].run(tf.global_variables_initializer())
        self.expected = np.zeros(3, np.float32)
        self.taken = 0

    def train(self, session: int = 0) -> None:
        """Runs one step, and follows it in NumPy."""
        batch = np.full((4, 3), self.taken % 5, np.float32)
        self.sessions[session].run(self.step, {self.fed: batch})
        self.expected += 0.3 * 2 / 3 * (batch[0] - self.expected)
        self.taken += 1

    def assign(self, session: int = 0) -> None:
        self.sessions[session].run(self.clear)
        self.expected = np.full(3, 5.0, np.float32)

    def check(self) -> None:
        for value in self.sessions[0].run(self.weights):
            np.testing.assert_allclose(value, self.expected, rtol=1e-5)
        assert self.sessions[0].run(self.count) == self.taken


@pytest.fixture
def training(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    monkeypatch.setattr(ahead, "SOON", 600.0)  # this machine may be busy
    with leak_check(), tf.Graph().as_default(), tf.train.Server(cluster.spec, "worker", 0) as server:
        found = Training(server)
        yield found
        for session in found.sessions:
            session.close()


def test_two_parameter_servers_do_not_end_at_once(
    cluster: Cluster, requests: list[RunGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may read while the other still waits for a step that changes what the first has read."""
    monkeypatch.setattr(ahead, "SOON", 600.0)
    with leak_check(), tf.Graph().as_default(), tf.train.Server(cluster.spec, "worker", 0) as server:
        training = Training(server, 2)
        for _ in range(6):
            training.train()
        training.check()
        for session in training.sessions:
            session.close()
    assert requests and not any(begun(requests)) and not any(request.ahead for request in requests)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[RunGraph]:
    """What this process has asked the parameter servers for."""
    found: list[RunGraph] = []
    run = Link.run

    def noted(link: Link, request: RunGraph, answer: Any) -> None:
        found.append(request)
        run(link, request, answer)

    monkeypatch.setattr(Link, "run", noted)
    return found


def begun(requests: list[RunGraph]) -> list[bool]:
    """Tells of each request if what its step begins with had come ahead."""
    return [request.begun > 0 for request in requests]


def test_steps_that_follow_each_other_are_one_round_trip(training: Training, requests: list[RunGraph]) -> None:
    for _ in range(10):
        training.train()
    # The first step follows another one, the second asks for more, and from the third on it comes ahead.
    assert begun(requests) == [False] * 2 + [True] * 8
    assert all(request.values for request in requests[2:])  # the gradients travel with the request
    training.check()


@pytest.mark.parametrize("session", [0, 1])
def test_an_assignment_between_two_steps_counts(training: Training, session: int) -> None:
    for _ in range(4):
        for _ in range(4):
            training.train()
        training.assign(session)
        training.train()
        training.check()


def test_two_sessions_take_turns(training: Training, requests: list[RunGraph]) -> None:
    for i in range(20):
        training.train(i % 2)
    assert not any(begun(requests))
    training.check()


def test_a_program_that_pauses_reads_anew(
    training: Training, requests: list[RunGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "SOON", -1.0)
    for _ in range(6):
        training.train()
    assert not any(begun(requests)) and not any(request.ahead for request in requests)
    training.check()


def test_a_step_that_fails_leaves_the_next_one_whole(training: Training) -> None:
    for _ in range(4):
        training.train()
    with pytest.raises(tf.errors.InvalidArgumentError):
        training.sessions[0].run(training.step, {training.fed: np.ones((4, 3))[:, :2]})
    for _ in range(4):
        training.train()
    training.check()


def test_a_variable_that_was_cleared_is_missed(cluster: Cluster, training: Training) -> None:
    for _ in range(4):
        training.train()
    tf.Session.reset(cluster.target("ps0"))
    with pytest.raises((tf.errors.AbortedError, tf.errors.FailedPreconditionError)):
        training.train()


def test_a_traced_step_shows_all_that_happens(training: Training, requests: list[RunGraph]) -> None:
    for _ in range(4):
        training.train()
    del requests[:]
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    training.sessions[0].run(training.step, {training.fed: np.ones((1, 3))}, options=options, run_metadata=metadata)
    assert not any(begun(requests))
    sends = [
        node for device in metadata.step_stats.dev_stats for node in device.node_stats if "Send" in node.timeline_label
    ]
    assert len(sends) >= 2  # variables to the worker, and gradients back


def test_requests_that_cannot_be(training: Training, requests: list[RunGraph]) -> None:
    """A peer that says it has what no step of the graph begins with is told so."""
    read = training.weights[0] + 0
    training.sessions[0].run(read)
    session = training.sessions[0]
    signature = next(s for s in session._master._signatures.values() if len(s.other_parts) == 1 and s.fetch_count == 1)
    answers: list[Any] = []
    part = signature.other_parts[0]
    done = threading.Event()
    part.task.start(part.graph, RunGraph(7, 0, begun=3), lambda answer: (answers.append(answer), done.set()))  # type: ignore[func-returns-value]
    assert done.wait(60)
    assert isinstance(answers[0], tf.errors.InvalidArgumentError)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not bind threads to cores")
def test_parameter_servers_of_a_host_have_different_cores(cluster: Cluster) -> None:
    every = os.sched_getaffinity(0)
    if len(every) == 1:
        pytest.skip("there is one core")
    first, second = (cluster[name].pid for name in ("ps0", "ps1"))
    # They are bound when they join, after they have said that they serve.
    until(lambda: not _cores_of_threads(first) & _cores_of_threads(second))
    assert _cores_of_threads(first) | _cores_of_threads(second) == every


def _cores_of_threads(pid: int) -> set[int]:
    """All cores that some thread of a process may use."""
    cores: set[int] = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            cores |= os.sched_getaffinity(int(thread))
    return cores


def test_a_step_that_waits_in_its_own_task_reads_anew(training: Training, requests: list[RunGraph]) -> None:
    """What it waits for may tell of a change of a variable, which the next step is to find."""
    with tf.device("/job:worker"):
        news = tf.FIFOQueue(100, tf.int32, [[]])
        fill = news.enqueue_many([np.arange(10)])
    with tf.control_dependencies([training.step]), tf.device("/job:worker"):
        both = tf.identity(news.dequeue())
    session = training.sessions[0]
    session.run(fill)
    assert [int(session.run(both, {training.fed: np.ones((1, 3))})) for _ in range(6)] == list(range(6))
    assert requests and not any(begun(requests))
