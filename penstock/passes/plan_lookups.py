"""Plan lookups: one op each for the ids, the sums and the gradients of several lookups in split tables.

A model with many sparse features looks each of them up, and sums or averages the rows, in the same way. NumPy spends
most of such a step on the number of calls: one sort serves the ids of all features, one product of matrices their sums,
and another one their gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.graph.dtype import variant
from penstock.ops.nn.sharded_lookups import combine_lookups, join_shards, rows_of_shard, spread_lookups
from penstock.ops.nn.sharded_lookups import deal_ids as deal_ids_op
from penstock.ops.nn.sharded_lookups import plan_lookups as plan_lookups_op
from penstock.passes.deal_ids import number_of, passing_on, table_of
from penstock.passes.ir import (
    Edge,
    Node,
    Subgraph,
    Uses,
    rewritten,
    sorted_nodes,
    sources_of,
    uses_of,
    visible_nodes,
    without_unused,
)

_POWERS = {"SparseSegmentSum": 0.0, "SparseSegmentMean": 1.0, "SparseSegmentSqrtN": 0.5}


@dataclass(eq=False)
class _Lookup:
    """The nodes of a lookup that other ops replace."""

    deal: Node
    gathers: list[Node]
    total: Node
    row_shape: list[int]
    inner: set[Node]  # the nodes that nobody else needs
    grad: Node | None = None
    pieces: dict[Node, int] = field(default_factory=dict)  # gradients of rows, with their shards

    @property
    def kind(self) -> Any:
        """Lookups of one kind can be made at once."""
        types = self.deal.attrs["T"], self.total.attrs["T"], self.total.attrs["Tsegmentids"]
        trains = self.grad is not None
        return self.deal.device, self.deal.attrs["N"], self.total.op.name, types, tuple(self.row_shape), trains


def plan_lookups(subgraph: Subgraph) -> Subgraph:
    """The placed subgraph with one op for the ids of all lookups of a kind, one for sums and one for gradients."""
    deals = [node for node in subgraph.nodes if node.op is deal_ids_op]
    if not deals:
        return subgraph
    uses, visible = uses_of(subgraph), visible_nodes(subgraph)
    found = [lookup for deal in deals if (lookup := _found(deal, uses, visible)) is not None]
    kinds: dict[Any, list[_Lookup]] = defaultdict(list)
    for lookup in _independent(found, subgraph):
        kinds[lookup.kind].append(lookup)
    if not kinds:
        return subgraph
    subgraph = _replaced(subgraph, kinds.values())
    return without_unused(rewritten(subgraph, lambda n: [passing_on(n) if _keeps_shape(n) else n]))


def _keeps_shape(node: Node) -> bool:
    """Tells if a node is a Reshape that gives the gradients of rows as it gets them."""
    if node.op.name != "Reshape" or node.inputs[1][0].op.name != "Const":
        return False
    (source, _), (shape, _) = node.inputs
    while source.op.name == "Identity":
        source = source.inputs[0][0]
    return source.op is spread_lookups and shape.attrs["value"].tolist() == [-1, *source.attrs["row_shape"]]


def _found(deal: Node, uses: Uses, visible: set[Node]) -> _Lookup | None:
    """The lookup that begins with the ids of `deal`, if all that becomes of them is known."""
    shards = deal.attrs["N"]
    takers: dict[int, list[Node]] = defaultdict(list)
    for node, _, output in uses[deal]:
        takers[output].append(node)
    if takers[0] or "CPU" not in deal.device:
        return None
    joins = {join for i in range(shards) for gather in takers[2 + i] for join, *_ in uses[gather]}
    joins = {join for join in joins if join.op is join_shards}
    if len(joins) != 1:
        return None
    (join,) = joins
    gathers = [gather for gather, _ in join.inputs]
    totals = [node for node in takers[1] if node.op.name in _POWERS]
    row_shape = _row_shape(gathers[0])
    if [g.inputs[1] for g in gathers] != [(deal, 2 + i) for i in range(shards)] or len(totals) != 1 or not row_shape:
        return None
    rows, shapes = _passed_on(join, uses)
    lookup = _Lookup(deal, gathers, totals[0], row_shape, rows | shapes)
    if lookup.total.inputs[0][0] not in rows or lookup.total.attrs["sparse_gradient"]:
        return None
    others = [node for node in takers[1] if node is not lookup.total]
    if others and not (len(others) == 1 and _is_gradient(others[0], lookup, shapes, uses)):
        return None
    if {n for i in range(shards) for n in takers[2 + shards + i]} != set(lookup.pieces):
        return None
    replaced = {lookup.total, *lookup.pieces, *lookup.inner}
    if any(user not in replaced for node in lookup.inner for user, *_ in uses[node]):
        return None
    is_hidden = visible.isdisjoint(lookup.inner) and not any(node.controls for node in lookup.inner)
    return lookup if is_hidden and all(node.device == deal.device for node in replaced) else None


def _row_shape(gather: Node) -> list[int]:
    """The shape of the rows that are looked up; empty if it is not known, or they are numbers."""
    shape = table_of(gather).attrs.get("shape")
    known = [] if shape is None or shape.rank is None else shape.as_list()[1:]
    return [] if None in known else known


def _passed_on(join: Node, uses: Uses) -> tuple[set[Node], set[Node]]:
    """The nodes that hand the rows of a join on, itself among them, and those that take their shape."""
    rows, shapes, stack = {join}, set[Node](), [join]
    while stack:
        for node, *_ in uses[stack.pop()]:
            if node.op.name == "Identity" and node not in rows:
                rows.add(node)
                stack.append(node)
            elif node.op.name == "Shape":
                shapes.add(node)
    return rows, shapes


def _is_gradient(grad: Node, lookup: _Lookup, shapes: set[Node], uses: Uses) -> bool:
    """Tells if a node is the gradient of a lookup's sums, cut into the rows of shards; notes what it finds."""
    total, shards = lookup.total, lookup.deal.attrs["N"]
    if grad.op.name != f"{total.op.name}Grad" or grad.inputs[1:3] != total.inputs[1:3]:
        return False
    size = grad.inputs[3][0]
    if size.op.name != "StridedSlice" or size.inputs[0][0] not in shapes or size.attrs["shrink_axis_mask"] != 1:
        return False
    if [number_of(edge) for edge in size.inputs[1:]] != [0, 1, 1]:
        return False
    lookup.inner |= {grad, size}
    sources = [grad]
    for node, position, _ in uses[grad]:
        if node.op.name == "Reshape" and position == 0 and node.inputs[1][0] in shapes:
            lookup.inner.add(node)
            sources.append(node)
    for source in sources:
        for node, position, _ in uses[source]:
            if node.op is rows_of_shard and position == 0:
                place, output = node.inputs[1]
                if place is not lookup.deal:
                    return False
                lookup.pieces[node] = output - 2 - shards
    lookup.grad = grad
    return True


