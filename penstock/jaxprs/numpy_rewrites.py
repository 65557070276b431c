"""Changes to a flat jaxpr that make it cheaper for NumPy."""

from __future__ import annotations

from typing import Any

from penstock.jaxprs.flat import FlatJaxpr, Node, Value
from penstock.jaxprs.numpy_rules import RULES, VIEW, Site, rule

_REMOVED = "removed"  # the primitive of a node that will be removed


def rewrite(flat: FlatJaxpr) -> None:
    _turn_products(flat)
    _leave_broadcasts_to_numpy(flat)


def _uses(flat: FlatJaxpr) -> dict[int, list[Node]]:
    uses: dict[int, list[Node]] = {}
    for node in flat.nodes:
        for value in node.inputs:
            uses.setdefault(id(value), []).append(node)
    return uses


def _turn_products(flat: FlatJaxpr) -> None:
    """Turns (x y)' of two matrices into y' x' if x y itself is not needed: the gradient of a weight is such a product.

    The result is then contiguous, and adding it to others takes a fifth of the time.
    """
    uses = _uses(flat)
    results = set(map(id, flat.outputs))
    products = {id(node.outputs[0]): node for node in flat.nodes if _is_plain_product(node)}
    for node in flat.nodes:
        product = products.get(id(node.inputs[0])) if node.primitive == "transpose" else None
        if product is None or id(product.outputs[0]) in results or len(uses[id(product.outputs[0])]) > 1:
            continue
        (left, right), batch = product.params["dimension_numbers"]
        product.params = {**product.params, "dimension_numbers": ((right, left), batch)}
        product.inputs = product.inputs[::-1]
        product.outputs = node.outputs
        node.primitive = _REMOVED
    _remove_marked(flat)


def _is_plain_product(node: Node) -> bool:
    if node.primitive != "dot_general" or any(len(value.shape) != 2 for value in node.inputs):
        return False
    (contracted, _), (batch, _) = node.params["dimension_numbers"]
    return len(contracted) == 1 and not batch


def _remove_marked(flat: FlatJaxpr) -> None:
    flat.nodes = [node for node in flat.nodes if node.primitive != _REMOVED]


def _leave_broadcasts_to_numpy(flat: FlatJaxpr) -> None:
    """Removes each broadcast_in_dim if all its uses broadcast and have another operand of full shape."""
    uses = _uses(flat)
    results = set(map(id, flat.outputs))
    small: dict[int, Value] = {}  # by the value that it replaces
    for node in flat.nodes:
        if node.primitive != "broadcast_in_dim" or id(node.outputs[0]) in results:
            continue
        spread = node.outputs[0]
        if all(_has_full_operand(user, spread, small) for user in uses.get(id(spread), ())):
            small[id(spread)] = _without_new_sizes(node)
    if small:
        for node in flat.nodes:
            node.inputs = [small.get(id(value), value) for value in node.inputs]
        # Only a new axis, or nothing, is left of a broadcast.
        _remove_marked(flat)


def _has_full_operand(node: Node, spread: Value, small: dict[int, Value]) -> bool:
    rule_of_node = RULES.get(node.primitive)
    if rule_of_node is None or not rule_of_node.broadcasts:
        return False
    shape = node.outputs[0].shape_key
    return any(value is not spread and id(value) not in small and value.shape_key == shape for value in node.inputs)


def _without_new_sizes(node: Node) -> Value:
    """Turns a broadcast_in_dim into one that only inserts axes of size 1. Returns its result."""
    source, spread = node.inputs[0], node.outputs[0]
    axes = tuple(int(axis) for axis in node.params["broadcast_dimensions"])
    rank = len(spread.shape)
    if axes == tuple(range(rank - len(axes), rank)):
        node.primitive = _REMOVED
        return source
    node.primitive = "insert_axes"
    node.params = {"axes": axes, "rank": rank}
    spread.shape = tuple(source.shape[axes.index(axis)] if axis in axes else 1 for axis in range(rank))
    spread.shape_key = tuple(source.shape_key[axes.index(axis)] if axis in axes else 1 for axis in range(rank))
    return spread


@rule("insert_axes", memory=VIEW)
def insert_axes(site: Site) -> Any:
    axes, rank = site.param("axes"), site.param("rank")
    index = tuple(slice(None) if axis in axes else None for axis in range(rank))
    return lambda x: x[index]
