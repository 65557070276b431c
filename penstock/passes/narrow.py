"""Narrow: control-flow nodes with only the loop variables, results and inputs that a step needs.

What a loop computes besides is not computed: variables whose result nobody takes, and what is remembered for a gradient
that the step does not ask for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.graph.function import Function
from penstock.graph.operation import Operation
from penstock.passes.ir import SPLIT


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The positions of the inputs and outputs that are left of a node, and its attrs then."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: dict[str, Any]


def can_be_narrowed(operation: Operation) -> bool:
    """Tells if a node may be left with a part of its inputs and outputs.

    One that was split over tasks was narrowed before, and what it sends to the others is no result.
    """
    return operation.op_def.name in _KINDS and SPLIT not in operation.attrs


def own_results(operation: Operation) -> set[int]:
    """The results that a node has for the program, without what it remembers for gradients."""
    return set(range(operation.attrs.get("_own_results", len(operation.outputs))))


def narrowed(operation: Operation, used: Iterable[int]) -> Narrowed:
    """`operation` with as little as gives its results at `used`."""
    form: Narrowed = _KINDS[operation.type](operation, set(used))
    return form


def _conditional(operation: Operation, used: set[int]) -> Narrowed:
    then_branch: Function = operation.attrs["then_branch"]
    else_branch: Function = operation.attrs["else_branch"]
    outputs = tuple(sorted(used))
    needed = {i for f in (then_branch, else_branch) for o in outputs for i in f.dependencies()[o]}
    needed |= then_branch.needed_by_effects() | else_branch.needed_by_effects()
    inputs = tuple(sorted(needed))
    attrs = {
        **operation.attrs,
        "Tin": _at(operation.attrs["Tin"], inputs),
        "Tout": _at(operation.attrs["Tout"], outputs),
        "then_branch": then_branch.narrowed(inputs, outputs),
        "else_branch": else_branch.narrowed(inputs, outputs),
    }
    return Narrowed((0, *(1 + i for i in inputs)), outputs, attrs)


def _loop(operation: Operation, used: set[int]) -> Narrowed:
    cond: Function = operation.attrs["cond"]
    body: Function = operation.attrs["body"]
    needs = body.dependencies()
    kept: set[int] = set()
    fresh = used | cond.dependencies()[0] | cond.needed_by_effects() | body.needed_by_effects()
    while fresh:
        kept |= fresh
        fresh = {i for o in fresh for i in needs[o]} - kept
    variables = tuple(sorted(kept))
    attrs = {
        **operation.attrs,
        "T": _at(operation.attrs["T"], variables),
        "cond": cond.narrowed(variables, (0,)),
        "body": body.narrowed(variables, variables),
    }
    return Narrowed(variables, variables, attrs)


def _count(operation: Operation, used: set[int]) -> Narrowed:
    loop = _loop(operation, set())
    return Narrowed(loop.inputs, (0,), loop.attrs)


def _at(items: Any, positions: Iterable[int]) -> tuple[Any, ...]:
    return tuple(items[i] for i in positions)


_KINDS = {"If": _conditional, "While": _loop, "WhileTripCount": _count}
