"""Rendezvous: where the tensors of one step wait in a task for those who need them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

_NEVER = -1  # no tensor has this key
KEY_BITS = 32  # of what a partition calls a tensor; above them is the number of the run, for those sent several times


class Rendezvous:
    """Tensors by key, each put once and taken once. One taker at a time may wait, and is woken once.

    >>> rendezvous.ready([0, 1], wake) or wait_for_wake()
    """

    __slots__ = ("_given_up", "_lock", "_runs", "_tensors", "_wake", "_wanted")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tensors: dict[int, Any] = {}
        self._wanted: Sequence[int] = ()
        self._wake: Callable[[], None] | None = None
        self._given_up = False
        self._runs: dict[int, int] = {}  # of instructions in bodies, by their first key

    def numbered(self, keys: Sequence[int]) -> list[int]:
        """The keys for one more run of an instruction in a body.

        It runs as often, and for the same reasons, in the task that sends and in the one that receives.
        """
        run = self._runs[keys[0]] = self._runs.get(keys[0], -1) + 1
        return [key + (run << KEY_BITS) for key in keys]

    def put(self, keys: Sequence[int], values: Sequence[Any]) -> None:
        """Leaves tensors, and wakes who waits for them if these were the last."""
        wake = None
        with self._lock:
            self._tensors.update(zip(keys, values, strict=True))
            if self._wake is not None and all(key in self._tensors for key in self._wanted):
                wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def ready(self, keys: Sequence[int], wake: Callable[[], None]) -> bool:
        """Whether all `keys` are there; if not, `wake` is called once they are, or when the step is given up."""
        with self._lock:
            if all(key in self._tensors for key in keys):
                return True
            if not self._given_up:
                self._wanted, self._wake = keys, wake
                return False
        wake()
        return False

    def park(self, wake: Callable[[], None]) -> None:
        """Has `wake` called by `go_on`, or when the step is given up: it waits for something else than tensors."""
        self.ready((_NEVER,), wake)

    def take(self, keys: Sequence[int]) -> list[Any]:
        """The tensors of `keys`, which are all there."""
        with self._lock:
            return [self._tensors.pop(key) for key in keys]

    def missing(self, keys: Sequence[int]) -> list[int]:
        """Those of `keys` that are not there."""
        with self._lock:
            return [key for key in keys if key not in self._tensors]

    def go_on(self) -> None:
        """Wakes who waits, though not all that it waits for is there."""
        with self._lock:
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def give_up(self) -> None:
        """Wakes who waits, and from now on whoever begins to: nothing more will come."""
        with self._lock:
            self._given_up = True
        self.go_on()
