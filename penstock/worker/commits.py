"""Commits: which writes of a closure a task has made, so that a closure that is run again makes each of them once.

A coordinator that loses a worker has its closures run again by another. A parameter server that has made some of their
writes must not make them twice: it counts the writing instructions of each closure that it has completed, and on
another run only reads where it has written before. The instructions are the same, since the function and its graph are.

A coordinator that has gone runs nothing again. Its process may also have been out of reach for a while: so its closures
are forgotten once it has asked for nothing for an hour, and has no connection to this task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.errors import AbortedError
from penstock.worker.needs import Need

IDLE_SECS = 3600.0


class ClosureId(NamedTuple):
    """Names a closure: the coordinator's process, the closure's number there, and the number below which all ended."""

    writer: int
    number: int
    settled: int


class _Writes:
    """The writes of one closure on this task."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held during each of them
        self.made = 0  # writing instructions that have completed
        self.runs = 0  # runs that have begun


class _Writer:
    """The closures of one coordinator on this task."""

    def __init__(self) -> None:
        self.closures: dict[int, _Writes] = {}  # by number
        self.settled = 0  # all closures with lower numbers have ended
        self.heard_at = 0.0

    def settle(self, settled: int) -> None:
        if settled - self.settled > len(self.closures):
            self.closures = {number: writes for number, writes in self.closures.items() if number >= settled}
        else:  # as a rule: there may be thousands of them, and few that have ended since
            for number in range(self.settled, settled):
                self.closures.pop(number, None)
        self.settled = max(settled, self.settled)


class Commit:
    """One run of a closure on this task."""

    __slots__ = ("_passed", "_run", "_writes")

    def __init__(self, writes: _Writes) -> None:
        self._writes = writes
        self._passed = 0  # writing instructions that this run has come past
        with writes.lock:
            writes.runs += 1
            self._run = writes.runs

    def run(self, instruction: Any, values: list[Any], step: Any) -> Need | None:
        """Runs a writing instruction; only its reads, if an earlier run has made the writes.

        Raises AbortedError if another run has begun, since this one is of a worker that counts as lost.
        """
        writes = self._writes
        with writes.lock:
            if self._run != writes.runs:
                raise AbortedError("Another worker runs this closure now, since this one counts as lost.")
            is_made = self._passed < writes.made
            need: Need | None = (instruction.without_writes if is_made else instruction)(values, step)
            if need is None:
                self._passed += 1
                writes.made = max(writes.made, self._passed)
            return need


class Commits:
    """The closures of which a task has run parts, by coordinator and number."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_connected: Callable[[int], bool] = lambda writer: False  # a server sets this
        self._clock = clock
        self._lock = threading.Lock()
        self._writers: dict[int, _Writer] = {}  # in the order in which they were last heard of

    @property
    def in_use(self) -> bool:
        """Tells if a coordinator has had closures run here."""
        with self._lock:
            return bool(self._writers)

    def open(self, closure: ClosureId) -> Commit:
        """Begins a run of a closure. Forgets closures that have ended and will not be run again.

        Raises AbortedError if this one is among them: a worker that counts as lost has come to it late.
        """
        with self._lock:
            writer = self._writers.pop(closure.writer, None) or _Writer()
            self._heard_of(closure.writer, writer)
            self._forget_idle()
            writer.settle(closure.settled)
            if closure.number < writer.settled:
                raise AbortedError("Another worker has run this closure, since this one counted as lost.")
            return Commit(writer.closures.setdefault(closure.number, _Writes()))

    def _heard_of(self, number: int, writer: _Writer) -> None:
        writer.heard_at = self._clock()
        self._writers[number] = writer

    def _forget_idle(self) -> None:
        """Forgets the coordinator that was not heard of for the longest time, if it has gone."""
        number, writer = next(iter(self._writers.items()))
        if self._clock() - writer.heard_at < IDLE_SECS:
            return
        del self._writers[number]
        if self.is_connected(number):
            self._heard_of(number, writer)
