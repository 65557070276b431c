"""Leases: which worker has which shard of the data. It is pure: events in, leases out; it waits for nothing.

A shard is *free*, *leased* to one owner, or *done* for its epoch. A lease goes back when its owner leaves or takes
another shard, when the counts are loaded anew, and when its time has passed and somebody has nothing else to take.
An epoch begins when all shards of the one before are leased or done, so that nobody waits for the last of them; the
epoch after that begins when they are done.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from penstock.errors import FailedPreconditionError, InvalidArgumentError


@dataclass(slots=True, eq=False)
class Lease:
    """The use of a shard in an epoch by one owner, until it is done or goes back."""

    number: int
    shard: int
    epoch: int
    owner: Hashable
    due: float  # another may have the shard from then on


class Leases:
    """Gives out each shard once in each of `epochs` epochs, or without end if that is None.

    The order is that of the numbers, or with a `seed` another one in each epoch. What goes back comes first.

    >>> leases = Leases(num_shards=2, epochs=1)
    >>> first = leases.take("worker 0", now=0.0); leases.take("worker 1", now=0.0).shard
    1
    >>> leases.leave("worker 0"); leases.take("worker 1", now=0.0).shard
    0
    """

    def __init__(
        self, num_shards: int, epochs: int | None = 1, seed: int | None = None, lease_secs: float = math.inf
    ) -> None:
        self.settings = num_shards, epochs, seed, lease_secs
        self.num_shards, self.epochs, self.seed, self.lease_secs = self.settings
        self._numbers = itertools.count(1)
        self.load([0] * num_shards)

    def load(self, done: Sequence[int]) -> None:
        """Begins with the number of epochs in which each shard is done. All leases end."""
        self.done = list(done)
        self.epoch = min(self.done)  # the first in which not all are done
        self.leased: dict[int, Lease] = {}  # by number
        self._left = self.done.count(self.epoch)  # shards that are not done in that epoch
        self._positions: dict[int, list[int]] = {}  # of each shard in the order of an epoch
        self._free: list[tuple[int, int, int]] = []  # a heap of (epoch, position, shard)
        for shard in range(self.num_shards):
            self._release(shard)

    @property
    def left(self) -> int:
        """The number of shards that are not done in the first epoch that is not done."""
        return 0 if self.is_over else self._left

    @property
    def is_over(self) -> bool:
        """Tells if all shards are done in all epochs."""
        return self.epochs is not None and self.epoch >= self.epochs

    def can_take(self, now: float) -> bool:
        """Tells if there is a shard to take."""
        return self._has_free() or self.next_due() <= now

    def next_due(self) -> float:
        """The time at which the first lease may go back; infinity if there is none."""
        return min((lease.due for lease in self.leased.values()), default=math.inf)

    def take(self, owner: Hashable, now: float) -> Lease | None:
        """Leases the next shard to an owner, who has one at a time; None if all are leased or done."""
        self.leave(owner)
        if not self._has_free():
            self._end([lease for lease in self.leased.values() if lease.due <= now])
        if not self._has_free():
            return None
        epoch, _, shard = heapq.heappop(self._free)
        lease = Lease(next(self._numbers), shard, epoch, owner, now + self.lease_secs)
        self.leased[lease.number] = lease
        return lease

    def finish(self, number: int, owner: Hashable) -> Lease:
        """Ends a lease whose shard is done. Raises FailedPreconditionError if `owner` does not hold it."""
        lease = self.leased.get(number)
        if lease is None:
            if number < 1:
                raise InvalidArgumentError(f"The number of a lease is at least 1, received {number}.")
            raise FailedPreconditionError(
                f"Lease {number} has ended. Its shard was reported done before; or it went back, since its session was "
                "closed, it took another shard, its time passed (lease_secs), or the state was restored."
            )
        if lease.owner != owner:
            raise FailedPreconditionError(
                f"Lease {number} is held by {lease.owner}, and was reported done by {owner}. Report it in the session "
                "that took it."
            )
        del self.leased[number]
        self.done[lease.shard] += 1
        self._release(lease.shard)
        if lease.epoch == self.epoch:
            self._left -= 1
            if not self._left:
                self._positions.pop(self.epoch, None)
                self.epoch = min(self.done)
                self._left = self.done.count(self.epoch)
        return lease

    def renew(self, owner: Hashable, now: float) -> None:
        """Has the time of an owner's lease begin again."""
        for lease in self.leased.values():
            if lease.owner == owner:
                lease.due = now + self.lease_secs

    def leave(self, owner: Hashable) -> bool:
        """Takes back the shard of an owner. Tells if there was one."""
        held = [lease for lease in self.leased.values() if lease.owner == owner]
        self._end(held)
        return bool(held)

    def _end(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            del self.leased[lease.number]
            self._release(lease.shard)

    def _release(self, shard: int) -> None:
        epoch = self.done[shard]
        if self.epochs is None or epoch < self.epochs:
            heapq.heappush(self._free, (epoch, self._position(shard, epoch), shard))

    def _has_free(self) -> bool:
        return bool(self._free) and self._free[0][0] <= self.epoch + 1

    def _position(self, shard: int, epoch: int) -> int:
        if self.seed is None:
            return shard
        if epoch not in self._positions:
            order = list(range(self.num_shards))
            random.Random(f"{self.seed}, {epoch}").shuffle(order)
            self._positions[epoch] = order  # which permutation is used this way or inverted makes no difference
        return self._positions[epoch][shard]
