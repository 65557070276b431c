"""Optimize: fold constants that NumPy can compute, and merge nodes that compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import OpError
from penstock.graph.constant import MAX_FOLDED_ELEMENTS, evaluate_kernel
from penstock.graph.opdef import OpDef, op_of
from penstock.passes.ir import Node, Replacements, Subgraph


def optimize(subgraph: Subgraph) -> Subgraph:
    """A subgraph with the same results and fewer nodes."""
    replaced = Replacements()
    seen: dict[Any, Node] = {}
    kept: list[Node] = []
    const = op_of("Const")
    for original in subgraph.nodes:
        node = replaced.followed_by(original)
        node = _folded(node, const) or node
        twin = _first_like(node, seen)
        if twin is node:
            kept.append(node)
        if twin is not original:
            replaced[original] = twin
    return _without_unused(replaced.applied_to(subgraph, kept))


def _folded(node: Node, const: OpDef) -> Node | None:
    if not node.op.numpy or node.controls or not node.inputs or len(node.dtypes) != 1:
        return None
    arrays = []
    for source, _ in node.inputs:
        if source.op is not const or source.controls or source.attrs["value"].size > MAX_FOLDED_ELEMENTS:
            return None
        arrays.append(source.attrs["value"])
    try:
        value = evaluate_kernel(node.op, node.attrs, node.dtypes, arrays)[0]
    except (OpError, ValueError, TypeError, IndexError, ZeroDivisionError):
        return None  # it fails when it runs, and then names itself
    if value.size > MAX_FOLDED_ELEMENTS:
        return None
    attrs = {"dtype": node.dtypes[0].base_dtype, "value": value}
    return Node(node.name, const, attrs, node.dtypes, device=node.device, order=node.order)


def _first_like(node: Node, seen: dict[Any, Node]) -> Node:
    """The first node that computes the same as a node, which may be itself."""
    op = node.op
    if op.stateful or op.host or op.random or op.control_flow or node.controls:
        return node
    if op.name == "Const":
        value = node.attrs["value"]
        if value.size > 64 or value.dtype == object:
            return node
        return seen.setdefault((node.device, value.dtype.str, value.shape, value.tobytes()), node)
    # Few nodes take the same as another: only then attrs are looked at.
    key = (op, node.device, *node.inputs)
    other = seen.setdefault(key, node)
    if other is node:
        return node
    seen.setdefault((key, _attrs(other)), other)
    return seen.setdefault((key, _attrs(node)), node)


def _attrs(node: Node) -> Any:
    attrs = tuple((k, v if isinstance(v, (int, str, float)) else repr(v)) for k, v in node.attrs.items()
                  if not (k.startswith("_") or isinstance(v, np.ndarray)))  # fmt: skip
    return tuple(node.attrs.get("_class", ())), attrs


def _without_unused(subgraph: Subgraph) -> Subgraph:
    wanted = {*subgraph.feeds, *subgraph.targets, *(n for n, _ in subgraph.fetches)}
    for node in reversed(subgraph.nodes):
        if node in wanted:
            wanted.update([source for source, _ in node.inputs])
            wanted.update(node.controls)
    nodes = [n for n in subgraph.nodes if n in wanted]
    return Subgraph(nodes, subgraph.feeds, subgraph.fetches, subgraph.targets)
