"""Owner: what an instruction knows of the partition that it is part of, and how it comes by functions to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.graph.function import Function
from penstock.passes.ir import Edge, Node
from penstock.worker.plan import Cuts, Plan, SegmentPlan
from penstock.worker.resources import Variable
from penstock.worker.step import Step
from penstock.worker.tiers import Imagined

MakeFunction = Callable[[Any, str, Function, Sequence[Any]], Callable[[Sequence[Any]], list[Any]]]


class Owner(Protocol):
    """An Executable, as far as its instructions use it: they make further ones by `inner`, and run these."""

    context: Any
    cuts: Cuts
    imagined: Imagined
    feed_slots: list[int]

    def inner(self, plan: Plan, bound: dict[Node, Variable]) -> Owner: ...

    def node_by_node(self, segment: SegmentPlan) -> Owner: ...

    def slot(self, edge: Edge) -> int: ...

    def source(self, edge: Edge) -> int | Variable: ...

    def variable(self, node: Node) -> Variable: ...

    def variable_node(self, edge: Edge) -> Node | None: ...

    def run(self, fed: Sequence[Any], step: Step) -> list[Any]: ...


_makers: list[MakeFunction] = []


def make_functions_by(maker: MakeFunction) -> None:
    """Has `callable_body` ask `maker`, which is above the instructions since it compiles bodies to some."""
    _makers[:] = [maker]


def callable_body(
    context: Any, device: str, function: Function, captured: Sequence[Any]
) -> Callable[[Sequence[Any]], list[Any]]:
    """A body as a function from values to values; `captured` are values or variables for its last parameters."""
    return _makers[0](context, device, function, captured)
