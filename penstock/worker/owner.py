"""An Owner is an instruction's view of its partition; `callable_body` makes functions for instructions to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.graph.function import Function
from penstock.passes.ir import Edge, Node
from penstock.segments.layout import Layout
from penstock.segments.plan import Plan, SegmentPlan
from penstock.segments.stored_variable import StoredVariable
from penstock.segments.tiers import Imagined
from penstock.worker.step import Step

MakeFunction = Callable[[Any, str, Function, Sequence[Any]], Callable[[Sequence[Any]], list[Any]]]


class Owner(Layout, Protocol):
    """The part of an Executable that its instructions use. They make further ones by `inner`, and run these."""

    context: Any
    imagined: Imagined

    def inner(self, plan: Plan, bound: dict[Node, StoredVariable]) -> Owner: ...

    def node_by_node(self, segment: SegmentPlan) -> Owner: ...

    def source(self, edge: Edge) -> int | StoredVariable: ...

    def run(self, fed: Sequence[Any], step: Step) -> list[Any]: ...


_makers: list[MakeFunction] = []


def make_functions_by(maker: MakeFunction) -> None:
    """Sets the function behind `callable_body`. It is in a module above, since it compiles bodies to instructions."""
    _makers[:] = [maker]


def callable_body(
    context: Any, device: str, function: Function, captured: Sequence[Any]
) -> Callable[[Sequence[Any]], list[Any]]:
    """Returns a body as a function of values. `captured` are values or variables for its last parameters."""
    return _makers[0](context, device, function, captured)
