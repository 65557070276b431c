"""A cancellation is one flag per step, with callbacks that wake the threads that wait inside the step."""

from __future__ import annotations

import threading
from collections.abc import Callable

_lock = threading.Lock()  # one for all: cancelling is rare, and a lock for each step would cost more


class Cancellation:
    """Is set once, and then runs its callbacks. A callback that is added later runs at once.

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
        """Removes a callback that was added by `on_cancel`, once its wait is over."""
        with _lock:
            if callback in self._callbacks:
                at = self._callbacks.index(callback)
                self._callbacks = self._callbacks[:at] + self._callbacks[at + 1 :]

    def clear(self) -> None:
        """Removes all callbacks when the step has ended, so that they do not keep it alive."""
        self._callbacks = ()

    def set(self) -> None:
        """Cancels the step."""
        with _lock:
            self.is_set = True
            callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()
