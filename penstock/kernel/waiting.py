"""Queues and accumulators share this: a lock, and two ways for a step to wait for a change.

A step blocks its thread, or it is suspended: the thread that makes the change resumes it. Steps that a parameter server
runs for others are suspended, so that no thread has to be woken for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import CancelledError, DeadlineExceededError


class Suspended(Exception):
    """Raised when a step is suspended before an op that would block. A later change resumes it at that op."""


class NeedsThread(Suspended):
    """Raised before an instruction that takes long, or that would block and cannot be retried: it needs a thread."""

    at = 0  # the instruction to continue at


class Waitable:
    """A resource that steps wait for. A wait ends with a change, a cancellation, a deadline or the end of the resource.

    `with self._held()` guards each look at the state and each change; `_notify` is called after each change.
    """

    kind = "Resource"

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._gone = False
        self._suspended: list[tuple[Callable[[], bool], Callable[[], None]]] = []  # conditions and how to resume
        self._resumable: list[Callable[[], None]] = []  # those whose condition holds

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"

    def close(self) -> None:
        """Ends the resource with its session. Steps that wait for it, now or later, get CancelledError."""
        with self._held():
            self._gone = True
            self._notify()

    def _held(self) -> _Held:
        return _Held(self)

    def _notify(self) -> None:
        """Wakes blocked threads. Suspended steps whose condition holds are resumed once the lock is released."""
        self._changed.notify_all()
        if self._suspended:
            due = [pair for pair in self._suspended if self._gone or pair[0]()]
            self._suspended = [pair for pair in self._suspended if pair not in due]
            self._resumable += [wake for _, wake in due]

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], ctx: Any, again: Callable[[], bool] | None = None) -> None:
        """Waits, with the lock held, until `ready()`. `ctx` is the step that waits.

        A suspended step retries its op from the beginning when `again()`; None means that the op cannot be retried.
        """
        cancelled = ctx.cancelled
        woken, too_late = True, False
        if not (self._gone or cancelled.is_set or ready()):
            if ctx.suspend is not None:
                if again is None:
                    raise NeedsThread
                self._suspended.append((again, ctx.suspend()))
                raise Suspended
            cancelled.on_cancel(self._wake)
            began = time.perf_counter()
            try:
                woken = self._changed.wait_for(lambda: self._gone or cancelled.is_set or ready(), ctx.remaining())
            finally:
                cancelled.forget(self._wake)
                # The thread may have woken late, and elements that are there by now belong to later steps.
                too_late = cancelled.is_set
                ctx.waited += time.perf_counter() - began
        if self._gone:
            raise CancelledError(f"{self} was closed together with its session.")
        if not woken:
            raise DeadlineExceededError(f"Timed out waiting for {self}.")
        if too_late or not ready():
            raise CancelledError(f"The step was cancelled while it waited for {self}.")


class _Held:
    """Holds the lock of a Waitable. After the release, this thread resumes the suspended steps that can continue."""

    __slots__ = ("_waitable",)

    def __init__(self, waitable: Waitable) -> None:
        self._waitable = waitable

    def __enter__(self) -> None:
        self._waitable._changed.acquire()

    def __exit__(self, *_: object) -> None:
        waitable = self._waitable
        due, waitable._resumable = waitable._resumable, []
        waitable._changed.release()
        for wake in due:
            wake()


def as_handle(thing: object) -> np.ndarray:
    """Returns `thing` as the value of a tensor: a scalar, so that handles can be stacked and picked like numbers."""
    handle = np.empty((), object)
    handle[()] = thing
    return handle


def from_handle(handle: Any) -> Any:
    """Returns the resource of a handle. A handle that was picked out of several comes without its array."""
    return handle.item() if isinstance(handle, np.ndarray) else handle
