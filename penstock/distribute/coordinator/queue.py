"""ClosureQueue: which closure goes to which worker. It is pure: events in, decisions out; it waits for nothing."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from operator import attrgetter

from penstock.distribute.coordinator.closures import Closure
from penstock.distribute.coordinator.rounds import Rounds

DEPTH = 4  # closures that a worker has at once: it runs one, and the next ones need not travel first


class ClosureQueue:
    """The closures that wait and those that workers have, in the order of their numbers.

    Workers go by numbers from 0 on. Those that have left keep their place in the lists, for one that joins later. What
    it does for a closure does not depend on the number of workers.

    >>> queue = ClosureQueue(2)
    >>> queue.add(closure); queue.take(0)
    """

    def __init__(self, workers: int, rounds: Rounds | None = None) -> None:
        self.rounds = rounds  # of synchronous training
        self._next = 1
        self._settled = 1  # all closures with lower numbers have ended; others may have, too
        self._open: set[int] = set()  # the numbers of the closures that have not ended
        self._waiting: deque[Closure] = deque()
        self._bound: list[deque[Closure]] = []  # for one worker each
        self.running: list[dict[int, Closure]] = []
        self.runs = 0  # the number of closures that workers have
        self.present: list[bool] = []  # connected, with all that it needs
        self._with_room: list[int] = []  # the workers that could have one more closure, in order
        self.is_paused = False  # no worker gets a closure
        self.is_held = False  # only what some worker has had before is sent, and what that needs
        self.sizes: set[int] = set()  # the numbers of workers that there have been
        self.resize(workers)

    def resize(self, workers: int) -> None:
        """Has so many workers from now on. Those with higher numbers get nothing more, and may end what they run."""
        for _ in range(len(self.running), workers):
            self._bound.append(deque())
            self.running.append({})
            self.present.append(False)
        self.workers = workers
        self.sizes.add(workers)
        for line in self._bound[workers:]:
            self._forget(line)
        self._with_room = [worker for worker in range(workers) if self._has_room(worker)]
        if self.rounds is not None:
            self.rounds.resize(workers)

    def _forget(self, line: deque[Closure]) -> None:
        """Empties a line of closures that will not run."""
        self._open.difference_update(closure.number for closure in line)
        line.clear()

    def _has_room(self, worker: int) -> bool:
        return worker < self.workers and self.present[worker] and len(self.running[worker]) < DEPTH

    def _note_room(self, worker: int) -> None:
        at = bisect.bisect_left(self._with_room, worker)
        is_noted = self._with_room[at : at + 1] == [worker]
        if is_noted and not self._has_room(worker):
            del self._with_room[at]
        elif not is_noted and self._has_room(worker):
            self._with_room.insert(at, worker)

    def next_with_room(self, after: int) -> int | None:
        """The first worker with a higher number than `after` that could have one more closure, if any waits."""
        at = bisect.bisect_right(self._with_room, after)
        return self._with_room[at] if self.waiting and not self.is_paused and at < len(self._with_room) else None

    def add(self, closure: Closure) -> None:
        """Takes a new closure."""
        closure.number = self._next
        self._next += 1
        self._open.add(closure.number)
        self._line_of(closure).append(closure)

    @property
    def is_behind(self) -> bool:
        """Tells if a closure that is added for any worker comes after one that no worker can take now."""
        return bool(self._waiting) and self._waiting[-1].is_for(self.workers - 1)  # and so for all workers

    def _line_of(self, closure: Closure) -> deque[Closure]:
        return self._waiting if closure.worker is None else self._bound[closure.worker]

    def take(self, worker: int) -> Closure | None:
        """The closure that a worker shall run next, if there is one and the worker has room."""
        closure = self.peek(worker)
        if closure is not None:
            self._line_of(closure).remove(closure)  # among the first
            closure.was_sent = True
            self.running[worker][closure.number] = closure
            self.runs += 1
            self._note_room(worker)
            if self._is_of_round(closure):
                self.rounds.took(worker, closure.number)  # type: ignore[union-attr]
        return closure

    def _is_of_round(self, closure: Closure) -> bool:
        return self.rounds is not None and closure.worker is None and bool(closure.function.exchanges)

    def peek(self, worker: int) -> Closure | None:
        """The closure that `take` would give."""
        if self.is_paused or not self._has_room(worker):
            return None
        line: Sequence[Closure] = self._bound[worker] or self._waiting
        if self.is_held:
            sent = [closure for closure in self._waiting if closure.was_sent]
            line = line if sent and line is not self._waiting else sent
        closure = next((closure for closure in line if closure.is_for(worker)), None)
        if closure is None or (
            self._is_of_round(closure) and not self.rounds.may_take(worker, closure.number)  # type: ignore[union-attr]
        ):
            return None
        return closure

    @property
    def takers(self) -> list[int]:
        """The workers that can be given closures, unless all that wait are for others."""
        present = [worker for worker in range(self.workers) if self.present[worker]]
        return [w for w in present if not self._waiting or any(closure.is_for(w) for closure in self._waiting)]

    def ended(self, worker: int, closure: Closure, has_failed: bool = False) -> bool:
        """Notes that a worker has run a closure. False: the worker was counted as lost meanwhile."""
        if not self._gave_back(worker, closure):
            return False
        self._open.discard(closure.number)
        if self.rounds is not None:
            (self.rounds.failed if has_failed else self.rounds.ended)(closure.number)
        return True

    def _gave_back(self, worker: int, closure: Closure) -> bool:
        """Takes a closure from a worker, if it has it."""
        if self.running[worker].pop(closure.number, None) is None:
            return False
        self.runs -= 1
        self._note_room(worker)
        return True

    def lost(self, worker: int) -> None:
        """Notes that a worker has gone: what it had goes to others, before what came later.

        What it was to make for itself is dropped: it makes all of that when it comes back.
        """
        self.present[worker] = False
        self._forget(self._bound[worker])
        for closure in list(self.running[worker].values()):
            self._gave_back(worker, closure)
            if closure.worker is None:
                self._wait_again(closure)
            else:
                self._open.discard(closure.number)
        self._note_room(worker)

    def again(self, worker: int, closure: Closure) -> None:
        """Has a closure that a worker has run be run again, by any worker."""
        if self._gave_back(worker, closure):
            self._wait_again(closure)

    def _wait_again(self, closure: Closure) -> None:
        bisect.insort(self._line_of(closure), closure, key=attrgetter("number"))

    def repeat(self, closures: Sequence[Closure]) -> None:
        """Takes closures that have run and must run once more, before all others, which get new numbers."""
        if self.rounds is not None:
            self.rounds.restart()
        waiting = [*closures, *sorted(self._waiting, key=lambda c: c.number)]
        self._forget(self._waiting)
        for closure in waiting:
            self.add(closure)

    def back(self, worker: int) -> None:
        """Notes that a worker has come back."""
        self.present[worker] = True
        self._note_room(worker)

    def drop(self, even_sent: bool = False) -> list[Closure]:
        """Removes the closures that wait and that no worker has had, or all that wait.

        Those that were sent may have made some of their writes; those of one worker make what functions need later.
        """
        dropped = [closure for closure in self._waiting if even_sent or not closure.was_sent]
        self._waiting = deque(closure for closure in self._waiting if closure.was_sent and not even_sent)
        self._open.difference_update(closure.number for closure in dropped)
        if self.rounds is not None:
            for closure in dropped:
                self.rounds.failed(closure.number)
        return dropped

    def clear(self) -> list[Closure]:
        """Removes all closures, those that workers have included."""
        removed = [closure for line in (self._waiting, *self._bound) for closure in line]
        removed += [closure for running in self.running for closure in running.values()]
        self._waiting = deque()
        self._bound = [deque() for _ in self._bound]
        self.running = [{} for _ in self.running]
        self.runs = 0
        self._open.clear()
        self._with_room = [worker for worker in range(self.workers) if self._has_room(worker)]
        return removed

    @property
    def is_idle(self) -> bool:
        """Tells if no closure runs, or will run again."""
        return not self.runs and not any(closure.was_sent for closure in self._waiting)

    @property
    def is_empty(self) -> bool:
        """Tells if no closure waits or runs."""
        return not self._open

    @property
    def waiting(self) -> int:
        """The number of closures that no worker has."""
        return len(self._open) - self.runs

    @property
    def settled(self) -> int:
        """All closures with lower numbers have ended."""
        while self._settled < self._next and self._settled not in self._open:
            self._settled += 1
        return self._settled
