"""Worker: registers partitions of graphs and runs steps of them on the devices of one task."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock import logging
from penstock.errors import AbortedError, InternalError, InvalidArgumentError, OpError
from penstock.kernel.waiting import GivesWay, NeedsThread
from penstock.memory import without_collecting
from penstock.passes import pipeline
from penstock.passes.ir import Subgraph
from penstock.passes.partition import task_of
from penstock.wire.codec import RunGraph
from penstock.worker import body_functions  # noqa: F401  for host ops that call functions
from penstock.worker.cancellation import Cancellation
from penstock.worker.compilation import Compilations
from penstock.worker.devices import Device
from penstock.worker.executor import Context, Executable, container_of
from penstock.worker.plan import make_plan
from penstock.worker.randomness import RandomState
from penstock.worker.rendezvous import Rendezvous
from penstock.worker.step import Step
from penstock.worker.transfer import RecvCall, SendCall
from penstock.worker.turns import turns

QUICK = 0.01  # seconds: a graph that takes no longer runs in the thread that brings its tensors
MAX_THREADS = 1024  # of steps that wait in queues or take long
EARLY_SECS = 60.0  # for which tensors are kept whose step has not begun here
MAX_EARLY = 256  # steps whose tensors came first
MAX_ENDED = 4096  # steps remembered, so that what still comes for them is dropped


class Route(Protocol):
    """A way to another task."""

    def deliver(self, step: int, keys: Sequence[int], values: Sequence[Any]) -> None:
        """Hands over tensors of a step."""


Done = Callable[[list[Any] | None, OpError | None, Step], None]


@dataclass(slots=True)
class Registered:
    """A partition that steps can be run of."""

    executable: Executable
    session: str
    writes: bool
    cost: float = float("inf")  # seconds that it took last
    runs: int = 0


@dataclass(slots=True)
class Counters:
    """What a worker has done, for those who watch it."""

    steps: int = 0
    failed: int = 0
    updates: int = 0
    staleness: dict[int, int] = field(default_factory=dict)  # updates of others between read and write: how often

    def note(self, writes: bool, seen: int) -> None:
        """Counts a step that began when there were `seen` updates."""
        self.steps += 1
        if writes:
            stale = self.updates - seen
            self.updates += 1
            self.staleness[stale] = self.staleness.get(stale, 0) + 1


class Worker:
    """The worker of one task. A master talks to it by `register_graph`, `run_graph` and `start_graph`.

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
        self.watched = False  # by a server, which tells what was done: then steps of this task alone count, too
        self.route: Callable[[str], Route] = self._no_route
        self._by_name = {d.name: d for d in self.devices}
        self._graphs: dict[int, Registered] = {}
        self._random: dict[str, RandomState] = {}
        self._handles = itertools.count(1)
        self._lock = threading.Lock()
        self._steps: dict[int, Step] = {}
        self._early: OrderedDict[int, float] = OrderedDict()  # steps that have not begun, and when they are dropped
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._pool = ThreadPoolExecutor(MAX_THREADS, f"penstock-step{self.name}")

    def _no_route(self, task: str) -> Route:
        raise InternalError(f"{self.name} knows no way to {task}.")

    # Graphs

    @without_collecting()
    def register_graph(self, subgraph: Subgraph, session: str = "") -> int:
        """Compiles a partition for a session and returns the handle by which steps name it."""
        with self._lock:
            random_state = self._random.setdefault(session, RandomState())
        context = Context(self._by_name, random_state, self.compilations, session)
        executable = Executable(make_plan(pipeline.applied(pipeline.WORKER, subgraph)), context, for_client=True)
        registered = Registered(executable, session, executable.writes())
        with self._lock:
            handle = next(self._handles)
            self._graphs[handle] = registered
        return handle

    def deregister_graphs(self, session: str) -> None:
        """Forgets the partitions of a session, and what it kept between steps."""
        with self._lock:
            self._graphs = {h: g for h, g in self._graphs.items() if g.session != session}
            self._random.pop(session, None)
        for device in self.devices:
            device.resources.clear([container_of(session)])

    def sessions(self) -> dict[str, int]:
        """How many graphs each session has registered."""
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
        return graph

    # Steps

    def runner(self, handle: int) -> Callable[[Sequence[Any], Step], list[Any]]:
        """What runs a step of a graph that is all in this task."""
        # What a server's task holds may be reset by others: each step looks whether the graph is still there.
        return functools.partial(self.run_graph, handle) if self.watched else self._graph(handle).executable.run

    def opening(self, handle: int) -> SendCall | None:
        """The first thing that a graph does, if that is to send something."""
        instructions = self._graph(handle).executable.instructions
        return instructions[0] if instructions and isinstance(instructions[0], SendCall) else None

    def opened(self, handle: int, opening: SendCall, fed: Sequence[Any]) -> list[Any]:
        """What the opening of a graph sends."""
        return opening.gathered(self._graph(handle).executable.begin(fed))

    def run_graph(self, handle: int, fed: Sequence[Any], step: Step, at: int = 0) -> list[Any]:
        """Runs one step of a registered partition, from an instruction on, and waits where it has to."""
        graph, counters = self._graph(handle), self.counters
        seen = counters.updates
        try:
            results = graph.executable.run(fed, step, at)
        except BaseException:
            counters.failed += 1
            raise
        counters.note(graph.writes, seen)
        return results

    def open_step(self, number: int, timeout: float | None = None, trace: bool = False) -> Step:
        """Begins a step that other tasks take part in; `end_step` must follow."""
        with self._lock:
            if number in self._ended:
                raise AbortedError(f"The step {number} was given up before it began on {self.name}.")
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
        step.cancelled.on_cancel(step.rendezvous.give_up)

        def send(task: str, keys: Sequence[int], values: Sequence[Any], kept_for: Route | None) -> bool:
            route = self.route(task)
            if route is kept_for:
                return False
            route.deliver(number, keys, values)
            return True

        step.send = send
        return step

    def end_step(self, number: int) -> None:
        """Forgets a step; what still comes for it is dropped."""
        with self._lock:
            self._steps.pop(number, None)
            self._early.pop(number, None)
            self._ended[number] = None
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    def deliver(self, step: int, keys: Sequence[int], values: Sequence[Any]) -> None:
        """Takes tensors of a step from another task. They may come before the step begins here."""
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
        """Keeps a step that has not begun for a while; the oldest go when there are many."""
        now = time.monotonic()
        self._early[step] = now + EARLY_SECS
        for number, end in list(self._early.items()):
            if end > now and len(self._early) <= MAX_EARLY:
                break
            del self._early[number]
            self._steps.pop(number, None)

    def abort(self, step: int) -> None:
        """Gives a step up: what runs of it here stops at the next instruction or wait."""
        found = self._steps.get(step)
        self.end_step(step)
        if found is not None:
            found.cancelled.set()

    def start_graph(self, request: RunGraph, done: Done, asked_by: Route | None = None) -> None:
        """Runs one step of a partition without waiting: `done` gets the results, or the error.

        Quick graphs run in this thread, up to where they wait for a tensor, and then in the thread that brings it.
        What waits in a queue or for an accumulator goes on in the thread that changes it; the rest gets a thread.
        """
        number, values, count = request.step, request.values, request.fed
        try:
            graph = self._graph(request.handle)
            if count != len(graph.executable.feed_slots):
                raise InvalidArgumentError(
                    f"{count} values are fed to a graph that takes {len(graph.executable.feed_slots)}."
                )
            step = self.open_step(number, None if request.timeout < 0 else request.timeout, request.trace)
            step.asked_by = asked_by
        except OpError as error:
            done(None, error, Step(Cancellation()))
            return
        if len(values) > count:
            step.rendezvous.put(request.keys[count:], values[count:])
        execution = Execution(self, graph, request, step, done)
        if graph.cost < QUICK:
            execution.go_on()
        else:
            self.submit(execution.run_through)

    def submit(self, act: Callable[..., None], *args: Any) -> None:
        """Has a thread of the pool do something that may take long or wait."""
        self._pool.submit(act, *args)

    def reset(self, containers: list[str] | None = None) -> None:
        """Gives up the resources of the given containers, or all, and the graphs that may hold some of them."""
        with self._lock:
            self._graphs.clear()
        for device in self.devices:
            device.resources.clear(containers)

    def close(self) -> None:
        """Gives up all steps, then all resources."""
        for number in list(self._steps):
            self.abort(number)
        self.reset()
        self._pool.shutdown(wait=False, cancel_futures=True)


