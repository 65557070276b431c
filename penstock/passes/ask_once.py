"""Ask once: a lookup in a table that is split over other tasks asks for each id of a step once.

`embedding_lookup` asks for a row as often as its id occurs. In training, the gradients of the rows of one id are summed
before they travel, which takes a sort of the ids. With the sort first, by a Unique as `embedding_lookup_sparse` has it,
each distinct row is gathered and travels once in either direction. Rows are spread to all places of their ids in the
task that looks them up, and gradients are summed there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.graph.dtype import int32
from penstock.ops.array.selection import unique_op
from penstock.ops.nn.sharded_lookups import spread_rows, sum_rows
from penstock.passes.deal_ids import arithmetic_between, axis_of, dealt_by, places_beside
from penstock.passes.ir import GATHERS, Edge, Node, Subgraph, Uses, like, rewritten, uses_of, visible_nodes
from penstock.passes.partition import task_of

_STITCHES = frozenset(("DynamicStitch", "ParallelDynamicStitch"))
_KEEPS_ROWS = frozenset(("Identity", "Reshape"))
_SHAPES = frozenset(("ConcatV2", "ExpandDims", "Pack", "Shape", "Size", "StridedSlice"))


@dataclass(eq=False)
class _Lookup:
    """The nodes of a lookup that change."""

    ids: Edge
    arithmetic: set[Node]  # computes shards and rows of ids
    stitch: Node
    gradient: Edge  # of the stitched rows
    pieces: list[Node]  # the gradients of the rows of each shard


def ask_once(subgraph: Subgraph) -> Subgraph:
    """The placed subgraph with lookups of distinct ids, where their rows are summed by id after all."""
    partitions = [node for node in subgraph.nodes if node.op.name == "DynamicPartition"]
    if not partitions:
        return subgraph
    uses, visible, fetched = uses_of(subgraph), visible_nodes(subgraph), {node for node, _ in subgraph.fetches}
    changed: dict[Node, list[Node]] = {}
    for rows in partitions:
        lookup = _found(rows, uses, visible, fetched)
        if lookup is not None:
            changed.update(_of_distinct_ids(lookup, subgraph))
    return rewritten(subgraph, lambda node: changed.get(node, [node])) if changed else subgraph


def _of_distinct_ids(lookup: _Lookup, subgraph: Subgraph) -> dict[Node, list[Node]]:
    """The nodes that stand for those of the lookup."""
    stitch, (ids, i) = lookup.stitch, lookup.ids
    kind = ids.dtypes[i]
    first = next(node for node in subgraph.nodes if node in lookup.arithmetic)
    unique = like(first, f"{stitch.name}/unique", unique_op, {"T": kind, "out_idx": int32}, (kind, int32), [lookup.ids])
    found = {
        node: [replace(node, inputs=[(unique, 0) if edge == lookup.ids else edge for edge in node.inputs])]
        for node in lookup.arithmetic
    }
    found[first].insert(0, unique)
    types, dtypes = {"T": stitch.dtypes[0]}, stitch.dtypes
    distinct = replace(stitch, name=f"{stitch.name}/distinct")
    inputs = [(distinct, 0), (unique, 1)]
    found[stitch] = [distinct, like(stitch, stitch.name, spread_rows, types, dtypes, inputs)]
    begin = lookup.pieces[0]
    sums = like(begin, f"{stitch.name}/sums", sum_rows, types, dtypes, [lookup.gradient, (unique, 1)])
    found |= {piece: [replace(piece, inputs=[(sums, 0), *piece.inputs[1:]])] for piece in lookup.pieces}
    found[begin].insert(0, sums)
    return found


def _found(rows: Node, uses: Uses, visible: set[Node], fetched: set[Node]) -> _Lookup | None:
    """The lookup whose ids a partition deals out, if nobody sees how often it asks for a row."""
    ids, _ = dealt_by(rows)
    if ids is None or ids[0].op.name == "Unique" or "CPU" not in rows.device:
        return None
    if ids[0].op.name == "Reshape" and ids[0].inputs[0][0].op.name == "Unique":
        return None
    places = places_beside(rows, uses)
    if places is None:
        return None
    arithmetic = arithmetic_between(ids, {rows, places}, uses)
    stitches = {node for node, *_ in uses[places] if node.op.name in _STITCHES}
    pieces = [node for node, *_ in uses[places] if node.op.name in ("Gather", "GatherV2")]
    if arithmetic is None or len(stitches) != 1 or not pieces:
        return None
    (stitch,), count = stitches, rows.attrs["num_partitions"]
    wanted = [*((places, i) for i in range(count)), *((gather, 0) for gather in _gathers(rows, uses))]
    if stitch.inputs != wanted or len(uses[places]) != count + len(pieces):
        return None
    gradients = {piece.inputs[0] for piece in pieces}
    if len(gradients) != 1 or not all(_is_summed(piece, rows, places, uses, fetched) for piece in pieces):
        return None
    counted = {rows, places, *arithmetic}
    here = task_of(rows.device)
    if not visible.isdisjoint(counted) or any(task_of(n.device) != here for n in (*counted, stitch, *pieces)):
        return None
    return _Lookup(ids, arithmetic, stitch, gradients.pop(), pieces)


def _gathers(rows: Node, uses: Uses) -> list[Node]:
    """The lookups in the shards, in their order, if they are in other tasks and nobody else takes their rows."""
    found = {
        output: node for node, i, output in uses[rows] if i == 1 and node.op.name in GATHERS and len(uses[node]) == 1
    }
    there = any(task_of(node.device) != task_of(rows.device) for node in found.values())
    return [found[i] for i in sorted(found)] if there else []


def _is_summed(piece: Node, rows: Node, places: Node, uses: Uses, fetched: set[Node]) -> bool:
    """Tells if the rows of a gradient are only added up by row. Then it does not matter how many there are of each."""
    source, shard = piece.inputs[1]
    if source is not places or axis_of(piece) != 0:
        return False
    values, sums = _kept_rows(piece, 0, uses)
    indices, uniques = _kept_rows(rows, shard, uses)
    if len(sums) != 1 or len(uniques) != 1 or not fetched.isdisjoint({piece, *values, *indices}):
        return False
    ((total, position),), ((unique, _),) = sums, uniques
    seen = [node for node, _, output in uses[rows] if output == shard]
    seen += [node for kept in (piece, *values, *indices) for node, *_ in uses[kept]]
    return (
        total.op.name == "UnsortedSegmentSum"
        and position == 0
        and unique.op.name == "Unique"
        and total.inputs[1] == (unique, 1)
        and all(_only_reshapes(n, values | indices, uses, fetched) for n in seen if n.op.name in _SHAPES)
    )


def _kept_rows(source: Node, output: int, uses: Uses) -> tuple[set[Node], list[tuple[Node, int]]]:
    """The nodes that hand rows on as they are, and those that take them then, but for the lookups and shapes."""
    kept: set[Node] = set()
    takers: list[tuple[Node, int]] = []
    stack = [(node, i) for node, i, index in uses[source] if index == output]
    while stack:
        node, i = stack.pop()
        if node.op.name in _KEEPS_ROWS and i == 0:
            kept.add(node)
            stack += [(taker, at) for taker, at, _ in uses[node]]
        elif node.op.name not in _SHAPES and not (node.op.name.endswith(("Gather", "GatherV2")) and i == 1):
            takers.append((node, i))
    return kept, takers


def _only_reshapes(shape: Node, rows: set[Node], uses: Uses, fetched: set[Node]) -> bool:
    """Tells if a shape, or what is made of it, is only used to reshape these rows."""
    return shape not in fetched and all(
        (user in rows and i == 1) or (user.op.name in _SHAPES and _only_reshapes(user, rows, uses, fetched))
        for user, i, _ in uses[shape]
    )
