"""The master turns a graph with its feeds and fetches into registered partitions, and drives steps over them."""

from __future__ import annotations

import functools
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import AbortedError, CancelledError, DeadlineExceededError, InternalError, OpError
from penstock.graph.operation import Operation, Tensor
from penstock.master.ahead import Brought
from penstock.master.gate import HELD, Gate
from penstock.master.membership import Membership, Moved
from penstock.master.signature import LocalPart, Part, Signature
from penstock.master.step_tracker import Action, CancelPart, StepTracker
from penstock.master.tasks import Tasks, session_closed
from penstock.memory import without_collecting
from penstock.passes import pipeline
from penstock.passes.ir import Subgraph
from penstock.passes.partition import Partition, partition
from penstock.passes.prune import prune
from penstock.passes.replicas import JOINS
from penstock.passes.split import devices_in
from penstock.wire.loop import Signal
from penstock.wire.messages import Done, RunGraph
from penstock.worker.cancellation import Cancellation
from penstock.worker.commits import ClosureId
from penstock.worker.step import Step
from penstock.worker.worker import Worker

_NO_CLOSURE = ClosureId(0, 0, 0)
_CLOSED = -2  # the version of a closed master: no signature has it
GRACE_SECS = 1.0  # after a part has failed, the others have so long to answer


