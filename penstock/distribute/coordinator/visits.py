"""Visits: which closure gets which elements of a dataset. It is pure: events in, numbers out; it waits for nothing.

Elements go by their numbers in the order of the dataset. A closure gets the numbers of its elements when it is first
sent, and keeps them when another worker runs it again: so each element belongs to one closure.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Sequence

LEASE = 16  # numbers that a worker gets at once: it reads the dataset in order, and passes over what others read


class Numbers:
    """The numbers of one dataset's elements, each of which is given once.

    >>> numbers = Numbers()
    >>> numbers.give(0, 1), numbers.give(1, 2), numbers.give(0, 1)
    ([0], [16, 17], [1])
    """

    def __init__(self) -> None:
        self._leases: defaultdict[int, deque[int]] = defaultdict(deque)  # by worker
        self._returned: list[int] = []  # a heap
        self._next = 0
        self.end: int | None = None  # the first number that no element has, once a worker has found it

    def give(self, worker: int, count: int) -> list[int] | None:
        """Gives `count` numbers to a closure that goes to a worker; none at all (None) if fewer are left."""
        lease = self._leases[worker]
        given: list[int] = []
        while len(given) < count:
            if not lease:
                self._extend(lease, count)
            if lease:
                given.append(lease.popleft())
                continue
            longest = max(self._leases.values(), key=len)
            if not longest:
                self.take_back(*given)
                return None
            given.append(longest.pop())  # which that worker would come to last
        return sorted(given)

    def _extend(self, lease: deque[int], count: int) -> None:
        size = -(-LEASE // count) * count  # so that closures that take equally many fit into it
        if self._returned:
            lease.extend(heapq.heappop(self._returned) for _ in range(min(size, len(self._returned))))
            return
        stop = self._next + size if self.end is None else min(self._next + size, self.end)
        lease.extend(range(self._next, stop))
        self._next = stop

    def take_back(self, *given: int) -> None:
        """Takes back numbers whose closure is not run, unless they are past the end."""
        for number in given:
            if self.end is None or number < self.end:
                heapq.heappush(self._returned, number)

    def lost(self, worker: int) -> None:
        """Notes that a worker has gone: others get the numbers that it has not used."""
        self.take_back(*self._leases.pop(worker, ()))

    def ended(self, end: int) -> None:
        """Notes that no element has the number `end`, nor a higher one."""
        self.end = end if self.end is None else min(end, self.end)
        self._next = min(self._next, self.end)
        for worker, lease in self._leases.items():
            self._leases[worker] = deque(n for n in lease if n < self.end)
        self._returned = sorted(n for n in self._returned if n < self.end)


class Visits:
    """The numbers of all datasets, by the names of their iterators."""

    def __init__(self) -> None:
        self._numbers: dict[str, Numbers] = {}

    def begin(self, iterator: str) -> None:
        """Begins with the elements of another iterator."""
        self._numbers[iterator] = Numbers()

    def give(self, iterators: Sequence[str], worker: int) -> list[int] | None:
        """A number of each iterator, for a closure that goes to a worker; None if one has too few left.

        An iterator that occurs several times gives several numbers.
        """
        given: dict[str, list[int]] = {}
        for iterator, count in Counter(iterators).items():
            numbers = self._numbers[iterator].give(worker, count)
            if numbers is None:
                for other, unused in given.items():
                    self._numbers[other].take_back(*unused)
                return None
            given[iterator] = numbers[::-1]
        return [given[iterator].pop() for iterator in iterators]

    def lost(self, worker: int) -> None:
        """Notes that a worker has gone. The closures that it had keep their numbers."""
        for numbers in self._numbers.values():
            numbers.lost(worker)

    def ended(self, iterators: Sequence[str], given: list[int], which: int, worker: int) -> bool:
        """Notes that there is no element with the number `given[which]`, which a worker has asked for.

        Gives the closure another number in place of this one, and of others past the end; False if there are too few.
        No effect of the closure can depend on elements that it did not get, so that it can be run again.
        """
        iterator = iterators[which]
        numbers = self._numbers[iterator]
        numbers.ended(given[which])
        assert numbers.end is not None
        past = [i for i, name in enumerate(iterators) if name == iterator and given[i] >= numbers.end]
        others = numbers.give(worker, len(past))
        if others is None:  # the closure is not run again, and others get the numbers that it does not use
            for name, number in zip(iterators, given, strict=True):
                self._numbers[name].take_back(number)
            return False
        for i, other in zip(past, others, strict=True):
            given[i] = other
        return True
