"""A worker registers partitions of graphs and runs steps of them on the devices of one task."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from penstock.errors import AbortedError, InternalError, InvalidArgumentError, OpError
from penstock.memory import without_collecting
from penstock.passes import pipeline
from penstock.passes.ir import Subgraph
from penstock.passes.partition import task_of
from penstock.passes.relocate import Key, bonds
from penstock.segments.compilation import Compilations
from penstock.segments.plan import make_plan
from penstock.segments.randomness import RandomState
from penstock.wire.messages import RunGraph
from penstock.worker import body_functions  # noqa: F401  for host ops that call functions
from penstock.worker.cancellation import Cancellation
from penstock.worker.commits import ClosureId, Commits
from penstock.worker.devices import Device
from penstock.worker.driver import Driver, OnDone, Registered
from penstock.worker.executor import Context, Executable, container_of
from penstock.worker.outbox import Outbox, Route
from penstock.worker.rendezvous import Rendezvous
from penstock.worker.step import Step
from penstock.worker.threads import Threads

MAX_THREADS = 1024  # for steps that block or take long
EARLY_SECS = 60.0  # how long tensors are kept whose step has not begun here
MAX_EARLY = 256  # steps that have tensors here and have not begun
MAX_ENDED = 4096  # ended steps that are remembered, to drop tensors that come for them


@dataclass(slots=True)
class RegisteredFunction:
    """A function that a coordinator has registered; a driver runs it over this task and others."""

    driver: Any
    function: Any
    session: str


@dataclass(slots=True)
class Counters:
    """Counts what a worker has done, for its status."""

    steps: int = 0
    failed: int = 0
    updates: int = 0
    staleness: dict[int, int] = field(default_factory=dict)  # updates by others during a step: how often
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, writes: bool, seen: int) -> None:
        """Counts a step that began after `seen` updates."""
        with self._lock:
            self.steps += 1
            if writes:
                stale = self.updates - seen
                self.updates += 1
                self.staleness[stale] = self.staleness.get(stale, 0) + 1


class Worker:
    """Runs graphs in one task. A master calls `register_graph`, `run_graph` and `start_graph`.

    >>> worker = Worker(local_devices())
    >>> handle = worker.register_graph(subgraph)
    >>> worker.run_graph(handle, [], Step(Cancellation()))
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = list(devices)
        self.name = task_of(self.devices[0].name)
        self.device_names = [d.name for d in self.devices]
        self.counters = Counters()
        self.compilations = Compilations()
        self.keeps_results = False  # what steps return goes into other steps, so that it stays on its device
        self.incarnation = 0  # a server sets its own
        self.is_moving = False  # resources move away: no step is repeated, so that all end soon
        self.bonds: dict[Key, set[Key]] = {}  # resources that some graph uses together
        self.watched = False  # a server sets this: steps that are all in this task count, and sessions share segments
        self.route: Callable[[str], Route] = self._no_route
        self.make_function_driver: Callable[[], Any] = self._no_function_driver  # for a coordinator's functions
        self.commits = Commits()
        self._function_drivers: dict[str, Any] = {}  # by session
        self._by_name = {d.name: d for d in self.devices}
        self._graphs: dict[int, Registered | RegisteredFunction] = {}
        self._random: dict[str, RandomState] = {}
        self._segments: WeakValueDictionary[Any, Any] = WeakValueDictionary()  # by form
        self._joined: WeakValueDictionary[Any, Any] = WeakValueDictionary()  # variables that stand for several
        self._handles = itertools.count(1)
        self._lock = threading.Lock()
        self._steps: dict[int, Step] = {}
        self._early: OrderedDict[int, float] = OrderedDict()  # steps that have not begun: when they are dropped
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._threads = Threads(f"penstock-step{self.name}", MAX_THREADS)

    def _no_route(self, task: str) -> Route:
        raise InternalError(f"{self.name} knows no way to {task}.")

    def _no_function_driver(self) -> Any:
        raise InternalError(f"{self.name} is no server, so that it cannot run whole functions for others.")

    def context(self, session: str) -> Context:
        """Returns the parts of this worker that code which runs for a session needs."""
        with self._lock:
            random_state = self._random.setdefault(session, RandomState())
        segments = self._segments if self.watched else None
        return Context(self._by_name, random_state, self.compilations, session, segments, self._joined)

    # Graphs

    @without_collecting()
    def register_graph(self, subgraph: Subgraph, session: str = "") -> int:
        """Compiles a partition for a session, and returns the handle that names it in steps."""
        context = self.context(session)
        for together in bonds(subgraph) if self.watched else ():
            for key in together:
                self.bonds.setdefault(key, set()).update(together)
        plan = make_plan(pipeline.applied(pipeline.WORKER, subgraph))
        executable = Executable(plan, context, for_client=not self.keeps_results, is_whole=True)
        registered = Registered(executable, session, executable.writes())
        with self._lock:
            handle = next(self._handles)
            self._graphs[handle] = registered
        return handle

    def restart_generators(self, session: str) -> None:
        """Makes the random nodes of a session start again from their seeds."""
        with self._lock:
            if session in self._random:
                self._random[session].restart()

    def register_function(self, subgraph: Subgraph, session: str) -> int:
        """Compiles a whole function, which a driver runs over this task and others, and returns its handle."""
        with self._lock:
            driver = self._function_drivers.get(session)
            if driver is None:
                driver = self._function_drivers[session] = self.make_function_driver()
        function = RegisteredFunction(driver, driver.add(subgraph), session)
        with self._lock:
            handle = next(self._handles)
            self._graphs[handle] = function
        return handle

    def deregister_graph(self, handle: int) -> None:
        """Removes one partition, or one function with its partitions on all tasks."""
        graph = self._graphs.pop(handle, None)
        if isinstance(graph, RegisteredFunction):
            graph.driver.forget(graph.function)

    def free(self, resources: Sequence[tuple[str, str]], graphs: Sequence[int]) -> None:
        """Frees resources, by container and name, and graphs that their user needs no more."""
        for handle in graphs:
            self.deregister_graph(handle)
        for container, name in resources:
            for device in self.devices:
                device.resources.remove(container, name)

    def deregister_graphs(self, session: str) -> None:
        """Removes the partitions of a session, and the tensors that it kept between steps."""
        with self._lock:
            self._graphs = {h: g for h, g in self._graphs.items() if g.session != session}
            self._random.pop(session, None)
            driver = self._function_drivers.pop(session, None)
        if driver is not None:
            driver.close()
        for device in self.devices:
            device.resources.clear([container_of(session)])

    def sessions(self) -> dict[str, int]:
        """Returns how many graphs each session has registered."""
        with self._lock:
            found: dict[str, int] = {}
            for graph in self._graphs.values():
                found[graph.session] = found.get(graph.session, 0) + 1
            return found

    def _graph(self, handle: int) -> Registered:
        graph = self._graphs.get(handle)
        if graph is None:
            raise AbortedError(
                f"Graph handle {handle} is not registered on {self.name}: the session was closed or reset."
            )
        return graph  # type: ignore[return-value]  # only start_graph gets functions

    # Steps

    def runner(self, handle: int) -> Callable[[Sequence[Any], Step], list[Any]]:
        """Returns a function that runs a step of a graph that is all in this task."""
        # Others may reset a server's task, so that each step checks if the graph is still there.
        return functools.partial(self.run_graph, handle) if self.watched else self._graph(handle).executable.run

    def ends_by_sending(self, handle: int) -> bool:
        """Tells if a step of a graph is over in this task once it is over in the tasks that it sends to."""
        return self._graph(handle).executable.ends_by_sending

    def run_graph(self, handle: int, fed: Sequence[Any], step: Step) -> list[Any]:
        """Runs one step of a registered partition. It blocks where an instruction waits."""
        graph, counters = self._graph(handle), self.counters
        seen = counters.updates
        try:
            if step.outbox and graph.executable.flush is not None:
                graph.executable.flush(step.outbox)
            results = graph.executable.run(fed, step)
            if step.outbox:
                step.outbox.flush_all()
        except BaseException:
            counters.failed += 1
            raise
        counters.note(graph.writes, seen)
        return results

    def open_steps(self) -> int:
        """Returns how many steps have begun and not ended."""
        with self._lock:
            return len(self._steps) - len(self._early)

    def forget_graphs(self) -> None:
        """Removes all graphs, since they use resources that are not here any more."""
        with self._lock:
            self._graphs.clear()

    def open_step(self, number: int, timeout: float | None = None, trace: bool = False) -> Step:
        """Begins a step that has parts in other tasks; `end_step` must follow."""
        with self._lock:
            if number in self._ended:
                raise AbortedError(f"The step {number} was cancelled before it began on {self.name}.")
            step = self._steps.get(number)
            if step is None:
                step = self._steps[number] = self._new_step(number)
            self._early.pop(number, None)
        step.deadline = None if timeout is None else time.monotonic() + timeout
        if trace:
            step.timings = []
        return step

    def _new_step(self, number: int) -> Step:
        step = Step(Cancellation())
        step.rendezvous = Rendezvous()
        step.outbox = Outbox(number, self.route)
        step.cancelled.on_cancel(step.rendezvous.cancel)
        return step

    def end_step(self, number: int) -> None:
        """Forgets a step. Tensors that come for it later are dropped."""
        with self._lock:
            self._steps.pop(number, None)
            self._early.pop(number, None)
            self._ended[number] = None
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    def deliver(self, step: int, keys: Sequence[int], values: list[Any]) -> None:
        """Receives tensors of a step from another task, and empties the list. They may come before the step begins."""
        found = self._steps.get(step)
        if found is None:
            with self._lock:
                if step in self._ended:
                    return
                found = self._steps.get(step)
                if found is None:
                    found = self._steps[step] = self._new_step(step)
                    self._expect(step)
        found.rendezvous.put(keys, values)

    def _expect(self, step: int) -> None:
        """Notes a step that has not begun, and drops those that are overdue, or the oldest if there are too many."""
        now = time.monotonic()
        self._early[step] = now + EARLY_SECS
        for number, end in list(self._early.items()):
            if end > now and len(self._early) <= MAX_EARLY:
                break
            del self._early[number]
            self._steps.pop(number, None)

    def cancel(self, step: int) -> None:
        """Cancels a step: it stops here at the next instruction, and wakes if it waits."""
        for driver in list(self._function_drivers.values()):
            driver.cancel(step)
        found = self._steps.get(step)
        self.end_step(step)
        if found is not None:
            found.cancelled.set()

    def start_graph(self, request: RunGraph, on_done: OnDone, requester: Route | None = None) -> None:
        """Starts one step of a partition without blocking. `on_done` gets the results, or the error.

        A quick graph runs in this thread. Where it would block for a tensor, a queue or an accumulator, the thread that
        brings the tensor, or changes the queue, goes on with it. Other graphs get a thread of the pool.
        """
        number, count = request.step, request.fed
        try:
            graph: Any = self._graph(request.handle)
            if isinstance(graph, RegisteredFunction):
                graph.driver.start(graph.function, request, on_done)
                return
            if count != len(graph.executable.feed_slots):
                raise InvalidArgumentError(
                    f"{count} values are fed to a graph that takes {len(graph.executable.feed_slots)}."
                )
            if request.begun and graph.executable.opening is None:
                raise InvalidArgumentError("A step that begins with no sends cannot have begun before it is asked for.")
            step = self.open_step(number, None if request.timeout < 0 else request.timeout, request.trace)
            step.requester = requester
            if request.number:
                step.commit = self.commits.open(ClosureId(request.writer, request.number, request.settled))
        except OpError as error:
            on_done(None, error, Step(Cancellation()))
            return
        if len(request.values) > count:
            tensors, request.values = list(request.values[count:]), request.values[:count]
            step.rendezvous.put(request.keys[count:], tensors)
        Driver(self, graph, request, step, on_done).start()

    def submit(self, act: Callable[[], None]) -> None:
        """Runs `act` in a thread of its own, since it may take long or block."""
        self._threads.run(act)

    def reset(self, containers: list[str] | None = None) -> None:
        """Frees the resources of the given containers, or all, and removes all graphs, since they may use them."""
        self.forget_graphs()
        for device in self.devices:
            device.resources.clear(containers)

    def close(self) -> None:
        """Cancels all steps, then frees all resources."""
        for number in list(self._steps):
            self.cancel(number)
        for driver in list(self._function_drivers.values()):
            driver.close()
        self.reset()
        self._threads.close()
