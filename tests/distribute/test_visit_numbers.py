"""Which closure gets which elements: each number is given once, whatever workers are lost and come back."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.distribute.coordinator.visits import LEASE, Numbers, Visits

WORKERS = 3


def test_a_worker_reads_ranges_in_order() -> None:
    numbers = Numbers()
    assert [numbers.give(0, 1) for _ in range(LEASE)] == [[n] for n in range(LEASE)]
    assert numbers.give(1, 1) == [LEASE]
    assert numbers.give(0, 2) == [2 * LEASE, 2 * LEASE + 1]


def test_numbers_that_a_lost_worker_has_not_used_come_first() -> None:
    numbers = Numbers()
    assert [numbers.give(0, 1), numbers.give(1, 1)] == [[0], [LEASE]]
    numbers.lost(0)
    assert [numbers.give(1, 1) for _ in range(LEASE)] == [[n] for n in (*range(LEASE + 1, 2 * LEASE), 1)]


def test_at_the_end_a_worker_gets_what_another_has_not_come_to() -> None:
    numbers = Numbers()
    assert [numbers.give(0, 1), numbers.give(1, 1)] == [[0], [LEASE]]
    numbers.ended(4)
    assert [numbers.give(1, 2), numbers.give(1, 2), numbers.give(1, 1)] == [[2, 3], None, [1]]


def test_a_closure_that_wants_more_elements_than_there_are_gets_none() -> None:
    visits = Visits()
    visits.begin("a")
    assert visits.give(["a", "a"], 0) == [0, 1]
    past = visits.give(["a", "a"], 0)
    assert past == [2, 3]
    assert not visits.ended(["a", "a"], past, 1, 0)
    assert visits.give(["a"], 0) == [2]  # it is left for one that wants no more
    assert visits.give(["a"], 0) is None


def test_a_closure_that_ends_with_one_dataset_leaves_its_elements_of_others() -> None:
    visits = Visits()
    visits.begin("a")
    visits.begin("b")
    given = visits.give(["a", "b"], 0)
    assert given == [0, 0]
    assert not visits.ended(["a", "b"], given, 0, 0)
    assert visits.give(["b"], 1) == [0]


def test_a_closure_past_the_end_gets_a_number_that_is_left() -> None:
    visits = Visits()
    visits.begin("a")
    visits.begin("b")
    assert visits.give(["a", "b"], 0) == [0, 0]
    past = visits.give(["b", "a", "a"], 1)
    assert past == [LEASE, LEASE, LEASE + 1]
    assert visits.ended(["b", "a", "a"], past, 2, 1)
    assert past == [LEASE, LEASE, LEASE - 1]


_EVENTS = st.lists(
    st.tuples(st.sampled_from(["send", "send", "send", "end", "lose"]), st.integers(0, WORKERS - 1)), max_size=80
)


@settings(deadline=None)
@given(_EVENTS, st.integers(0, 60), st.integers(1, 3))
@example([("send", 1), ("send", 2), ("send", 0), ("send", 0), ("send", 0)], 5, 3)  # all leases reach past the end
def test_each_number_is_given_once_whatever_is_lost(events: list[tuple[str, int]], count: int, each: int) -> None:
    """A model of a coordinator whose closures take `each` elements of a dataset that has `count` times as many."""
    visits, size = Visits(), count * each
    visits.begin("a")
    iterators = ["a"] * each
    running: list[list[list[int]]] = [[] for _ in range(WORKERS)]
    waiting: list[list[int]] = []  # closures that have numbers, of lost workers
    visited: list[int] = []
    over = False

    def send(worker: int) -> None:
        nonlocal over
        numbers = waiting.pop(0) if waiting else visits.give(iterators, worker)
        if numbers is None:
            over = True
        else:
            running[worker].append(numbers)

    def end(worker: int) -> None:
        numbers = running[worker].pop(0)
        past = next((i for i, n in enumerate(numbers) if n >= size), None)
        if past is None:
            visited.extend(numbers)
        elif visits.ended(iterators, numbers, past, worker):
            waiting.append(numbers)

    for event, worker in events:
        if event == "send":
            send(worker)
        elif event == "end" and running[worker]:
            end(worker)
        elif event == "lose":
            visits.lost(worker)
            waiting, running[worker] = running[worker] + waiting, []
        assert len(visited) == len(set(visited))
    while not over or waiting or any(running):
        for worker in range(WORKERS):
            if not over or waiting:
                send(worker)
            while running[worker]:
                end(worker)
    assert sorted(visited) == list(range(size))
