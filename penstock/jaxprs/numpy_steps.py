"""Steps: closures that read operands from a list of values, call a kernel and store its results there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.jaxprs.numpy_rules import Kernel, Overwriting

Step = Callable[[list[Any]], None]


def make_step(
    kernel: Kernel | Overwriting,
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    several: bool,
    into: int | None,
    drops: Sequence[int],
) -> Step:
    """A step that calls `kernel` and empties the slots `drops`; it writes the result into operand `into`, if given."""
    if isinstance(kernel, Overwriting):
        kernel = kernel.keeping if into is None else kernel.into_first
        into = None
    drops = tuple(slot for slot in drops if slot not in outputs)
    if several:
        return _several_results(kernel, inputs, outputs, drops)
    if into is not None:
        return _into(kernel, inputs, outputs[0], into, drops)
    if len(inputs) == 1:
        return _unary(kernel, inputs[0], outputs[0], drops)
    if len(inputs) == 2:
        return _binary(kernel, inputs[0], inputs[1], outputs[0], drops)
    return _any_number(kernel, inputs, outputs[0], drops)


def _unary(kernel: Kernel, a: int, out: int, drops: Sequence[int]) -> Step:
    def step(values: list[Any]) -> None:
        values[out] = kernel(values[a])

    def step_and_drop(values: list[Any]) -> None:
        values[out] = kernel(values[a])
        values[a] = None

    return step_and_drop if drops else step


def _binary(kernel: Kernel, a: int, b: int, out: int, drops: Sequence[int]) -> Step:
    def step(values: list[Any]) -> None:
        values[out] = kernel(values[a], values[b])

    def step_and_drop(values: list[Any]) -> None:
        values[out] = kernel(values[a], values[b])
        values[drop] = None

    def step_and_drop_both(values: list[Any]) -> None:
        values[out] = kernel(values[a], values[b])
        values[a] = values[b] = None

    drop = drops[0] if drops else 0
    return (step, step_and_drop, step_and_drop_both)[len(drops)]


def _into(kernel: Kernel, inputs: Sequence[int], out: int, into: int, drops: Sequence[int]) -> Step:
    a, b = inputs[0], inputs[-1]

    def unary(values: list[Any]) -> None:
        x = values[a]
        values[out] = kernel(x, out=x)
        values[a] = None

    def into_first(values: list[Any]) -> None:
        x = values[a]
        values[out] = kernel(x, values[b], out=x)
        for slot in drops:
            values[slot] = None

    def into_second(values: list[Any]) -> None:
        x = values[b]
        values[out] = kernel(values[a], x, out=x)
        for slot in drops:
            values[slot] = None

    def any_number(values: list[Any]) -> None:
        operands = [values[slot] for slot in inputs]
        values[out] = kernel(*operands, out=operands[into])
        for slot in drops:
            values[slot] = None

    if len(inputs) == 1:
        return unary
    if len(inputs) == 2:
        return into_second if into else into_first
    return any_number


def _any_number(kernel: Kernel, inputs: Sequence[int], out: int, drops: Sequence[int]) -> Step:
    if len(inputs) == 3:
        a, b, c = inputs

        def three(values: list[Any]) -> None:
            values[out] = kernel(values[a], values[b], values[c])
            for slot in drops:
                values[slot] = None

        return three

    def step(values: list[Any]) -> None:
        values[out] = kernel(*[values[slot] for slot in inputs])
        for slot in drops:
            values[slot] = None

    return step


def _several_results(kernel: Kernel, inputs: Sequence[int], outputs: Sequence[int], drops: Sequence[int]) -> Step:
    def step(values: list[Any]) -> None:
        results = kernel(*[values[slot] for slot in inputs])
        for slot in drops:
            values[slot] = None
        for slot, result in zip(outputs, results, strict=True):
            values[slot] = result

    return step
