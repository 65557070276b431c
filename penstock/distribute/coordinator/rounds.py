"""Rounds: synchronous training. The gradients of one round of closures, one per worker, make one update. It is pure."""

from __future__ import annotations

from collections.abc import Collection


class Rounds:
    """Says which worker may run a closure of the current round, and when the round is over.

    A closure belongs to the round in which a worker first took it. If that worker is lost, another one runs it in the
    same round: parameter servers may have taken some of its gradients already, and take none of them again. One that
    runs in a later round counts in none.

    >>> rounds = Rounds(workers=3, backup=1)
    >>> rounds.took(0, 1); rounds.took(1, 2); rounds.took(2, 3)
    >>> rounds.ended(1); rounds.ended(3)
    >>> rounds.gradients(present={0, 1, 2}, more_come=True)
    2
    """

    def __init__(self, workers: int, backup: int) -> None:
        self._backup = backup
        self._enough = self._enough_next = workers - backup
        self._takers: set[int] = set()  # workers that have had a new closure in this round
        self._open: dict[int, int] = {}  # closures of this round that have not ended: the workers that took them first
        self._ended = 0  # those that have run
        self._late: set[int] = set()  # closures of earlier rounds that have not ended

    def resize(self, workers: int) -> None:
        """Notes how many workers there are now. Fewer make smaller rounds from the next one on.

        The current round may have closures of workers that leave: they finish them, and their gradients count.
        """
        self._enough_next = max(1, workers - self._backup)
        self._enough = max(self._enough, self._enough_next)

    def may_take(self, worker: int, closure: int) -> bool:
        """Tells if a worker may run a closure now: of those that no worker has had, one in each round."""
        return worker not in self._takers or closure in self._open or closure in self._late

    def took(self, worker: int, closure: int) -> None:
        """Notes that a worker has begun a closure."""
        if closure not in self._open and closure not in self._late:
            self._open[closure] = worker
            self._takers.add(worker)

    def has(self, closure: int) -> bool:
        """Tells if a closure belongs to the current round, and has not ended."""
        return closure in self._open

    def ended(self, closure: int) -> None:
        """Notes that a closure has run. One of an earlier round came too late: its gradients are dropped."""
        if self._open.pop(closure, None) is not None:
            self._ended += 1
        self._late.discard(closure)

    def failed(self, closure: int) -> None:
        """Notes that a closure has failed: nobody waits for its gradients, and its worker may take another one."""
        self._takers.discard(self._open.pop(closure, -1))
        self._late.discard(closure)

    @property
    def is_new(self) -> bool:
        """Tells if the round has no closures yet."""
        return not self._takers

    @property
    def may_be_over(self) -> bool:
        """Tells if the round is over unless other workers take closures: `gradients` says more, and costs more."""
        return self._ended > 0 and (not self._open or self._ended >= self._enough)

    def gradients(self, present: Collection[int], more_come: bool) -> int:
        """The number of gradients for the update of this round, if the round is over; else 0.

        `present` are the workers that can take a closure. `more_come`: other closures wait, or the program may schedule
        more. If not, the last round may be smaller.
        """
        missing = len(self._open) + (len(set(present) - self._takers) if more_come else 0)
        return self._ended if not missing or self._ended >= self._enough else 0

    def restart(self) -> None:
        """Begins a round after all closures have got other numbers."""
        self.next()
        self._late.clear()

    def next(self) -> None:
        """Begins the next round."""
        self._late.update(self._open)
        self._takers, self._open, self._ended, self._enough = set(), {}, 0, self._enough_next
