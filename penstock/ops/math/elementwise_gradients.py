"""Gradients of elementwise ops, with the same nodes as in TensorFlow, so that names in graphs agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.graph.convert import make_constant
from penstock.graph.opdef import gradient_of
from penstock.graph.opdef import op as declare
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies
from penstock.graph.shape import TensorShape
from penstock.jaxprs.symbols import broadcast_shapes
from penstock.kernel.types import INDEX32, Array
from penstock.ops.array import creation, reshaping, selection
from penstock.ops.math import arithmetic, casting, compare, reduce, unary

Grads = list[Any]


@declare(
    "BroadcastGradientArgs",
    "T, T -> r0: T, r1: T",
    static="s0 s1",
    numpy=True,
    no_gradient=True,
    T=INDEX32,
    shape=lambda op: [TensorShape.of((None,)), TensorShape.of((None,))],
)
def broadcast_gradient_args(s0: Array, s1: Array) -> tuple[Array, Array]:
    """The axes along which arrays of the shapes s0 and s1 are repeated when they broadcast."""
    broadcast_shapes(s0.tolist(), s1.tolist())  # raises ValueError if they do not broadcast
    rank = max(len(s0), len(s1))
    a, b = ([1] * (rank - len(s)) + s.tolist() for s in (s0, s1))
    first = [i for i in range(rank) if a[i] == 1 and b[i] != 1]
    second = [i for i in range(rank) if b[i] == 1 and a[i] != 1]
    index = np.int32 if s0.dtype == object else s0.dtype
    return np.array(first, index), np.array(second, index)


def reduction_axes(x: TensorShape, y: TensorShape) -> tuple[list[int], list[int]] | None:
    """The axes along which each of two broadcast shapes was repeated; None if it depends on unknown sizes."""
    if x.rank is None or y.rank is None:
        return None
    rank = max(x.rank, y.rank)
    x_dims = [1] * (rank - x.rank) + x.as_list()
    y_dims = [1] * (rank - y.rank) + y.as_list()
    x_axes, y_axes = [], []
    for axis, (dx, dy) in enumerate(zip(x_dims, y_dims, strict=True)):
        if dx == 1 and dy != 1:
            x_axes.append(axis)
        elif dy == 1 and dx != 1:
            y_axes.append(axis)
        elif dx is None or dy is None:
            return None
    return x_axes, y_axes


def unbroadcast(x: Tensor, y: Tensor, x_grad: Any, y_grad: Any) -> Grads:
    """Sums gradients that have the shape of `x op y` down to the shapes of x and y."""
    x_shape, y_shape = reshaping.shape(x), reshaping.shape(y)
    axes = reduction_axes(x.shape, y.shape)
    if axes is None:
        x_axes, y_axes = broadcast_gradient_args(x_shape, y_shape)
        return [_summed(x_grad, x_axes, x_shape), _summed(y_grad, y_axes, y_shape)]
    (x_known, y_known), (x_rank, y_rank) = axes, (x.shape.rank or 0, y.shape.rank or 0)
    return [
        _summed(x_grad, x_known, x_shape) if x_known or x_rank < y_rank else x_grad,
        _summed(y_grad, y_known, y_shape) if y_known or y_rank < x_rank else y_grad,
    ]


def _summed(grad: Any, axes: Any, shape: Tensor) -> Any:
    # With keepdims more of the shape stays known, which the reshape then checks.
    return None if grad is None else reshaping.reshape(reduce.reduce_sum(grad, axes, keepdims=True), shape)


def _same_shapes(*tensors: Any) -> bool:
    first = tensors[0].shape
    return all(isinstance(t, Tensor) and t.shape.is_fully_defined() and t.shape == first for t in tensors)


@gradient_of(arithmetic.add_v1, arithmetic.add_v2)
def add(op: Operation, grad: Any) -> Grads:
    x, y = op.inputs
    return [grad, grad] if _same_shapes(x, y, grad) else unbroadcast(x, y, grad, grad)


@gradient_of(arithmetic.sub)
def sub(op: Operation, grad: Any) -> Grads:
    x, y = op.inputs
    minus = unary.negative(grad)
    return [grad, minus] if _same_shapes(x, y, grad) else unbroadcast(x, y, grad, minus)


@gradient_of(arithmetic.mul)
def mul(op: Operation, grad: Any) -> Grads:
    x, y = op.inputs
    if _same_shapes(x, y, grad) and grad.dtype.base_dtype.name in ("int32", "float32"):
        return [arithmetic.mul(grad, y), arithmetic.mul(grad, x)]
    return unbroadcast(x, y, arithmetic.mul(grad, casting.conj(y)), arithmetic.mul(casting.conj(x), grad))


@gradient_of(arithmetic.mul_no_nan)
def mul_no_nan(op: Operation, grad: Any) -> Grads:
    x, y = op.inputs
    return unbroadcast(x, y, arithmetic.mul_no_nan(grad, y), arithmetic.mul_no_nan(x, grad))


def _quotient(over: Callable[..., Any]) -> Callable[..., Grads]:
    """The gradient of x / y; `over` is the op that divides."""

    def grads(op: Operation, grad: Any) -> Grads:
        (x, y), cx, cy = op.inputs, casting.conj(op.inputs[0]), casting.conj(op.inputs[1])
        x_grad = over(grad, cy)
        y_grad = arithmetic.mul(grad, over(over(unary.negative(cx), cy), cy), name="mul")
        return unbroadcast(x, y, x_grad, y_grad)

    return grads


gradient_of(arithmetic.real_div)(_quotient(arithmetic.real_div))
gradient_of(arithmetic.div_op)(_quotient(arithmetic.divide))
gradient_of(arithmetic.div_no_nan_op)(_quotient(arithmetic.div_no_nan))


@gradient_of(arithmetic.floor_mod)
def floor_mod(op: Operation, grad: Any) -> Grads:
    x, y = op.inputs
    return unbroadcast(x, y, grad, arithmetic.mul(grad, unary.negative(arithmetic.floor_div(x, y)), name="mul"))


@gradient_of(arithmetic.squared_difference)
def squared_difference(op: Operation, grad: Any) -> Grads:
    x, y = op.inputs
    with control_dependencies([grad]):
        x_grad = arithmetic.mul(arithmetic.scalar_mul(2.0, grad), arithmetic.sub(x, y, name="sub"), name="mul")
    y_grad = unary.negative(x_grad)
    return [x_grad, y_grad] if _same_shapes(x, y, grad) else unbroadcast(x, y, x_grad, y_grad)


def _selecting(wins: Callable[..., Any]) -> Callable[..., Grads]:
    """The gradient of Maximum and Minimum; where x equals y, x gets all of it."""

    def grads(op: Operation, grad: Any) -> Grads:
        x, y = op.inputs
        zeros = creation.zeros_like(grad)
        x_wins = wins(x, y)
        return unbroadcast(x, y, selection.select_v2(x_wins, grad, zeros), selection.select_v2(x_wins, zeros, grad))

    return grads


gradient_of(arithmetic.maximum)(_selecting(compare.greater_equal))
gradient_of(arithmetic.minimum)(_selecting(compare.less_equal))


@gradient_of(arithmetic.pow)
def power(op: Operation, grad: Any) -> Grads:
    x, y = op.inputs
    cx, cy, cz = (casting.conj(t) for t in (x, y, op.outputs[0]))
    scaled = arithmetic.mul(grad, cy, name="mul")
    x_grad = arithmetic.mul(scaled, arithmetic.pow(cx, arithmetic.sub(cy, 1, name="sub")), name="mul")
    # The logarithm exists only for positive x; elsewhere d/dy x^y counts as 0.
    exists = compare.not_equal(cx, 0) if cx.dtype.is_complex else compare.greater(cx, 0)
    safe = selection.select(exists, cx, creation.ones_like(cx))
    log = selection.select(exists, unary.log(safe), creation.zeros_like(cx))
    y_grad = arithmetic.mul(arithmetic.mul(grad, cz, name="mul"), log, name="mul")
    return unbroadcast(x, y, x_grad, y_grad)


@gradient_of(arithmetic.atan2)
def atan2(op: Operation, grad: Any) -> Grads:
    y, x = op.inputs
    with control_dependencies([grad]):
        norm = arithmetic.add_v2(unary.square(y), unary.square(x), name="add")
        scaled = arithmetic.real_div(grad, norm, name="truediv")
        y_grad = arithmetic.mul(x, scaled, name="mul")
        x_grad = arithmetic.mul(unary.negative(y), scaled, name="mul")
        return unbroadcast(y, x, y_grad, x_grad)


@gradient_of(unary.negative)
def negative(op: Operation, grad: Any) -> Grads:
    return [unary.negative(grad)]


@gradient_of(unary.square)
def square(op: Operation, grad: Any) -> Grads:
    with control_dependencies([grad]):
        x = casting.conj(op.inputs[0])
        return [arithmetic.mul(grad, arithmetic.mul(x, make_constant(2.0, x.dtype.base_dtype)))]


@gradient_of(unary.abs_op)
def absolute(op: Operation, grad: Any) -> Grads:
    return [arithmetic.mul(grad, unary.sign(op.inputs[0]), name="mul")]


@gradient_of(casting.complex_abs)
def complex_abs(op: Operation, grad: Any) -> Grads:
    direction = arithmetic.mul(casting.complex(grad, creation.zeros_like(grad)), op.inputs[0], name="mul")
    size = op.outputs[0]
    return [arithmetic.div_no_nan(direction, casting.complex(size, creation.zeros_like(size)))]


@gradient_of(unary.sign)
def sign(op: Operation, grad: Any) -> Grads:
    return [creation.zeros_like(op.inputs[0])]


@gradient_of(unary.exp)
def exp(op: Operation, grad: Any) -> Grads:
    with control_dependencies([grad]):
        return [arithmetic.mul(grad, casting.conj(op.outputs[0]), name="mul")]


@gradient_of(unary.log)
def log(op: Operation, grad: Any) -> Grads:
    with control_dependencies([grad]):
        return [arithmetic.mul(grad, unary.reciprocal(casting.conj(op.inputs[0])), name="mul")]


def _from_output(slope: Callable[..., Any]) -> Callable[..., Grads]:
    """A gradient by the op `slope`, which takes the output and its gradient."""

    def grads(op: Operation, grad: Any) -> Grads:
        with control_dependencies([grad]):
            return [slope(casting.conj(op.outputs[0]), grad)]

    return grads


gradient_of(unary.sqrt)(_from_output(unary.sqrt_grad))
gradient_of(unary.rsqrt)(_from_output(unary.rsqrt_grad))
gradient_of(unary.reciprocal, unary.inv)(_from_output(unary.reciprocal_grad))
gradient_of(unary.tanh)(_from_output(unary.tanh_grad))
gradient_of(unary.sigmoid)(_from_output(unary.sigmoid_grad))


@gradient_of(casting.cast_op)
def cast(op: Operation, grad: Any) -> Grads:
    source, target = op.inputs[0].dtype.base_dtype, op.outputs[0].dtype.base_dtype
    differentiable = all(t.is_floating or t.is_complex for t in (source, target))
    return [casting.cast(grad, source) if differentiable else None]


@gradient_of(casting.conj_op)
def conj(op: Operation, grad: Any) -> Grads:
    return [casting.conj(grad)]


@gradient_of(casting.real_op)
def real(op: Operation, grad: Any) -> Grads:
    return [casting.complex(grad, make_constant(0, grad.dtype))]


@gradient_of(casting.imag_op)
def imag(op: Operation, grad: Any) -> Grads:
    return [casting.complex(make_constant(0, grad.dtype), grad)]


@gradient_of(casting.complex_op)
def complex(op: Operation, grad: Any) -> Grads:
    x, y = op.inputs
    return unbroadcast(x, y, casting.real(grad), casting.imag(grad))


@gradient_of(casting.angle_op)
def angle(op: Operation, grad: Any) -> Grads:
    x = op.inputs[0]
    with control_dependencies([grad]):
        inverse = unary.reciprocal(casting.complex(casting.imag(x), casting.real(x)))
        turned = casting.complex(grad, make_constant(0, grad.dtype))
        return [arithmetic.mul(unary.negative(turned), inverse, name="mul")]


@gradient_of(arithmetic.add_n_op)
def add_n(op: Operation, grad: Any) -> Grads:
    return [grad] * len(op.inputs)
