"""Rendezvous: where the tasks of one step meet to hand over tensors."""

from __future__ import annotations

import threading
from typing import Any

from penstock.errors import CancelledError, DeadlineExceededError
from penstock.worker.cancellation import Cancellation


class Rendezvous:
    """Tensors by key, each sent once and received once, for tasks of one process."""

    def __init__(self, cancelled: Cancellation) -> None:
        self._condition = threading.Condition()
        self._tensors: dict[str, Any] = {}
        self._cancelled = cancelled
        cancelled.on_cancel(self._wake)

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def send(self, key: str, tensor: Any) -> None:
        """Leaves a tensor for whoever receives `key`."""
        with self._condition:
            self._tensors[key] = tensor
            self._condition.notify_all()

    def recv(self, key: str, timeout: float | None) -> Any:
        """Waits for `key` until it is sent, the step is cancelled, or `timeout` seconds pass."""
        with self._condition:
            woken = self._condition.wait_for(lambda: key in self._tensors or self._cancelled.is_set, timeout)
            if key in self._tensors:
                return self._tensors.pop(key)
        if woken:
            raise CancelledError(None, None, f"The step was cancelled while waiting for the tensor '{key}'.")
        raise DeadlineExceededError(None, None, f"Timed out waiting for the tensor '{key}'.")
