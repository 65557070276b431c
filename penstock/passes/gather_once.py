"""Gather once: a lookup in a whole table of another task asks for each id of a training step once.

It is what `ask_once` does for tables that are split. `_DealIds` has the distinct ids of what is then a single shard.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from penstock.graph.dtype import int32
from penstock.ops.nn.sharded_lookups import deal_ids, spread_rows, sum_rows
from penstock.passes.deal_ids import axis_of
from penstock.passes.ir import GATHERS, Edge, Node, Subgraph, Uses, like, rewritten, uses_of, visible_nodes
from penstock.passes.partition import task_of

_KEEPS_ROWS = frozenset(("Identity", "Reshape"))
_DISTINCT = frozenset(("DynamicPartition", "Unique", "_DealIds"))  # ids that are, or that another pass makes so


def gather_once(subgraph: Subgraph) -> Subgraph:
    """The placed subgraph with gathers of distinct ids, where gradients of their rows are summed by id after all."""
    by_ids: dict[Edge, list[Node]] = defaultdict(list)
    for node in subgraph.nodes:
        if node.op.name in GATHERS and _is_far(node):
            by_ids[node.inputs[1]].append(node)
    if not by_ids:
        return subgraph
    uses, visible = uses_of(subgraph), visible_nodes(subgraph)
    changed: dict[Node, list[Node]] = {}
    for ids, gathers in by_ids.items():
        lasts = {gather: _last(gather, uses) for gather in gathers}
        here = task_of(ids[0].device)
        comes_back = all(task_of(user.device) == here for last in lasts.values() for user, *_ in uses[last])
        totals = _sums_by(ids, uses, visible) if comes_back else {}
        if totals:
            changed.update(_of_distinct_ids(ids, lasts, totals))
    return rewritten(subgraph, lambda node: changed.get(node, [node])) if changed else subgraph


def _is_far(gather: Node) -> bool:
    """Tells if a node takes rows for ids of another task, some of which may be the same."""
    ids = gather.inputs[1][0]
    while ids.op.name in _KEEPS_ROWS:
        ids = ids.inputs[0][0]
    near = gather.inputs[1][0].device
    return (
        task_of(near) != task_of(gather.device)
        and "CPU" in near
        and ids.op.name not in _DISTINCT
        and axis_of(gather) == 0
    )


def _last(gather: Node, uses: Uses) -> Node:
    """The last node that hands on the rows of a gather where the table is."""
    last = gather
    while len(uses[last]) == 1 and uses[last][0][0].op.name == "Identity" and uses[last][0][0].device == gather.device:
        last = uses[last][0][0]
    return last


def _sums_by(ids: Edge, uses: Uses, visible: set[Node]) -> dict[Node, Node]:
    """The sums of rows by these ids that optimizers take, each with its Unique: of what is in the task of the ids."""
    found: dict[Node, Node] = {}
    stack = [node for node, i, output in uses[ids[0]] if output == ids[1] and i == 0]
    while stack:
        node = stack.pop()
        if node.op.name in _KEEPS_ROWS:
            stack += [user for user, i, _ in uses[node] if i == 0]
        elif node.op.name == "Unique":
            totals = [total for total, i, output in uses[node] if output == 1]
            is_sum = len(totals) == 1 and totals[0].op.name == "UnsortedSegmentSum" and totals[0].inputs[1] == (node, 1)
            if is_sum and visible.isdisjoint((node, totals[0])):
                values = totals[0].inputs[0][0].device
                if task_of(values) == task_of(ids[0].device) and "CPU" in values:
                    found[totals[0]] = node
    return found


def _of_distinct_ids(ids: Edge, lasts: dict[Node, Node], totals: dict[Node, Node]) -> dict[Node, list[Node]]:
    """The nodes that stand for gathers, for what hands on their rows, for sums, and for the Uniques of these."""
    source, i = ids
    kind = source.dtypes[i]
    first = next(iter(lasts))
    attrs = {"T": kind, "N": 1, "table_rows": 0}
    deal = like(source, f"{first.name}/deal", deal_ids, attrs, (kind, int32, kind, int32), [ids])
    found: dict[Node, list[Node]] = {}
    for gather, last in lasts.items():
        table, _, *axis = gather.inputs
        found[gather] = [replace(gather, inputs=[table, (deal, 2), *axis])]
        distinct = replace(found.get(last, [last])[0], name=f"{last.name}/distinct")
        types, inputs = {"T": last.dtypes[0]}, [(distinct, 0), (deal, 1)]
        found[last] = [distinct, like(source, last.name, spread_rows, types, last.dtypes, inputs)]
    found[first].insert(0, deal)
    for total, unique in totals.items():
        values, types = total.inputs[0], {"T": total.dtypes[0]}
        sums = like(values[0], f"{total.name}/sums", sum_rows, types, total.dtypes, [values, (deal, 1)])
        found[total] = [sums, replace(total, inputs=[(sums, 0), *total.inputs[1:]])]
        found[unique] = [replace(unique, inputs=[(deal, 2)])]
    return found
