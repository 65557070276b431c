"""GradientBody: the body of a gradient node, made by walking the body of the forward node backwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.autodiff.walk import Walk
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import resource, variant
from penstock.graph.function import FuncGraph, Function
from penstock.graph.graph import Graph
from penstock.graph.operation import GraphData, Operation, Tensor
from penstock.ops.array.creation import zeros, zeros_like
from penstock.ops.array.passthrough import identity
from penstock.ops.array.reshaping import shape
from penstock.ops.engine.vjp import differentiable
from penstock.ops.state.variable_ops import read_variable, variable_shape


class GradientBody(FuncGraph):
    """A body that can use the tensors of a forward body: `recall` gets their values."""

    def __init__(self, name: str, outer: Graph, forward: Function, recall: Callable[[Tensor], Tensor]) -> None:
        super().__init__(outer.unique_function_name(name), outer)
        self.forward = forward
        self._recall = recall

    def can_capture(self, graph: GraphData) -> bool:
        return graph is self.forward.graph or super().can_capture(graph)

    def _captured(self, tensor: Tensor) -> Tensor:
        if tensor.graph is not self.forward.graph:
            return super()._captured(tensor)
        with self.as_default(), self.control_dependencies(None):
            if tensor.op.type == "Const":
                return make_constant(tensor.op.attrs["value"], tensor.dtype)
            return self._recall(tensor)

    def gradients(self, results: Sequence[int], given: Sequence[Any], parameters: Sequence[int]) -> list[Any]:
        """The gradients of the forward body's parameters at these positions, given those of its results."""
        with self.as_default():
            walk = Walk(self)
            xs = [self.forward.inputs[i] for i in parameters]
            walk.run([self.forward.outputs[i] for i in results], list(given), xs, [])
            return [walk.gradient_of(x) for x in xs]

    def zeros_like(self, tensor: Tensor) -> Tensor:
        """Zeros in the shape of a tensor of the forward body."""
        if tensor.shape.is_fully_defined() and tensor.dtype is not variant:
            return zeros(tensor.shape, tensor.dtype.base_dtype)
        return zeros_like(self.capture(tensor))

    def finished(self, own: Sequence[Tensor], outputs: Sequence[Tensor]) -> Function:
        """This body with `own` as its first parameters, before those that it has captured."""
        self.inputs[:] = [*own, *(self._capture_of[t] for t in self.captured)]
        self.outputs = [t if t.graph is self else self.capture(t) for t in outputs]
        return Function(self.name, self)


def add_result(operation: Operation, tensor: Tensor) -> Tensor:
    """Adds a last output to a control-flow node, like `tensor`; its attrs must already include it."""
    output = Tensor(operation, len(operation.outputs), tensor.dtype.base_dtype, tensor.shape)
    operation.attrs.setdefault("_own_results", len(operation.outputs))
    operation.outputs.append(output)
    operation.graph.touch()
    return output


def as_value(tensor: Tensor) -> Tensor:
    """The value of a reference; any other tensor as it is."""
    return identity(tensor) if tensor.dtype._is_ref_dtype else tensor


def shape_of(tensor: Tensor) -> Tensor:
    """The shape of a tensor, or of the variable that a handle refers to."""
    found: Tensor = variable_shape(tensor) if tensor.dtype is resource else shape(tensor)
    return found


def zero_gradient(tensor: Tensor, gradient: Tensor) -> Tensor:
    """Zeros for the gradient of `tensor`, which has the type of `gradient`; a handle stands for its variable."""
    if gradient.shape.is_fully_defined() and gradient.dtype is not variant:
        return zeros(gradient.shape, gradient.dtype.base_dtype)
    if tensor.dtype is resource:
        return zeros_like(read_variable(tensor, dtype=gradient.dtype.base_dtype))
    return zeros_like(tensor)


def dense(gradients: Sequence[Any], outputs: Sequence[Tensor]) -> dict[int, Tensor]:
    """The gradients that are not None, by position, as tensors; types without a derivative are left out."""
    return {
        i: convert_to_tensor(g)
        for i, (g, t) in enumerate(zip(gradients, outputs, strict=True))
        if g is not None and differentiable(t.dtype)
    }
