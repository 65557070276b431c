"""Follow replicas: the numbers of synchronous training follow the number of workers while they join and leave.

SyncReplicasOptimizer waits for as many gradients, and puts out as many tokens, as the program said when it was built.
These constants carry the number of replicas that the program was told of, in the attr OF_REPLICAS. They keep their
share of the replicas that there are: as many gradients as replicas stays that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.passes.ir import Node, Subgraph, rewritten

OF_REPLICAS = "_of_replicas"
JOINS = "_joins"  # attr of the op by which a replica begins: one that joins a running job runs it once it is a member


def follow_replicas(subgraph: Subgraph, added: int) -> Subgraph:
    """The subgraph with its numbers of gradients and tokens for `added` replicas more than the program was told of."""
    if not added or not any(OF_REPLICAS in node.attrs for node in subgraph.nodes):
        return subgraph

    def scaled(node: Node) -> list[Node]:
        told = int(node.attrs.get(OF_REPLICAS, 0))
        if not told:
            return [node]
        value = node.attrs["value"]
        share = np.maximum(1, np.rint(value * max(1, told + added) / told)).astype(value.dtype)
        return [replace(node, attrs={**node.attrs, "value": share})]

    return rewritten(subgraph, scaled)
