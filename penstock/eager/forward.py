"""ForwardAccumulator: derivatives along a direction, computed with the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.autodiff.registry import get_gradient_function
from penstock.autodiff.walk import UnconnectedGradients
from penstock.eager.tape import GradientTape
from penstock.eager.tensor import EagerOperation
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Operation, Tensor
from penstock.graph.recording import recorders
from penstock.ops.array.creation import zeros_like
from penstock.ops.engine.vjp import differentiable


class ForwardAccumulator:
    """Computes the products of jacobians with given tangents, beside the operations that are run in it.

    >>> x = tf.constant([2.0, 3.0])
    >>> with tf.autodiff.ForwardAccumulator(primals=x, tangents=tf.constant([1.0, 0.0])) as acc:
    ...     y = x * x
    >>> acc.jvp(y).numpy()
    array([4., 0.], dtype=float32)
    """

    keeps_operations = True

    def __init__(self, primals: Any, tangents: Any) -> None:
        self._tangents: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []  # ids are keys only while their tensors live
        self._recording = False
        nest.assert_same_structure(primals, tangents)
        for primal, tangent in zip(nest.flatten(primals), nest.flatten(tangents), strict=True):
            self._note(_tensor(primal), convert_to_tensor(tangent, dtype=primal.dtype.base_dtype))

    def _note(self, primal: Tensor, tangent: Tensor) -> None:
        self._tangents[id(primal)] = tangent
        self._kept.append(primal)

    def __enter__(self) -> ForwardAccumulator:
        if self._recording:
            raise ValueError("Accumulator is already recording.")
        self._recording = True
        recorders.items = [*recorders.items, self]
        return self

    def __exit__(self, *exc: Any) -> None:
        self._recording = False
        recorders.items = [r for r in recorders.items if r is not self]

    def jvp(self, primals: Any, unconnected_gradients: Any = UnconnectedGradients.NONE) -> Any:
        """The product of the jacobian of `primals` with the tangents; None if they do not depend on them."""
        is_zero = UnconnectedGradients(unconnected_gradients) is UnconnectedGradients.ZERO

        def found(primal: Any) -> Any:
            tangent = self._tangents.get(id(_tensor(primal)))
            return zeros_like(primal) if tangent is None and is_zero else tangent

        return nest.map_structure(found, primals)

    def tracks(self, tensors: Sequence[Tensor]) -> bool:
        """Tells if any of these has a tangent."""
        return any(id(t) in self._tangents for t in tensors)

    def variable_accessed(self, variable: Any) -> None:
        """Does nothing: only variables that are primals have tangents."""

    def record(self, operation: Operation) -> None:
        """Computes the tangents of an operation's results: the gradient is linear, so its own gradient gives them."""
        if not self.tracks(operation.input_list):
            return
        own = operation.gradient if isinstance(operation, EagerOperation) else None
        gradient = own or get_gradient_function(operation)
        outputs = [t for t in operation.outputs if differentiable(t.dtype)]
        if gradient is None or not outputs:
            return
        before, recorders.items = recorders.items, [r for r in recorders.items if r is not self]
        try:
            with GradientTape() as tape:
                tape.watch(dys := [zeros_like(t) for t in outputs])
                rest = iter(dys)
                grads = gradient(
                    operation, *[next(rest) if differentiable(t.dtype) else None for t in operation.outputs]
                )
            flat = list(grads) if isinstance(grads, (list, tuple)) else [grads]
            pairs = [
                (convert_to_tensor(grad), self._tangents[id(t)])
                for grad, t in zip(flat, operation.input_list, strict=True)
                if grad is not None and id(t) in self._tangents
            ]
            found = tape.gradient([g for g, _ in pairs], dys, [t for _, t in pairs]) if pairs else []
        finally:
            recorders.items = before
        for output, tangent in zip(outputs, found, strict=False):
            if tangent is not None:
                self._note(output, tangent)


def _tensor(value: Any) -> Any:
    return getattr(value, "handle", value)
