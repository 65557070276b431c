"""Prune: keep what the fetches need, cut at what is fed."""

from __future__ import annotations

from collections.abc import Iterable, Set
from operator import attrgetter
from typing import Any

from penstock.errors import InvalidArgumentError
from penstock.graph.dtype import DType
from penstock.graph.function import FuncGraph, Function
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.passes.ir import Edge, NameInBody, Node, Subgraph, sorted_nodes
from penstock.passes.narrow import Narrowed, can_be_narrowed, narrowed, own_results

_ANY = TensorShape.of(None)
_NOTHING: list[Any] = []  # one list for all nodes without inputs: nobody changes it


@op("_Arg", "-> output: T", host=True, stateful=True)
def arg(*, T: DType, index: int, shape: TensorShape = _ANY) -> None:
    """The place of a fed tensor, with the shape that it was declared with; the executor puts the value there."""


def prune(
    feeds: Iterable[Tensor], fetches: Iterable[Tensor], targets: Iterable[Operation], done: Set[Operation] = frozenset()
) -> Subgraph:
    """The part of the graph that `fetches` and `targets` need, with a node `_Arg` in place of each fed tensor.

    Nothing waits for the operations in `done`: they have run in an earlier piece of the same step.
    """
    args = {t: {"T": t.dtype.base_dtype, "shape": t.shape} for t in feeds}
    return _prune(args, list(fetches), list(targets), done)


def body_of(function: Function) -> Subgraph:
    """The body of a function as a Subgraph whose feeds are its parameters; references stay references."""
    targets = list(function.graph.targets)
    args = {t: {"T": t.dtype, "shape": _ANY} for t in function.inputs}
    return _prune(args, list(function.outputs), targets, frozenset())


def _prune(
    feeds: dict[Tensor, dict[str, Any]], wanted: list[Tensor], targets: list[Operation], done: Set[Operation]
) -> Subgraph:
    fed: dict[Tensor, Node] = {}
    for i, (tensor, attrs) in enumerate(feeds.items()):
        fed[tensor] = Node(f"_arg/{tensor.name}", arg, {**attrs, "index": i}, (attrs["T"],), order=-1)
    needs = _Needs(fed, done)
    for tensor in wanted:
        needs.tensor(tensor)
    for target in targets:
        needs.operation(target)
    needs.close()
    narrow = {op: narrowed(op, used) for op, used in needs.results.items()}
    moved = {op.outputs[o]: i for op, form in narrow.items() for i, o in enumerate(form.outputs)}
    given: dict[Tensor, Edge] = {tensor: (node, 0) for tensor, node in fed.items()}
    nodes: dict[Operation, Node] = {}

    def edge(tensor: Tensor) -> Edge:
        return given.get(tensor) or (nodes[tensor.op], moved.get(tensor, tensor.value_index))

    def connect(operation: Operation, node: Node) -> None:
        inputs = operation.input_list
        if operation in narrow:
            inputs = [inputs[i] for i in narrow[operation].inputs]
        if inputs:
            node.inputs = [edge(tensor) for tensor in inputs]
        if operation.control:
            node.controls = [needs.stand_in(c) or nodes[c] for c in operation.control if c not in done]

    late: list[Operation] = []
    for operation in sorted(needs.operations, key=attrgetter("_id")):
        node = nodes[operation] = _node(operation, narrow.get(operation))
        try:
            connect(operation, node)
        except KeyError:  # it takes or waits for what was made after it
            late.append(operation)
    for operation in late:
        connect(operation, nodes[operation])
    every = [*fed.values(), *nodes.values()]
    return Subgraph(
        nodes=sorted_nodes(every) if late else every,
        feeds=list(fed.values()),
        fetches=[edge(tensor) for tensor in wanted],
        targets=[nodes[t] for t in targets],
    )


class _Needs:
    """Finds the operations that a step needs, and which results it needs of those that hold bodies."""

    def __init__(self, fed: dict[Tensor, Node], done: Set[Operation]) -> None:
        self._fed = fed
        self._done = done
        self.operations: dict[Operation, None] = {}
        self.results: dict[Operation, set[int]] = {}
        self._stack: list[tuple[Operation, int | None]] = []

    def tensor(self, tensor: Tensor) -> None:
        if tensor not in self._fed:
            self._stack.append((tensor.op, tensor.value_index))

    def operation(self, operation: Operation) -> None:
        self._stack.append((operation, None))

    def stand_in(self, operation: Operation) -> Node | None:
        """The node to wait for in place of a placeholder that is fed: it cannot run itself."""
        return self._fed.get(operation.outputs[0]) if operation.type == "Placeholder" else None

    def close(self) -> None:
        """Adds all that is needed by what is needed."""
        stack, found, fed = self._stack, self.operations, self._fed
        while stack:
            operation, result = stack.pop()
            if can_be_narrowed(operation):
                self._part(operation, result)
            elif operation not in found:
                found[operation] = None
                stack += [(t.op, t.value_index) for t in operation.input_list if t not in fed]
                if operation.control:
                    self._controls(operation)

    def _part(self, operation: Operation, result: int | None) -> None:
        used = self.results.setdefault(operation, set())
        if operation not in self.operations:
            self.operations[operation] = None
            self._controls(operation)
        elif result in used:
            return
        used |= own_results(operation) if result is None else {result}
        for i in narrowed(operation, used).inputs:
            self.tensor(operation.input_list[i])

    def _controls(self, operation: Operation) -> None:
        for before in operation.control:
            if before not in self._done and not self.stand_in(before):
                self.operation(before)


def _node(operation: Operation, form: Narrowed | None) -> Node:
    op_def = operation.op_def
    if op_def.name == "Placeholder":
        dtype = operation.attrs["dtype"].name
        raise InvalidArgumentError(
            None,
            operation,
            f"You must feed a value for placeholder tensor '{operation.name}' with dtype {dtype} and shape "
            f"{operation.outputs[0].shape}",
        )
    outputs = operation.outputs
    dtypes = (outputs[0].dtype,) if len(outputs) == 1 else tuple([t.dtype for t in outputs])
    attrs = operation.attrs
    if form is not None:
        dtypes, attrs = tuple(dtypes[i] for i in form.outputs), form.attrs
    graph = operation.graph
    name = NameInBody(operation.name, graph.name) if isinstance(graph, FuncGraph) else operation.name
    return Node(name, op_def, attrs, dtypes, _NOTHING, _NOTHING, operation.device, operation._id)
