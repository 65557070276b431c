"""A worker registers partitions of graphs and runs steps of them on the devices of one task."""

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
from penstock.kernel.waiting import NeedsThread, Suspended
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
from penstock.worker.run_queue import run_queue
from penstock.worker.step import Step
from penstock.worker.transfer import RecvCall, SendCall

QUICK = 0.01  # seconds: a graph that took no longer runs in the thread that brings its tensors
MAX_THREADS = 1024  # for steps that block or take long
EARLY_SECS = 60.0  # how long tensors are kept whose step has not begun here
MAX_EARLY = 256  # steps that have tensors here and have not begun
MAX_ENDED = 4096  # ended steps that are remembered, to drop tensors that come for them


class Route(Protocol):
    """Delivers tensors to another task."""

    def deliver(self, step: int, keys: Sequence[int], values: Sequence[Any]) -> None:
        """Hands tensors of a step to the task."""


OnDone = Callable[[list[Any] | None, OpError | None, Step], None]  # gets the results, or the error, and the step


@dataclass(slots=True)
class Registered:
    """A partition that a session has registered, and of which steps can run."""

    executable: Executable
    session: str
    writes: bool
    cost: float = float("inf")  # seconds that the last run took
    runs: int = 0


@dataclass(slots=True)
class Counters:
    """Counts what a worker has done, for its status."""

    steps: int = 0
    failed: int = 0
    updates: int = 0
    staleness: dict[int, int] = field(default_factory=dict)  # updates by others during a step: how often

    def note(self, writes: bool, seen: int) -> None:
        """Counts a step that began after `seen` updates."""
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
        self.watched = False  # a server sets this, to have steps counted that are all in this task
        self.route: Callable[[str], Route] = self._no_route
        self._by_name = {d.name: d for d in self.devices}
        self._graphs: dict[int, Registered] = {}
        self._random: dict[str, RandomState] = {}
        self._handles = itertools.count(1)
        self._lock = threading.Lock()
        self._steps: dict[int, Step] = {}
        self._early: OrderedDict[int, float] = OrderedDict()  # steps that have not begun: when they are dropped
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._pool = ThreadPoolExecutor(MAX_THREADS, f"penstock-step{self.name}")

    def _no_route(self, task: str) -> Route:
        raise InternalError(f"{self.name} knows no way to {task}.")

    # Graphs

    @without_collecting()
    def register_graph(self, subgraph: Subgraph, session: str = "") -> int:
        """Compiles a partition for a session, and returns the handle that names it in steps."""
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
        """Removes the partitions of a session, and the tensors that it kept between steps."""
        with self._lock:
            self._graphs = {h: g for h, g in self._graphs.items() if g.session != session}
            self._random.pop(session, None)
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
        return graph

    # Steps

    def runner(self, handle: int) -> Callable[[Sequence[Any], Step], list[Any]]:
        """Returns a function that runs a step of a graph that is all in this task."""
        # Others may reset a server's task, so that each step checks if the graph is still there.
        return functools.partial(self.run_graph, handle) if self.watched else self._graph(handle).executable.run

    def first_send(self, handle: int) -> SendCall | None:
        """Returns the first instruction of a graph if it is a send, else None."""
        instructions = self._graph(handle).executable.instructions
        return instructions[0] if instructions and isinstance(instructions[0], SendCall) else None

    def first_sent(self, handle: int, send: SendCall, fed: Sequence[Any]) -> list[Any]:
        """Returns the tensors that the first instruction of a graph sends."""
        return send.gathered(self._graph(handle).executable.begin(fed))

    def run_graph(self, handle: int, fed: Sequence[Any], step: Step, at: int = 0) -> list[Any]:
        """Runs one step of a registered partition from instruction `at` on. It blocks where an instruction waits."""
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
        step.cancelled.on_cancel(step.rendezvous.cancel)

        def send(task: str, keys: Sequence[int], values: Sequence[Any], kept_for: Route | None) -> bool:
            route = self.route(task)
            if route is kept_for:
                return False
            route.deliver(number, keys, values)
            return True

        step.send = send
        return step

    def end_step(self, number: int) -> None:
        """Forgets a step. Tensors that come for it later are dropped."""
        with self._lock:
            self._steps.pop(number, None)
            self._early.pop(number, None)
            self._ended[number] = None
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    def deliver(self, step: int, keys: Sequence[int], values: Sequence[Any]) -> None:
        """Receives tensors of a step from another task. They may come before the step begins here."""
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
        found = self._steps.get(step)
        self.end_step(step)
        if found is not None:
            found.cancelled.set()

    def start_graph(self, request: RunGraph, on_done: OnDone, requester: Route | None = None) -> None:
        """Starts one step of a partition without blocking. `on_done` gets the results, or the error.

        A quick graph runs in this thread. Where it would block for a tensor, a queue or an accumulator it is suspended,
        and the thread that brings the tensor, or changes the queue, resumes it. Other graphs get a thread of the pool.
        """
        number, values, count = request.step, request.values, request.fed
        try:
            graph = self._graph(request.handle)
            if count != len(graph.executable.feed_slots):
                raise InvalidArgumentError(
                    f"{count} values are fed to a graph that takes {len(graph.executable.feed_slots)}."
                )
            step = self.open_step(number, None if request.timeout < 0 else request.timeout, request.trace)
            step.requester = requester
        except OpError as error:
            on_done(None, error, Step(Cancellation()))
            return
        if len(values) > count:
            step.rendezvous.put(request.keys[count:], values[count:])
        execution = Execution(self, graph, request, step, on_done)
        if graph.cost < QUICK:
            execution.resume()
        else:
            self.submit(execution.run_to_end)

    def submit(self, act: Callable[..., None], *args: Any) -> None:
        """Runs `act` in a thread of the pool, since it may take long or block."""
        self._pool.submit(act, *args)

    def reset(self, containers: list[str] | None = None) -> None:
        """Frees the resources of the given containers, or all, and removes all graphs, since they may use them."""
        with self._lock:
            self._graphs.clear()
        for device in self.devices:
            device.resources.clear(containers)

    def close(self) -> None:
        """Cancels all steps, then frees all resources."""
        for number in list(self._steps):
            self.cancel(number)
        self.reset()
        self._pool.shutdown(wait=False, cancel_futures=True)


