"""Waiting: what queues and accumulators share, a lock and ways for steps to wait for a change.

A step waits in its thread, or it gives way: it is left where it is, and goes on in the thread that makes the change it
waits for. Steps that a parameter server runs for others do the latter, so that no thread has to be woken for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import CancelledError, DeadlineExceededError


class GivesWay(Exception):
    """A step is left before an op that would have to wait. It will be gone on with when what it waits for changes."""


class NeedsThread(GivesWay):
    """A step is left before an instruction that would take long, or that has to wait and cannot be tried again."""

    at = 0  # which instruction


class Waitable:
    """Something that steps wait on, until it changes, they are cancelled, their time is up, or it is gone.

    `with self._held()` is held by whoever looks at or changes the state; `_notify` is called after each change.
    """

    kind = "Resource"

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._gone = False
        self._left: list[tuple[Callable[[], bool], Callable[[], None]]] = []  # steps that gave way: until when, and how
        self._due: list[Callable[[], None]] = []  # those of them that can go on

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"

    def close(self) -> None:
        """The end, with the session: whoever waits gets CancelledError, and so does whoever comes later."""
        with self._held():
            self._gone = True
            self._notify()

    def _held(self) -> _Held:
        return _Held(self)

    def _notify(self) -> None:
        """Wakes those who wait; steps that gave way go on once the lock is released."""
        self._changed.notify_all()
        if self._left:
            due = [pair for pair in self._left if self._gone or pair[0]()]
            self._left = [pair for pair in self._left if pair not in due]
            self._due += [wake for _, wake in due]

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], ctx: Any, again: Callable[[], bool] | None = None) -> None:
        """Waits, with the lock held, until `ready()`. `ctx` is the step that waits.

        A step that gives way is tried again from the beginning of its op when `again()`; None if that cannot be done.
        """
        cancelled = ctx.cancelled
        woken, too_late = True, False
        if not (self._gone or cancelled.is_set or ready()):
            if ctx.give_way is not None:
                if again is None:
                    raise NeedsThread
                self._left.append((again, ctx.give_way()))
                raise GivesWay
            cancelled.on_cancel(self._wake)
            began = time.perf_counter()
            try:
                woken = self._changed.wait_for(lambda: self._gone or cancelled.is_set or ready(), ctx.remaining())
            finally:
                cancelled.forget(self._wake)
                # Its thread may have been slow to wake. What is there by now belongs to those who came after it.
                too_late = cancelled.is_set
                ctx.waited += time.perf_counter() - began
        if self._gone:
            raise CancelledError(f"{self} was closed together with its session.")
        if not woken:
            raise DeadlineExceededError(f"Timed out waiting for {self}.")
        if too_late or not ready():
            raise CancelledError(f"The step was cancelled while it waited for {self}.")


class _Held:
    """The lock of something that steps wait on. When it is released, the steps that can go on do so in this thread."""

    __slots__ = ("_waitable",)

    def __init__(self, waitable: Waitable) -> None:
        self._waitable = waitable

    def __enter__(self) -> None:
        self._waitable._changed.acquire()

    def __exit__(self, *_: object) -> None:
        waitable = self._waitable
        due, waitable._due = waitable._due, []
        waitable._changed.release()
        for wake in due:
            wake()


def as_handle(thing: object) -> np.ndarray:
    """`thing` as the value of a tensor: a scalar, so that handles can be stacked and picked like numbers."""
    handle = np.empty((), object)
    handle[()] = thing
    return handle


def behind(handle: Any) -> Any:
    """What a handle stands for. One that was picked out of several comes without its array."""
    return handle.item() if isinstance(handle, np.ndarray) else handle
