"""A driver runs one step of one partition for a master in another process. Here alone it is decided in which thread.

The thread that reads a request runs the step until it would block. Another thread brings what the step needs then, and
goes on with it. A step that blocks otherwise, or takes long, gets a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import logging
from penstock.errors import FailedPreconditionError, InternalError, OpError
from penstock.memory import give_back_freed
from penstock.segments.running import Company
from penstock.wire.messages import RunGraph
from penstock.worker.executor import Executable
from penstock.worker.needs import Need, Other, Tensors
from penstock.worker.run_queue import run_queue
from penstock.worker.step import Step

QUICK = 0.01  # seconds: a graph that took no longer runs in the thread that brings its tensors
OnDone = Callable[[list[Any] | None, OpError | None, Step], None]  # gets the results, or the error, and the step


@dataclass(slots=True)
class Registered:
    """A partition that a session has registered, and of which steps can run."""

    executable: Executable
    session: str
    writes: bool
    cost: float = float("inf")  # seconds that the last run took
    runs: int = 0


class Driver:
    """Runs one step of one partition, as often as the master asks for. One thread at a time has it.

    >>> Driver(worker, graph, request, step, on_done).start()
    """

    __slots__ = (
        "_at",
        "_fed",
        "_graph",
        "_is_running",
        "_is_woken",
        "_lock",
        "_may_meet",
        "_number",
        "_on_done",
        "_results",
        "_seen",
        "_spent",
        "_step",
        "_times",
        "_wants_ahead",
        "_worker",
        "values",
    )

    def __init__(self, worker: Any, graph: Registered, request: RunGraph, step: Step, on_done: OnDone) -> None:
        self._worker = worker
        self._graph = graph
        self._number = request.step
        self._times = request.times
        self._step = step
        self._on_done = on_done
        self._wants_ahead = request.ahead
        self._fed = request.values[: request.fed]
        self._lock = threading.Lock()
        self._is_running = False  # a thread has the step, or it has ended
        self._is_woken = False  # what it waited for may be there
        self._may_meet = step.commit is None and step.timings is None
        self._begin(request.begun)

    def _begin(self, begun: int = 0) -> None:
        self._at = 1 if begun else 0  # what the first instruction sends came ahead
        self.values: list[Any] = []  # until the first instruction runs
        self._results: list[Any] = []
        self._spent = 0.0  # seconds of work
        updates = self._worker.counters.updates
        self._seen = min(begun - 1, updates) if begun else updates

    def start(self) -> None:
        """Begins the step, in this thread if it is quick."""
        if self._graph.cost < QUICK:
            self.wake()
        else:
            self._give_thread()

    def wake(self) -> None:
        """Has the step go on in this thread. If another thread has the step, that one goes on with it."""
        with self._lock:
            self._is_woken = True
            if self._is_running:
                return
            self._is_running = True
        run_queue.run(self._go_on)

    def _go_on(self) -> None:
        """Runs the step until it ends or has nobody who could go on with it."""
        self._step.wake = self.wake
        self._step.has_company = self._may_meet and run_queue.has_company()
        while self._was_woken():
            try:
                need = self._proceed()
                if need is not None and self._step.outbox:
                    self._step.outbox.flush()  # others may wait for that
            except BaseException as error:
                self._finish(None, _as_op_error(error))
                return
            if need is None:
                self._end()
                return
            if need is Other.THREAD:
                self._give_thread()
                return
            if isinstance(need, Company):
                run_queue.meet(need, self)
                return
            if isinstance(need, Tensors):
                if self._step.rendezvous.ready(need.keys, self.wake):
                    self._is_woken = True  # they have come meanwhile
            else:
                self._step.rendezvous.on_cancel(self.wake)  # the resource wakes it, too

    def go_on_after(self, seconds: float) -> None:
        """Goes on after an instruction that was run for several steps, of which this one's part took so long."""
        self._at += 1
        self._spent += seconds
        self._go_on_later()

    def go_on_alone(self) -> None:
        """Goes on at the instruction that could not be run for several steps."""
        self._may_meet = False
        self._go_on_later()

    def _go_on_later(self) -> None:
        """Has this thread, which has the step, go on with it after those that are at hand."""
        self._is_woken = True
        run_queue.run(self._go_on)

    def _was_woken(self) -> bool:
        """Tells if this thread has to go on with the step. If not, it leaves the step to the one that wakes it."""
        with self._lock:
            self._is_running, self._is_woken = self._is_woken, False
            return self._is_running

    def _give_thread(self) -> None:
        self._is_running = True
        self._worker.submit(self._run_to_end)

    def _run_to_end(self) -> None:
        """Runs the step to its end, and blocks this thread where an instruction waits."""
        self._step.wake, self._step.has_company = None, False
        try:
            self._proceed()
        except BaseException as error:
            self._finish(None, _as_op_error(error))
            return
        self._end()

    def _proceed(self) -> Need | None:
        """Runs instructions, and returns what the next one needs, or None after the last."""
        began, waited = time.perf_counter(), self._step.waited
        executable = self._graph.executable
        if not self.values:
            self.values = executable.begin(self._fed)
        self._at, need = executable.proceed(self.values, self._step, self._at)
        if need is None:
            self._results = executable.results(self.values)
            if self._wants_ahead:
                self._look_ahead()
        self._spent += time.perf_counter() - began - (self._step.waited - waited)
        return need

    def _end(self) -> None:
        """Counts a completed run. It begins the next one if more were asked for, else it answers."""
        graph, counters, results = self._graph, self._worker.counters, self._results
        counters.note(graph.writes, self._seen)
        # The first run compiles, so it does not count.
        if graph.runs:
            graph.cost = self._spent
        graph.runs += 1
        if self._times > 1 and not self._worker.is_moving:
            self._times -= 1
            self._begin()
            self._step.drawn = {}
            self._go_on_later()
        elif results or self._step.outbox or self._step.ahead:
            self._finish(results, None)
        else:  # the answer carries no tensors, so that steps which this one has woken come first
            run_queue.run(lambda: self._finish(results, None))

    def _look_ahead(self) -> None:
        """Has the answer bring what the next step begins with, if the requester is the one who gets it."""
        opening, requester = self._graph.executable.opening, self._step.requester
        if opening is not None and requester is not None and requester.peer == opening.task:
            number = self._worker.counters.updates + 2  # one more than the updates with this one, as 0 means none
            try:
                self._step.ahead = number, opening.keys, opening.gathered([])
            except FailedPreconditionError as error:  # a variable was reset meanwhile, which the next step finds
                logging.debug("Nothing is sent ahead: %s", error.message)

    def _finish(self, results: list[Any] | None, error: OpError | None) -> None:
        self._worker.end_step(self._number)
        self.values, self._results, self._fed = [], [], ()
        if self._graph.runs <= 1 and self._graph.executable.overwrites_huge:
            give_back_freed()  # programs initialise and restore once, and training needs less memory
        if error is not None:
            self._worker.counters.failed += 1
        try:
            self._on_done(results, error, self._step)
        except OpError as gone:  # the requester has gone
            logging.debug("The result of a step could not be delivered: %s", gone.message)
        del self._step  # it refers to this driver, and both can be freed at once


def _as_op_error(error: BaseException) -> OpError:
    if isinstance(error, OpError):
        return error
    logging.error("penstock: a step failed", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")