def _independent(found: list[_Lookup], subgraph: Subgraph) -> list[_Lookup]:
    """Those of the lookups that can be made at once: the ids of none depend on sums of others, and so on.

    A node is at stage 1 if it needs dealt ids, at stage 2 if it needs sums, and at stage 3 if it needs their gradients.
    """
    at_stage = {lookup.deal: 1 for lookup in found} | {lookup.total: 2 for lookup in found}
    at_stage |= {piece: 3 for lookup in found for piece in lookup.pieces}
    stages: dict[Node, int] = {}
    for node in subgraph.nodes:
        stages[node] = max([at_stage.get(node, 0), *(stages[source] for source in sources_of(node))])

    def before(nodes: Iterable[Node]) -> int:
        return max((stages[source] for node in nodes for source in sources_of(node)), default=0)

    return [
        lookup
        for lookup in found
        if before([lookup.deal]) == 0
        and stages[lookup.total.inputs[2][0]] == 0
        and before([*lookup.gathers, lookup.total]) <= 1
        and (lookup.grad is None or before([lookup.grad, *lookup.pieces]) <= 2)
    ]


def _replaced(subgraph: Subgraph, kinds: Iterable[list[_Lookup]]) -> Subgraph:
    """The subgraph with the ops that stand for the lookups of each kind."""
    moved: dict[Edge, Edge] = {}
    stands_for: dict[Node, Node] = {}
    gone: set[Node] = set()
    added: list[Node] = []
    for lookups in kinds:
        shards = lookups[0].deal.attrs["N"]
        plan = _plan_of(lookups)
        combine = _combine_of(lookups, plan)
        added += [plan, combine]
        for m, lookup in enumerate(lookups):
            gone |= lookup.inner
            stands_for[lookup.deal], stands_for[lookup.total] = plan, combine
            moved[lookup.total, 0] = combine, m
            moved.update({(lookup.deal, 2 + i): (plan, m * shards + i) for i in range(shards)})
        if lookups[0].grad is not None:
            spread = _spread_of(lookups, plan)
            added.append(spread)
            for m, lookup in enumerate(lookups):
                for piece, shard in lookup.pieces.items():
                    stands_for[piece] = spread
                    moved[piece, 0] = spread, m * shards + shard
    # Nodes are copied, since passes change none.
    kept = [node for node in subgraph.nodes if node not in stands_for and node not in gone]
    copies = {node: replace(node, inputs=[], controls=[]) for node in (*kept, *added)}

    def new(edge: Edge) -> Edge:
        node, output = moved.get(edge, edge)
        return copies[node], output

    for node, copy in copies.items():
        copy.inputs = [new(edge) for edge in node.inputs]
        copy.controls = list(dict.fromkeys(copies[stands_for.get(source, source)] for source in node.controls))
    return Subgraph(
        sorted_nodes(copies.values()),
        [copies[node] for node in subgraph.feeds],
        [new(edge) for edge in subgraph.fetches],
        [copies[stands_for.get(node, node)] for node in subgraph.targets],
    )


