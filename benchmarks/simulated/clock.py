"""The simulated clock: events in order of time, processes that sleep on it, and processors that work jobs off.

>>> clock = Clock(); clock.after(2.0, print, "two"); clock.after(1.0, print, "one"); clock.run()
one
two
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import greenlet

from penstock.wire.loop import Signal


class Clock:
    """Runs events in order of their time; those of one time in the order in which they were added.

    A process is a greenlet: it runs until it sleeps or waits, so that only one of them runs at a time and ten thousand
    of them cost little.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.spent_in_processes = 0.0  # real seconds of processor time
        self._events: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._hub = greenlet.getcurrent()

    def after(self, seconds: float, act: Callable[..., Any], *args: Any) -> None:
        """Calls `act(*args)` when so much simulated time has passed."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act, args))

    def run(self, until: float = math.inf, enough: Callable[[], bool] = lambda: False) -> None:
        """Runs events up to a time, until `enough()`, or until there are no more."""
        while self._events and self._events[0][0] <= until and not enough():
            self.now, _, act, args = heapq.heappop(self._events)
            act(*args)
        if until < math.inf and not enough():
            self.now = max(self.now, until)

    def start(self, act: Callable[..., Any], *args: Any) -> None:
        """Starts a process at once."""
        self._resume(greenlet.greenlet(act, self._hub), *args)

    def _resume(self, process: greenlet.greenlet, *args: Any) -> None:
        began = time.thread_time()
        process.switch(*args)
        self.spent_in_processes += time.thread_time() - began

    def sleep(self, seconds: float) -> None:
        """Lets the calling process wait for so much simulated time."""
        self.after(seconds, self._resume, greenlet.getcurrent())
        self._hub.switch()

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        """Lets the calling process wait for a signal, as `Loop.wait` does. Tells if it was set."""
        if not signal.is_set:
            waiter = _Waiter(self, greenlet.getcurrent())
            signal.loop = waiter  # type: ignore[assignment]  # which `set` wakes
            if timeout is not None:
                self.after(timeout, waiter.wake)
            self._hub.switch()
            signal.loop = None
        return signal.is_set


class _Waiter:
    """A process that waits for a signal."""

    def __init__(self, clock: Clock, process: greenlet.greenlet) -> None:
        self._clock, self._process = clock, process
        self._is_woken = False

    def wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._clock.after(0.0, self._clock._resume, self._process)


class Processor:
    """One thread of a task: it works jobs off in the order in which they came.

    A job is called when its turn comes, and returns how many seconds it takes.
    """

    def __init__(self, clock: Clock) -> None:
        self.busy = 0.0  # seconds so far
        self._clock = clock
        self._jobs: deque[Callable[[], float]] = deque()
        self._works = False

    def submit(self, job: Callable[[], float]) -> None:
        """Adds a job."""
        self._jobs.append(job)
        if not self._works:
            self._next()

    def _next(self) -> None:
        self._works = bool(self._jobs)
        if self._works:
            seconds = self._jobs.popleft()()
            self.busy += seconds
            self._clock.after(seconds, self._next)