class Execution:
    """One step of one partition, on behalf of a master elsewhere."""

    __slots__ = (
        "_at",
        "_began",
        "_done",
        "_fed",
        "_graph",
        "_let_others_at",
        "_number",
        "_seen",
        "_spent",
        "_step",
        "_times",
        "_values",
        "_worker",
    )

    def __init__(self, worker: Worker, graph: Registered, request: RunGraph, step: Step, done: Done) -> None:
        self._worker = worker
        self._graph = graph
        self._number = request.step
        self._times = request.times
        self._step = step
        self._done = done
        self._at = 0
        self._let_others_at = -1  # where it let other steps of this thread go first
        self._began = 0.0  # when this thread took over
        self._spent = 0.0  # seconds so far
        self._fed = request.values[: request.fed]
        self._values: list[Any] = []  # until it begins
        self._seen = worker.counters.updates

    def _take_over(self) -> None:
        self._began = time.perf_counter()

    def _hand_over(self) -> None:
        self._spent += time.perf_counter() - self._began

    def run_through(self) -> None:
        """Runs to the end, and waits in this thread where it has to."""
        executable = self._graph.executable
        self._step.give_way, self._step.quick = None, False
        self._take_over()
        try:
            executable.proceed(self._begun(executable), self._step, self._at)
            results = executable.results(self._values)
        except BaseException as error:
            self._finish(None, _as_op_error(error))
            return
        self._hand_over()
        self._spent -= self._step.waited
        self._end(results)

    def _begun(self, executable: Executable) -> list[Any]:
        if not self._values:
            self._values = executable.begin(self._fed)
        return self._values

    def go_on(self) -> None:
        """Runs until it has to wait for something."""
        turns.take(self._proceed)

    def _proceed(self) -> None:
        executable = self._graph.executable
        self._step.quick = True
        self._take_over()
        try:
            if not executable.proceed(self._begun(executable), self._step, self._at, self._stop):
                return  # and touch nothing: another thread may be going on already
            results = executable.results(self._values)
        except NeedsThread as error:
            self._at = error.at
            self._hand_over()
            self._worker.submit(self.run_through)
            return
        except GivesWay:
            return  # likewise
        except BaseException as error:
            self._finish(None, _as_op_error(error))
            return
        self._hand_over()
        self._end(results)

    def _end(self, results: list[Any]) -> None:
        """The step has run; it begins anew if it was asked for more than once."""
        graph, counters = self._graph, self._worker.counters
        counters.note(graph.writes, self._seen)
        # The first run compiles, and what blocks spends its time waiting.
        if graph.runs:
            graph.cost = self._spent
        graph.runs += 1
        if self._times > 1:
            self._times -= 1
            self._at, self._let_others_at, self._values = 0, -1, []
            self._seen, self._spent = counters.updates, 0.0
            self._step.drawn, self._step.waited = {}, 0.0
            self.go_on()
        elif results or graph.executable.ends_with_send:
            self._finish(results, None)
        else:  # nobody waits for more than to hear that it is over: the steps that it lets go on come first
            turns.take(lambda: self._finish(results, None))

    def _park(self) -> Callable[[], None]:
        """Leaves the step where it is; what is returned goes on with it, as does whoever gives it up."""
        self._hand_over()
        self._step.rendezvous.park(self.go_on)
        return self._step.rendezvous.go_on

    def _stop(self, at: int, instruction: Any) -> bool:
        """Stops at a Recv whose tensors are not there, to go on in the thread that brings the last of them."""
        self._at = at
        if not isinstance(instruction, RecvCall):
            if instruction.node.op.gives_way:
                if turns.waiting and self._let_others_at != at:
                    self._let_others_at = at  # they may bring what it would wait for
                    self._hand_over()
                    turns.take(self._proceed)
                    return True
                self._step.give_way = self._park
                return False
            self._hand_over()
            self._worker.submit(self.run_through)
            return True
        self._hand_over()
        if not self._step.rendezvous.ready(instruction.keys, self.go_on):
            return True
        self._take_over()
        return False

    def _finish(self, results: list[Any] | None, error: OpError | None) -> None:
        self._worker.end_step(self._number)
        self._values, self._fed = [], ()
        if error is not None:
            self._worker.counters.failed += 1
        try:
            self._done(results, error, self._step)
        except OpError as gone:  # whoever asked is not there any more
            logging.debug("The result of a step had nowhere to go: %s", gone.message)


def _as_op_error(error: BaseException) -> OpError:
    if isinstance(error, OpError):
        return error
    logging.error("penstock: a step failed", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")
