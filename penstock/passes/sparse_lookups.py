"""Sparse lookups: rows of a table are taken where the table is, and only they go on to the host.

`embedding_lookup_sparse` sums rows of a table by segments. The number of segments shows only at run time, so the sums
are made on the host. A table of a million rows must not go there for a few of them: it would be copied in each step,
and once more by the update that follows, since it is in use. So the rows are gathered by compiled code first, and the
table is read in the same piece of compiled code as they are.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.graph.opdef import op_of
from penstock.passes.ir import Edge, Node, Subgraph, reads_variable, rewritten, sources_of

# Which op gives the same from gathered rows.
_OF_ROWS = {"SparseSegmentSum": "SegmentSum", "SparseSegmentMean": "SegmentMean", "SparseSegmentSqrtN": "SegmentSqrtN"}
_GATHERS = ("Gather", "GatherV2")
# What takes a variable and changes nothing.
_HARMLESS = frozenset(
    ("Identity", "ReadVariableOp", "ResourceGather", "VariableShape", "VarIsInitializedOp", "IsVariableInitialized")
)


def gather_before_segments(subgraph: Subgraph) -> Subgraph:
    """The subgraph with sums over picked rows as a gather and sums over its rows."""
    if not any(map(_picks_rows, subgraph.nodes)):
        return subgraph
    subgraph = rewritten(subgraph, lambda node: _in_two(node) if _picks_rows(node) else [node])
    sums = [node for node in subgraph.nodes if node.op.name in _OF_ROWS.values()]
    lookups = {_pair(rows) for rows, name in ((n.inputs[0][0], n.name) for n in sums) if rows.name == name}
    # Gradients gather the same rows again: they read with the lookup, not before it.
    gathers = [node for node in subgraph.nodes if node.op.name in _GATHERS and _pair(node) in lookups]
    return _with_own_reads(subgraph, gathers)


def _picks_rows(node: Node) -> bool:
    """Tells if a node sums rows that it picks from what is not on the host yet."""
    if node.op.name not in _OF_ROWS:
        return False
    source = node.inputs[0][0]
    while source.op.name in ("Identity", "Reshape"):
        source = source.inputs[0][0]
    return not source.op.host and source.op.name != "_Arg"


def _in_two(node: Node) -> list[Node]:
    """A gather, which has the name of the node, and the sums of what it gives."""
    attrs = {"Tparams": node.attrs["T"], "Tindices": node.attrs["Tidx"], "validate_indices": True}
    rows = replace(node, op=op_of("Gather"), attrs=attrs, dtypes=(node.attrs["T"],), inputs=node.inputs[:2])
    types = {"T": node.attrs["T"], "Tindices": node.attrs["Tsegmentids"]}
    return [rows, replace(node, op=op_of(_OF_ROWS[node.op.name]), attrs=types, inputs=[(rows, 0), node.inputs[2]])]


def _pair(gather: Node) -> tuple[Node, Node]:
    return gather.inputs[0][0], gather.inputs[1][0]


def _with_own_reads(subgraph: Subgraph, gathers: list[Node]) -> Subgraph:
    """Each gather from a variable with a read of its own, which waits for the indices."""
    changed: dict[Node, list[Node]] = {}
    for gather in gathers:
        read, indices = _pair(gather)
        if not reads_variable(read) or indices.op.name in ("_Arg", "Const"):
            continue
        if not _only_changed_after(gather, read.inputs[0], subgraph.nodes):
            continue
        own = replace(read, controls=[*read.controls, indices])
        changed[gather] = [own, replace(gather, inputs=[(own, 0), *gather.inputs[1:]])]
    subgraph = rewritten(subgraph, lambda node: changed.get(node, [node]))
    wanted = {source for node in subgraph.nodes for source in sources_of(node)}
    wanted.update([*(n for n, _ in subgraph.fetches), *subgraph.targets])
    return replace(subgraph, nodes=[n for n in subgraph.nodes if n in wanted or not reads_variable(n)])


def _only_changed_after(gather: Node, variable: Edge, nodes: list[Node]) -> bool:
    """Tells if all changes of the variable in this step wait for the gather, so that the gather may read late."""
    after = {gather}
    for node in nodes:
        if any(source in after for source in sources_of(node)):
            after.add(node)
        elif variable in node.inputs and node.op.name not in _HARMLESS:
            return False
    return True
