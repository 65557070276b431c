"""Sparse updates: sums of duplicate rows that stay in compiled code.

Optimizers sum the rows of the same index by Unique and UnsortedSegmentSum before they apply them. The number of
distinct indices differs from step to step, and compiled code has fixed shapes: it would be compiled again for each
number. Where the sums only reach updates of variables, the number does not show, so the sums may as well have a row for
each index, with the rows left over going nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.ops.nn.sharded_lookups import deal_ids, plan_lookups
from penstock.ops.state.duplicate_rows import sum_duplicate_rows, sum_duplicate_rows_on_host
from penstock.ops.state.update_forms import with_distinct_indices
from penstock.passes.ir import GATHERS, Edge, Node, Subgraph, Uses, reads_variable, rewritten, uses_of, visible_nodes
from penstock.passes.partition import task_of

_SUMMED = "_summed"  # the attr of an update whose rows were summed in the task that sent them

# What may happen to the sums on their way: each row by itself.
_ROW_BY_ROW = frozenset(
    (
        "Abs",
        "Add",
        "AddV2",
        "Cast",
        "Identity",
        "Maximum",
        "Minimum",
        "Mul",
        "Neg",
        "Pow",
        "RealDiv",
        "Rsqrt",
        "Sign",
        "Sqrt",
        "Square",
        "Sub",
    )
)


def fuse_sparse_updates(subgraph: Subgraph) -> Subgraph:
    """The subgraph with fixed numbers of rows in its sparse updates, where that changes no result."""
    return _with_sums(subgraph, lambda total: total.device)


def sum_before_sending(subgraph: Subgraph) -> Subgraph:
    """Has a placed subgraph sum the rows of each index in the task that they come from, before they travel.

    Fewer rows go over the wire, and what all workers would have one parameter server do is done by each of them.
    """

    def place(total: Node) -> str | None:
        (values, _), (indices, _) = total.inputs[0], total.inputs[1][0].inputs[0]
        there = task_of(values.device)
        return values.device if there == task_of(indices.device) != task_of(total.device) else None

    return _with_sums(subgraph, place, on_host=True)


def take_summed_rows(subgraph: Subgraph) -> Subgraph:
    """Has updates whose rows were summed in another task take them as `sum_before_sending` leaves them."""
    if not any(_SUMMED in node.attrs for node in subgraph.nodes):
        return subgraph
    return rewritten(subgraph, lambda n: [_of_distinct_rows(n) if _SUMMED in n.attrs else n])


def _of_distinct_rows(update: Node) -> Node:
    return replace(update, op=with_distinct_indices(update.op))


def _with_sums(subgraph: Subgraph, place: Callable[[Node], str | None], on_host: bool = False) -> Subgraph:
    """The subgraph with one node for each sum of duplicates, on the device that `place` gives for it."""
    if not any(node.op.name == "Unique" for node in subgraph.nodes):
        return subgraph
    uses, kept_as_they_are = uses_of(subgraph), visible_nodes(subgraph)
    changed: dict[Node, list[Node]] = {}
    for node in subgraph.nodes:
        if node.op.name == "Unique":
            changed.update(_fused(node, uses, kept_as_they_are, place, on_host))
    return rewritten(subgraph, lambda node: changed.get(node, [node])) if changed else subgraph


def _fused(
    unique: Node, uses: Uses, kept: set[Node], place: Callable[[Node], str | None], on_host: bool
) -> dict[Node, list[Node]]:
    """Replacements of the nodes that sum duplicates and of the updates; none if the nodes must stay."""
    sums = [(node, i) for node, i, output in uses[unique] if output == 1]
    shapes = [node for node, _, output in uses[unique] if output == 0 and node.op.name == "Shape"]
    if len(sums) != 1 or len(shapes) != 1:
        return {}
    ((total, position),), (shape,) = sums, shapes
    if total.op.name != "UnsortedSegmentSum" or position != 1:
        return {}
    count = total.inputs[2][0]
    if (
        count.op.name != "StridedSlice"
        or count.inputs[0][0] is not shape
        or count.attrs["shrink_axis_mask"] != 1
        or [n for n, *_ in uses[shape]] != [count]
        or [n for n, *_ in uses[count]] != [total]
        or not kept.isdisjoint((unique, shape, count, total))
    ):
        return {}
    updates = _updates_reached(total, uses, kept)
    if updates is None or any(
        node is not shape and node not in updates for node, _, output in uses[unique] if output == 0
    ):
        return {}
    device = place(total)
    if device is None:
        return {}
    indices: Edge = unique.inputs[0]
    values: Edge = total.inputs[0]
    waits = list(dict.fromkeys([*unique.controls, *shape.controls, *count.controls, *total.controls]))
    elsewhere = on_host
    if elsewhere and _are_distinct(indices) and all(_is_for_numpy(n, i, uses, kept) for n, i, _ in uses[total]):
        summing, taken = [], {(total, 0): values, (unique, 0): indices}  # they are as they were
    else:
        types = {"T": total.attrs["T"], "Tindices": unique.attrs["T"]}
        on_host = on_host or ("CPU" in device and all(source.op.host for source, _ in (values, indices)))
        op = sum_duplicate_rows_on_host if on_host else sum_duplicate_rows
        dtypes = (types["T"], types["Tindices"])
        fused = Node(total.name, op, types, dtypes, [values, indices], waits, device, total.order)
        summing, waits, taken = [fused], [], {(unique, 0): (total, 1)}  # which `fused` stands for
    changed: dict[Node, list[Node]] = {unique: [], shape: [], count: [], total: summing}
    for node in updates:
        inputs = [taken.get(edge, edge) for edge in node.inputs]
        attrs = {**node.attrs, _SUMMED: True} if elsewhere else node.attrs
        update = replace(node, inputs=inputs, attrs=attrs, controls=list(dict.fromkeys([*node.controls, *waits])))
        changed[node] = [update if elsewhere else _of_distinct_rows(update)]
    return changed


def _are_distinct(indices: Edge) -> bool:
    """Tells if no index comes twice: they are rows of a shard that one op has dealt out."""
    node, output = indices
    while node.op.name in ("Identity", "Reshape"):
        node, output = node.inputs[0]
    if node.op is plan_lookups:
        return bool(output < node.attrs["K"])
    return node.op is deal_ids and 2 <= output < 2 + node.attrs["N"]


def _is_for_numpy(update: Node, position: int, uses: Uses, kept: set[Node]) -> bool:
    """Tells if a node is an update that `rows_on_host` leaves to NumPy: no compiled code deals with its variables."""
    if not _takes_rows(update, position) or "CPU" not in update.device or uses[update]:
        return False
    users = [user for source, _ in update.inputs[: len(update.op.writes)] for user, *_ in uses[source]]
    return all(user is update or (user not in kept and _only_picks_rows(user, uses)) for user in users)


def _only_picks_rows(user: Node, uses: Uses) -> bool:
    takers = [node for node, *_ in uses[user]] if reads_variable(user) else [user]
    return all(node.op.name in GATHERS for node in takers)


def _updates_reached(total: Node, uses: Uses, kept: set[Node]) -> list[Node] | None:
    """The updates of variables that the sums end in, or None if they end elsewhere too."""
    unique = total.inputs[1][0]
    updates: list[Node] = []
    carrying = {total}
    stack = [total]
    while stack:
        source = stack.pop()
        if source in kept:
            return None
        for node, i, _ in uses[source]:
            if _takes_rows(node, i) and node.inputs[node.op.input_index("indices")] == (unique, 0):
                updates.append(node)
            elif node.op.name not in _ROW_BY_ROW:
                return None
            elif node not in carrying:
                carrying.add(node)
                stack.append(node)
    return updates


def _takes_rows(node: Node, position: int) -> bool:
    name = node.op.name.removeprefix("Resource")
    if not (name in ("ScatterAdd", "ScatterSub") or name.startswith("SparseApply")):
        return False
    return node.op.inputs[position].name in ("updates", "grad")
