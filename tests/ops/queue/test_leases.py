"""Leases of shards: each is given out once in each epoch, whatever happens to those who have them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.ops.queue.leases import Lease, Leases

OWNERS = ("a", "b", "c")


def taken(leases: Leases, owner: str = "a", now: float = 0.0) -> Lease:
    lease = leases.take(owner, now)
    assert lease is not None
    return lease


def all_of(leases: Leases) -> list[tuple[int, int]]:
    """The epochs and shards that one owner gets."""
    found = []
    while (lease := leases.take("a", 0.0)) is not None:
        found.append((lease.epoch, lease.shard))
        leases.finish(lease.number, "a")
    return found


def test_shards_come_in_their_order_without_a_seed() -> None:
    assert all_of(Leases(3, epochs=2)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_seed_gives_each_epoch_an_order_of_its_own() -> None:
    found, again, other = (all_of(Leases(20, epochs=2, seed=seed)) for seed in (1, 1, 2))
    assert found == again != other
    first, second = ([shard for epoch, shard in found if epoch == e] for e in (0, 1))
    assert sorted(first) == sorted(second) == list(range(20)) and first != second


def test_what_goes_back_comes_first() -> None:
    leases = Leases(3)
    assert (taken(leases, "a").shard, taken(leases, "b").shard) == (0, 1)
    assert leases.leave("a") and not leases.leave("a")
    assert taken(leases, "b").shard == 0  # and its own went back, too, since it was not reported
    assert taken(leases, "a").shard == 1


def test_the_next_epoch_begins_while_the_last_shards_are_leased_but_not_the_one_after() -> None:
    leases = Leases(2, epochs=None)
    late = taken(leases, "a")
    for epoch in (0, 1):
        lease = taken(leases, "b")
        assert (lease.epoch, lease.shard) == (epoch, 1)
        leases.finish(lease.number, "b")
    assert leases.take("b", 0.0) is None
    leases.finish(late.number, "a")
    assert (taken(leases, "b").epoch, taken(leases, "a").epoch) == (1, 2)


def test_a_lease_whose_time_has_passed_goes_back_when_somebody_needs_it() -> None:
    leases = Leases(2, lease_secs=10.0)
    late, other = taken(leases, "a", 0.0), taken(leases, "b", 5.0)
    assert (leases.next_due(), leases.can_take(9.9), leases.take("c", 9.9)) == (10.0, False, None)
    leases.renew("a", 8.0)
    assert leases.next_due() == 15.0
    leases.finish(other.number, "b")
    leases.finish(late.number, "a")  # late, but nobody else has it
    leases = Leases(1, lease_secs=10.0)
    late = taken(leases, "a", 0.0)
    assert leases.can_take(10.0) and taken(leases, "b", 10.0).shard == late.shard
    with pytest.raises(FailedPreconditionError, match="went back"):
        leases.finish(late.number, "a")


def test_a_report_that_is_not_the_holders_is_refused() -> None:
    leases = Leases(2)
    lease = taken(leases, "a")
    with pytest.raises(FailedPreconditionError, match="held by a, and was reported done by b"):
        leases.finish(lease.number, "b")
    leases.finish(lease.number, "a")
    with pytest.raises(FailedPreconditionError, match="Lease 1 has ended"):
        leases.finish(lease.number, "a")
    with pytest.raises(InvalidArgumentError, match="at least 1, received 0"):
        leases.finish(0, "a")


def test_loading_ends_all_leases() -> None:
    leases = Leases(3, epochs=2)
    lease = taken(leases, "a")
    leases.load([1, 0, 2])
    assert (leases.epoch, leases.left, leases.leased) == (0, 1, {})
    with pytest.raises(FailedPreconditionError, match="restored"):
        leases.finish(lease.number, "a")
    assert all_of(leases) == [(0, 1), (1, 0), (1, 1)]
    assert leases.is_over and leases.left == 0


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "finish", "finish", "leave", "wait", "renew", "reload"]),
        st.sampled_from(OWNERS),
    ),
    max_size=100,
)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.none() | st.integers(0, 5), st.booleans(), _EVENTS)
def test_each_shard_of_each_epoch_is_done_once_and_nobody_shares_one(
    num_shards: int, epochs: int, seed: int | None, expires: bool, events: list[tuple[str, str]]
) -> None:
    leases = Leases(num_shards, epochs, seed, 10.0 if expires else math.inf)
    now, done = 0.0, set()
    held: dict[str, Lease] = {}  # as the owners believe
    for event, owner in events:
        if event == "wait":
            now += 6.0
        elif event == "renew":
            leases.renew(owner, now)
        elif event == "leave":
            leases.leave(owner)
        elif event == "reload":
            leases.load(leases.done)
        elif event == "take":
            others = {lease.shard: lease.due for lease in leases.leased.values() if lease.owner != owner}
            possible = leases.can_take(now) or len(others) < len(leases.leased)
            lease = leases.take(owner, now)
            assert (lease is not None) == possible
            if lease is not None:
                held[owner] = lease
                assert others.get(lease.shard, 0.0) <= now
                assert lease.epoch == leases.done[lease.shard] <= leases.epoch + 1
        elif event == "finish" and owner in held:
            lease = held.pop(owner)
            if lease.number in leases.leased:
                assert leases.finish(lease.number, owner) is lease
                assert (lease.shard, lease.epoch) not in done
                done.add((lease.shard, lease.epoch))
            else:
                with pytest.raises(FailedPreconditionError):
                    leases.finish(lease.number, owner)
        assert len({lease.shard for lease in leases.leased.values()}) == len(leases.leased)
        assert leases.done == [sum((shard, e) in done for e in range(epochs)) for shard in range(num_shards)]
    for owner in OWNERS:
        leases.leave(owner)
    assert sorted([*done, *((shard, epoch) for epoch, shard in all_of(leases))]) == [
        (shard, epoch) for shard in range(num_shards) for epoch in range(epochs)
    ]
    assert leases.is_over and leases.left == 0
