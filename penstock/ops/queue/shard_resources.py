"""The resource that hands out shards of data, on a parameter server, and its record of who has them.

How often each shard is done is the value of a variable: it is initialised, saved and restored as any other is. Leases
are here, and are not saved. A lease belongs to the session that took it. Its `Holder` is a resource of that session,
which the server closes with it: when the client closes the session, ends, is restarted or cannot be reached any more.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from penstock.errors import CancelledError, DeadlineExceededError, InvalidArgumentError, OutOfRangeError
from penstock.kernel.waiting import Waitable
from penstock.ops.queue.leases import Lease, Leases

_NAMED = 5  # leases that an error names


class Holder:
    """Holds a lease for a session. The lease goes back when the session ends, and its holder is closed."""

    kind = "ShardHolder"

    def __init__(self) -> None:
        self.peer = ""
        self.is_closed = False
        self.shards: Shards | None = None

    def __str__(self) -> str:
        return self.peer

    def close(self) -> None:
        """Gives the shard back."""
        self.is_closed = True  # first: who takes a shard in this moment sets `shards`, then looks at this
        if self.shards is not None:
            self.shards.leave(self)


class Shards(Waitable):
    """Leases shards to sessions. Steps wait here until there is one for them, or all are done.

    `counts` is the stored variable with the number of epochs in which each shard is done. Whoever else assigns it, as a
    restore does, ends all leases.

    >>> lease = shards.take(counts, owner, 60.0, step); shards.finish(counts, owner, lease.number)
    """

    kind = "Shards"

    def __init__(self, name: str, leases: Leases) -> None:
        super().__init__(name)
        self.leases = leases
        self.capacity = leases.num_shards
        self._written: Any = None  # the value of the variable that agrees with the leases

    def size(self) -> int:
        """The number of shards that are not done in this epoch."""
        return self.leases.left

    def take(self, counts: Any, owner: Holder, deadline: float, ctx: Any) -> Lease:
        """Leases the next shard. Raises OutOfRangeError when all are done, DeadlineExceededError after `deadline` s."""
        with self._held():
            self._load(counts)
            if self.leases.leave(owner):
                self._notify()

            def ready() -> bool:
                return self.leases.is_over or self.leases.can_take(time.monotonic())

            if not ready():
                self._set_alarm(self.leases.next_due())
            if not self._wait_in_time(ready, deadline, ctx):
                raise DeadlineExceededError(
                    f"{self}: for {deadline:g} s (deadline_secs) there was no shard to take, since others have "
                    f"{self._held_by()}. Are they at work? With lease_secs their shards go back if they are not."
                )
            if self.leases.is_over:
                raise OutOfRangeError(f"{self}: all {self.capacity} shards are done in {self.leases.epochs} epochs.")
            owner.shards, owner.peer = self, getattr(ctx.requester, "peer", "this process")
            if owner.is_closed:
                raise CancelledError(f"{self}: the session was closed while it took a shard.")
            lease = self.leases.take(owner, time.monotonic())
            assert lease is not None
            return lease

    def finish(self, counts: Any, owner: Holder, number: int) -> None:
        """Notes that the shard of a lease is done, here and in the variable."""
        with self._held():
            self._load(counts)
            lease = self.leases.finish(number, owner)
            done = np.array(self._written)
            done[lease.shard] += 1
            with counts.lock:
                if counts.value is self._written:  # else it was assigned in this moment, which ends all leases
                    counts.value = self._written = done
            self._notify()

    def renew(self, owner: Holder) -> None:
        """Has the time of an owner's lease begin again."""
        with self._held():
            self.leases.renew(owner, time.monotonic())

    def leave(self, owner: Holder) -> None:
        """Takes back the shard of an owner, for others."""
        with self._held():
            if self.leases.leave(owner):
                self._notify()

    def progress(self, counts: Any) -> tuple[int, int, int]:
        """The first epoch that is not done, how many of its shards are, and how many shards are leased now."""
        with self._held():
            self._load(counts)
            return self.leases.epoch, self.capacity - self.leases.left, len(self.leases.leased)

    def _load(self, counts: Any) -> None:
        """Takes over what somebody else has assigned to the variable, such as the counts of a checkpoint."""
        value = counts.read()
        if value is not self._written:
            done = np.asarray(value)
            if done.shape != (self.capacity,) or done.min() < 0:
                raise InvalidArgumentError(f"{self}: {self.capacity} counts of at least 0 are needed, received {done}.")
            self._written = value
            counts.in_place = True  # has compiled code leave the array where it is, by which it is known here
            self.leases.load(done.tolist())
            self._notify()

    def _next_due(self) -> float:
        return min(super()._next_due(), self.leases.next_due())

    def _held_by(self) -> str:
        leased = sorted(self.leases.leased.values(), key=lambda lease: (lease.epoch, lease.shard))
        named = [f"shard {lease.shard} of epoch {lease.epoch} ({lease.owner})" for lease in leased[:_NAMED]]
        more = len(leased) - _NAMED
        return ", ".join(named) + (f" and {more} more" if more > 0 else "")
