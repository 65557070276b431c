"""The form of a segment: two segments of one worker that have the same form do the same to the same variables.

All workers that train a model have graphs of their own, and a parameter server has a part of each. These parts are
alike. By their forms the server finds that out, and compiles their segments once and not for each worker.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from penstock.graph.dtype import DType
from penstock.graph.shape import TensorShape
from penstock.passes.ir import Edge, Node
from penstock.segments.layout import Layout
from penstock.segments.plan import SegmentPlan
from penstock.segments.randomness import is_random

MOST_BYTES = 1 << 16  # of a constant whose contents are compared
_PLAIN = frozenset((str, bytes, int, float, bool, type(None), DType))


def form_of(plan: SegmentPlan, layout: Layout) -> Hashable | None:
    """Returns the form of a segment, in its partition's slots; None if it draws numbers: each session draws its own.

    It holds for as long as the segment is there: what cannot be compared by its contents is compared by its identity.
    """
    if any(map(is_random, plan.nodes)):
        return None
    position = {node: i for i, node in enumerate(plan.nodes)}
    fed = set(layout.feed_slots)
    inputs = tuple([_input_form(edge, fed, layout) for edge in plan.inputs])
    static = tuple([layout.slot(e) for e in plan.static])
    nodes = tuple([_node_form(node, position, layout) for node in plan.nodes])
    outputs = tuple([layout.slot(e) for e in plan.outputs])
    return plan.device, layout.cuts, inputs, static, nodes, outputs, tuple(plan.sent)


def _node_form(node: Node, position: dict[Node, int], layout: Layout) -> Hashable:
    sources = tuple([_source_form(edge, position, layout) for edge in node.inputs])
    before = tuple([position[control] for control in node.controls if control in position])
    return node.name, node.op.name, node.dtypes, sources, before, _form(node.attrs)


def _source_form(edge: Edge, position: dict[Node, int], layout: Layout) -> Hashable:
    source, index = edge
    if source in position:
        return position[source], index
    variable = layout.variable_node(edge)
    return ("slot", layout.slot(edge)) if variable is None else ("variable", id(layout.variable(variable)))


def _input_form(edge: Edge, fed: set[int], layout: Layout) -> Hashable:
    """Returns the form of an input. The declared shape of what is fed tells what shapes may come."""
    (source, index), slot = edge, layout.slot(edge)
    declared = _form(source.attrs.get("shape")) if source.op.name == "_Arg" else None
    return slot, slot in fed, source.op.name, source.dtypes[index], declared


def _form(value: Any) -> Hashable:
    if value.__class__ in _PLAIN:
        return value.__class__, value  # with its class, since 1 == True == 1.0
    if isinstance(value, TensorShape):
        return "shape", None if value.rank is None else tuple(value.as_list())
    if isinstance(value, (list, tuple)):
        return tuple([_form(item) for item in value])
    if isinstance(value, dict):
        return tuple([(key, _form(value[key])) for key in sorted(value)])
    if isinstance(value, np.ndarray) and value.dtype != object and value.nbytes <= MOST_BYTES:
        return value.dtype.str, value.shape, value.tobytes()
    return "object", id(value)
