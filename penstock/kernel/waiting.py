"""Waiting: the common part of queues and accumulators, a lock and ways for steps to wait for a change.

A step blocks its thread, or it is suspended and resumes in the thread that makes the change it waits for. A parameter
server suspends the steps that it runs for others, so that no thread has to be woken for them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from penstock.errors import CancelledError, DeadlineExceededError


class Suspended(Exception):
    """Raised out of a kernel that would block, and may not: the step tries it again when the resource changes."""


class NeedsThread(Suspended):
    """Raised out of an instruction that takes long, or would block and cannot be tried again: it gets a thread."""


class Waitable:
    """A resource that steps wait on, until it changes, is closed, or they are cancelled or reach their deadline.

    Code that reads or changes the state does so under `with self._held()`, and calls `_notify` after each change.
    """

    kind = "Resource"

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._gone = False
        self._blocked = 0  # threads that wait
        self._dues: dict[Any, float] = {}  # when waits of steps are over, by time.monotonic()
        self._alarm: threading.Timer | None = None
        self._alarm_due = math.inf
        self._suspended: list[tuple[Callable[[], bool], Callable[[], None]]] = []  # (may resume, resume)
        self._resumable: list[Callable[[], None]] = []  # those that can resume now

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"

    def close(self) -> None:
        """Closes the resource with its session: steps that wait now or later get CancelledError."""
        with self._held():
            self._gone = True
            if self._alarm is not None:
                self._alarm.cancel()
            self._notify()

    def has_waiters(self) -> bool:
        """Tells if a step waits here."""
        return bool(self._blocked or self._suspended)

    def _held(self) -> Held:
        return Held((self,))

    def _notify(self) -> None:
        """Wakes blocked threads; suspended steps resume once the lock is released."""
        if self._blocked:
            self._changed.notify_all()
        if self._suspended:
            waiting, self._suspended = self._suspended, []
            for may_resume, wake in waiting:
                if self._gone or may_resume():
                    self._resumable.append(wake)
                else:
                    self._suspended.append((may_resume, wake))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], ctx: Any, again: Callable[[], bool] | None = None) -> None:
        """Waits, with the lock held, until `ready()`. `ctx` is the step that waits.

        A suspended step runs its op again from the start once `again()` is true; None if the op cannot be run again.
        """
        cancelled = ctx.cancelled
        woken, too_late = True, False
        if not (self._gone or cancelled.is_set or ready()):
            if ctx.wake is not None:
                if again is None:
                    raise NeedsThread
                self._suspended.append((again, ctx.wake))
                raise Suspended
            cancelled.on_cancel(self._wake)
            began = time.perf_counter()
            self._blocked += 1
            try:
                woken = self._changed.wait_for(lambda: self._gone or cancelled.is_set or ready(), ctx.remaining())
            finally:
                self._blocked -= 1
                cancelled.forget(self._wake)
                # The thread may have been slow to wake. Items that arrived since then belong to later steps.
                too_late = cancelled.is_set
                ctx.waited += time.perf_counter() - began
        if self._gone:
            raise CancelledError(f"{self} was closed together with its session.")
        if not woken:
            raise DeadlineExceededError(f"Timed out waiting for {self}.")
        if too_late or not ready():
            raise CancelledError(f"The step was cancelled while it waited for {self}.")

    def _wait_in_time(self, ready: Callable[[], bool], secs: float, ctx: Any) -> bool:
        """Waits until `ready()`, but no longer than `secs` from when the step first came here. Tells if it is ready."""
        due = self._dues.setdefault(ctx, time.monotonic() + secs)

        def done() -> bool:
            return ready() or time.monotonic() >= due

        if not done():
            self._set_alarm(due)
        try:
            self._wait(done, ctx, again=done)
        except Suspended:
            raise  # it comes again, with the same limit
        except BaseException:
            self._dues.pop(ctx, None)
            raise
        self._dues.pop(ctx, None)
        return ready()

    def _set_alarm(self, due: float) -> None:
        """Has the waiting steps looked at when the first of them is due: one timer for all, as nearly none comes."""
        if due == math.inf or self._gone or (self._alarm is not None and self._alarm_due <= due):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        alarm = threading.Timer(max(0.0, due - time.monotonic()), self._ring)
        alarm.daemon, alarm.name = True, "penstock-alarm"
        self._alarm, self._alarm_due = alarm, due
        alarm.start()

    def _ring(self) -> None:
        with self._held():
            self._alarm = None
            self._notify()
            self._set_alarm(self._next_due())

    def _next_due(self) -> float:
        """The time at which waiting steps are to be looked at next."""
        now = time.monotonic()
        return min((due for due in self._dues.values() if due > now), default=math.inf)


class WaitableItems(Waitable):
    """A resource that steps put items into, and wait for."""

    is_closed = False  # nothing more is put in

    def size(self) -> int:
        """The current number of items."""
        raise NotImplementedError

    def await_size(self, count: int, secs: float, why: str, ctx: Any) -> None:
        """Waits until there are `count` items, or nothing more is put in; DeadlineExceededError after `secs` s."""
        with self._held():
            if not self._wait_in_time(lambda: self.is_closed or self.size() >= count, secs, ctx):
                raise DeadlineExceededError(
                    f"{self} has had {self.size()} of {count} items for {secs:g} s (deadline_secs): {why}"
                )


class Held:
    """The locks of some Waitables. When they are released, the steps that can resume do so in this thread.

    >>> with Held(sorted(accumulators, key=id)):  # in one order everywhere
    ...     total = sum(each.size() for each in accumulators)
    """

    __slots__ = ("_waitables",)

    def __init__(self, waitables: Iterable[Waitable]) -> None:
        self._waitables = waitables

    def __enter__(self) -> None:
        for waitable in self._waitables:
            waitable._changed.acquire()

    def __exit__(self, *_: object) -> None:
        due: list[Callable[[], None]] = []
        for waitable in self._waitables:
            if waitable._resumable:
                due += waitable._resumable
                waitable._resumable = []
            waitable._changed.release()
        for wake in due:
            wake()


def as_handle(thing: object) -> np.ndarray:
    """Wraps `thing` as the value of a tensor: a scalar, so that handles can be stacked and picked like numbers."""
    handle = np.empty((), object)
    handle[()] = thing
    return handle


def from_handle(handle: Any) -> Any:
    """The object that a handle stands for. A handle that was picked out of several comes without its array."""
    return handle.item() if isinstance(handle, np.ndarray) else handle
