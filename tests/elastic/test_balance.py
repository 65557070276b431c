"""Which resources move when parameter servers join or leave."""

from __future__ import annotations

import pytest

from penstock.elastic.balance import Resource, homes_after, moves
from penstock.errors import FailedPreconditionError

A, B, C = (f"/job:ps/replica:0/task:{n}" for n in range(3))


def variable(name: str, size: int, task: str = A, *bonds: str) -> Resource:
    return Resource(task, ("", name), size, bonds=tuple(("", bond) for bond in bonds))


def names(moved: dict[Resource, str]) -> dict[str, str]:
    return {resource.key[1]: to for resource, to in moved.items()}


def load(held: list[Resource], moved: dict[Resource, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for resource in held:
        task = moved.get(resource, resource.task)
        found[task] = found.get(task, 0) + resource.bytes
    return found


def test_those_that_join_get_their_share() -> None:
    held = [variable(f"w{i}", 10) for i in range(9)]
    assert load(held, moves(held, [A, B, C])) == {A: 30, B: 30, C: 30}


def test_no_more_moves_than_needed() -> None:
    held = [variable("a", 10), variable("b", 10, B), variable("c", 1), variable("d", 0)]
    assert moves(held, [A, B]) == {}


def test_what_belongs_together_moves_together() -> None:
    held = [
        variable("w", 10),
        variable("v", 10),
        variable("w/Adam", 10),
        Resource(A, ("", "w:0/grad_accum"), 0, "ConditionalAccumulator"),
        variable("beta", 1, A, "v"),
    ]
    moved = names(moves(held, [A, B]))
    assert set(moved) in ({"w", "w/Adam", "w:0/grad_accum"}, {"v", "beta"}) and set(moved.values()) == {B}


def test_bonds_join_units_in_any_order() -> None:
    held = [variable("a", 5), variable("b", 5), variable("c", 5, A, "a", "b"), variable("d", 5)]
    moved = names(moves(held, [A, B]))
    assert set(moved) in ({"d"}, {"a", "b", "c"})


def test_one_that_leaves_leaves_nothing() -> None:
    held = [variable("a", 10), variable("b", 30, B), variable("c", 1, C), Resource(C, ("", "q"), 0, "FIFOQueue")]
    moved = names(moves(held, [A, B]))
    assert moved == {"c": A, "q": A}


def test_what_cannot_move_keeps_its_server() -> None:
    held = [Resource(B, ("", "it"), 0, "Iterator", movable=False), variable("b", 10, B)]
    assert moves(held, [A, B]) == {} or names(moves(held, [A, B])) == {"b": A}
    with pytest.raises(FailedPreconditionError, match="cannot leave: it holds the Iterator 'it'"):
        moves(held, [A])


def test_no_task_gets_two_resources_of_one_name() -> None:
    held = [variable("x", 10), variable("x", 10, B), variable("y", 1, B)]
    with pytest.raises(FailedPreconditionError, match="has another 'x' already"):
        moves(held, [A])
    assert names({r: to for r, to in moves(held, [A, C]).items() if r.task == B})["x"] == C


def test_homes_are_by_the_task_that_the_program_names() -> None:
    w = variable("w", 1)
    first = homes_after({}, {w: B})
    assert first == {(A, "", "w"): B}
    there = variable("w", 1, B)
    assert homes_after(first, {there: C}) == {(A, "", "w"): C}
    assert homes_after(first, {there: A}) == {}
    assert homes_after(first, {there: A}, left=[A]) == {(A, "", "w"): A}
