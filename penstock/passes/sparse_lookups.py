"""Sparse lookups: rows of a table are taken where the table is, and only they go on to the host.

`embedding_lookup_sparse` sums rows of a table by segments. The number of segments shows only at run time, so the sums
are made on the host. A table of a million rows must not go there for a few of them: it would be copied in each step,
and once more by the update that follows, since it is in use. So the rows are gathered by compiled code first, and the
table is read in the same piece of compiled code as they are.
"""

from __future__ import annotations

from penstock.graph.opdef import op_of
from penstock.passes.ir import Edge, Node, Subgraph, reads_variable

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
    nodes: list[Node] = []
    lookups: set[tuple[int, int]] = set()
    for node in subgraph.nodes:
        if _picks_rows(node):
            nodes.append(_rows_of(node))
            lookups.add(_pair(nodes[-1]))
            node.op = op_of(_OF_ROWS[node.op.name])
            node.attrs = {"T": node.attrs["T"], "Tindices": node.attrs["Tsegmentids"]}
            node.inputs = [(nodes[-1], 0), node.inputs[2]]
        nodes.append(node)
    # Gradients gather the same rows again: they read with the lookup, not before it.
    gathers = [node for node in nodes if node.op.name in _GATHERS and _pair(node) in lookups]
    # In place: the nodes have changed for everyone who holds this subgraph.
    subgraph.nodes[:] = _with_own_reads(nodes, gathers, subgraph)
    return subgraph


def _picks_rows(node: Node) -> bool:
    """Tells if a node sums rows that it picks from what is not on the host yet."""
    if node.op.name not in _OF_ROWS:
        return False
    source = node.inputs[0][0]
    while source.op.name in ("Identity", "Reshape"):
        source = source.inputs[0][0]
    return not source.op.host and source.op.name != "_Arg"


def _rows_of(node: Node) -> Node:
    attrs = {"Tparams": node.attrs["T"], "Tindices": node.attrs["Tidx"], "validate_indices": True}
    return Node(
        node.name,
        op_of("Gather"),
        attrs,
        (node.attrs["T"],),
        node.inputs[:2],
        list(node.controls),
        node.device,
        node.order,
    )


def _pair(gather: Node) -> tuple[int, int]:
    return id(gather.inputs[0][0]), id(gather.inputs[1][0])


def _with_own_reads(nodes: list[Node], gathers: list[Node], subgraph: Subgraph) -> list[Node]:
    """Each gather from a variable with a read of its own, which waits for the indices."""
    before: dict[int, Node] = {}
    for gather in gathers:
        read, indices = gather.inputs[0][0], gather.inputs[1][0]
        if not reads_variable(read) or indices.op.name in ("_Arg", "Const"):
            continue
        if not _only_changed_after(gather, read.inputs[0], nodes):
            continue
        own = Node(
            read.name,
            read.op,
            read.attrs,
            read.dtypes,
            list(read.inputs),
            [*read.controls, indices],
            read.device,
            read.order,
        )
        before[id(gather)] = own
        gather.inputs[0] = (own, 0)
    result: list[Node] = []
    for node in nodes:
        result += [before[id(node)], node] if id(node) in before else [node]
    wanted = {id(source) for node in result for source in (*(s for s, _ in node.inputs), *node.controls)}
    wanted.update(id(node) for node in (*(n for n, _ in subgraph.fetches), *subgraph.targets))
    return [node for node in result if id(node) in wanted or not reads_variable(node)]


def _only_changed_after(gather: Node, variable: Edge, nodes: list[Node]) -> bool:
    """Whether whatever may change the variable in this step waits for the gather, so that it may read late."""
    after = {id(gather)}
    for node in nodes:
        if any(id(source) in after for source in (*(s for s, _ in node.inputs), *node.controls)):
            after.add(id(node))
        elif variable in node.inputs and node.op.name not in _HARMLESS:
            return False
    return True
