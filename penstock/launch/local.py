"""The engine of this machine: each task is a process, at a loopback address."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from penstock.launch.accelerators import described, shared_out
from penstock.launch.cluster import Cluster, LaunchError, Size, Task
from penstock.launch.engine import Commands, Engine, Request
from penstock.launch.events import Events
from penstock.launch.processes import Processes


class LocalEngine:
    """Runs tasks as processes of this machine."""

    def __init__(self, cluster: Cluster, commands: Commands, processes: Processes, needs: str = "") -> None:
        self.cluster = cluster
        self._commands = commands
        self._processes = processes
        self._accelerators = shared_out(cluster.tasks)
        shared = f"the tasks share this machine: {needs} has no effect" if needs else ""
        self.notices = [text for text in (described(self._accelerators), shared) if text]

    def start(self, task: Task, attempt: int) -> None:
        """Starts the process of a task."""
        run = self._commands.of(task, self.cluster)
        entry = [sys.executable, "-m", "penstock.launch.task", str(os.getpid())]
        # The launcher's own environment includes credentials.
        environment = {**run.environment(os.environ), **self._accelerators.get(task, {})}
        self._processes.start(task, lambda pipe: [*entry, str(pipe), run.script, *run.args], environment)

    def terminate(self, task: Task) -> None:
        """Sends SIGTERM to a task and its children."""
        self._processes.signal(task, signal.SIGTERM)
        # A stopped process would not handle SIGTERM.
        self._processes.signal(task, signal.SIGCONT)

    def kill(self, task: Task) -> None:
        """Sends SIGKILL to a task and its children."""
        self._processes.signal(task, signal.SIGKILL)


@contextmanager
def place(request: Request, events: Events) -> Iterator[Engine]:
    """Runs tasks on this machine inside the `with`; afterwards none of their processes is left."""
    with reserve(request.size, request.base_port) as cluster:
        processes = Processes(events, events.post)
        try:
            yield LocalEngine(cluster, request.commands, processes, request.needs.given)
        finally:
            processes.close()


@contextmanager
def reserve(size: Size, first: int | None = None) -> Iterator[Cluster]:
    """A cluster on free loopback ports, or on those from `first` on, reserved inside the `with`.

    >>> with reserve(Size(ps=0, workers=1)) as cluster:
    ...     cluster.tasks
    [Task(job='worker', index=0)]
    """
    tasks = size.addressed
    if first is not None and not 1 <= first <= 65536 - len(tasks):
        raise LaunchError(
            f"--base-port must leave room for {len(tasks)} ports between 1 and 65535, received {first}. "
            f"Leave it out to have free ports picked."
        )
    with ExitStack() as stack:
        ports = [_bound(stack, task, 0 if first is None else first + place) for place, task in enumerate(tasks)]
        if sys.platform != "linux":
            stack.close()
        # On Linux the bound sockets stay open: they do not listen, and let a server bind that sets SO_REUSEADDR, as
        # gRPC's do. No other program gets such a port, even while its task waits for a restart.
        yield Cluster.at(size, [f"127.0.0.1:{port}" for port in ports])


def _bound(stack: ExitStack, task: Task, port: int) -> int:
    try:
        listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        remedy = (
            "Give another --base-port, or leave it out to have free ports picked." if port else "Ask for fewer tasks."
        )
        raise LaunchError(f"port {port or '(any)'} for {task} cannot be had: {error.strerror}. {remedy}") from error
    found: int = listener.getsockname()[1]
    return found
