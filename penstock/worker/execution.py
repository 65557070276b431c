"""Execution: one step of one partition, run for a master in another process without blocking a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import logging
from penstock.errors import InternalError, OpError
from penstock.kernel.waiting import NeedsThread, Suspended
from penstock.memory import give_back_freed
from penstock.wire.messages import RunGraph
from penstock.worker.executor import Executable
from penstock.worker.run_queue import run_queue
from penstock.worker.step import Step
from penstock.worker.transfer import RecvCall

OnDone = Callable[[list[Any] | None, OpError | None, Step], None]  # gets the results, or the error, and the step


@dataclass(slots=True)
class Registered:
    """A partition that a session has registered, and of which steps can run."""

    executable: Executable
    session: str
    writes: bool
    cost: float = float("inf")  # seconds that the last run took
    runs: int = 0


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

    def __init__(self, worker: Any, graph: Registered, request: RunGraph, step: Step, on_done: OnDone) -> None:
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
        if self._times > 1 and not self._worker.is_moving:
            self._times -= 1
            self._at, self._yielded_at, self._values = 0, -1, []
            self._seen, self._spent = counters.updates, 0.0
            self._step.drawn, self._step.waited = {}, 0.0
            self.resume()
        elif results or self._step.outbox:
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
        outbox = self._step.outbox
        if outbox and (not isinstance(instruction, RecvCall) or self._step.rendezvous.missing(instruction.keys)):
            outbox.flush()
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
        if self._graph.runs <= 1 and self._graph.executable.overwrites_huge:
            give_back_freed()  # programs initialise and restore once, and training needs less memory
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
