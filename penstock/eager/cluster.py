"""Connects eager execution to a cluster: operations and functions may then use the devices of all its tasks."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any

from penstock.eager.runtime import runtime
from penstock.master.cluster import ClusterSpec
from penstock.master.master import Master
from penstock.master.tasks import Task
from penstock.server import Server, task_at

_connected: list[tuple[Server, ClusterSpec]] = []  # the server of this process, by which it reaches the others
_closers: list[Callable[[], None]] = []


def connect(cluster: Any, job: str = "chief", task: int = 0) -> Server:
    """Makes this process a task of a cluster, and runs operations by a master over all tasks from now on.

    If the cluster has no such task, it is added, at a free port of this machine.

    >>> connect({"ps": ["localhost:2222"], "worker": ["localhost:2223"]})
    >>> with tf.device("/job:ps/task:0"):
    ...     v = tf.Variable(1.0)
    """
    given = ClusterSpec(cluster)
    spec: dict[str, dict[int, str]] = {
        name: {number: given.task_address(name, number) for number in given.task_indices(name)} for name in given.jobs
    }
    spec.setdefault(job, {}).setdefault(task, "localhost:0")
    disconnect()
    server = Server(spec, job_name=job, task_index=task)
    server.worker.keeps_results = True
    spec[job][task] = server.address  # the others may not know of this task, or not its port
    whole = ClusterSpec(spec)
    _connected.append((server, whole))
    runtime.move(Master(server.tasks([], whole), soft_placement=True))
    return server


def _members() -> ClusterSpec:
    """The tasks that the cluster has now, this one included."""
    server, told = _connected[-1]
    return server.mover.membership.cluster_of(told, keep=server.server_def.job_name)  # known here only, maybe


def member_count(job: str) -> int:
    """The number of tasks that a job of the cluster has now."""
    return _members().num_tasks(job)


def membership_version() -> int:
    """The version of the membership of which this process has heard."""
    return _connected[-1][0].mover.membership.version


def when_members_change(act: Callable[[], None]) -> None:
    """Has `act` called, from any thread, when tasks have joined or left the cluster. It must not wait."""
    _connected[-1][0].on_members_changed = act


def before_leaving(close: Callable[[], None]) -> None:
    """Has `close` called before this process leaves the cluster."""
    _closers.append(close)


def disconnect() -> None:
    """Leaves the cluster: operations run in this process again."""
    while _closers:
        _closers.pop()()
    if _connected:
        runtime.move(None)
    while _connected:
        _connected.pop()[0].stop()


atexit.register(disconnect)


def reconnect() -> None:
    """Connects to all tasks anew, after one of them was restarted; waits for those that are not up."""
    server, _ = _connected[-1]
    master = Master(server.tasks([], _members()), soft_placement=True)
    master.tasks.all()
    runtime.move(master)


def was_restarted(job: str) -> bool:
    """Asks all tasks of a job that were used so far for a sign of life. Another process in a task's place has none."""
    tasks = runtime.master.tasks.connected()
    return any(task.name.startswith(f"/job:{job}/") and not task.answers() for task in tasks)


def process_number() -> int:
    """The number by which the tasks of the cluster know this process; a process that connects anew has another."""
    return _connected[-1][0].incarnation


def connected_task(job: str, number: int, closed: threading.Event) -> Task:
    """Another task of the cluster, connected to anew: after it was restarted it is another one.

    Setting `closed` ends the waiting for a task that is not up.
    """
    server, whole = _connected[-1][0], _members()
    return task_at(whole, job, number, server.links, whole, None, closed)
