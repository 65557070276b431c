"""FuncGraph: a function body, the branch of a cond or the body of a loop, as a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import InaccessibleTensorError
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.hooks import hooks
from penstock.graph.identity import IdentityDict, distinct
from penstock.graph.opdef import registered
from penstock.graph.operation import GraphData, Operation, Tensor


class FuncGraph(Graph):
    """A graph with parameters. A tensor of an outer graph that an op takes is captured: it becomes one more parameter.

    `inputs` are the declared parameters followed by one for each of `captured` (tensors of the outer graph).
    """

    is_function = True

    def __init__(self, name: str, outer_graph: Graph) -> None:
        super().__init__()
        self.name = name
        self.outer_graph: Graph = outer_graph
        self.equals_by_value = outer_graph.equals_by_value
        self.orders_effects = outer_graph.orders_effects
        self.seed, self.shares_seeds = outer_graph.seed, outer_graph.shares_seeds
        self.inputs: list[Tensor] = []
        self.captured: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.targets: list[Operation] = []  # run whether or not an output needs them
        self.awaited: dict[Operation, None] = {}  # outer ops that must have run before this body runs
        self._capture_of: IdentityDict[Tensor] = IdentityDict()
        self._stands_for: dict[Tensor, Tensor] = {}
        # Variables, losses and summaries made in a body belong to the program, not to the body.
        self._collections = outer_graph._collections
        self._collections_lock = outer_graph._collections_lock
        self.bodies = outer_graph.bodies
        self.bodies[name] = self

    def add_input(self, dtype: Any, shape: Any, name: str) -> Tensor:
        """A new parameter, the last of `inputs`."""
        tensor = self.parameter(dtype, shape, name)
        self.inputs.append(tensor)
        return tensor

    def parameter(self, dtype: Any, shape: Any, name: str) -> Tensor:
        """A new parameter that is not among `inputs` yet."""
        placeholder = registered("Placeholder")
        assert placeholder is not None
        with self.as_default(), self.control_dependencies(None):
            tensor: Tensor = placeholder(dtype=dtype, shape=shape, name=name)
        return tensor

    def capture(self, tensor: Tensor, op_type: str = "", name: str = "") -> Tensor:
        """The parameter that stands for a tensor of an outer graph."""
        found: Tensor | None = self._capture_of.get(tensor)
        if found is None:
            if not self.can_capture(tensor.graph):
                if tensor.graph.is_function:
                    raise InaccessibleTensorError(
                        f"Operation '{name}' ({op_type}) in '{self.name}': the input {tensor!r} is out of scope, since "
                        "it was made in another function, branch or loop. Return it from there, or write it to a "
                        f"TensorArray or variable. It was defined at {tensor.op.definition}"
                    )
                return super().capture(tensor, op_type, name)
            found = self._capture_of[tensor] = self._captured(tensor)
        return found

    def can_capture(self, graph: GraphData) -> bool:
        """Tells if the tensors of `graph` can be captured: `graph` must enclose this one."""
        outer = self.outer_graph
        return graph is outer or (isinstance(outer, FuncGraph) and outer.can_capture(graph))

    def _captured(self, tensor: Tensor) -> Tensor:
        outer = tensor if tensor.graph is self.outer_graph else self.outer_graph.capture(tensor, "", "")
        found: Tensor | None = self._capture_of.get(outer)  # it may have been captured from further out before
        if found is None:
            found = self.add_input(outer.dtype, outer.shape, f"{outer.op.name.rpartition('/')[2]}_captured")
            self.captured.append(outer)
            self._capture_of[outer] = found
            self._stands_for[found] = outer
        return found

    def stands_for(self, parameter: Tensor) -> Tensor | None:
        """The outer tensor that a parameter was captured from; None for a declared parameter."""
        return self._stands_for.get(parameter)

    def captures_of(self, ops: set[Operation]) -> dict[Tensor, Tensor]:
        return {inner: outer for inner, outer in self._stands_for.items() if outer.op in ops}

    def capture_control(self, op: Operation) -> None:
        """Records an outer op that ops of this body wait for: the node that holds the body waits for it instead."""
        self.awaited[op] = None


class Function:
    """A finished body: the value of an attr of a control-flow node or a call.

    >>> Function.trace("body", [(tf.float32, [])], lambda x: x + 1.0)
    """

    __slots__ = ("derived", "graph", "inputs", "name", "outputs")

    def __init__(
        self, name: str, graph: FuncGraph, inputs: list[Tensor] | None = None, outputs: list[Tensor] | None = None
    ) -> None:
        self.name = name
        self.graph = graph
        # Several functions may be views of one graph, each with some of its parameters and tensors.
        self.inputs = graph.inputs if inputs is None else inputs
        self.outputs = graph.outputs if outputs is None else outputs
        self.derived: dict[Any, Any] = {}  # facts that other modules have derived about the body, by name

    @property
    def captured(self) -> list[Tensor]:
        return self.graph.captured

    def with_more(self, inputs: Sequence[Tensor] = (), outputs: Sequence[Tensor] = ()) -> Function:
        """This body with more parameters and results."""
        return Function(self.name, self.graph, [*self.inputs, *inputs], [*self.outputs, *outputs])

    def narrowed(self, inputs: Sequence[int], outputs: Sequence[int]) -> Function:
        """This body with only the given parameters and results; returns the same object for the same positions."""
        key = ("narrowed", tuple(inputs), tuple(outputs))
        found: Function | None = self.derived.get(key)
        if found is None:
            kept, wanted = [self.inputs[i] for i in inputs], [self.outputs[i] for i in outputs]
            found = self.derived.setdefault(key, Function(self.name, self.graph, kept, wanted))
        return found

    def operations(self) -> list[Operation]:
        """The operations that the results and the effects need, in the order in which they were made."""
        return sorted(_needed_by([*(t.op for t in self.outputs), *self.graph.targets]), key=lambda op: op._id)

    def dependencies(self) -> list[frozenset[int]]:
        """For each result, the positions of the parameters that it needs; computed once."""
        found: list[frozenset[int]] | None = self.derived.get("dependencies")
        if found is None:
            position = {t.op: i for i, t in enumerate(self.inputs)}
            needed = [_needed_by([t.op]) for t in self.outputs]
            found = [frozenset(i for op, i in position.items() if op in ops) for ops in needed]
            self.derived["dependencies"] = found
        return found

    def needed_by_effects(self) -> frozenset[int]:
        """The positions of the parameters that the operations need which run whatever results are asked for."""
        targets = self.graph.targets
        ops = _needed_by(targets) if targets else set()
        return frozenset(i for i, t in enumerate(self.inputs) if t.op in ops)

    @staticmethod
    def trace(
        name: str,
        specs: Sequence[tuple[Any, Any]],
        function: Callable[..., Sequence[Tensor]],
        graph: Graph | None = None,
        is_branch: bool = False,
    ) -> Function:
        """Calls `function` on new parameters of the given (dtype, shape) and keeps the results as outputs."""
        outer = graph or get_default_graph()
        unique = outer.unique_function_name(name)
        body = FuncGraph(unique, outer)
        body.is_branch = is_branch
        with body.as_default():
            parameters = [body.add_input(dtype, shape, f"arg{i}") for i, (dtype, shape) in enumerate(specs)]
            outputs = function(*parameters)
            body.outputs = [t if t.graph is body else body.capture(t) for t in outputs]
        if body.orders_effects:
            hooks.order_effects(body)
        return Function(unique, body)

    def __repr__(self) -> str:
        return f"<Function {self.name}>"


def _needed_by(operations: Sequence[Operation]) -> set[Operation]:
    """The given operations and all operations of their graph that they need."""
    seen = set(operations)
    stack = list(seen)
    while stack:
        op = stack.pop()
        fresh = {*(t.op for t in op.input_list), *op.control} - seen
        seen |= fresh
        stack += fresh
    return seen


def share_captures(functions: Sequence[Function]) -> list[Tensor]:
    """Gives all bodies the same captured parameters, in the same order, and returns the outer tensors of these."""
    union = distinct(t for f in functions for t in f.captured)
    for function in functions:
        body = function.graph
        own = len(body.inputs) - len(body.captured)
        parameters = [body.capture(t) for t in union]
        body.inputs[:] = body.inputs[:own] + parameters
        body.captured[:] = union
    return union


def wait_outside(operation: Operation, functions: Sequence[Function]) -> None:
    """Makes the node that holds bodies wait for the outer ops that ops of the bodies wait for."""
    awaited = dict.fromkeys(op for f in functions for op in f.graph.awaited)
    operation.add_control_inputs([op for op in awaited if op.graph is operation.graph])
    if isinstance(operation.graph, FuncGraph):
        for op in awaited:
            if op.graph is not operation.graph:
                operation.graph.capture_control(op)


@dataclass(frozen=True, slots=True)
class Call:
    """An op type with its attrs, as the value of another node's attr: `Vjp` names its forward op this way. Calls nest.

    >>> Call("MatMul", {"transpose_a": True, ...})
    """

    op: str
    attrs: dict[str, Any]

    def __hash__(self) -> int:
        return hash((self.op, repr(self.attrs)))


def bodies_in(attrs: Mapping[str, Any]) -> Iterator[FuncGraph]:
    """The bodies among the attrs of an operation, each followed by those of the operations in it."""
    for value in attrs.values():
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, Function):
                yield item.graph
                for operation in item.graph.get_operations():
                    yield from bodies_in(operation.attrs)
