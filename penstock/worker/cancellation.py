"""Cancellation: one flag per step, and a way to wake whoever waits inside it."""

from __future__ import annotations

import threading
from collections.abc import Callable

_lock = threading.Lock()  # of all: cancelling is rare, and a step should not cost a lock of its own


class Cancellation:
    """Set once; runs the callbacks of those who wait at that moment, or at once for those who come later.

    >>> cancelled = Cancellation(); cancelled.on_cancel(queue.wake); cancelled.set()
    """

    __slots__ = ("_callbacks", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks: tuple[Callable[[], None], ...] = ()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the step is cancelled."""
        with _lock:
            if not self.is_set:
                self._callbacks += (callback,)
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> None:
        """Takes one `on_cancel(callback)` back, once its wait is over."""
        with _lock:
            if callback in self._callbacks:
                at = self._callbacks.index(callback)
                self._callbacks = self._callbacks[:at] + self._callbacks[at + 1 :]

    def clear(self) -> None:
        """Forgets all callbacks: the step is over, and should not be kept alive by what it waited for."""
        self._callbacks = ()

    def set(self) -> None:
        """Cancels the step."""
        with _lock:
            self.is_set = True
            callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()