class Master:
    """Drives the tasks of a session. A local session has one task, in this process."""

    def __init__(
        self,
        tasks: Tasks | Sequence[Worker],
        soft_placement: bool = False,
        log_placement: bool = False,
        reads_ahead: bool = False,
    ) -> None:
        self.tasks = tasks if isinstance(tasks, Tasks) else Tasks.in_process(tasks)
        self.session = f"{secrets.randbits(63):016x}"
        self.soft_placement = soft_placement
        self.log_placement = log_placement
        self.reads_ahead = reads_ahead  # only this process says when steps begin
        self.compilations = 0  # signatures compiled so far
        # A random start, so that no two sessions use the same step numbers.
        self._numbers = itertools.count(secrets.randbits(62))
        self._signatures: dict[Any, Signature] = {}
        self._lock = threading.Lock()
        self.running: dict[Cancellation, Signature] = {}
        # Of the membership; HELD or _CLOSED while no step may begin. A step notes that it runs, then compares versions.
        self.version = self.tasks.membership.version
        self._gate = Gate(self)

    @property
    def is_closed(self) -> bool:
        """Tells if the session is closed."""
        return self.version == _CLOSED

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
        """Returns a signature, compiled at its first use.

        The operations in `done` have run in an earlier piece of a partial run. Compiling may have to wait for tasks; it
        raises DeadlineExceededError if one is not there by `deadline` (time.monotonic()).
        """
        key = (feeds, fetches, targets, mutations, done)
        if not self._lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise DeadlineExceededError("The time limit has passed while another step connects to tasks.")
        try:
            found = self._signatures.get(key)
            if found is None:
                found = self._signatures[key] = self._compile(feeds, fetches, targets, done, deadline)
        except AbortedError as error:
            if self.is_closed:
                raise session_closed() from error  # closing it has removed the graph
            raise
        finally:
            self._lock.release()
        return found

    def prepared(self, feeds: Sequence[Tensor], fetches: Sequence[Tensor], targets: Sequence[Operation]) -> Signature:
        """Compiles a signature that the caller keeps. It lives until the caller gives it to `forget`."""
        with self._lock:
            return self._compile(feeds, fetches, targets, frozenset(), None)

    def forget(self, signature: Signature) -> None:
        """Frees a signature that the caller has kept. Other tasks hear of it before their next step, or later.

        The garbage collector may call this at any time.
        """
        for part in (signature.local_part, *signature.other_parts):
            if part is not None:
                part.task.free(part.graph)

    def send_unused(self) -> None:
        """Tells all tasks what they can free."""
        for task in self.tasks.connected():
            task.send_unused()

    @without_collecting()
    def _compile(
        self,
        feeds: Sequence[Tensor],
        fetches: Sequence[Tensor],
        targets: Sequence[Operation],
        done: frozenset[Operation],
        deadline: float | None,
    ) -> Signature:
        return self.compiled(prune(feeds, fetches, targets, done), deadline)

    def compiled(self, subgraph: Subgraph, deadline: float | None = None) -> Signature:
        """Returns a graph compiled for its tasks, with what is fed and fetched."""
        while True:
            try:
                return self._placed(subgraph, deadline)
            except Moved as error:
                self.follow(error.membership)

    def follow(self, membership: Membership) -> None:
        """Places graphs by a newer membership from now on."""
        self.tasks.follow(membership)
        if self.version >= 0:
            self.version = membership.version

    def _placed(self, source: Subgraph, deadline: float | None) -> Signature:
        self.compilations += 1
        tasks, soft = self.tasks, self.soft_placement
        fetch_count, version, homes = len(source.fetches), tasks.membership.version, tasks.homes
        subgraph = pipeline.applied((*pipeline.replicas(tasks.added_workers), *pipeline.GRAPH), source)
        tasks.require(devices_in(subgraph.nodes), deadline)
        subgraph = pipeline.applied(pipeline.placement(tasks.device_names, soft, homes), subgraph)
        if self.log_placement:
            for node in subgraph.nodes:
                print(f"{node.name}: ({node.op.name}): {node.device}", flush=True)
        subgraph = pipeline.applied(pipeline.PLACED, subgraph)
        keys = itertools.count()
        passes = pipeline.over_tasks if tasks.are_several else pipeline.over_devices
        subgraph = pipeline.applied(passes(tasks.device_names, soft, keys, homes), subgraph)
        parts = [self._register(p, deadline, version) for p in partition(subgraph, keys)]
        signature = Signature(parts, fetch_count, source if tasks.numbers() else None, version)
        if tasks.is_joining and any(JOINS in node.attrs for node in source.nodes):
            signature.joins, signature.version = True, HELD
        return signature

    def _place_anew(self, signature: Signature, deadline: float | None) -> None:
        """Places the graph of a signature by the membership of now."""
        with self._lock:
            if signature.version != self.version and self.version >= 0 and signature.source is not None:
                fresh = self.compiled(signature.source, deadline)
                self.forget(signature)
                signature.become(fresh)

    def _register(self, part: Partition, deadline: float | None, version: int) -> Part:
        task = self.tasks[part.task] if part.task else self.tasks.default
        graph = task.register(part.subgraph, self.session, deadline, version=version)
        about = task, graph, part.feeds, part.fetches
        return Part(*about) if task.worker is None else LocalPart(*about, task.worker)

    # Steps

    def run(
        self,
        signature: Signature,
        fed: Sequence[Any],
        timeout: float | None = None,
        trace: bool = False,
        times: int = 1,
        closure: ClosureId | None = None,
        cancelled: Cancellation | None = None,
    ) -> tuple[list[Any], Step, list[bytes]]:
        """Runs one step in all tasks. Returns the fetched values, the step, and the traces of other tasks.

        If all of the step is in one other task, that task runs it up to `times` times before it answers. A step of a
        `closure` is made once though it may run again. The caller may cancel it by `cancelled`.
        """
        if signature.run_whole is None:
            return self._run_parts(signature, fed, timeout, trace, times, closure, cancelled)
        cancelled = cancelled or Cancellation()
        step = Step(cancelled, None if timeout is None else time.monotonic() + timeout, trace)
        self.running[cancelled] = signature
        try:
            if signature.version != self.version and not self._may_run(signature, cancelled, step.deadline):
                return self.run(signature, fed, timeout, trace, times, closure, cancelled)
            return signature.run_whole(fed, step), step, []
        except AbortedError as error:
            if self.is_closed:
                raise session_closed() from error
            raise
        finally:
            self.running.pop(cancelled, None)
            if signature.version != self.version:
                self._gate.step_ended()

    def _may_run(self, signature: Signature, step: Cancellation, deadline: float | None) -> bool:
        """Waits until a step may begin. False: it must begin again, since its graph has been placed anew meanwhile."""
        if self.is_closed:
            raise session_closed()
        if self._gate.pass_through(signature, step, deadline):
            return True
        self.running.pop(step, None)
        self._place_anew(signature, deadline)
        return False

    def _run_parts(
        self,
        signature: Signature,
        fed: Sequence[Any],
        timeout: float | None,
        trace: bool,
        times: int,
        closure: ClosureId | None,
        cancelled: Cancellation | None,
    ) -> tuple[list[Any], Step, list[bytes]]:
        if signature.local_part is not None or len(signature.other_parts) > 1:
            times = 1
        run = _StepDriver(next(self._numbers), signature, timeout, trace, times, closure)
        if cancelled is not None:
            cancelled.on_cancel(run.cancelled.set)
        self.running[run.cancelled] = signature
        try:
            if signature.version != self.version and not self._may_run(signature, run.cancelled, run.deadline):
                return self.run(signature, fed, timeout, trace, times, closure, cancelled)
            brought = signature.ahead.take()
            return run(fed, brought if self.reads_ahead and signature.may_read_ahead and not trace else None)
        finally:
            self.running.pop(run.cancelled, None)
            if signature.version != self.version:
                self._gate.step_ended()
            run.cancelled.clear()
            signature.ahead.keep(run.ahead)

    def close(self) -> None:
        """Cancels the steps in flight, refuses further ones, and tells all tasks to forget the session."""
        self.version = _CLOSED
        for cancelled in list(self.running):
            cancelled.set()
        self._gate.wake()
        for task in self.tasks.connected():
            task.close_session(self.session)


