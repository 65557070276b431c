"""Waiting: what queues and accumulators share, a lock and a way for steps to wait for a change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import CancelledError, DeadlineExceededError


class Waitable:
    """Something that steps wait on, until it changes, they are cancelled, their time is up, or it is gone.

    `_changed` is held by whoever looks at or changes the state, and notified after each change.
    """

    kind = "Resource"

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._gone = False

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"

    def close(self) -> None:
        """The end, with the session: whoever waits gets CancelledError, and so does whoever comes later."""
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], ctx: Any) -> None:
        """Waits, with `_changed` held, until `ready()`. `ctx` is the step that waits."""
        cancelled = ctx.cancelled
        woken = True
        if not (self._gone or ready()):
            cancelled.on_cancel(self._wake)
            began = time.perf_counter()
            try:
                woken = self._changed.wait_for(lambda: self._gone or cancelled.is_set or ready(), ctx.remaining())
            finally:
                cancelled.forget(self._wake)
                ctx.waited += time.perf_counter() - began
        if self._gone:
            raise CancelledError(None, None, f"{self} was closed together with its session.")
        if not woken:
            raise DeadlineExceededError(None, None, f"Timed out waiting for {self}.")
        if not ready():
            raise CancelledError(None, None, f"The step was cancelled while it waited for {self}.")


def as_handle(thing: object) -> np.ndarray:
    """`thing` as the value of a tensor: a scalar, so that handles can be stacked and picked like numbers."""
    handle = np.empty((), object)
    handle[()] = thing
    return handle


def behind(handle: Any) -> Any:
    """What a handle stands for. One that was picked out of several comes without its array."""
    return handle.item() if isinstance(handle, np.ndarray) else handle
