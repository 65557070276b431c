"""Optimize: fold constants that NumPy can compute, and merge nodes that compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import OpError
from penstock.graph.constant import MAX_FOLDED_ELEMENTS, evaluate_kernel
from penstock.graph.opdef import OpDef, registered
from penstock.memory import without_collecting
from penstock.passes.ir import Edge, Node, Subgraph, needed


@without_collecting()
def optimize(subgraph: Subgraph) -> Subgraph:
    """A subgraph with the same results and fewer nodes."""
    replaced: dict[int, Node] = {}
    seen: dict[Any, Node] = {}
    kept: list[Node] = []
    const = registered("Const")
    assert const is not None
    for node in subgraph.nodes:
        node.inputs = [(replaced.get(id(s), s), i) for s, i in node.inputs]
        node.controls = list(dict.fromkeys(replaced.get(id(s), s) for s in node.controls))
        stays = _folded(node, const) or node
        key = _key(stays)
        twin = seen.get(key) if key is not None else None
        if twin is None:
            kept.append(stays)
            if key is not None:
                seen[key] = stays
        if twin is not None or stays is not node:
            replaced[id(node)] = twin or stays

    def resolve(node: Node) -> Node:
        return replaced.get(id(node), node)

    fetches: list[Edge] = [(resolve(n), i) for n, i in subgraph.fetches]
    targets = [resolve(n) for n in subgraph.targets]
    return Subgraph(needed(kept, subgraph.feeds, fetches, targets), subgraph.feeds, fetches, targets)


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


def _key(node: Node) -> Any:
    """What makes a pure node equal to another, or None where it must stay itself."""
    op = node.op
    if op.stateful or op.host or op.random or op.control_flow or node.controls:
        return None
    if op.name == "Const":
        value = node.attrs["value"]
        if value.size > 64 or value.dtype == object:
            return None
        return ("Const", node.device, value.dtype.str, value.shape, value.tobytes())
    attrs = tuple((k, v if isinstance(v, (int, str, float)) else repr(v)) for k, v in node.attrs.items()
                  if not (k.startswith("_") or isinstance(v, np.ndarray)))  # fmt: skip
    group = tuple(node.attrs.get("_class", ()))
    return (op.name, node.device, group, attrs, tuple((id(s), i) for s, i in node.inputs))
