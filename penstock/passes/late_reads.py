"""Late reads: saves and sends take variables themselves, not values read before they run.

A save of values of all variables at once would take as much memory again as the model; they are read one by one, when
they are written. A send of a value that was read before would copy it once more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from penstock.passes.ir import Node, Subgraph, reads_variable, rewritten, sources_of


def read_late(subgraph: Subgraph) -> Subgraph:
    """Has saves and sends take their variables without the reads in between, and drops the reads nobody else wants."""
    takers = [n for n in subgraph.nodes if n.op.name in ("SaveV2", "_Send")]
    if not takers:
        return subgraph
    uses = Counter(source for node in subgraph.nodes for source in sources_of(node))
    uses.update([*(n for n, _ in subgraph.fetches), *subgraph.targets])
    changed: dict[Node, Node] = {}
    passed_over: set[Node] = set()
    for node in takers:
        inputs, controls = list(node.inputs), list(node.controls)
        for i, (source, _) in enumerate(node.inputs):
            if not reads_variable(source):
                continue
            if node.op.name == "_Send" and uses[source] > 1:
                continue  # others see the value that was read, and so must the receiver
            inputs[i] = source.inputs[0]
            controls += [c for c in source.controls if c not in controls]
            uses[source] -= 1
            passed_over.add(source)
        changed[node] = replace(node, inputs=inputs, controls=controls)
    unused = {node for node in passed_over if not uses[node]}
    return rewritten(subgraph, lambda node: [] if node in unused else [changed.get(node, node)])
