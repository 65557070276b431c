"""The state of a step after any events in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import AbortedError, OpError, UnavailableError
from penstock.master.step import AbortPart, Ended, StepState

PARTS = ["ps0", "ps1", "worker0", "worker1"]
UNKNOWN = ["evaluator", ""]

EVENT = st.one_of(
    st.tuples(st.just("finished"), st.sampled_from(PARTS + UNKNOWN)),
    st.tuples(st.just("failed"), st.sampled_from(PARTS + UNKNOWN)),
    st.tuples(st.just("given_up"), st.none()),
)


def tell(step: StepState, what: str, part: str | None, number: int) -> tuple[Any, list[Any]]:
    """Sends an event to a step. Returns the values or error that came with it, and the actions of the step."""
    if what == "finished":
        values = [number]
        return values, step.finished(part, values)
    error = UnavailableError(None, None, str(number))
    return error, step.failed(part, error) if what == "failed" else step.given_up(error)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PARTS), min_size=1, unique=True), st.lists(EVENT, max_size=14))
def test_whatever_happens(parts: list[str], events: list[tuple[str, str | None]]) -> None:
    step = StepState(parts)
    answered: set[str] = set()
    first: OpError | None = None
    results: dict[str, list[Any]] = {}
    aborted: list[str] = []
    ended = False
    for number, (what, part) in enumerate(events):
        counts = not ended and (what == "given_up" or (part in parts and part not in answered))
        before = dict(step.results), step.error, dict(step.waiting)
        came, asked = tell(step, what, part, number)
        if not counts:  # late, repeated, or of an unknown part
            assert asked == []
            assert (step.results, step.error, step.waiting) == before
            continue
        if part is not None:
            answered.add(part)
        if what == "finished":
            results[str(part)] = came
        elif first is None:
            first = came
        aborts = [x for x in asked if isinstance(x, AbortPart)]
        assert all(x.why is first and x.part in parts and x.part not in answered for x in aborts)
        aborted += [str(x.part) for x in aborts]
        if first is came:  # all running parts are told the first failure
            assert {x.part for x in aborts} == set(parts) - answered
        over = what == "given_up" or answered == set(parts)
        assert asked == [*aborts, *([Ended()] if over else [])]  # the end comes once, and last
        ended = over
        assert step.ended == ended
        assert step.error is first
        assert step.results == results
        assert set(step.waiting) == set(parts) - answered
    assert len(aborted) == len(set(aborted))


def test_all_finish() -> None:
    step = StepState(["a", "b"])
    assert step.finished("b", [2]) == []
    assert step.finished("a", [1]) == [Ended()]
    assert (step.results, step.error) == ({"b": [2], "a": [1]}, None)


def test_the_first_error_is_kept_while_the_others_stop() -> None:
    step = StepState(["a", "b", "c"])
    why, later = UnavailableError(None, None, "gone"), AbortedError(None, None, "told to stop")
    assert step.failed("b", why) == [AbortPart("a", why), AbortPart("c", why)]
    assert step.failed("a", later) == []
    assert step.finished("c", []) == [Ended()]
    assert step.error is why


def test_nobody_waits_after_giving_up() -> None:
    step = StepState(["a", "b"])
    why = AbortedError(None, None, "closed")
    assert step.finished("a", [1]) == []
    assert step.given_up(why) == [AbortPart("b", why), Ended()]
    assert step.finished("b", [2]) == step.failed("b", why) == step.given_up(why) == []
    assert step.results == {"a": [1]}
