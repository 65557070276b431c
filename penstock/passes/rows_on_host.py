"""Rows on the host: what picks or moves rows whose number changes from step to step runs in NumPy.

Compiled code has fixed shapes. Ids that were dealt out to the shards of a table are of another number in each step, and
so are the rows looked up for them and their gradients: code that sees them would be compiled again and again. Where
such rows only go on to other tasks or to host ops, picking them takes no compiler.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from penstock.graph.dtype import DType
from penstock.passes.ir import GATHERS, Node, Subgraph, reads_variable, rewritten, sources_of

# Host ops that give as many elements as the values say.
_RAGGED = frozenset(
    (
        "_DealIds",
        "_JoinShards",
        "_PlanLookups",
        "_RowsOfShard",
        "_SpreadLookups",
        "_SumRows",
        "DynamicPartition",
        "ListDiff",
        "SparseFillEmptyRows",
        "StringSplit",
        "Unique",
        "UniqueV2",
        "UniqueWithCounts",
        "Where",
    )
)
_MOVES = frozenset(
    ("Cast", "ConcatV2", "ExpandDims", "Identity", "Pack", "Reshape", "Shape", "Size", "Squeeze", "StridedSlice")
)


def ragged_nodes(nodes: Iterable[Node]) -> set[Node]:
    """The nodes whose outputs have another size in each step, as far as this is known."""
    ragged: set[Node] = set()
    for node in nodes:
        name = node.op.name
        if name in _RAGGED or (name == "_Recv" and node.attrs["ragged"]):
            ragged.add(node)
        elif name in GATHERS:
            if node.inputs[1][0] in ragged:
                ragged.add(node)
        elif ragged and name in _MOVES and any(source in ragged for source, _ in node.inputs):
            ragged.add(node)
    return ragged


def rows_on_host(subgraph: Subgraph) -> Subgraph:
    """The subgraph with pure nodes that are to run on the host marked as such. Rows of variables are taken directly."""
    moved = _moved(subgraph)
    if moved:
        uses = Counter(source for node in subgraph.nodes for source in sources_of(node))
        uses.update([*(node for node, _ in subgraph.fetches), *subgraph.targets])
        firsts = (node.inputs[0][0] for node in moved if node.op.name in GATHERS)
        passed_over = {read for read in firsts if uses[read] == 1 and reads_variable(read)}

        def moved_to_host(node: Node) -> list[Node]:
            if node in passed_over:
                return []
            if node not in moved:
                return [node]
            inputs, controls = list(node.inputs), node.controls
            if inputs[0][0] in passed_over:
                read = inputs[0][0]
                inputs[0], controls = read.inputs[0], list(dict.fromkeys([*controls, *read.controls]))
            return [replace(node, inputs=inputs, controls=controls, on_host=True)]

        subgraph = rewritten(subgraph, moved_to_host)
    updates = _row_updates(subgraph)
    return rewritten(subgraph, lambda n: [replace(n, on_host=True) if n in updates else n]) if updates else subgraph


def _moved(subgraph: Subgraph) -> set[Node]:
    """The nodes that pick or move rows, or compute what the host wants to know."""
    ragged = ragged_nodes(subgraph.nodes)
    takes_to_host = False
    for node in subgraph.nodes:
        op = node.op
        if op.host:
            takes_to_host = takes_to_host or bool(node.inputs)
        # What is only handed on between host ops need not be compiled either, whatever its size.
        elif op.name in _MOVES and op.numpy and node.inputs and all(s.op.host or s in ragged for s, _ in node.inputs):
            ragged.add(node)
    moved: set[Node] = set()
    if not ragged and not takes_to_host:
        return moved
    by_compiled = {n for n, _ in subgraph.fetches} - ragged  # compiled code takes something from these, or the client
    by_host = set(ragged)
    for node in reversed(subgraph.nodes):
        here = node.op.host
        movable = not here and node in by_host and node not in by_compiled and "CPU" in node.device
        if movable and (node in ragged or _is_index_arithmetic(node)):
            moved.add(node)
            here = True
        (by_host if here else by_compiled).update([source for source, _ in node.inputs])
    return moved


def _row_updates(subgraph: Subgraph) -> set[Node]:
    """Updates of rows that come from the host or another task, of variables that no compiled code deals with.

    One by one they begin as soon as their rows are there, and NumPy needs half the time of compiled code.
    """
    found = {
        node
        for node in subgraph.nodes
        if node.op.row_rule is not None
        and "CPU" in node.device
        and node.inputs[node.op.input_index("indices")][0].op.host
    }
    if not found:
        return found
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in subgraph.nodes:
        for source, _ in node.inputs:
            users[source].append(node)
    found -= {node for node, _ in subgraph.fetches}
    found = {node for node in found if not users[node]}

    def is_free(node: Node) -> bool:
        variables = [source for source, _ in node.inputs[: len(node.op.writes)]]
        return all(user.on_host or user in found for variable in variables for user in users[variable])

    return {node for node in found if is_free(node)}


def _is_index_arithmetic(node: Node) -> bool:
    """Tells if a node computes integers of integers: XLA divides these ten times more slowly than NumPy."""
    types = [*node.dtypes, *(source.dtypes[i] for source, i in node.inputs)]
    return node.op.numpy and bool(node.inputs) and all(_is_whole(t) for t in types) and not node.op.stateful


def _is_whole(dtype: DType) -> bool:
    return (dtype.is_integer or dtype.is_bool) and not dtype._is_ref_dtype
