"""Late reads: a save takes variables themselves, not values read before it runs.

Values of all variables at once would take as much memory again as the model; so they are read one by one, when they are
written.
"""

from __future__ import annotations

from penstock.passes.ir import Subgraph

_READS = frozenset(("Identity", "ReadVariableOp"))
_VARIABLES = frozenset(("Variable", "VariableV2", "VarHandleOp"))


def read_late(subgraph: Subgraph) -> Subgraph:
    """Has saves take their variables without the reads in between, and drops the reads that nobody else wants."""
    passed_over: set[int] = set()
    for node in subgraph.nodes:
        if node.op.name != "SaveV2":
            continue
        for i, (source, _) in enumerate(node.inputs):
            if source.op.name in _READS and source.inputs[0][0].op.name in _VARIABLES:
                node.inputs[i] = source.inputs[0]
                node.controls += [c for c in source.controls if c not in node.controls]
                passed_over.add(id(source))
    if not passed_over:
        return subgraph
    wanted = {id(source) for node in subgraph.nodes for source in (*(s for s, _ in node.inputs), *node.controls)}
    wanted.update(id(node) for node in (*(n for n, _ in subgraph.fetches), *subgraph.targets))
    nodes = [node for node in subgraph.nodes if id(node) not in passed_over or id(node) in wanted]
    return Subgraph(nodes, subgraph.feeds, subgraph.fetches, subgraph.targets)
