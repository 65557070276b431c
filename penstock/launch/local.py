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
from penstock.launch.engine import MEMBERSHIP, Commands, Engine, Request
from penstock.launch.events import Events
from penstock.launch.processes import Processes
from penstock.launch.running import beside
from penstock.written_aside import write_aside


class LocalEngine:
    """Runs tasks as processes of this machine."""

    def __init__(
        self, cluster: Cluster, ports: Ports, commands: Commands, processes: Processes, needs: str = ""
    ) -> None:
        self.cluster = cluster
        self._ports = ports
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
        if run.membership:
            record = beside(os.getpid(), "membership")
            write_aside(record, run.membership.encode())
            environment[MEMBERSHIP] = str(record)
        self._processes.start(task, lambda pipe: [*entry, str(pipe), run.script, *run.args], environment)

    def resize(self, size: Size) -> float:
        """Takes ports for the tasks that join. Those of tasks that left are kept for others that may join later."""
        self.cluster = self.cluster.resized(size, [self._ports.address(task) for task in size.addressed])
        self._accelerators |= {
            task: settings
            for task, settings in shared_out(self.cluster.tasks).items()
            if task not in self._accelerators  # those that run have theirs
        }
        return 0.0

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
    with ExitStack() as stack:
        ports = Ports(stack)
        cluster = ports.cluster(request.size, request.base_port)
        processes = Processes(events, events.post)
        try:
            yield LocalEngine(cluster, ports, request.commands, processes, request.needs.given)
        finally:
            processes.close()
            if request.commands.record:
                beside(os.getpid(), "membership").unlink(missing_ok=True)


class Ports:
    """The loopback ports of a job, reserved until `stack` ends.

    >>> with ExitStack() as stack:
    ...     Ports(stack).cluster(Size(ps=0, workers=1)).tasks
    [Task(job='worker', index=0)]
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._addresses: dict[Task, str] = {}

    def cluster(self, size: Size, first: int | None = None) -> Cluster:
        """A cluster on free ports, or on those from `first` on."""
        tasks = size.addressed
        if first is not None and not 1 <= first <= 65536 - len(tasks):
            raise LaunchError(
                f"--base-port must leave room for {len(tasks)} ports between 1 and 65535, received {first}. "
                f"Leave it out to have free ports picked."
            )
        places = [self.address(task, 0 if first is None else first + place) for place, task in enumerate(tasks)]
        return Cluster.at(size, places)

    def address(self, task: Task, port: int = 0) -> str:
        """The address of a task, which it keeps."""
        if task not in self._addresses:
            self._addresses[task] = f"127.0.0.1:{self._bound(task, port)}"
        return self._addresses[task]

    def _bound(self, task: Task, port: int) -> int:
        # On Linux the bound socket stays open: it does not listen, and lets a server bind that sets SO_REUSEADDR, as
        # gRPC's do. No other program gets such a port, even while its task waits for a restart.
        with ExitStack() as here:
            return _bound(self._stack if sys.platform == "linux" else here, task, port)


@contextmanager
def reserve(size: Size, first: int | None = None) -> Iterator[Cluster]:
    """A cluster on free loopback ports, or on those from `first` on, reserved inside the `with`.

    >>> with reserve(Size(ps=0, workers=1)) as cluster:
    ...     cluster.tasks
    [Task(job='worker', index=0)]
    """
    with ExitStack() as stack:
        yield Ports(stack).cluster(size, first)


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
