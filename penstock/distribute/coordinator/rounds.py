"""Rounds: synchronous training. The gradients of one round of closures, one per worker, make one update. It is pure."""

from __future__ import annotations

from collections.abc import Collection


class Rounds:
    """Says which worker may run a closure of the current round, and when the round is over.

    >>> rounds = Rounds(workers=3, backup=1)
    >>> rounds.took(0, 1); rounds.took(1, 2); rounds.took(2, 3)
    >>> rounds.ended(1); rounds.ended(3)
    >>> rounds.gradients(present={0, 1, 2}, more_come=True)
    2
    """

    def __init__(self, workers: int, backup: int) -> None:
        self._backup = backup
        self._enough = self._enough_next = workers - backup
        self._taken: dict[int, int] = {}  # by worker: its closure of this round
        self._ended: set[int] = set()  # those closures that have run

    def resize(self, workers: int) -> None:
        """Notes how many workers there are now. Fewer make smaller rounds from the next one on.

        The current round may have closures of workers that leave: they finish them, and their gradients count.
        """
        self._enough_next = max(1, workers - self._backup)
        self._enough = max(self._enough, self._enough_next)

    def may_take(self, worker: int) -> bool:
        """Tells if a worker has no closure of this round yet."""
        return worker not in self._taken

    def took(self, worker: int, closure: int) -> None:
        """Notes that a worker has begun a closure of this round."""
        self._taken[worker] = closure

    def has(self, closure: int) -> bool:
        """Tells if a closure belongs to the current round."""
        return closure in self._taken.values()

    def ended(self, closure: int) -> None:
        """Notes that a closure has run. One of an earlier round came too late: its gradients are dropped."""
        if self.has(closure):
            self._ended.add(closure)

    def lost(self, worker: int) -> None:
        """Notes that a worker will not end its closure, which another one runs, in this round or a later one."""
        if self._taken.get(worker) not in self._ended:
            self._taken.pop(worker, None)

    def gradients(self, present: Collection[int], more_come: bool) -> int:
        """The number of gradients for the update of this round, if the round is over; else 0.

        `present` are the workers that can take a closure. `more_come`: other closures wait, or the program may schedule
        more. If not, the last round may be smaller.
        """
        expected = len(self._taken.keys() | set(present)) if more_come else len(self._taken)
        return len(self._ended) if len(self._ended) >= min(self._enough, expected) else 0

    def next(self) -> None:
        """Begins the next round."""
        self._taken, self._ended, self._enough = {}, set(), self._enough_next
