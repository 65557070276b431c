"""FuncGraph: a function body, the branch of a cond or the body of a loop, as a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.opdef import registered
from penstock.graph.operation import Operation
from penstock.graph.tensor import Tensor


class FuncGraph(Graph):
    """A graph with parameters. What its ops take from an outer graph is captured: it becomes one more parameter.

    `inputs` are the declared parameters followed by one for each of `captured` (tensors of the outer graph).
    """

    is_function = True

    def __init__(self, name: str, outer_graph: Graph) -> None:
        super().__init__()
        self.name = name
        self.outer_graph = outer_graph
        self.seed = outer_graph.seed
        self.inputs: list[Tensor] = []
        self.captured: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.targets: list[Operation] = []  # run whether or not an output needs them
        self._capture_of: dict[Tensor, Tensor] = {}
        # Variables, losses and summaries made in a body belong to the program, not to the body.
        self._collections = outer_graph._collections
        self._collections_lock = outer_graph._collections_lock

    def add_input(self, dtype: Any, shape: Any, name: str) -> Tensor:
        """A new parameter."""
        placeholder = registered("Placeholder")
        assert placeholder is not None
        with self.as_default(), self.control_dependencies(None):
            tensor: Tensor = placeholder(dtype=dtype, shape=shape, name=name)
        self.inputs.append(tensor)
        return tensor

    def capture(self, tensor: Tensor, op_type: str = "", name: str = "") -> Tensor:
        """The parameter that stands for a tensor of an outer graph."""
        found = self._capture_of.get(tensor)
        if found is not None:
            return found
        graph: Graph | None = self.outer_graph
        while graph is not None and graph is not tensor.graph:
            graph = graph.outer_graph
        if graph is None:
            return super().capture(tensor, op_type, name)
        if tensor.op.type == "Const" and tensor.op.attrs["value"].size <= 64:
            found = self._copy_constant(tensor)
        else:
            assert self.outer_graph is not None
            outer = tensor if tensor.graph is self.outer_graph else self.outer_graph.capture(tensor, op_type, name)
            found = self._capture_of.get(outer)  # it may have come from further out before
            if found is None:
                found = self.add_input(tensor.dtype, tensor.shape, f"{tensor.op.name.rpartition('/')[2]}_captured")
                self.captured.append(outer)
                self._capture_of[outer] = found
        self._capture_of[tensor] = found
        return found

    def _copy_constant(self, tensor: Tensor) -> Tensor:
        """Small constants are copied in, so that axes and shapes stay known inside."""
        attrs = {"dtype": tensor.op.attrs["dtype"], "value": tensor.op.attrs["value"]}
        with self.control_dependencies(None), self.name_scope(None):
            copy = self.add_op(tensor.op.op_def, (), attrs, (tensor.dtype,), tensor.op.name.rpartition("/")[2])
        copy.outputs[0]._shape = tensor.shape
        return copy.outputs[0]


class Function:
    """A finished body: what an attr of a control-flow node or a call holds.

    >>> Function.trace("body", [(tf.float32, [])], lambda x: x + 1.0)
    """

    __slots__ = ("derived", "graph", "name")

    def __init__(self, name: str, graph: FuncGraph) -> None:
        self.name = name
        self.graph = graph
        self.derived: dict[str, Any] = {}  # what others have worked out about the body, by name

    @property
    def inputs(self) -> list[Tensor]:
        return self.graph.inputs

    @property
    def outputs(self) -> list[Tensor]:
        return self.graph.outputs

    @property
    def captured(self) -> list[Tensor]:
        return self.graph.captured

    @staticmethod
    def trace(
        name: str,
        specs: Sequence[tuple[Any, Any]],
        function: Callable[..., Sequence[Tensor]],
        graph: Graph | None = None,
    ) -> Function:
        """Calls `function` on new parameters of the given (dtype, shape) and keeps what it returns as outputs."""
        outer = graph or get_default_graph()
        unique = outer.unique_function_name(name)
        body = FuncGraph(unique, outer)
        with body.as_default():
            parameters = [body.add_input(dtype, shape, f"arg{i}") for i, (dtype, shape) in enumerate(specs)]
            outputs = function(*parameters)
            body.outputs = [t if t.graph is body else body.capture(t) for t in outputs]
        return Function(unique, body)

    def __repr__(self) -> str:
        return f"<Function {self.name}>"


def share_captures(functions: Sequence[Function]) -> list[Tensor]:
    """Gives all bodies the same captured parameters, in the same order, and returns what they stand for outside."""
    union = list(dict.fromkeys(t for f in functions for t in f.captured))
    for function in functions:
        body = function.graph
        own = len(body.inputs) - len(body.captured)
        parameters = [body.capture(t) for t in union]
        body.inputs[:] = body.inputs[:own] + parameters
        body.captured[:] = union
    return union


@dataclass(frozen=True, slots=True)
class Call:
    """An op type with its attrs, as the value of another node's attr: `Vjp` names its forward op so. Calls nest.

    >>> Call("MatMul", {"transpose_a": True, ...})
    """

    op: str
    attrs: dict[str, Any]

    def __hash__(self) -> int:
        return hash((self.op, repr(self.attrs)))
