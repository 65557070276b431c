"""Deal ids: one op for the ids of a lookup in a table that is split over several shards.

`embedding_lookup_sparse` asks for each id once, by Unique, computes shard and row of each by a dozen small ops, and
deals out rows and places by two partitions. Nobody sees the order of the distinct ids, so they may as well be in the
order of shards and rows: then one sort does it all, rows come back in consecutive pieces, which are joined and not
stitched, gradients are cut into such pieces, and have no duplicates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from penstock.graph.dtype import int32
from penstock.ops.array.passthrough import identity_op
from penstock.ops.nn.sharded_lookups import deal_ids as deal_ids_op
from penstock.ops.nn.sharded_lookups import join_shards, rows_of_shard
from penstock.passes.ir import (
    Edge,
    Node,
    Subgraph,
    Uses,
    reads_variable,
    rewritten,
    uses_of,
    visible_nodes,
    without_unused,
)
from penstock.passes.partition import task_of

_ARITHMETIC = frozenset(
    ("Cast", "FloorDiv", "FloorMod", "Less", "Maximum", "Range", "Reshape", "Select", "Size", "Sub")
)
_TAKES_PLACES = frozenset(
    (
        "Gather",
        "GatherV2",
        "UnsortedSegmentSum",
        "SparseSegmentSum",
        "SparseSegmentMean",
        "SparseSegmentSqrtN",
        "SparseSegmentSumGrad",
        "SparseSegmentMeanGrad",
        "SparseSegmentSqrtNGrad",
        "_SpreadRows",
        "_SumRows",
    )
)


class _Dealt(NamedTuple):
    """The nodes that one op replaces: the Unique, and the partitions of rows and of places by shard."""

    unique: Node
    rows: Node
    places: Node
    table_rows: int


def deal_ids(subgraph: Subgraph) -> Subgraph:
    """The placed subgraph with one op for shards, rows and places of ids, where their order does not show."""
    partitions = [node for node in subgraph.nodes if node.op.name == "DynamicPartition"]
    if not partitions:
        return subgraph
    uses, visible = uses_of(subgraph), visible_nodes(subgraph)
    dealt: dict[Node, Node] = {}
    moved: dict[Edge, Edge] = {}
    for rows in partitions:
        found = _matched(rows, uses, visible)
        if found is not None:
            one = dealt[found.unique] = _one_op(found)
            for i in range(rows.attrs["num_partitions"]):
                moved[rows, i] = one, 2 + i
                moved[found.places, i] = one, 2 + rows.attrs["num_partitions"] + i

    def change(node: Node) -> list[Node]:
        if node in dealt:
            return [dealt[node]]
        if any(edge in moved for edge in node.inputs):
            return [_in_pieces(replace(node, inputs=[moved.get(edge, edge) for edge in node.inputs]))]
        return [node]

    if not dealt:
        return subgraph
    subgraph = rewritten(subgraph, change)
    return without_unused(rewritten(subgraph, lambda n: [passing_on(n) if _keeps_shape(n) else n]))


def _keeps_shape(node: Node) -> bool:
    """Tells if a node is a Reshape that gives what it gets: a vector, or rows of as many ids as there are."""
    if node.op.name != "Reshape":
        return False
    (source, _), (shape, _) = node.inputs
    if source.op is deal_ids_op:
        return shape.op.name == "Const" and shape.attrs["value"].tolist() == [-1]
    if source.op is not join_shards or shape.op.name != "ConcatV2" or number_of(shape.inputs[-1]) != 0:
        return False
    gather = source.inputs[0][0]
    table = table_of(gather)
    count, *rest = (part for part, _ in shape.inputs[:-1])
    return (
        count.op.name == "Shape"
        and count.inputs[0] == (gather.inputs[1][0], 0)
        and all(part.op.name == "Const" for part in rest)
        and "shape" in table.attrs
        and table.attrs["shape"].as_list()[1:] == [size for part in rest for size in part.attrs["value"].tolist()]
    )


def table_of(gather: Node) -> Node:
    """The variable, or what else it may be, that a Gather takes rows of."""
    table = gather.inputs[0][0]
    return table.inputs[0][0] if reads_variable(table) else table


def passing_on(node: Node) -> Node:
    """The Identity of a node's first input, in place of the node."""
    return replace(node, op=identity_op, attrs={"T": node.dtypes[0]}, inputs=node.inputs[:1])


def _in_pieces(node: Node) -> Node:
    """A node that stitches rows, or picks them, by the places of shards, as one that knows that these are in order."""
    if "CPU" not in node.device:
        return node
    if node.op.name in ("DynamicStitch", "ParallelDynamicStitch"):
        count = node.attrs["N"]
        one = node.inputs[0][0]
        if node.inputs[:count] == [(one, 2 + count + i) for i in range(count)] and one.attrs["N"] == count:
            return replace(node, op=join_shards, inputs=node.inputs[count:])
    if node.op.name in ("Gather", "GatherV2") and _is_place(node.inputs[1]) and axis_of(node) == 0:
        attrs = {"T": node.dtypes[0]}
        return replace(node, op=rows_of_shard, attrs=attrs, inputs=node.inputs[:2])
    return node


