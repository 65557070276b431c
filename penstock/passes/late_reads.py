"""Late reads: saves and sends take variables themselves, not values read before they run.

A save of values of all variables at once would take as much memory again as the model; they are read one by one, when
they are written. A send of a value that was read before would copy it once more.
"""

from __future__ import annotations

from collections import Counter

from penstock.passes.ir import Subgraph, reads_variable


def read_late(subgraph: Subgraph) -> Subgraph:
    """Has saves and sends take their variables without the reads in between, and drops the reads nobody else wants."""
    takers = [n for n in subgraph.nodes if n.op.name in ("SaveV2", "_Send")]
    if not takers:
        return subgraph
    uses = Counter(id(s) for node in subgraph.nodes for s in (*(s for s, _ in node.inputs), *node.controls))
    uses.update(id(node) for node in (*(n for n, _ in subgraph.fetches), *subgraph.targets))
    passed_over: set[int] = set()
    for node in takers:
        for i, (source, _) in enumerate(node.inputs):
            if not reads_variable(source):
                continue
            if node.op.name == "_Send" and uses[id(source)] > 1:
                continue  # others see the value that was read, and so must the receiver
            node.inputs[i] = source.inputs[0]
            node.controls += [c for c in source.controls if c not in node.controls]
            uses[id(source)] -= 1
            passed_over.add(id(source))
    nodes = [node for node in subgraph.nodes if id(node) not in passed_over or uses[id(node)]]
    return Subgraph(nodes, subgraph.feeds, subgraph.fetches, subgraph.targets)
