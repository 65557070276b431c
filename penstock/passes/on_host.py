"""On the host: which nodes of a body are marked to run there although they could be compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.graph.dtype import variant
from penstock.passes.ir import Node, Subgraph, rewritten


def lists_on_host(subgraph: Subgraph) -> Subgraph:
    """Marks what deals with lists of tensors. They grow in each iteration, and code would be compiled for each size."""
    return _marked(subgraph, lambda node: not node.op.control_flow and deals_with_lists(node))


def kernels_on_host(subgraph: Subgraph) -> Subgraph:
    """Marks all whose kernel works on NumPy arrays."""
    return _marked(subgraph, fits_numpy)


def deals_with_lists(node: Node) -> bool:
    """Tells if a node takes or gives a list of tensors."""
    return node.op.name == "Absent" or variant in (*node.dtypes, *(s.dtypes[i] for s, i in node.inputs))


def fits_numpy(node: Node) -> bool:
    """Tells if NumPy can run a node that would be compiled."""
    op = node.op
    return (op.numpy or op.name == "Const") and not (op.random or op.writes or op.control_flow or op.host)


def _marked(subgraph: Subgraph, is_meant: Callable[[Node], bool]) -> Subgraph:
    meant = set(filter(is_meant, subgraph.nodes))
    return rewritten(subgraph, lambda n: [replace(n, on_host=True) if n in meant else n]) if meant else subgraph
