"""Which closure goes to which worker: each runs once, whatever workers are lost and come back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.distribute.coordinator.closures import Closure, PerWorker, RemoteValue
from penstock.distribute.coordinator.queue import DEPTH, ClosureQueue


def closure(worker: int | None = None) -> Closure:
    nothing: Any = None
    return Closure(nothing, [], RemoteValue(), worker)


def ready(workers: int) -> ClosureQueue:
    queue = ClosureQueue(workers)
    for worker in range(workers):
        queue.back(worker)
    return queue


def test_a_worker_has_a_few_closures_at_once() -> None:
    queue = ready(1)
    for _ in range(DEPTH + 1):
        queue.add(closure())
    assert [queue.take(0) is not None for _ in range(DEPTH + 1)] == [True] * DEPTH + [False]


def test_closures_of_a_lost_worker_come_first_and_in_order() -> None:
    queue = ready(2)
    closures = [closure() for _ in range(6)]
    for each in closures:
        queue.add(each)
    assert [queue.take(0), queue.take(0)] == closures[:2]
    assert queue.take(1) is closures[2]
    queue.lost(0)
    assert queue.take(0) is None
    assert [queue.take(1), queue.take(1)] == closures[:2]


def test_closures_of_several_lost_workers_come_in_order() -> None:
    queue = ready(3)
    closures = [closure() for _ in range(4)]
    for each in closures:
        queue.add(each)
    assert [queue.take(i % 2) for i in range(4)] == closures
    queue.lost(0)
    queue.lost(1)
    assert queue.settled == closures[0].number
    assert [queue.take(2) for _ in range(4)] == closures


def test_a_closure_that_is_to_run_again_comes_before_later_ones() -> None:
    queue = ready(1)
    first, second, third = closure(), closure(), closure()
    for each in (first, second, third):
        queue.add(each)
    assert [queue.take(0), queue.take(0)] == [first, second]
    queue.again(0, second)
    queue.again(0, first)
    assert [queue.take(0), queue.take(0), queue.take(0)] == [first, second, third]


def test_only_closures_that_no_worker_has_had_are_dropped() -> None:
    queue = ready(2)
    sent, new, bound = closure(), closure(), closure(worker=1)
    for each in (sent, new, bound):
        queue.add(each)
    assert queue.take(0) is sent
    queue.lost(0)
    assert queue.drop() == [new]
    assert [queue.take(1), queue.take(1)] == [bound, sent]


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_closure_of_one_worker_is_for_no_other_and_goes_with_it(is_sent: bool) -> None:
    """A worker that comes back makes all that it needs, so nobody waits for what it was to make before."""
    queue = ready(2)
    bound = closure(worker=1)
    queue.add(bound)
    assert queue.take(0) is None
    if is_sent:
        assert queue.take(1) is bound
    queue.lost(1)
    assert queue.is_empty
    queue.back(1)
    assert queue.take(0) is queue.take(1) is None


def test_settled_is_the_first_that_may_run_again() -> None:
    queue = ready(1)
    first, second = closure(), closure()
    assert queue.settled == 1
    queue.add(first)
    queue.add(second)
    queue.take(0)
    queue.take(0)
    queue.ended(0, second)
    assert queue.settled == first.number
    queue.ended(0, first)
    assert queue.settled == second.number + 1
    assert queue.is_empty


def test_an_answer_of_a_worker_that_counts_as_lost_is_not_taken() -> None:
    queue = ready(1)
    queue.add(closure())
    taken = queue.take(0)
    assert taken is not None
    queue.lost(0)
    assert not queue.ended(0, taken)
    assert not queue.is_empty


def test_a_worker_that_joins_gets_closures_once_it_is_connected() -> None:
    queue = ready(1)
    first, second = closure(), closure()
    queue.add(first)
    queue.add(second)
    queue.resize(2)
    assert queue.take(1) is None
    queue.back(1)
    assert [queue.take(1), queue.take(0)] == [first, second]


def test_a_worker_that_leaves_ends_what_it_has_and_gets_nothing_more() -> None:
    queue = ready(2)
    running, waiting, making, made = closure(), closure(), closure(worker=1), closure(worker=1)
    for each in (making, made, running, waiting):
        queue.add(each)
    assert [queue.take(1), queue.take(0)] == [making, running]
    queue.resize(1)
    assert queue.take(1) is None
    assert queue.ended(1, making)
    assert queue.waiting == 1  # nobody waits for what it was to make
    queue.lost(1)
    assert queue.take(0) is waiting


def test_what_a_worker_that_left_had_goes_to_others_if_it_is_lost() -> None:
    queue = ready(2)
    queue.add(closure())
    taken = queue.take(1)
    queue.resize(1)
    queue.lost(1)
    assert queue.take(0) is taken


def test_values_for_fewer_workers_are_for_those() -> None:
    queue = ready(1)
    old, new = closure(), closure()
    old.arguments = [PerWorker([1.0])]
    queue.add(old)
    queue.resize(2)
    queue.back(1)
    assert queue.takers == [0]
    assert queue.take(1) is None
    queue.add(new)
    assert queue.takers == [0, 1]
    assert [queue.take(1), queue.take(0)] == [new, old]


def test_workers_with_room_in_the_order_of_their_numbers() -> None:
    queue = ready(3)
    assert queue.next_with_room(-1) is None  # nothing waits
    for _ in range(2 * DEPTH + 1):
        queue.add(closure())
    for _ in range(DEPTH):
        queue.take(1)
    assert [queue.next_with_room(after) for after in (-1, 0, 1, 2)] == [0, 2, 2, None]
    queue.lost(0)
    assert queue.next_with_room(-1) == 2
    queue.ended(1, next(iter(queue.running[1].values())))
    assert queue.next_with_room(-1) == 1
    queue.is_paused = True
    assert queue.next_with_room(-1) is None


def test_a_closure_comes_after_those_that_all_workers_could_take() -> None:
    queue = ready(1)
    assert not queue.is_behind
    queue.add(closure())
    assert queue.is_behind
    old = closure()
    old.arguments = [PerWorker([1.0])]
    queue.add(old)
    queue.resize(2)
    assert not queue.is_behind  # the worker that joins cannot take the last one, and might take the next one


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "take", "end", "lose", "back", "resize"]), st.integers(0, 2)), max_size=120
    )
)
def test_each_closure_ends_once(events: list[tuple[str, int]]) -> None:
    queue, added, ended = ready(3), [], []
    for event, worker in events:
        if event == "add":
            added.append(closure())
            queue.add(added[-1])
        elif event == "take":
            queue.take(worker)
        elif event == "end" and queue.running[worker]:
            done = next(iter(queue.running[worker].values()))
            assert queue.ended(worker, done)
            ended.append(done)
        elif event == "lose":
            queue.lost(worker)
        elif event == "back" and worker < queue.workers:
            queue.back(worker)
        elif event == "resize":
            queue.resize(worker + 1)
        running = [c for each in queue.running for c in each.values()]
        assert len(running) + len(ended) + queue.waiting == len(added)
        assert queue.settled == min((c.number for c in added if c not in ended), default=len(added) + 1)
        able = [worker for worker in range(3) if queue.peek(worker)]
        assert able == [worker for worker in range(3) if queue.next_with_room(worker - 1) == worker]
    for worker in range(queue.workers):
        queue.back(worker)
    while not queue.is_empty:
        for worker in range(3):
            queue.take(worker)
            for done in list(queue.running[worker].values()):
                assert queue.ended(worker, done)
                ended.append(done)
    assert sorted(c.number for c in ended) == [c.number for c in added]


def test_a_held_queue_sends_only_what_was_sent_before_and_what_that_needs() -> None:
    queue = ready(2)
    first, second, third, own = closure(), closure(), closure(), closure(worker=1)
    for each in (first, second, third):
        queue.add(each)
    assert queue.take(0) is first
    queue.is_held = True
    queue.add(own)
    assert (queue.take(0), queue.take(1)) == (None, None)
    queue.lost(0)
    assert not queue.is_idle
    assert [queue.take(1) for _ in range(3)] == [own, first, None]
    queue.ended(1, own)
    queue.ended(1, first)
    assert queue.is_idle
    queue.is_held = False
    assert [queue.take(1), queue.take(1)] == [second, third]
