"""Bounded staleness in separate processes: a worker that is killed holds the others back until it is back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.gates import turns
from cluster.processes import Cluster
from leaks import leak_check

import penstock.v1 as tf

PROGRAM = Path(__file__).with_name("stale_worker.py")
DEADLINE = 60.0
pytestmark = pytest.mark.timeout(180)


def _grant(cluster: Cluster, worker: int, turn: bool = True) -> None:
    cluster.probe(lambda: turns(worker).enqueue(turn))


def _until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)


def _state(cluster: Cluster) -> tuple[list[int], list[bool], list[list[int]]]:
    """The clocks, who has arrived, and the record of how many clocks workers were ahead."""

    def build() -> tuple[tf.Tensor, ...]:
        clock = tf.raw_ops.StalenessClock(num_workers=2, staleness=0, shared_name="in_step/clock")
        state = tf.raw_ops.StalenessClockState(handle=clock)
        return state.clocks, state.arrived, tf.raw_ops.StalenessRecord(handle=clock).clocks

    return tuple(np.asarray(value).tolist() for value in cluster.probe(build))


def _train(cluster: Cluster, target: str, task: int, over: threading.Event, done: list[int]) -> None:
    """A worker in a thread of this process: the chief with a MonitoredSession, the other with a Supervisor."""
    setter = tf.train.replica_device_setter(cluster=cluster.spec, worker_device=f"/job:worker/task:{task}")
    with tf.Graph().as_default(), tf.device(setter):
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", initializer=[0.0, 0.0])
        base = tf.train.GradientDescentOptimizer(1.0)
        rule = tf.contrib.opt.BoundedStalenessOptimizer(base, 0, 2, task, DEADLINE, name="in_step")
        train = rule.apply_gradients([(tf.constant([-1.0, -1.0]), w)], global_step=step)
        session: Any
        if task == 0:
            with tf.train.MonitoredTrainingSession(target, hooks=[rule.make_session_run_hook()]) as session:
                while not over.is_set():
                    session.run(train)
                    done.append(task)
            return
        supervisor = tf.train.Supervisor(is_chief=False, global_step=step, recovery_wait_secs=0.1)
        with supervisor.managed_session(target) as session:
            while not over.is_set():
                session.run(train)


@contextlib.contextmanager
def _threads(cluster: Cluster, servers: list[Any], done: list[int]) -> Iterator[None]:
    """Workers in this process, until the end of the context."""
    over = threading.Event()
    threads = [
        threading.Thread(target=_train, args=(cluster, server.target, task, over, done), daemon=True)
        for task, server in enumerate(servers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive(), "a worker still waits"


def _serve(stack: contextlib.ExitStack, cluster: Cluster, *tasks: tuple[str, int]) -> list[Any]:
    servers = []
    for job, task in tasks:
        servers.append(tf.train.Server(cluster.spec, job_name=job, task_index=task))
        stack.callback(servers[-1].stop)
    return servers


def test_a_worker_is_killed_and_comes_back(tmp_path: Path) -> None:
    done: list[int] = []
    with leak_check(), Cluster(tmp_path, program=PROGRAM) as cluster, contextlib.ExitStack() as stack:
        _, chief = _serve(stack, cluster, ("ps", 0), ("worker", 0))
        cluster.start("worker1")
        with _threads(cluster, [chief], done):
            for _ in range(2):
                _grant(cluster, 1)
            cluster["worker1"].wait_for("^step 2$")
            _until(lambda: _state(cluster)[:2] == ([2, 2], [True, False]))  # the chief waits for the other's gradient
            cluster.kill("worker1")
            cluster.start("worker1")
            cluster["worker1"].wait_for("^joined$")
            assert len(done) == 2 and _state(cluster)[:2] == ([2, 2], [True, False])
            _grant(cluster, 1)
            cluster["worker1"].wait_for("^step 1$")
            _until(lambda: _state(cluster) == ([3, 3], [True, False], [[0, 6]]))
            assert len(done) == 3
            _grant(cluster, 1, False)
            assert cluster["worker1"].end() == 0
            _until(lambda: len(done) > 5)  # nobody waits for one that has left


@pytest.mark.long
def test_workers_join_the_clock_of_a_parameter_server_that_comes_back(tmp_path: Path) -> None:
    with leak_check(), Cluster(tmp_path, program=PROGRAM) as cluster, contextlib.ExitStack() as stack:
        cluster.start("ps0")
        servers = _serve(stack, cluster, ("worker", 0), ("worker", 1))
        with _threads(cluster, servers, []):
            for life in range(2):
                cluster["ps0"].wait_for("^serves$")
                _until(lambda: min(_state(cluster)[0]) > 5)
                if life == 0:
                    cluster.kill("ps0")
                    cluster.start("ps0")
            clocks, _, record = _state(cluster)
            assert max(clocks) - min(clocks) <= 1 and [ahead for ahead, _ in record] == [0]
