"""A rendezvous keeps the tensors of one step that have arrived in a task, until an instruction takes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

_NEVER = -1  # no tensor has this key
KEY_BITS = 32  # of a tensor's key in its partition; the bits above count the runs of an instruction in a body


class Rendezvous:
    """Keeps tensors by key, each put once and taken once. One taker at a time may wait, and is woken once.

    >>> rendezvous.ready([0, 1], wake) or wait_for_wake()
    """

    __slots__ = ("_awaited", "_cancelled", "_lock", "_runs", "_tensors", "_wake")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tensors: dict[int, Any] = {}
        self._awaited: Sequence[int] = ()
        self._wake: Callable[[], None] | None = None
        self._cancelled = False
        self._runs: dict[int, int] = {}  # how often each instruction of a body has run, by its first key

    def numbered(self, keys: Sequence[int]) -> list[int]:
        """Returns the keys for the next run of an instruction in a body.

        The instructions that send and that receive run equally often, so both get the same keys.
        """
        run = self._runs[keys[0]] = self._runs.get(keys[0], -1) + 1
        return [key + (run << KEY_BITS) for key in keys]

    def put(self, keys: Sequence[int], values: list[Any]) -> None:
        """Adds tensors, and wakes the taker if it waits for no others. The list is empty afterwards.

        So the taker alone has the tensors, and shared memory that they are in is free once it needs them no more.
        """
        wake = None
        with self._lock:
            self._tensors.update(zip(keys, values, strict=True))
            values.clear()
            if self._wake is not None and all(map(self._tensors.__contains__, self._awaited)):
                wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def ready(self, keys: Sequence[int], wake: Callable[[], None]) -> bool:
        """Tells if all `keys` are there. If not, `wake` is called once they are, or when the step is cancelled."""
        with self._lock:
            if all(map(self._tensors.__contains__, keys)):
                return True
            if not self._cancelled:
                self._awaited, self._wake = keys, wake
                return False
        wake()
        return False

    def on_cancel(self, wake: Callable[[], None]) -> None:
        """Calls `wake` when the step is cancelled, for a taker that waits for something else than tensors."""
        self.ready((_NEVER,), wake)

    def take(self, keys: Sequence[int]) -> list[Any] | None:
        """Removes and returns the tensors of `keys`, or returns None if they are not all there."""
        with self._lock:
            tensors = self._tensors
            return [*map(tensors.pop, keys)] if all(map(tensors.__contains__, keys)) else None

    def missing(self, keys: Sequence[int]) -> list[int]:
        """Returns those of `keys` that are not there."""
        with self._lock:
            return [key for key in keys if key not in self._tensors]

    def cancel(self) -> None:
        """Wakes the taker. From now on nobody waits here, since no more tensors will come."""
        with self._lock:
            self._cancelled = True
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()
