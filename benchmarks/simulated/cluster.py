"""A simulated cluster: real parameter servers and a real master, joined by the in-memory transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import OpError
from penstock.master.links import Link
from penstock.master.master import Master
from penstock.master.tasks import Answer, LocalTask, Tasks
from penstock.passes.ir import Subgraph
from penstock.passes.portable import from_graph_def, to_graph_def
from penstock.segments.stored_variable import StoredVariable
from penstock.wire.messages import RunGraph
from penstock.worker.devices import local_devices
from penstock.worker.needs import Need, Other
from penstock.worker.segment_call import SegmentCall
from penstock.worker.step import Step
from penstock.worker.transfer import RecvCall
from penstock.worker.worker import Worker

from .clock import Clock
from .costs import Costs
from .network import Network
from .sockets import SocketCosts
from .transport import Task, Workers, connect

WORKER = "/job:worker/replica:0/task:0"  # the name that all workers share


class SimulatedWorker(Worker):
    """A real worker on the simulated clock."""

    def __init__(self, clock: Clock, job: str, number: int) -> None:
        super().__init__(local_devices(job, number))
        self._clock = clock

    def start_graph(self, request: RunGraph, *args: Any) -> None:
        """Starts a step in the thread that reads, as a graph that takes less than 10 ms does."""
        self._graph(request.handle).cost = 0.0  # real time says little here: a busy machine would change the course
        super().start_graph(request, *args)

    def open_step(self, *args: Any) -> Step:
        """Begins a step that waits on the simulated clock."""
        step = super().open_step(*args)
        step.wait = self._clock.wait
        return step

    def submit(self, act: Callable[[], None]) -> None:
        """Refuses to run a step in a thread of its own, which only ops that block and cannot be suspended need."""
        raise NotImplementedError(f"{self.name}: a graph that needs a thread of its own is not modelled.")


class ParameterServer(Task):
    """A parameter server: the real worker, whose instructions are laps."""

    def __init__(self, number: int, clock: Clock, costs: Costs, sockets: SocketCosts) -> None:
        super().__init__(f"/job:ps/replica:0/task:{number}", clock, costs, sockets, f"ps {number}")
        self.worker = SimulatedWorker(clock, "ps", number)
        self._graphs = 0

    def register(self, subgraph: Subgraph, session: str) -> int:
        """Registers a partition, as it comes out of a message."""
        handle = self.worker.register_graph(from_graph_def(to_graph_def(subgraph)), session)
        executable = self.worker._graph(handle).executable
        self._graphs += 1
        graph, proceed = self._graphs, executable.proceed

        def in_laps(values: Any, step: Any, at: int = 0) -> tuple[int, Need | None]:
            began, need = at, None
            try:
                at, need = proceed(values, step, at)
                # It compiles here, so that laps do not depend on when that happens.
                while need is Other.THREAD and not executable.instructions[at].blocks:
                    compiling, wake, step.wake = executable.instructions[at], step.wake, None
                    if step.commit is not None and compiling.writes:
                        step.commit.run(compiling, values, step)
                    else:
                        compiling(values, step)
                    step.wake = wake
                    at, need = proceed(values, step, at + 1)
            finally:
                self.laps.lap(f"run graph {graph} from {began} to {'end' if need is None else at}")
            return at, need

        executable.proceed = in_laps  # type: ignore[method-assign]
        return handle

    def take_role(self) -> None:
        """Names its role after the variables that it has: servers with variables of the same shapes cost the same."""
        held = [resource for device in self.worker.devices for _, resource in device.resources.items()]
        shapes = sorted(str(each.shape) for each in held if isinstance(each, StoredVariable))
        self.laps.role = f"ps with {' '.join(shapes)}"


class RemoteServer:
    """A parameter server as the master sees it: a Task, with the simulated clock as its loop."""

    worker = None
    incarnation = 0  # it is started once

    def __init__(self, server: ParameterServer, link: Link, clock: Clock) -> None:
        self.name, self.loop = server.name, clock
        self._server, self._link = server, link
        self.device_names = server.worker.device_names

    def register(
        self,
        subgraph: Subgraph,
        session: str,
        deadline: float | None = None,
        is_function: bool = False,
        version: int = 0,
    ) -> int:
        """Registers a partition, which takes no simulated time."""
        return self._server.register(subgraph, session)

    def start(self, graph: int, request: RunGraph, answer: Answer) -> None:
        """Asks the server to run a step."""
        request.handle = graph
        self._link.run(request, answer)

    def cancel(self, step: int, why: OpError) -> None:
        """Does nothing: the error for which a step is cancelled ends the simulation."""

    def close_session(self, session: str) -> None:
        """Does nothing: a simulated cluster ends as a whole."""

    def reset(self, containers: list[str]) -> None:
        """Does nothing, likewise."""

    def free(self, unused: Any) -> None:
        """Does nothing, likewise."""

    def send_unused(self) -> None:
        """Does nothing, likewise."""


class Cluster:
    """Parameter servers, and workers that share one master, since the numbers of their steps tell them apart."""

    def __init__(
        self, clock: Clock, network: Network, costs: Costs, sockets: SocketCosts, servers: int, computes: bool
    ) -> None:
        self.clock, self.network = clock, network
        self.workers = Workers(clock, computes)
        self.servers = [ParameterServer(number, clock, costs, sockets) for number in range(servers)]
        self.worker = SimulatedWorker(clock, "worker", 0)
        self._computes = computes
        names = {WORKER: self.worker, **{server.name: server.worker for server in self.servers}}
        for i, server in enumerate(self.servers):
            connect(network, self.workers, WORKER, server, server.name, names)
            for other in self.servers[:i]:
                connect(network, other, other.name, server, server.name, names)
            server.worker.route = server.links.__getitem__
        self.worker.route = self.workers.links.__getitem__
        self.master = Master(self.tasks(), soft_placement=True)

    def tasks(self) -> Tasks:
        """Returns the tasks as a worker sees them."""
        tasks = Tasks(LocalTask(self.worker), lambda job, number, deadline: None, {})
        for server in self.servers:
            tasks._tasks[server.name] = RemoteServer(server, self.workers.links[server.name], self.clock)
        return tasks

    def model_computation(self, signature: Any, seconds: Callable[[], float]) -> list[float]:
        """Lets the computation of a worker take modelled time. Unless it computes, it gives what it gave first.

        That is the first segment after variables have arrived: what is before needs no variables, and is small. Returns
        a list to which the real seconds of each computation are added.
        """
        instructions = self.worker._graph(signature.local_part.graph).executable.instructions
        arrival = next(i for i, each in enumerate(instructions) if isinstance(each, RecvCall))
        at = next(i for i, each in enumerate(instructions) if i > arrival and isinstance(each, SegmentCall))
        modelled = instructions[at] = _Modelled(instructions[at], self._computes, self.clock, seconds)
        return modelled.took


class _Modelled:
    """An instruction that takes modelled time."""

    def __init__(self, instruction: Any, computes: bool, clock: Clock, seconds: Callable[[], float]) -> None:
        self._instruction, self._computes = instruction, computes
        self._clock, self._seconds = clock, seconds
        self._results: Sequence[Any] | None = None
        self.took: list[float] = []  # seconds of real processor time
        self.blocks, self.writes, self.name = instruction.blocks, instruction.writes, instruction.name
        self.in_slots, self.out_slots = instruction.in_slots, instruction.out_slots

    def __call__(self, values: list[Any], step: Step) -> None:
        self._clock.sleep(self._seconds())
        if self._computes or self._results is None:
            began = time.thread_time()
            self._instruction(values, step)
            self.took.append(time.thread_time() - began)
            self._results = [values[slot] for slot in self.out_slots]
        for slot, value in zip(self.out_slots, self._results, strict=True):
            values[slot] = value
