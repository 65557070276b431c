"""A master sees the members of a cluster as tasks. Those of other processes are in remote.py."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.errors import CancelledError, OpError
from penstock.graph.device import DeviceSpecV2, task_name
from penstock.master.cluster import ClusterSpec
from penstock.master.membership import JOINING, NOTHING_CHANGED, PS, Membership
from penstock.passes.ir import Subgraph
from penstock.passes.relocate import Homes
from penstock.wire.loop import Loop
from penstock.wire.messages import Done, RunGraph
from penstock.worker.step import Step
from penstock.worker.timeline import encoded
from penstock.worker.worker import Worker

Answer = Callable[[Done | OpError], None]


def session_closed() -> CancelledError:
    """Returns the error of a step whose session is closed."""
    return CancelledError("The session has been closed.")


class Task(Protocol):
    """A member of the cluster, in this process or in another."""

    name: str

    @property
    def worker(self) -> Worker | None:
        """The worker of a task in this process, whose parts run in the thread that asks for a step."""

    @property
    def loop(self) -> Loop | None:
        """The loop that reads what the task sends, if the task is in another process."""

    @property
    def incarnation(self) -> int:
        """The number of this start of the task's server."""

    @property
    def device_names(self) -> list[str]: ...
    def register(
        self,
        subgraph: Subgraph,
        session: str,
        deadline: float | None = None,
        is_function: bool = False,
        version: int = 0,
    ) -> Any: ...
    def start(self, graph: Any, request: RunGraph, answer: Answer) -> None: ...
    def cancel(self, step: int, why: OpError) -> None: ...
    def close_session(self, session: str) -> None: ...
    def reset(self, containers: list[str]) -> None: ...
    def free(self, unused: Any) -> None: ...
    def send_unused(self) -> None: ...


class LocalTask:
    """A task of this process, which is called directly."""

    loop = None
    is_connected = True

    def answers(self) -> bool:
        """Tells that it is there: it is in this process."""
        return True

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.name = worker.name
        self.devices = worker.devices
        self.device_names = worker.device_names

    @property
    def incarnation(self) -> int:
        """The number of this start of the server; 0 without one."""
        return self.worker.incarnation

    def register(
        self,
        subgraph: Subgraph,
        session: str,
        deadline: float | None = None,
        is_function: bool = False,
        version: int = 0,
    ) -> int:
        """Registers a partition, or a whole function that the task drives itself, and returns its handle."""
        if is_function:
            return self.worker.register_function(subgraph, session)
        return self.worker.register_graph(subgraph, session)

    def start(self, graph: int, request: RunGraph, answer: Answer) -> None:
        """Runs a step. `answer` is called when it has ended."""
        request.handle = graph

        def on_done(values: list[Any] | None, error: OpError | None, ran: Step) -> None:
            error = error or ran.outbox.flush_at_end()
            if error is not None or values is None:
                assert error is not None
                answer(error)
                return
            trace = b"" if ran.timings is None else encoded(ran.timings)
            answer(Done(request.step, 0, len(values), 0, trace, (), values))

        self.worker.start_graph(request, on_done)

    def cancel(self, step: int, why: OpError) -> None:
        """Cancels a step."""
        self.worker.cancel(step)

    def close_session(self, session: str) -> None:
        """Forgets a session's graphs."""
        self.worker.deregister_graphs(session)

    def reset(self, containers: list[str]) -> None:
        """Clears the named containers, or all if none is named."""
        self.worker.reset(containers)

    def free(self, unused: tuple[str, str] | int) -> None:
        """Frees a resource, by container and name, or a graph. The garbage collector may call this at any time."""
        if isinstance(unused, tuple):
            self.worker.free([unused], ())
        else:
            self.worker.free((), [unused])

    def send_unused(self) -> None:
        """Does nothing: what was unused is free."""


