"""The layout of a partition: where the values of its edges are in a step, and which variables its nodes stand for."""

from __future__ import annotations

from typing import Protocol

from penstock.passes.ir import Edge, Node
from penstock.segments.plan import Cuts
from penstock.segments.stored_variable import StoredVariable


class Layout(Protocol):
    """The part of a compiled partition that its segments see."""

    cuts: Cuts
    feed_slots: list[int]

    def slot(self, edge: Edge) -> int:
        """The place of an edge's value among the values of a step."""

    def variable(self, node: Node) -> StoredVariable:
        """The variable that a variable node, or a parameter of a body, stands for."""

    def variable_node(self, edge: Edge) -> Node | None:
        """The node of the variable that an edge refers to; one node for all that share a variable by name."""
