"""Functions from GraphDef to GraphDef: extracting parts, removing training nodes. Freezing is in `freezing`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.graph.dtype import as_dtype
from penstock.graph.shape import TensorShape

# The ops that TensorFlow's pin_variables_on_cpu keeps on the CPU: it names the old ops only.
_PINNED = frozenset(
    (
        "Assign",
        "AssignAdd",
        "AssignSub",
        "Queue",
        "ScatterAdd",
        "ScatterSub",
        "ScatterUpdate",
        "TruncatedNormal",
        "Variable",
        "VariableV2",
    )
)


def source_of(text: str) -> str:
    """The node that an input names."""
    return text.removeprefix("^").partition(":")[0]


def _require_graph_def(graph_def: Any) -> None:
    if getattr(getattr(graph_def, "DESCRIPTOR", None), "name", "") != "GraphDef":
        raise TypeError(f"graph_def must be a GraphDef, received {type(graph_def).__name__}.")


def like(graph_def: Any, nodes: Iterable[Any]) -> Any:
    """A GraphDef with other nodes, but the same functions and versions."""
    result = type(graph_def)()
    result.node.extend(nodes)
    result.library.CopyFrom(graph_def.library)
    result.versions.CopyFrom(graph_def.versions)
    return result


def _extract_graph_summary(graph_def: Any) -> tuple[dict[str, list[str]], dict[str, Any], dict[str, int]]:
    """For each node by name: its sources, the node itself, and its position."""
    inputs = {node.name: [source_of(text) for text in node.input] for node in graph_def.node}
    nodes = {node.name: node for node in graph_def.node}
    return inputs, nodes, {node.name: place for place, node in enumerate(graph_def.node)}


def _bfs_for_reachable_nodes(target_nodes: Iterable[str], name_to_input_name: dict[str, list[str]]) -> set[str]:
    """The nodes that `target_nodes` need, including themselves."""
    found: set[str] = set()
    waiting = list(target_nodes)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += name_to_input_name.get(name, [])
    return found


def extract_sub_graph(graph_def: Any, dest_nodes: Sequence[str]) -> Any:
    """The part of `graph_def` that the nodes named in `dest_nodes` need.

    >>> tf.graph_util.extract_sub_graph(graph.as_graph_def(), ["softmax"])
    """
    _require_graph_def(graph_def)
    if isinstance(dest_nodes, (str, bytes)):
        raise TypeError("dest_nodes must be a list.")
    inputs, nodes, _ = _extract_graph_summary(graph_def)
    for name in dest_nodes:
        if name not in nodes:
            raise AssertionError(f"{name} is not in graph")
    kept = _bfs_for_reachable_nodes(dest_nodes, inputs)
    return like(graph_def, (node for name, node in nodes.items() if name in kept))


def remove_training_nodes(input_graph: Any, protected_nodes: Iterable[str] | None = None) -> Any:
    """Removes CheckNumerics, and Identity nodes that carry only data.

    >>> tf.graph_util.remove_training_nodes(frozen, protected_nodes=["softmax"])
    """
    protected = set(protected_nodes or ())
    checks = {n.name for n in input_graph.node if n.op == "CheckNumerics" and n.name not in protected}
    nodes = _spliced(input_graph.node, checks)
    ordered = {n.name for n in nodes if any(t.startswith("^") for t in n.input)}
    waited_for = {source_of(t) for n in nodes for t in n.input if t.startswith("^")}
    kept = protected | ordered | waited_for
    identities = {n.name for n in nodes if n.op == "Identity" and n.name not in kept}
    return like(input_graph, _spliced(nodes, identities))


def _spliced(nodes: Iterable[Any], removed: set[str]) -> list[Any]:
    """Removes the nodes in `removed`; their consumers take the first input of the removed node instead."""
    nodes = list(nodes)
    first = {node.name: node.input[0] for node in nodes if node.name in removed and node.input}
    result = []
    for node in nodes:
        if node.name in first:
            continue
        target = type(node)()
        target.CopyFrom(node)
        del target.input[:]
        for text in node.input:
            control = text.startswith("^")
            while source_of(text) in first:
                text = first[source_of(text)]
            target.input.append(f"^{source_of(text)}" if control else text)
        result.append(target)
    return result


def must_run_on_cpu(node: Any, pin_variables_on_cpu: bool = False) -> bool:
    """Tells if TensorFlow has no GPU kernel for a node: constants of strings and integers, and ops that make shapes."""
    node_def = getattr(node, "node_def", node)
    if getattr(getattr(node_def, "DESCRIPTOR", None), "name", "") != "NodeDef":
        raise TypeError(f"node must be an Operation or a NodeDef, received {type(node).__name__}.")
    if pin_variables_on_cpu and node_def.op in _PINNED:
        return True
    attr = {"Const": "dtype", "DynamicStitch": "T", "ParallelDynamicStitch": "T", "Cast": "SrcT"}.get(node_def.op)
    if attr is None:
        return False
    types = ("int32", "string") if node_def.op == "Const" else ("int32",)
    return as_dtype(node_def.attr[attr].type).name in types


def tensor_shape_from_node_def_name(graph: Any, input_name: str) -> TensorShape:
    """The static shape of the tensor that an input in a NodeDef names.

    >>> tf.graph_util.tensor_shape_from_node_def_name(graph, "^x")
    """
    name = input_name if ":" in input_name else f"{input_name}:0"
    shape: TensorShape = graph.get_tensor_by_name(name.removeprefix("^")).get_shape()
    return shape
