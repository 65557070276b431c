"""Simulates a coordinator: the real ClusterCoordinator, with real drivers on workers whose computation is modelled."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.distribute.coordinator.coordinator import ClusterCoordinator
from penstock.eager.cluster import disconnect
from penstock.eager.runtime import runtime
from penstock.eager.switch import eager_execution
from penstock.errors import OpError
from penstock.master.function_driver import FunctionDriver
from penstock.master.links import Link
from penstock.master.master import Master
from penstock.master.tasks import Answer
from penstock.passes.portable import from_graph_def, to_graph_def
from penstock.wire.messages import RunGraph
from penstock.worker.step import Step

from .clock import Clock
from .network import Host
from .programs import coordinated_step
from .training import Simulation
from .transport import Peer, Port, Task, connect


class _Thread:
    """Takes the place of a driver's thread: a process that runs what is submitted, one after the other."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._jobs, self._works = clock, deque[tuple[Any, ...]](), False

    def submit(self, *job: Any) -> None:
        """Adds a job: a function and its arguments."""
        self._jobs.append(job)
        if not self._works:
            self._works = True
            self._clock.after(0.0, self._clock.start, self._run)

    def _run(self) -> None:
        while self._jobs:
            act, *args = self._jobs.popleft()
            act(*args)
        self._works = False


class DrivenWorker(Peer):
    """A worker that runs the functions of a coordinator by a real driver."""

    def __init__(self, number: int, simulation: CoordinatedSimulation) -> None:
        self.host = Host(f"worker {number}")
        self.links: dict[str, Link] = {}
        self._simulation = simulation
        self._driver = FunctionDriver(simulation.tasks)
        self._driver._queue = _Thread(simulation.clock)  # type: ignore[assignment]

    def host_of(self, message: Any) -> Host:
        return self.host

    def arrived(self, port: Port, message: Any, frame: list[Any]) -> None:
        port.link.on_message(port, message)  # type: ignore[arg-type]

    def start_graph(self, request: RunGraph, on_done: Callable[..., None], requester: Any) -> None:
        """Runs a function, as the Worker of a server does."""

        def done(values: Any, error: OpError | None, step: Step) -> None:
            if error is not None:
                raise error
            self._simulation.done += 1
            on_done(values, error, step)
            self._simulation.schedule()

        workers = self._simulation.cluster.workers
        # The driver's thread asks for the steps of its worker, one after the other.
        self._driver._queue.submit(setattr, workers, "current", self.host)
        self._driver.start(self._simulation.function, request, done)


class _RemoteWorker:
    """A worker as the coordinator sees it."""

    is_connected = True

    def __init__(self, link: Link, simulation: CoordinatedSimulation) -> None:
        self._link, self._simulation = link, simulation

    def answers(self) -> bool:
        """Tells that it is there."""
        return True

    def register(
        self, subgraph: Any, session: str, deadline: Any = None, is_function: bool = False, version: int = 0
    ) -> int:
        """Registers a function, which all workers share and which takes no simulated time."""
        return self._simulation.register(subgraph)

    def start(self, graph: int, request: RunGraph, answer: Answer) -> None:
        """Asks the worker to run a function."""
        request.handle = graph
        self._link.run(request, answer)

    def close_session(self, session: str) -> None:
        """Does nothing: the simulation ends as a whole."""

    def free(self, unused: Any) -> None:
        """Does nothing, likewise."""


class CoordinatedSimulation(Simulation):
    """A cluster that a coordinator trains. Close it before the next one begins."""

    function: Any = None  # compiled for the workers

    def _prepare(self) -> None:
        """Makes the coordinator, its variables and the workers."""
        setting, cluster = self.setting, self.cluster
        self._eagerly = contextlib.ExitStack()
        self._eagerly.enter_context(eager_execution(True))
        self.tasks = cluster.tasks()
        self._registering = threading.Lock()
        self.task = Task("/job:chief/replica:0/task:0", self.clock, self.costs, self._sockets, "coordinator")
        workers = [DrivenWorker(number, self) for number in range(setting.workers)]
        self._remote = []
        for number, worker in enumerate(workers):
            name = f"/job:worker/replica:0/task:{number}"
            connect(cluster.network, self.task, self.task.name, worker, name, {name: worker})
            self._remote.append(_RemoteWorker(self.task.links[name], self))
        strategy, make = coordinated_step(setting.workers, setting.servers, setting.hidden)
        runtime.move(Master(self.tasks, soft_placement=True))
        cluster.workers.current = self.hosts[0]
        made: list[Any] = []
        self.in_process("make variables", lambda: made.append(make()))
        (self._step,) = made
        remote = self._remote

        class Coordinator(ClusterCoordinator):
            _task = staticmethod(lambda number, closed: remote[number])

        self.coordinator = Coordinator(strategy)
        self._await(lambda: all(self.coordinator._queue.present))
        with strategy.scope():
            concrete, _ = self._step.traced((), {})
        for worker in self.coordinator._workers:
            worker.register(self.coordinator.sent(concrete))
        self._scheduling = False

    def register(self, subgraph: Any) -> int:
        """Compiles the function for a worker, once for all."""
        with self._registering:
            if self.function is None:
                self.function = FunctionDriver(self.tasks).add(from_graph_def(to_graph_def(subgraph)))
                self.cluster.model_computation(self.function, self._compute_secs)
        return 1

    def _await(self, ready: Callable[[], bool]) -> None:
        """Waits for the threads of the coordinator, which connect to workers before the simulation begins."""
        with self.coordinator._changed:
            if not self.coordinator._changed.wait_for(ready, 120.0):
                raise TimeoutError("The coordinator has not connected to all workers in 120 s.")

    def begin(self, starts: Sequence[float], steps: int | None = None) -> None:
        """Has the program schedule functions while fewer than two for each worker wait: the workers are all there."""
        self.schedule()

    def schedule(self) -> None:
        """Has the program schedule a function, unless enough of them wait."""
        if self._scheduling or self.coordinator._queue.waiting >= 2 * self.setting.workers:
            return
        self._scheduling = True
        self.task.processor.submit(self._schedule_one)

    def _schedule_one(self) -> float:
        seconds = self.task.handle("schedule", lambda: self.coordinator.schedule(self._step))
        self.clock.after(seconds, self._scheduled)
        return seconds

    def _scheduled(self) -> None:
        self._scheduling = False
        self.schedule()

    def close(self) -> None:
        """Ends the coordinator's threads."""
        disconnect()
        self._eagerly.close()
