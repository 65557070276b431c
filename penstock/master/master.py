"""Master: from a graph and what is fed and fetched to registered partitions, and steps over them."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import AbortedError, CancelledError, DeadlineExceededError, InternalError, OpError
from penstock.graph.operation import Operation, Tensor
from penstock.master.step import AbortPart, Instruction, StepState
from penstock.master.tasks import LocalTask, Task, Tasks, session_closed
from penstock.memory import without_collecting
from penstock.passes import pipeline
from penstock.passes.partition import Partition, partition
from penstock.passes.prune import prune
from penstock.passes.split import devices_in
from penstock.wire.codec import Done, RunGraph
from penstock.wire.loop import Signal
from penstock.worker.cancellation import Cancellation
from penstock.worker.step import Step
from penstock.worker.transfer import SendCall
from penstock.worker.worker import Worker

GRACE_SECS = 1.0  # for the other parts of a step that has failed to say that they have stopped


@dataclass(slots=True, eq=False)
class _Part:
    task: Task
    graph: Any  # as its task knows it
    feeds: list[int]
    fetches: list[int]


class Signature:
    """A graph compiled for one set of feeds and fetches."""

    __slots__ = ("fetch_count", "here", "opened", "opening", "others", "run_whole", "wait")

    def __init__(self, parts: list[_Part], fetch_count: int) -> None:
        # A part of this process runs in the thread that asks for the step.
        self.here = next((p for p in parts if isinstance(p.task, LocalTask)), None)
        self.others = [p for p in parts if p is not self.here]
        self.fetch_count = fetch_count
        # What a part of this process sends first goes out together with the request to run the part that it is for.
        self.opening: SendCall | None = None
        self.opened: _Part | None = None
        if self.here is not None and self.others:
            assert isinstance(self.here.task, LocalTask)
            self.opening = self.here.task.worker.opening(self.here.graph)
            if self.opening is not None:
                self.opened = next(p for p in self.others if p.task.name == self.opening.task)
        # Whoever waits for tasks of other processes reads what they send, if they share a loop.
        loops = {id(p.task.loop): p.task.loop for p in self.others if p.task.loop is not None}
        self.wait = next(iter(loops.values())).wait if len(loops) == 1 else Signal.wait
        # One task, no Send or Recv: the step is a plain call.
        self.run_whole: Callable[[Sequence[Any], Step], list[Any]] | None = None
        if self.here is not None and not self.others:
            assert isinstance(self.here.task, LocalTask)
            self.run_whole = self.here.task.worker.runner(self.here.graph)


class Master:
    """Drives the tasks of a session. For a local session there is one, in this process."""

    def __init__(
        self, tasks: Tasks | Sequence[Worker], soft_placement: bool = False, log_placement: bool = False
    ) -> None:
        self.tasks = tasks if isinstance(tasks, Tasks) else Tasks.in_process(tasks)
        self.session = f"{secrets.randbits(63):016x}"
        self.soft_placement = soft_placement
        self.log_placement = log_placement
        self.compilations = 0  # signatures compiled so far
        # From a point of its own, so that no two sessions have steps of one number.
        self._numbers = itertools.count(secrets.randbits(62))
        self._signatures: dict[Any, Signature] = {}
        self._lock = threading.Lock()
        self._running: set[Cancellation] = set()
        self._closed = False

    # Signatures

    def signature(
        self,
        feeds: tuple[Tensor, ...],
        fetches: tuple[Tensor, ...],
        targets: tuple[Operation, ...],
        mutations: int,
        done: frozenset[Operation] = frozenset(),
        deadline: float | None = None,
    ) -> Signature:
        """The compiled form of a signature; all graph work happens here, once.

        The operations in `done` have run in an earlier piece of a partial run. It may have to wait for tasks:
        DeadlineExceededError if one is not there by `deadline` (time.monotonic()).
        """
        key = (feeds, fetches, targets, mutations, done)
        if not self._lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise DeadlineExceededError("The time limit has passed while another step connects to tasks.")
        try:
            found = self._signatures.get(key)
            if found is None:
                found = self._signatures[key] = self._compile(feeds, fetches, targets, done, deadline)
        except AbortedError as error:
            if self._closed:
                raise session_closed() from error  # and so its graphs are gone
            raise
        finally:
            self._lock.release()
        return found

    @without_collecting()
    def _compile(
        self,
        feeds: Sequence[Tensor],
        fetches: Sequence[Tensor],
        targets: Sequence[Operation],
        done: frozenset[Operation],
        deadline: float | None,
    ) -> Signature:
        self.compilations += 1
        subgraph = pipeline.applied(pipeline.GRAPH, prune(feeds, fetches, targets, done))
        tasks, soft = self.tasks, self.soft_placement
        tasks.require(devices_in(subgraph.nodes), deadline)
        subgraph = pipeline.applied(pipeline.placement(tasks.device_names, soft), subgraph)
        if self.log_placement:
            for node in subgraph.nodes:
                print(f"{node.name}: ({node.op.name}): {node.device}", flush=True)
        subgraph = pipeline.applied(pipeline.PLACED, subgraph)
        keys = itertools.count()
        if tasks.are_several:
            subgraph = pipeline.applied(pipeline.over_tasks(tasks.device_names, soft, keys), subgraph)
        return Signature([self._register(p, deadline) for p in partition(subgraph, keys)], len(fetches))

    def _register(self, part: Partition, deadline: float | None) -> _Part:
        task = self.tasks[part.task] if part.task else self.tasks.default
        return _Part(task, task.register(part.subgraph, self.session, deadline), part.feeds, part.fetches)

    # Steps

    def run(
        self,
        signature: Signature,
        fed: Sequence[Any],
        timeout: float | None = None,
        trace: bool = False,
        times: int = 1,
    ) -> tuple[list[Any], Step, list[bytes]]:
        """Runs one step in all tasks. Returns what is fetched, the step, and what other tasks have traced.

        A step that is all in one other task may be run up to `times` times there before it answers.
        """
        if signature.run_whole is None:
            return self._run_parts(signature, fed, timeout, trace, times)
        cancelled = Cancellation()
        step = Step(cancelled, None if timeout is None else time.monotonic() + timeout, trace)
        self._running.add(cancelled)
        try:
            if self._closed:
                raise session_closed()
            return signature.run_whole(fed, step), step, []
        except AbortedError as error:
            if self._closed:
                raise session_closed() from error
            raise
        finally:
            self._running.discard(cancelled)

    def _run_parts(
        self, signature: Signature, fed: Sequence[Any], timeout: float | None, trace: bool, times: int
    ) -> tuple[list[Any], Step, list[bytes]]:
        if signature.here is not None or len(signature.others) > 1:
            times = 1
        run = _StepRun(next(self._numbers), signature, timeout, trace, times)
        self._running.add(run.cancelled)
        try:
            if self._closed:
                raise session_closed()
            return run(fed)
        finally:
            self._running.discard(run.cancelled)
            run.cancelled.clear()

    def close(self) -> None:
        """Cancels the steps in flight, takes no more, and has all tasks forget the session."""
        self._closed = True
        for cancelled in list(self._running):
            cancelled.set()
        for task in self.tasks.connected():
            task.close_session(self.session)


class _StepRun:
    """One step over several tasks: the acting side of a StepState."""

    def __init__(self, number: int, signature: Signature, timeout: float | None, trace: bool, times: int) -> None:
        self._number = number
        self._times = times
        self._signature = signature
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._trace = trace
        self._traces: list[bytes] = []
        here = signature.here
        self._state = StepState(signature.others if here is None else [here, *signature.others])
        self._lock = threading.Lock()
        self._news, self._over = Signal(), Signal()  # an error or the end; the end
        self.cancelled = Cancellation()
        self.cancelled.on_cancel(self._cancel)

    def __call__(self, fed: Sequence[Any]) -> tuple[list[Any], Step, list[bytes]]:
        """Runs the step and returns what was fetched, the step in this task, and what others have traced."""
        here, others = self._signature.here, self._signature.others
        step = Step(Cancellation())
        if here is not None:
            assert isinstance(here.task, LocalTask)
            step = here.task.worker.open_step(self._number, self._timeout, self._trace)
            step.wait = self._signature.wait
        try:
            opened = self._open(fed)
            for part in others:
                self._start(part, [fed[i] for i in part.feeds], opened if part is self._signature.opened else ())
            if here is not None:
                self._run_here(here, [fed[i] for i in here.feeds], step)
            self._wait()
        finally:
            if here is not None:
                here.task.worker.end_step(self._number)  # type: ignore[attr-defined]
        state = self._state
        if state.error is not None:
            raise state.error
        results: list[Any] = [None] * self._signature.fetch_count
        for answered, values in state.results.items():
            assert isinstance(answered, _Part)
            for position, value in zip(answered.fetches, values, strict=True):
                # What lies in shared memory is not the client's to keep.
                borrowed = value.__class__ is np.ndarray and not value.flags.writeable
                results[position] = value.copy() if borrowed else value
        return results, step, self._traces

    def _open(self, fed: Sequence[Any]) -> Sequence[Any]:
        """What the part of this process sends first."""
        here, opening = self._signature.here, self._signature.opening
        if here is None or opening is None:
            return ()
        try:
            return here.task.worker.opened(here.graph, opening, [fed[i] for i in here.feeds])  # type: ignore[attr-defined, no-any-return]
        except OpError as error:
            failure = error
            self._act(lambda state: state.failed(here, failure))
            return ()

    def _start(self, part: _Part, fed: list[Any], opened: Sequence[Any]) -> None:
        def answer(result: Done | OpError) -> None:
            if isinstance(result, OpError):
                self._act(lambda state: state.failed(part, result))
                return
            if result.trace:
                self._traces.append(result.trace)
            if len(result.values) != len(part.fetches):
                wrong = InternalError(
                    f"{part.task.name} gave {len(result.values)} values, {len(part.fetches)} are fetched."
                )
                self._act(lambda state: state.failed(part, wrong))
                return
            self._act(lambda state: state.finished(part, list(result.values)))

        failure = self._state.error
        if failure is not None:
            answer(failure)  # another part could not even begin
            return
        timeout, count = -1.0 if self._timeout is None else self._timeout, len(fed)
        request = RunGraph(self._number, 0, timeout, self._trace, self._times, count, range(count), fed)
        if opened:
            assert self._signature.opening is not None
            request.keys, request.values = [*range(count), *self._signature.opening.keys], [*fed, *opened]
        try:
            part.task.start(part.graph, request, answer)
        except OpError as error:
            answer(error)

    def _run_here(self, part: _Part, fed: list[Any], step: Step) -> None:
        before = self._state.error
        if before is not None:
            self._act(lambda state: state.failed(part, before))
            return
        try:
            first = 0 if self._signature.opening is None else 1
            values = part.task.worker.run_graph(part.graph, fed, step, first)  # type: ignore[attr-defined]
        except OpError as error:
            failure = error
            self._act(lambda state: state.failed(part, failure))
        except BaseException as error:
            left = CancelledError(f"The step was left: {error!r}")
            self._act(lambda state: state.given_up(left))
            raise
        else:
            self._act(lambda state: state.finished(part, values))

    def _act(self, event: Callable[[StepState], list[Instruction]]) -> None:
        """Tells the state of an event, and does what it says."""
        with self._lock:
            instructions = event(self._state)
        for instruction in instructions:
            if isinstance(instruction, AbortPart):
                assert isinstance(instruction.part, _Part)
                instruction.part.task.abort(self._number, instruction.why)
        if instructions:
            with self._lock:
                if self._state.ended:
                    self._over.set()
                self._news.set()

    def _cancel(self) -> None:
        self._act(lambda state: state.given_up(session_closed()))

    def _wait(self) -> None:
        """Waits until all parts have answered. After the first error the others have a moment to do so."""
        state = self._state
        remaining = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        # Without a deadline: a task that is lost answers with an error, and a task that is silent is lost.
        if not self._signature.wait(self._news, remaining):
            late = ", ".join(p.task.name for p in state.waiting)  # type: ignore[attr-defined]
            error = DeadlineExceededError(f"Timed out after {self._timeout} s waiting for {late}.")
            self._act(lambda state: state.given_up(error))
        elif not state.ended and not self._signature.wait(self._over, GRACE_SECS):
            self._act(lambda state: state.given_up(state.error or InternalError("no error")))