def _is_place(edge: Edge) -> bool:
    node, index = edge
    return node.op is deal_ids_op and index >= 2 + node.attrs["N"]


def axis_of(gather: Node) -> int | None:
    """The axis from which a Gather takes rows, if it is known and the Gather has no batch."""
    if gather.attrs.get("batch_dims"):
        return None
    return number_of(gather.inputs[2]) if len(gather.inputs) > 2 else 0


def _one_op(found: _Dealt) -> Node:
    unique, count = found.unique, found.rows.attrs["num_partitions"]
    kind = unique.attrs["T"]
    return Node(
        unique.name,
        deal_ids_op,
        {"T": kind, "N": count, "table_rows": found.table_rows},
        (kind, int32, *[kind] * count, *[int32] * count),
        list(unique.inputs),
        list(unique.controls),
        unique.device,
        unique.order,
    )


def _matched(rows: Node, uses: Uses, visible: set[Node]) -> _Dealt | None:
    """Finds the nodes that one op can replace; None if `rows` is no such partition, or the order of ids is visible."""
    flat, table_rows = dealt_by(rows)
    if flat is None:
        return None
    unique, index = flat[0].inputs[0] if flat[0].op.name == "Reshape" else flat
    if unique.op.name != "Unique" or index != 0 or unique.attrs["out_idx"] != int32:
        return None
    places = places_beside(rows, uses)
    arithmetic = arithmetic_between((unique, 0), {rows, places}, uses) if places is not None else None
    if places is None or arithmetic is None or not _are_places(unique, 1, uses):
        return None
    members = {unique, rows, places, *arithmetic}
    for node in members:
        if node in visible or task_of(node.device) != task_of(unique.device) or (node.controls and node is not unique):
            return None
    return _Dealt(unique, rows, places, table_rows)


def places_beside(rows: Node, uses: Uses) -> Node | None:
    """The partition of the places of ids that goes with a partition of their rows, if there is one."""
    others = [n for n, i, _ in uses[rows.inputs[1][0]] if n.op is rows.op and i == 1 and n is not rows]
    return others[0] if len(others) == 1 and others[0].inputs[0][0].op.name == "Range" else None


def arithmetic_between(ids: Edge, partitions: set[Node], uses: Uses) -> set[Node] | None:
    """The nodes that compute from ids what partitions take; None if ids or what follows from them go elsewhere, too."""
    members: set[Node] = set()
    stack = [ids[0]]
    while stack:
        source = stack.pop()
        for node, _, output in uses[source]:
            is_of_ids = source is not ids[0] or output == ids[1]
            if is_of_ids and node.op.name != "Shape" and node not in members and node not in partitions:
                if node.op.name not in _ARITHMETIC:
                    return None
                members.add(node)
                stack.append(node)
    return members


def _are_places(source: Node, output: int, uses: Uses) -> bool:
    """Tells if an output is only used to pick rows, or to add to them."""
    takers = [(node, i) for node, i, index in uses[source] if index == output]
    return all(
        node.op.name in ("Shape", "Size")
        or (node.op.name in _TAKES_PLACES and i == 1)
        or (node.op.name == "Reshape" and i == 0 and _are_places(node, 0, uses))
        for node, i in takers
    )


def dealt_by(rows: Node) -> tuple[Edge | None, int]:
    """The ids that a partition deals out by shard, and how many rows the table has, 0 for "mod"; None for others."""
    row, shard = rows.inputs
    count = rows.attrs["num_partitions"]
    shard = _inputs(shard, "Cast")[0] if shard[0].op.name == "Cast" else shard
    flat, shards = _with_number(shard, "FloorMod")
    if flat is not None and shards == count and _with_number(row, "FloorDiv") == (flat, count):
        return flat, 0
    sides, choice = _inputs(shard, "Maximum"), _inputs(row, "Select")
    if len(sides) != 2 or len(choice) != 3:
        return None, 0
    flat, longer = _with_number(sides[0], "FloorDiv")
    late, each = _with_number(sides[1], "FloorDiv")
    if flat is None or late is None or longer != each + 1:
        return None, 0
    before, extra = _with_number(late, "Sub")
    is_div = (
        before == flat
        and _with_number(choice[0], "Less") == (shard, extra)
        and _with_number(choice[1], "FloorMod") == (flat, longer)
        and _with_number(choice[2], "FloorMod") == (late, each)
    )
    return (flat, each * count + extra) if is_div and 0 <= extra < count else (None, 0)


def _inputs(edge: Edge, op: str) -> list[Edge]:
    return edge[0].inputs if edge[0].op.name == op else []


def _with_number(edge: Edge, op: str) -> tuple[Edge | None, int]:
    """The first input of an op whose second is a number, and the number."""
    inputs = _inputs(edge, op)
    number = number_of(inputs[1]) if len(inputs) == 2 else None
    return (None, 0) if number is None else (inputs[0], number)


def number_of(edge: Edge) -> int | None:
    """The number that an edge is known to carry, if any."""
    constant = edge[0]
    is_number = constant.op.name == "Const" and constant.attrs["value"].size == 1
    return int(constant.attrs["value"].item()) if is_number else None
