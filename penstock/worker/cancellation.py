"""Cancellation: one flag per step, and a way to wake whoever waits inside it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Cancellation:
    """Set once; runs the callbacks of those who wait at that moment, or at once for those who come later.

    >>> cancelled = Cancellation(); cancelled.on_cancel(queue.wake); cancelled.set()
    """

    __slots__ = ("_callbacks", "_lock", "_set")

    def __init__(self) -> None:
        self._set = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether the step is cancelled."""
        return self._set

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the step is cancelled."""
        with self._lock:
            if not self._set:
                self._callbacks.append(callback)
                return
        callback()

    def set(self) -> None:
        """Cancels the step."""
        with self._lock:
            self._set = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