class Tasks:
    """Holds the tasks that a session may use, and connects to each when a graph first names it."""

    def __init__(
        self,
        default: Task,
        make: Callable[[str, int, float | None], Task | None],
        cluster: ClusterSpec | None = None,
        passes: Callable[[str, int], bool] = lambda job, number: True,
    ) -> None:
        self.default = default
        self.membership = NOTHING_CHANGED
        self.is_driven = False  # for a coordinator, which says what runs: steps end though this task has left the job
        self._make = make
        self._told = cluster or ClusterSpec({})  # of which the program knows
        self._passes = passes  # tells if a task, by job and number, may be used
        self._known = self._of(self._told)  # job: task numbers
        self._tasks: dict[str, Any] = {default.name: default}
        self._lock = threading.Lock()

    def _of(self, cluster: ClusterSpec) -> dict[str, list[int]]:
        known = {job: [n for n in cluster.task_indices(job) if self._passes(job, n)] for job in cluster.jobs}
        return {job: numbers for job, numbers in known.items() if numbers}

    def follow(self, membership: Membership) -> None:
        """Uses the tasks that a membership has from now on. Connections to those that have left end."""
        self.membership = membership
        self._known = self._of(membership.cluster)
        with self._lock:
            left = [name for name in self._tasks if membership.has_left(name) and name != self.default.name]
            gone = [self._tasks.pop(name) for name in left]
        for task in gone:
            task.close_session("")

    @property
    def is_joining(self) -> bool:
        """Tells if this task was started to join a running job, and is no member yet."""
        since = int(os.environ.get(JOINING, "-1"))
        return self.membership.version <= since and not self.membership.address(self.default.name)

    @property
    def has_left(self) -> bool:
        """Tells if this task is no member any more."""
        return not self.is_joining and not self.is_driven and self.membership.has_left(self.default.name)

    @property
    def homes(self) -> Homes | None:
        """The tasks of resources that have moved; None if nothing has changed."""
        return self.membership.places if self.membership.version else None

    @property
    def added_workers(self) -> int:
        """The number of workers beyond those that the program knows of; negative if there are fewer."""
        return self.membership.added_workers(self._told)

    @classmethod
    def in_process(cls, workers: Sequence[Worker]) -> Tasks:
        """Makes the tasks of a session whose workers are all in this process."""
        by_name = {worker.name: worker for worker in workers}
        for worker in workers:
            worker.route = by_name.__getitem__
        tasks = cls(LocalTask(workers[0]), lambda job, index, deadline: None)
        tasks._tasks.update({w.name: LocalTask(w) for w in workers[1:]})
        return tasks

    def __getitem__(self, name: str) -> Any:
        return self._tasks[name]

    def find(self, name: str) -> Any:
        """Returns a task that has been used before, or None."""
        return self._tasks.get(name)

    def connected(self) -> list[Any]:
        """Returns the tasks that have been used so far."""
        return list(self._tasks.values())

    def all(self, deadline: float | None = None) -> list[Any]:
        """Connects to all tasks and returns them."""
        for job, numbers in self._known.items():
            for number in numbers:
                self._connect(job, number, deadline)
        return self.connected()

    def numbers(self) -> dict[str, list[int]]:
        """Returns the numbers of the tasks of each job, connected or not; none of a session in one process."""
        return self._known

    @property
    def are_several(self) -> bool:
        """Tells if more than one task has been used so far."""
        return len(self._tasks) > 1

    @property
    def device_names(self) -> list[str]:
        """Returns the devices of the connected tasks, those of the default task first."""
        return [name for task in list(self._tasks.values()) for name in task.device_names]

    def require(self, devices: set[str], deadline: float | None = None) -> None:
        """Connects to the tasks that are named in these devices, and to those that resources have moved to."""
        if self.membership.version:
            for number in self._known.get(PS, ()):
                self._connect(PS, number, deadline)
        for device in devices:
            spec = DeviceSpecV2.from_string(device)
            if spec.job in self._known:
                numbers = self._known[spec.job]
                self._connect(spec.job, min(numbers) if spec.task is None else spec.task, deadline)

    def _connect(self, job: str, number: int, deadline: float | None) -> None:
        name = task_name(job, number)
        if name in self._tasks or number not in self._known[job]:
            return
        task = self._make(job, number, deadline)
        if task is not None:
            with self._lock:
                self._tasks.setdefault(name, task)