def _types(lookups: list[_Lookup]) -> dict[str, Any]:
    count, shards = len(lookups), lookups[0].deal.attrs["N"]
    return {"M": count, "K": count * shards, "T": lookups[0].total.attrs["T"]}


def _controls(nodes: Iterable[Node]) -> list[Node]:
    return list(dict.fromkeys(source for node in nodes for source in node.controls))


def _plan_of(lookups: list[_Lookup]) -> Node:
    deals = [lookup.deal for lookup in lookups]
    kind, shards = deals[0].attrs["T"], deals[0].attrs["N"]
    attrs = {
        **_types(lookups),
        "T": kind,
        "Tsegmentids": lookups[0].total.attrs["Tsegmentids"],
        "N": shards,
        "table_rows": [deal.attrs["table_rows"] for deal in deals],
        "stands_for": [*(str(deal.name) for deal in deals), *(str(lookup.total.name) for lookup in lookups)],
    }
    inputs = [*(deal.inputs[0] for deal in deals), *(lookup.total.inputs[2] for lookup in lookups)]
    dtypes = (*[kind] * (len(deals) * shards), variant)
    first = deals[0]
    return Node(first.name, plan_lookups_op, attrs, dtypes, inputs, _controls(deals), first.device, first.order)


def _combine_of(lookups: list[_Lookup], plan: Node) -> Node:
    totals = [lookup.total for lookup in lookups]
    first = totals[0]
    attrs = {**_types(lookups), "power": _POWERS[first.op.name]}
    inputs = [(plan, attrs["K"]), *((gather, 0) for lookup in lookups for gather in lookup.gathers)]
    dtypes = tuple([attrs["T"]] * len(totals))
    return Node(first.name, combine_lookups, attrs, dtypes, inputs, _controls(totals), first.device, first.order)


def _spread_of(lookups: list[_Lookup], plan: Node) -> Node:
    grads = [lookup.grad for lookup in lookups if lookup.grad is not None]
    first = grads[0]
    attrs = {**_types(lookups), "power": _POWERS[lookups[0].total.op.name], "row_shape": lookups[0].row_shape}
    inputs = [(plan, attrs["K"]), *(grad.inputs[0] for grad in grads)]
    waits = _controls([*grads, *(piece for lookup in lookups for piece in lookup.pieces)])
    dtypes = tuple([attrs["T"]] * attrs["K"])
    return Node(first.name, spread_lookups, attrs, dtypes, inputs, waits, first.device, first.order)
