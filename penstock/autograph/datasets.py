"""`for` statements over datasets: the body becomes a function of the dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.autograph import loop_state
from penstock.autograph.conditionals import as_predicate
from penstock.autograph.loop_state import Variables
from penstock.data.dataset import Dataset
from penstock.data.transformations import scan, take_while
from penstock.ops.control.flow import cond


def for_dataset(
    dataset: Dataset, extra_test: Callable[[], Any] | None, body: Callable[[Any], None], variables: Variables
) -> None:
    """Runs a `for` statement over a dataset: it reduces the loop variables over the elements."""
    before = variables.get()
    loop_state.require_defined(before, variables.names)

    # A state has at least one tensor, so a number that nothing uses is part of it.
    def advanced(state: Any, element: Any) -> Any:
        current = state[1:]
        variables.set(current)
        body(element)
        after = variables.get()
        loop_state.require_same_form(variables.names, current, after)
        return (state[0], *after)

    def advanced_unless_broken(state: Any, element: Any) -> Any:
        variables.set(state[1:])
        assert extra_test is not None
        goes_on = as_predicate(extra_test(), "for loop")
        state = cond(goes_on, lambda: advanced(state, element), lambda: state, strict=True)
        return state, (state, goes_on)

    start = (0, *before)
    if extra_test is None:
        after = dataset.reduce(start, advanced)
    else:
        states = dataset.apply(scan(start, advanced_unless_broken))
        after = states.apply(take_while(lambda _, goes_on: goes_on)).reduce(start, lambda _, found: found[0])
    variables.set(after[1:])
