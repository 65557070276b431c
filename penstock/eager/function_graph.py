"""FuncGraph: the graph of a traced function. It can run anywhere: handles in it are nodes, not parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.data.functions import copied
from penstock.eager.datasets import makes_dataset
from penstock.eager.runtime import node_for
from penstock.eager.seeds import STREAM
from penstock.eager.tensor import EagerTensor, Handle
from penstock.errors import InaccessibleTensorError
from penstock.graph import function
from penstock.graph.graph import Graph
from penstock.graph.identity import IdentityDict
from penstock.graph.operation import GraphData, Operation, Tensor


class FuncGraph(function.FuncGraph):
    """A function's graph. Tensors with values that it captures become parameters, handles become nodes.

    `handles` has, by outer handle, the node that stands for it here; `handle_parameters` those of variables that are
    arguments, which another variable may take the place of.
    """

    def __init__(self, name: str, outer_graph: Graph) -> None:
        super().__init__(name, outer_graph)
        self.handles: IdentityDict[Tensor] = IdentityDict()
        self.handle_parameters: list[tuple[Tensor, Tensor]] = []
        self.copies_datasets = False  # for a function that other processes run: a dataset is a value of this one

    @property
    def resources(self) -> list[tuple[Tensor, Tensor]]:
        """The handles from outside, each with the node that stands for it."""
        return [*self.handle_parameters, *self.handles.items()]

    def can_capture(self, graph: GraphData) -> bool:
        return graph.is_eager or super().can_capture(graph)

    def capture(self, tensor: Tensor, op_type: str = "", name: str = "") -> Tensor:
        if not self.can_capture(tensor.graph):
            kind = InaccessibleTensorError if _is_inside(tensor.graph, self) else TypeError
            raise kind(
                f"{tensor!r} is out of scope: it was made while {getattr(tensor.graph, 'name', 'a graph')} was traced, "
                f"and has a value only there. It cannot be used by {name or op_type or 'an op'} of {self.name}. Return "
                "it from that function, or pass it as an argument."
            )
        return super().capture(tensor, op_type, name)

    def add_handle_parameter(self, tensor: Tensor) -> Tensor:
        """The node for the handle of a variable that is an argument."""
        handle = handle_of(tensor)
        assert handle is not None
        node = self._node(handle)
        self.handle_parameters.append((tensor, node))
        self._stands_for[node] = tensor
        return node

    def _node(self, handle: Handle) -> Tensor:
        with self.as_default(), self.control_dependencies(None):
            return node_for(self, handle)

    def _captured(self, tensor: Tensor) -> Tensor:
        handle = handle_of(tensor)
        if handle is not None:
            found = self.handles[tensor] = self._node(handle)
        elif self.copies_datasets and isinstance(tensor, EagerTensor) and makes_dataset(tensor.op.op_def):
            with self.as_default(), self.control_dependencies(None):
                found = copied(tensor, self, handles=True)
        elif isinstance(tensor, EagerTensor):
            found = self.add_input(tensor.dtype, tensor.shape, "captured")
            self.captured.append(tensor)
        else:
            return super()._captured(tensor)
        self._stands_for[found] = tensor
        return found


def _is_inside(graph: GraphData | None, outer: GraphData) -> bool:
    while graph is not None and graph is not outer:
        graph = graph.outer_graph
    return graph is outer


def handle_of(tensor: Tensor) -> Handle | None:
    """The resource that a tensor is the handle of: with eager execution, or in the graph of an outer function."""
    if isinstance(tensor, EagerTensor):
        return tensor._value if isinstance(tensor._value, Handle) else None
    op = tensor.op
    if tensor.dtype.base_dtype.name == "resource" and not op.input_list and op.attrs.get("shared_name"):
        return Handle(op.op_def, op.attrs, op.device)
    return None


def copy_into(graph: Graph, source: FuncGraph, given: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """Adds the operations of a function to another graph, with `given` in place of its parameters.

    Returns the copy of each tensor.
    """
    copies = dict(given)
    for outer, node in source.resources:
        if node not in copies:
            copies[node] = graph.capture(outer, "", "")
    graph.gradient_functions.update(source.gradient_functions)
    graph.held += source.held
    made: dict[Operation, Operation] = {}
    for operation in source.get_operations():
        if operation.outputs and all(t in copies for t in operation.outputs):
            continue  # a parameter or a handle
        copy = graph.add_op(
            operation.op_def,
            [copies[t] for t in operation.input_list],
            {name: value for name, value in operation.attrs.items() if name != STREAM},
            [t.dtype for t in operation.outputs],
            operation.name,
        )
        copy._frames = operation._frames
        copy.device = operation.device or copy.device
        copy.add_control_inputs([made[c] for c in operation.control if c in made])
        made[operation] = copy
        for own, new in zip(operation.outputs, copy.outputs, strict=True):
            new._shape = own._shape
            copies[own] = new
    return copies


def clone(source: FuncGraph, handles: Sequence[Tensor]) -> tuple[FuncGraph, dict[Tensor, Tensor]]:
    """A copy of a function's graph for other variables as arguments, and the copy of each of its tensors."""
    graph = FuncGraph(source.name, source.outer_graph)
    given: dict[Tensor, Tensor] = {}
    own = len(source.inputs) - len(source.captured)
    for parameter in source.inputs[:own]:
        given[parameter] = graph.add_input(parameter.dtype, parameter.shape, parameter.op.name)
    for parameter, tensor in zip(source.inputs[own:], source.captured, strict=True):
        given[parameter] = graph.capture(tensor)
    for (_, node), handle in zip(source.handle_parameters, handles, strict=True):
        given[node] = graph.add_handle_parameter(handle)
    with graph.as_default():
        return graph, copy_into(graph, source, given)
