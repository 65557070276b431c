"""Leaves out updates of variables: what is left only reads."""

from __future__ import annotations

from penstock.graph.opdef import op_of
from penstock.passes.ir import Node, Subgraph, rewritten


def without_writes(subgraph: Subgraph) -> Subgraph:
    """A subgraph in which nodes that write to variables do nothing; what waits for them waits for their inputs."""
    nothing = op_of("NoOp")

    def change(node: Node) -> list[Node]:
        if not node.op.writes or node.dtypes:
            return [node]
        sources = dict.fromkeys([*node.controls, *(source for source, _ in node.inputs)])
        return [Node(node.name, nothing, {}, (), [], list(sources), node.device, node.order, node.on_host)]

    return rewritten(subgraph, change)