class Execution:
    """Runs one step of one partition for a master in another process."""

    __slots__ = (
        "_at",
        "_began",
        "_fed",
        "_graph",
        "_number",
        "_on_done",
        "_seen",
        "_spent",
        "_step",
        "_times",
        "_values",
        "_worker",
        "_yielded_at",
    )

    def __init__(self, worker: Worker, graph: Registered, request: RunGraph, step: Step, on_done: OnDone) -> None:
        self._worker = worker
        self._graph = graph
        self._number = request.step
        self._times = request.times
        self._step = step
        self._on_done = on_done
        self._at = 0
        self._yielded_at = -1  # the instruction before which it let other steps of this thread run
        self._began = 0.0  # when this thread started or resumed it
        self._spent = 0.0  # seconds of work so far
        self._fed = request.values[: request.fed]
        self._values: list[Any] = []  # empty until it begins
        self._seen = worker.counters.updates

    def _start_clock(self) -> None:
        self._began = time.perf_counter()

    def _stop_clock(self) -> None:
        self._spent += time.perf_counter() - self._began

    def run_to_end(self) -> None:
        """Runs to the end, and blocks this thread where an instruction waits."""
        executable = self._graph.executable
        self._step.suspend, self._step.quick = None, False
        self._start_clock()
        try:
            executable.proceed(self._initial_values(executable), self._step, self._at)
            results = executable.results(self._values)
        except BaseException as error:
            self._finish(None, _as_op_error(error))
            return
        self._stop_clock()
        self._spent -= self._step.waited
        self._end(results)

    def _initial_values(self, executable: Executable) -> list[Any]:
        if not self._values:
            self._values = executable.begin(self._fed)
        return self._values

    def resume(self) -> None:
        """Runs until the end, or until it is suspended again."""
        run_queue.run(self._proceed)

    def _proceed(self) -> None:
        executable = self._graph.executable
        self._step.quick = True
        self._start_clock()
        try:
            if not executable.proceed(self._initial_values(executable), self._step, self._at, self._stop):
                return  # another thread may have resumed it already, so this one touches nothing more
            results = executable.results(self._values)
        except NeedsThread as error:
            self._at = error.at
            self._stop_clock()
            self._worker.submit(self.run_to_end)
            return
        except Suspended:
            return  # as above
        except BaseException as error:
            self._finish(None, _as_op_error(error))
            return
        self._stop_clock()
        self._end(results)

    def _end(self, results: list[Any]) -> None:
        """Counts a completed run. It begins the next one if more were asked for, else it answers."""
        graph, counters = self._graph, self._worker.counters
        counters.note(graph.writes, self._seen)
        # The first run compiles, so it does not count.
        if graph.runs:
            graph.cost = self._spent
        graph.runs += 1
        if self._times > 1:
            self._times -= 1
            self._at, self._yielded_at, self._values = 0, -1, []
            self._seen, self._spent = counters.updates, 0.0
            self._step.drawn, self._step.waited = {}, 0.0
            self.resume()
        elif results or graph.executable.ends_with_send:
            self._finish(results, None)
        else:  # the answer carries no tensors, so that steps which this one has resumed come first
            run_queue.run(lambda: self._finish(results, None))

    def _suspend(self) -> Callable[[], None]:
        """Suspends the step. Returns the function that resumes it; cancelling the step resumes it, too."""
        self._stop_clock()
        self._step.rendezvous.suspend(self.resume)
        return self._step.rendezvous.resume

    def _stop(self, at: int, instruction: Any) -> bool:
        """Decides at an instruction that may block. Returns True if this thread must stop before it."""
        self._at = at
        if not isinstance(instruction, RecvCall):
            if instruction.node.op.can_suspend:
                if run_queue.pending and self._yielded_at != at:
                    self._yielded_at = at  # the pending steps may bring what it would wait for
                    self._stop_clock()
                    run_queue.run(self._proceed)
                    return True
                self._step.suspend = self._suspend
                return False
            self._stop_clock()
            self._worker.submit(self.run_to_end)
            return True
        self._stop_clock()
        if not self._step.rendezvous.ready(instruction.keys, self.resume):
            return True
        self._start_clock()
        return False

    def _finish(self, results: list[Any] | None, error: OpError | None) -> None:
        self._worker.end_step(self._number)
        self._values, self._fed = [], ()
        if error is not None:
            self._worker.counters.failed += 1
        try:
            self._on_done(results, error, self._step)
        except OpError as gone:  # the requester has gone
            logging.debug("The result of a step could not be delivered: %s", gone.message)


def _as_op_error(error: BaseException) -> OpError:
    if isinstance(error, OpError):
        return error
    logging.error("penstock: a step failed", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")
