"""Rows on the host: what picks or moves rows whose number changes from step to step runs in NumPy.

Compiled code has fixed shapes. Ids that were dealt out to the shards of a table are of another number in each step, and
so are the rows looked up for them and their gradients: code that sees them would be compiled again and again. Where
such rows only go on to other tasks or to host ops, picking them takes no compiler.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from penstock.graph.dtype import DType
from penstock.passes.ir import Node, Subgraph, reads_variable

# Host ops that give as many elements as the values say.
_RAGGED = frozenset((
    "_DealIds", "DynamicPartition", "ListDiff", "SparseFillEmptyRows", "StringSplit", "Unique", "UniqueV2",
    "UniqueWithCounts", "Where",
))  # fmt: skip
_PICKS = {"Gather": 1, "GatherV2": 1, "ResourceGather": 1}  # which input decides how many rows
_MOVES = frozenset((
    "Cast", "ConcatV2", "ExpandDims", "Identity", "Pack", "Reshape", "Shape", "Size", "Squeeze", "StridedSlice",
))  # fmt: skip


def ragged_nodes(nodes: list[Node]) -> set[int]:
    """The nodes (by id) whose outputs have another size in each step, as far as this is known."""
    ragged: set[int] = set()
    for node in nodes:
        name = node.op.name
        if name in _RAGGED or (name == "_Recv" and node.attrs["ragged"]):
            ragged.add(id(node))
        elif name in _PICKS:
            if id(node.inputs[_PICKS[name]][0]) in ragged:
                ragged.add(id(node))
        elif name in _MOVES and any(id(source) in ragged for source, _ in node.inputs):
            ragged.add(id(node))
    return ragged


def rows_on_host(subgraph: Subgraph) -> frozenset[str]:
    """The names of pure nodes that are to run on the host. Rows of variables are taken from these directly."""
    ragged = ragged_nodes(subgraph.nodes)
    # What is only handed on between host ops need not be compiled either, whatever its size.
    for node in subgraph.nodes:
        handed_on = node.op.name in _MOVES and node.op.numpy and node.inputs
        if handed_on and all(s.op.host or id(s) in ragged for s, _ in node.inputs):
            ragged.add(id(node))
    on_host = ragged | {id(n) for n in subgraph.nodes if _is_index_arithmetic(n)}
    wanted: Counter[int] = Counter(id(n) for n, _ in subgraph.fetches)
    by_compiled = set(wanted) - ragged  # nodes that compiled code takes something from, or the client
    by_host = set(ragged)
    moved: list[Node] = []
    for node in reversed(subgraph.nodes):
        here = node.op.host
        movable = id(node) in on_host and id(node) in by_host and id(node) not in by_compiled
        if not here and movable and "CPU" in node.device:
            moved.append(node)
            here = True
        for source, _ in node.inputs:
            wanted[id(source)] += 1
            (by_host if here else by_compiled).add(id(source))
        for source in node.controls:
            wanted[id(source)] += 1
    for node in moved:
        read = node.inputs[0][0] if node.op.name in _PICKS else None
        if read is not None and wanted[id(read)] == 1 and reads_variable(read):
            node.inputs[0] = read.inputs[0]
            node.controls += [c for c in read.controls if c not in node.controls]
            subgraph.nodes.remove(read)
    return frozenset(node.name for node in (*moved, *_row_updates(subgraph, moved)))


def _row_updates(subgraph: Subgraph, moved: list[Node]) -> list[Node]:
    """Updates of rows that come from the host or another task, of variables that no compiled code deals with.

    One by one they begin as soon as their rows are there, and NumPy needs half the time of compiled code.
    """
    users: dict[int, list[Node]] = defaultdict(list)
    for node in subgraph.nodes:
        for source, _ in node.inputs:
            users[id(source)].append(node)
    fetched = {id(node) for node, _ in subgraph.fetches}
    found = [
        node for node in subgraph.nodes
        if node.op.row_rule is not None and "CPU" in node.device and id(node) not in fetched and not users[id(node)]
        and node.inputs[node.op.input_index("indices")][0].op.host
    ]  # fmt: skip
    on_host = {id(node) for node in (*moved, *found)}

    def is_free(node: Node) -> bool:
        variables = [source for source, _ in node.inputs[: len(node.op.writes)]]
        return all(id(user) in on_host for variable in variables for user in users[id(variable)])

    return [node for node in found if is_free(node)]


def _is_index_arithmetic(node: Node) -> bool:
    """Whether a node computes integers of integers: XLA divides these ten times more slowly than NumPy."""
    types = [*node.dtypes, *(source.dtypes[i] for source, i in node.inputs)]
    return node.op.numpy and bool(node.inputs) and all(_is_whole(t) for t in types) and not node.op.stateful


def _is_whole(dtype: DType) -> bool:
    return (dtype.is_integer or dtype.is_bool) and not dtype._is_ref_dtype
