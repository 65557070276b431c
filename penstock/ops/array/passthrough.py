"""Ops that return their input: identities, stops for gradients, checks of values and shapes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.opdef import op, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.shapes import brief, merge
from penstock.kernel.types import FLOATS, Array, xp

# Identities


@op("Identity", "T -> output: T", shape=shapes.unchanged, numpy=True, grad=lambda op, grad: [grad])
def identity_op(input: Array) -> Array:
    return input


def identity(input: TensorLike, name: str | None = None) -> Tensor:
    """The same values as a new tensor, which can have its own name, device or control dependencies."""
    tensor: Tensor = identity_op(input, name=name)
    return tensor


@op(
    "IdentityN",
    "list(T) -> output: list(T)",
    numpy=True,
    grad=lambda op, *grads: list(grads),
    shape=lambda op: [t.shape for t in op.input_list],
)
def identity_n(input: list[Array]) -> list[Array]:
    return list(input)


@op("StopGradient", "T -> output: T", shape=shapes.unchanged, numpy=True, no_gradient=True)
def stop_gradient_op(input: Array) -> Array:
    return input


def stop_gradient(input: TensorLike, name: str | None = None) -> Tensor:
    """The same values, but a constant to `tf.gradients`."""
    tensor: Tensor = stop_gradient_op(input, name=name)
    return tensor


def refuse_gradient(op: Operation, *_: Any) -> Any:
    """The `grad=` of ops that TensorFlow has no gradient for."""
    raise LookupError(f"No gradient defined for operation '{op.name}' (op type: {op.type}).")


def _prevent_gradient(op: Operation, grad: Tensor) -> Any:
    raise LookupError(f"Gradient explicitly disabled at '{op.name}'. Reason: {op.attrs['message']!r}")


@op("PreventGradient", "T -> output: T", shape=shapes.unchanged, numpy=True, grad=_prevent_gradient)
def prevent_gradient(input: Array, *, message: str = "") -> Array:
    return input


@op("GuaranteeConst", "T -> output: T", shape=shapes.unchanged, stateful=True, grad=refuse_gradient)
def guarantee_const(input: Array) -> Array:
    return input


# Checks


@op(
    "CheckNumerics",
    "T -> output: T",
    shape=shapes.unchanged,
    stateful=True,
    T=FLOATS,
    grad=lambda op, grad: [check_numerics(grad, "Not a number (NaN) or infinity (Inf) values detected in gradient.")],
)
def check_numerics_op(tensor: Array, *, message: str) -> Array:
    # `{}` in a user's message must not be taken as a placeholder.
    text = message.replace("{", "{{").replace("}", "}}")
    nan, inf = xp(tensor).isnan(tensor).any(), xp(tensor).isinf(tensor).any()
    require(~(nan & inf), text + " : Tensor had NaN and Inf values")
    require(~nan, text + " : Tensor had NaN values")
    require(~inf, text + " : Tensor had Inf values")
    return tensor


def check_numerics(tensor: TensorLike, message: str, name: str | None = None) -> Tensor:
    """Returns `tensor`; fails with InvalidArgumentError at run time if it holds a NaN or an infinity."""
    result: Tensor = check_numerics_op(tensor, message=message, name=name)
    return result


def verify_tensor_all_finite(
    t: TensorLike = None,
    msg: str | None = None,
    name: str | None = None,
    x: TensorLike = None,
    message: str | None = None,
) -> Tensor:
    """`t` after a check that all its values are finite."""
    value = t if x is None else x
    with name_scope(name, "VerifyFinite", [value]):
        tensor = convert_to_tensor(value, name="x")
        checked = check_numerics(tensor, msg or message or "")
        with control_dependencies([checked]):
            return identity(tensor, name="control_dependency")


assert_all_finite = verify_tensor_all_finite


@op("Timestamp", "-> ts: float64", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def timestamp() -> Any:
    return np.array(time.time())


def add_check_numerics_ops() -> Operation:
    """An operation that checks every float tensor of the graph so far; run it with the training step."""
    checks: list[Operation] = []
    for operation in get_default_graph().get_operations():
        for output in operation.outputs:
            if output.dtype in (dt.float16, dt.float32, dt.float64):
                with control_dependencies(checks[-1:]):
                    checks.append(check_numerics(output, message=output.name).op)
    with control_dependencies(checks):
        result: Operation = op_of("NoOp")(name="group_deps")
        return result


def _ensured(op: Operation) -> list[TensorShape]:
    return [merge(op.attrs["shape"], op.input_list[0].shape)]


@op("EnsureShape", "T -> output: T", shape=_ensured, numpy=True, grad=lambda op, grad: [grad])
def ensure_shape_op(input: Array, *, shape: TensorShape) -> Array:
    if not shape.is_compatible_with(input.shape):
        raise ValueError(f"Shape of tensor {brief(input.shape)} is not compatible with expected shape {brief(shape)}.")
    return input


def ensure_shape(x: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Returns `x`; checks its shape against `shape` while building and at run time."""
    tensor: Tensor = ensure_shape_op(x, shape=as_shape(shape), name=name)
    return tensor
