"""Prune: keep what the fetches need, cut at what is fed."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import InvalidArgumentError
from penstock.graph.dtype import DType
from penstock.graph.function import Function
from penstock.graph.opdef import OpDef, op
from penstock.graph.operation import Operation
from penstock.graph.tensor import Tensor
from penstock.passes.ir import Node, Subgraph, sorted_nodes


@op("_Arg", "-> output: T", host=True, stateful=True)
def arg(*, T: DType, index: int) -> None:
    """The place of a fed tensor; the executor puts the value there."""


def prune(feeds: Iterable[Tensor], fetches: Iterable[Tensor], targets: Iterable[Operation]) -> Subgraph:
    """The part of the graph that `fetches` and `targets` need, with a node `_Arg` in place of each fed tensor."""
    return _prune({t: t.dtype.base_dtype for t in feeds}, list(fetches), list(targets))


def body_of(function: Function) -> Subgraph:
    """The body of a function as a Subgraph whose feeds are its parameters; references stay references."""
    return _prune({t: t.dtype for t in function.inputs}, list(function.outputs), list(function.graph.targets))


def _prune(feeds: dict[Tensor, DType], wanted: list[Tensor], targets: list[Operation]) -> Subgraph:
    fed: dict[Tensor, Node] = {}
    for i, (tensor, dtype) in enumerate(feeds.items()):
        fed[tensor] = Node(f"_arg/{tensor.name}", arg, {"T": dtype, "index": i}, (dtype,), order=-1)
    nodes: dict[Operation, Node] = {}

    def stand_in(operation: Operation) -> Node | None:
        """What to wait for in place of a placeholder that is fed: it cannot run itself."""
        return fed.get(operation.outputs[0]) if operation.type == "Placeholder" else None

    stack = [t.op for t in wanted if t not in fed] + targets
    while stack:
        operation = stack.pop()
        if operation in nodes:
            continue
        nodes[operation] = _node(operation)
        stack += [t.op for t in operation.input_list if t not in fed and t.op not in nodes]
        stack += [c for c in operation.control if c not in nodes and not stand_in(c)]
    for operation, node in nodes.items():
        node.inputs = [(fed[t], 0) if t in fed else (nodes[t.op], t.value_index) for t in operation.input_list]
        node.controls = [stand_in(c) or nodes[c] for c in operation.control]
    return Subgraph(
        nodes=sorted_nodes([*fed.values(), *nodes.values()]),
        feeds=list(fed.values()),
        fetches=[(fed[t], 0) if t in fed else (nodes[t.op], t.value_index) for t in wanted],
        targets=[nodes[t] for t in targets],
    )


def _node(operation: Operation) -> Node:
    op_def: OpDef = operation.op_def
    if op_def.name == "Placeholder":
        dtype = operation.attrs["dtype"].name
        raise InvalidArgumentError(
            None, operation,
            f"You must feed a value for placeholder tensor '{operation.name}' with dtype {dtype} and shape "
            f"{operation.outputs[0].shape}",
        )  # fmt: skip
    dtypes = tuple(t.dtype for t in operation.outputs)
    return Node(operation.name, op_def, operation.attrs, dtypes, device=operation.device, order=operation._id)
