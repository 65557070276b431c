"""The state of a step after any events in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import AbortedError, OpError, UnavailableError
from penstock.master.step_tracker import CancelPart, Ended, StepTracker

PARTS = ["ps0", "ps1", "worker0", "worker1"]
UNKNOWN = ["evaluator", ""]

EVENT = st.one_of(
    st.tuples(st.just("finished"), st.sampled_from(PARTS + UNKNOWN)),
    st.tuples(st.just("failed"), st.sampled_from(PARTS + UNKNOWN)),
    st.tuples(st.just("cancelled"), st.none()),
)


def tell(step: StepTracker, what: str, part: str | None, number: int) -> tuple[Any, list[Any]]:
    """Tells a step of an event; what came along with it, and what the step asks for."""
    if what == "finished":
        values = [number]
        return values, step.finished(part, values)
    error = UnavailableError(None, None, str(number))
    return error, step.failed(part, error) if what == "failed" else step.cancelled(error)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PARTS), min_size=1, unique=True), st.lists(EVENT, max_size=14))
def test_whatever_happens(parts: list[str], events: list[tuple[str, str | None]]) -> None:
    step = StepTracker(parts)
    answered: set[str] = set()
    first: OpError | None = None
    results: dict[str, list[Any]] = {}
    cancelled_parts: list[str] = []
    ended = False
    for number, (what, part) in enumerate(events):
        counts = not ended and (what == "cancelled" or (part in parts and part not in answered))
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
        cancels = [x for x in asked if isinstance(x, CancelPart)]
        assert all(x.why is first and x.part in parts and x.part not in answered for x in cancels)
        cancelled_parts += [str(x.part) for x in cancels]
        if first is came:  # the first failure is told to all that still run
            assert {x.part for x in cancels} == set(parts) - answered
        over = what == "cancelled" or answered == set(parts)
        assert asked == [*cancels, *([Ended()] if over else [])]  # the end comes once, and last
        ended = over
        assert step.ended == ended
        assert step.error is first
        assert step.results == results
        assert set(step.waiting) == set(parts) - answered
    assert len(cancelled_parts) == len(set(cancelled_parts))


def test_all_finish() -> None:
    step = StepTracker(["a", "b"])
    assert step.finished("b", [2]) == []
    assert step.finished("a", [1]) == [Ended()]
    assert (step.results, step.error) == ({"b": [2], "a": [1]}, None)


def test_the_first_error_is_kept_while_the_others_stop() -> None:
    step = StepTracker(["a", "b", "c"])
    why, later = UnavailableError(None, None, "gone"), AbortedError(None, None, "told to stop")
    assert step.failed("b", why) == [CancelPart("a", why), CancelPart("c", why)]
    assert step.failed("a", later) == []
    assert step.finished("c", []) == [Ended()]
    assert step.error is why


def test_nobody_waits_after_giving_up() -> None:
    step = StepTracker(["a", "b"])
    why = AbortedError(None, None, "closed")
    assert step.finished("a", [1]) == []
    assert step.cancelled(why) == [CancelPart("b", why), Ended()]
    assert step.finished("b", [2]) == step.failed("b", why) == step.cancelled(why) == []
    assert step.results == {"a": [1]}