class _StepDriver:
    """Drives one step over several tasks: it reports events to a StepTracker and does what that says."""

    def __init__(
        self,
        number: int,
        signature: Signature,
        timeout: float | None,
        trace: bool,
        times: int,
        closure: ClosureId | None,
    ) -> None:
        self._closure = closure or _NO_CLOSURE
        self._number = number
        self._times = times
        self._signature = signature
        self._timeout = timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self._trace = trace
        self._traces: list[bytes] = []
        self._asks = False  # for what the next step begins with
        self.ahead: dict[str, Brought] = {}  # that
        local = signature.local_part
        parts = signature.other_parts if local is None else [local, *signature.other_parts]
        self._tracker: StepTracker[Part] = StepTracker(parts)
        self._lock = threading.Lock()
        self._changed, self._ended = Signal(), Signal()  # set at the first error or the end, and at the end
        self.cancelled = Cancellation()
        self.cancelled.on_cancel(self._cancel)

    def __call__(
        self, fed: Sequence[Any], ahead: Mapping[str, Brought] | None = None
    ) -> tuple[list[Any], Step, list[bytes]]:
        """Runs the step. Returns the fetched values, the step in this task, and the traces of other tasks.

        Tasks have brought `ahead` what it begins with. It asks for the same unless this is None.
        """
        self._asks = ahead is not None
        local, others = self._signature.local_part, self._signature.other_parts
        step = Step(Cancellation())
        if local is not None:
            step = local.worker.open_step(self._number, self._timeout, self._trace)
            step.wait = self._signature.wait
        try:
            for part in others:
                brought = ahead.get(part.task.name) if ahead else None
                start = functools.partial(self._start, part, [fed[i] for i in part.feeds], brought)
                if local is None:
                    start((), [])
                    continue
                # The first tensors that the local part sends may travel along.
                step.outbox.begin(part.task.name, start, is_patient=brought is not None)
                if brought is not None:
                    step.rendezvous.put(brought.keys, brought.values)
            if local is not None:
                self._run_local(local, [fed[i] for i in local.feeds], step)
            self._wait()
        finally:
            if local is not None:
                local.worker.end_step(self._number)
        tracker = self._tracker
        if tracker.error is not None:
            raise tracker.error
        results: list[Any] = [None] * self._signature.fetch_count
        for answered, values in tracker.results.items():
            for position, value in zip(answered.fetches, values, strict=True):
                # An array in shared memory must be given back, so the client gets a copy.
                borrowed = value.__class__ is np.ndarray and not value.flags.writeable
                results[position] = value.copy() if borrowed else value
        return results, step, self._traces

    def _start(
        self, part: Part, fed: list[Any], brought: Brought | None, keys: Sequence[int], tensors: list[Any]
    ) -> None:
        def answer(result: Done | OpError) -> None:
            if isinstance(result, OpError):
                self._handle(lambda tracker: tracker.failed(part, result))
                return
            if result.trace:
                self._traces.append(result.trace)
            values, count = list(result.values), len(result.values) - result.coming
            if count != len(part.fetches):
                wrong = InternalError(f"{part.task.name} gave {count} values, {len(part.fetches)} are fetched.")
                self._handle(lambda tracker: tracker.failed(part, wrong))
                return
            if result.coming:
                self.ahead[part.task.name] = Brought(result.ahead, result.keys[-result.coming :], values[count:])
            self._handle(lambda tracker: tracker.finished(part, values[:count]))

        failure = self._tracker.error
        if failure is not None:
            answer(failure)  # another part has failed before this one began
            return
        timeout, count = -1.0 if self._timeout is None else self._timeout, len(fed)
        every, values = [*range(count), *keys], [*fed, *tensors]
        begun = 0 if brought is None else brought.number
        request = RunGraph(
            self._number, 0, timeout, self._trace, self._times, *self._closure, self._asks, begun, count, every, values
        )
        try:
            part.task.start(part.graph, request, answer)
        except OpError as error:
            answer(error)

    def _run_local(self, part: LocalPart, fed: list[Any], step: Step) -> None:
        try:
            values = part.worker.run_graph(part.graph, fed, step)
        except OpError as error:
            failure = error
            self._handle(lambda tracker: tracker.failed(part, failure))
            step.outbox.start_rest()  # they answer that this part has failed
        except BaseException as error:
            interrupted = CancelledError(f"The step was interrupted: {error!r}")
            self._handle(lambda tracker: tracker.cancelled(interrupted))
            raise
        else:
            self._handle(lambda tracker: tracker.finished(part, values))

    def _handle(self, event: Callable[[StepTracker[Part]], list[Action[Part]]]) -> None:
        """Reports an event to the tracker, and does what it says."""
        with self._lock:
            actions = event(self._tracker)
        for action in actions:
            if isinstance(action, CancelPart):
                action.part.task.cancel(self._number, action.why)
        if actions:
            with self._lock:
                if self._tracker.ended:
                    self._ended.set()
                self._changed.set()

    def _cancel(self) -> None:
        self._handle(lambda tracker: tracker.cancelled(session_closed()))

    def _wait(self) -> None:
        """Waits until all parts have answered. After the first error the others have GRACE_SECS to answer."""
        tracker = self._tracker
        remaining = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        # The wait ends without a deadline, too: a task that is lost, or silent for long, counts as an error.
        if not self._signature.wait(self._changed, remaining):
            late = ", ".join(p.task.name for p in tracker.waiting)
            error = DeadlineExceededError(f"Timed out after {self._timeout} s waiting for {late}.")
            self._handle(lambda tracker: tracker.cancelled(error))
        elif not tracker.ended and not self._signature.wait(self._ended, GRACE_SECS):
            self._handle(lambda tracker: tracker.cancelled(tracker.error or InternalError("no error")))
