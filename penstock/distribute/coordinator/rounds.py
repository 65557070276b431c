"""Rounds: synchronous training. The gradients of one round of closures, one per worker, make one update. It is pure."""

from __future__ import annotations


class Rounds:
    """Says which worker may run a closure of the current round, and when the round is over.

    >>> rounds = Rounds(workers=3, backup=1)
    >>> rounds.took(0, 1); rounds.took(1, 2); rounds.took(2, 3)
    >>> rounds.ended(1); rounds.ended(3)
    >>> rounds.gradients(present=3, more_come=True)
    2
    """

    def __init__(self, workers: int, backup: int) -> None:
        self._enough = workers - backup
        self._running: dict[int, int] = {}  # by worker: its closure of this round
        self._ended = 0

    def may_take(self, worker: int) -> bool:
        """Tells if a worker has no closure of this round yet."""
        return worker not in self._running

    def took(self, worker: int, closure: int) -> None:
        """Notes that a worker has begun a closure of this round."""
        self._running[worker] = closure

    def has(self, closure: int) -> bool:
        """Tells if a closure belongs to the current round."""
        return closure in self._running.values()

    def ended(self, closure: int) -> None:
        """Notes that a closure has run. One of an earlier round came too late: its gradients are dropped."""
        self._ended += self.has(closure)

    def lost(self, worker: int) -> None:
        """Notes that a worker has gone; another one runs its closure, in this round or a later one."""
        self._running.pop(worker, None)

    def gradients(self, present: int, more_come: bool) -> int:
        """The number of gradients for the update of this round, if the round is over; else 0.

        `more_come`: other closures wait, or the program may schedule more. If not, the last round may be smaller.
        """
        if self._ended and self._ended >= min(self._enough, max(present, 1)):
            return self._ended
        return self._ended if not more_come and self._ended == len(self._running) else 0

    def next(self) -> None:
        """Begins the next round."""
        self._running, self._ended = {}, 0
