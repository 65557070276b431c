"""Functions of one tensor, elementwise: signs, powers, exponentials, trigonometry, rounding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph.checks import require
from penstock.graph.opdef import Types, later, op
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import tensor_or_ragged
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import COMPLEX, FLOATS, FLOATS_COMPLEX, NUMBERS, SIGNED, Array, xp
from penstock.ops.math import casting

_SIGNED_COMPLEX = Types(*SIGNED, *COMPLEX)


@op("Neg", "T -> y: T", shape=shapes.unchanged, grad=later, numpy=True, T=_SIGNED_COMPLEX)
def negative(x: Array) -> Array:
    return -x


@op("Abs", "T -> y: T", shape=shapes.unchanged, grad=later, numpy=True, T=SIGNED)
def abs_op(x: Array) -> Array:
    return xp(x).abs(x)


@op("Sign", "T -> y: T", shape=shapes.unchanged, grad=later, numpy=True, T=_SIGNED_COMPLEX)
def sign(x: Array) -> Array:
    return xp(x).sign(x)


@op("Square", "T -> y: T", shape=shapes.unchanged, grad=later, numpy=True, T=NUMBERS)
def square(x: Array) -> Array:
    return x * x


@op("Sqrt", "T -> y: T", shape=shapes.unchanged, grad=later, T=FLOATS_COMPLEX)
def sqrt(x: Array) -> Array:
    return jnp.sqrt(x)


@op("SqrtGrad", "T, T -> z: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def sqrt_grad(y: Array, dy: Array) -> Array:
    # A zero gradient stays zero even where the slope is infinite.
    nowhere = (dy == 0) & ((y == 0) | jnp.isnan(y))
    return jnp.where(nowhere, jnp.zeros((), y.dtype), dy * jnp.asarray(0.5, y.dtype) / y)


@op("Rsqrt", "T -> y: T", shape=shapes.unchanged, grad=later, T=FLOATS_COMPLEX)
def rsqrt(x: Array) -> Array:
    return jax.lax.rsqrt(x)


@op("RsqrtGrad", "T, T -> z: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def rsqrt_grad(y: Array, dy: Array) -> Array:
    return dy * jnp.asarray(-0.5, y.dtype) * y * y * y


@op("Reciprocal", "T -> y: T", shape=shapes.unchanged, grad=later, T=_SIGNED_COMPLEX)
def reciprocal(x: Array) -> Array:
    return _inverse(x)


def _inverse(x: Array) -> Array:
    if not np.issubdtype(x.dtype, np.integer):
        return jnp.ones((), x.dtype) / x
    require(jnp.all(x != 0), "Integer division by zero")
    return jnp.where((x == 1) | (x == -1), x, jnp.zeros((), x.dtype))  # 1 / x, rounded towards zero


@op("Inv", "T -> y: T", shape=shapes.unchanged, grad=later, T=_SIGNED_COMPLEX)
def inv(x: Array) -> Array:
    return _inverse(x)


@op("ReciprocalGrad", "T, T -> z: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def reciprocal_grad(y: Array, dy: Array) -> Array:
    return -dy * y * y


@op("Exp", "T -> y: T", shape=shapes.unchanged, grad=later, T=FLOATS_COMPLEX)
def exp(x: Array) -> Array:
    return jnp.exp(x)


@op("Expm1", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def expm1(x: Array) -> Array:
    return jnp.expm1(x)


@op("Log", "T -> y: T", shape=shapes.unchanged, grad=later, T=FLOATS_COMPLEX)
def log(x: Array) -> Array:
    return jnp.log(x)


@op("Log1p", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def log1p(x: Array) -> Array:
    return jnp.log1p(x)


@op("Sin", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def sin(x: Array) -> Array:
    return jnp.sin(x)


@op("Cos", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def cos(x: Array) -> Array:
    return jnp.cos(x)


@op("Tan", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def tan(x: Array) -> Array:
    return jnp.tan(x)


@op("Asin", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def asin(x: Array) -> Array:
    return jnp.arcsin(x)


@op("Acos", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def acos(x: Array) -> Array:
    return jnp.arccos(x)


@op("Atan", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def atan(x: Array) -> Array:
    return jnp.arctan(x)


@op("Sinh", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def sinh(x: Array) -> Array:
    return jnp.sinh(x)


@op("Cosh", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def cosh(x: Array) -> Array:
    return jnp.cosh(x)


@op("Tanh", "T -> y: T", shape=shapes.unchanged, grad=later, T=FLOATS_COMPLEX)
def tanh(x: Array) -> Array:
    return jnp.tanh(x)


@op("TanhGrad", "T, T -> z: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def tanh_grad(y: Array, dy: Array) -> Array:
    return dy * (1 - y * y)


@op("Asinh", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def asinh(x: Array) -> Array:
    return jnp.arcsinh(x)


@op("Acosh", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def acosh(x: Array) -> Array:
    return jnp.arccosh(x)


@op("Atanh", "T -> y: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def atanh(x: Array) -> Array:
    return jnp.arctanh(x)


@op("Sigmoid", "T -> y: T", shape=shapes.unchanged, grad=later, T=FLOATS_COMPLEX)
def sigmoid(x: Array) -> Array:
    return jax.lax.logistic(x)


@op("SigmoidGrad", "T, T -> z: T", shape=shapes.unchanged, T=FLOATS_COMPLEX)
def sigmoid_grad(y: Array, dy: Array) -> Array:
    return dy * y * (1 - y)


@op("Floor", "T -> y: T", shape=shapes.unchanged, no_gradient=True, numpy=True, T=FLOATS)
def floor(x: Array) -> Array:
    return xp(x).floor(x)


@op("Ceil", "T -> y: T", shape=shapes.unchanged, no_gradient=True, numpy=True, T=FLOATS)
def ceil(x: Array) -> Array:
    return xp(x).ceil(x)


@op("Round", "T -> y: T", shape=shapes.unchanged, no_gradient=True, T=_SIGNED_COMPLEX)
def round_op(x: Array) -> Array:
    return jnp.round(x)


@op("Rint", "T -> y: T", shape=shapes.unchanged, no_gradient=True, T=FLOATS)
def rint(x: Array) -> Array:
    return jnp.rint(x)


@op("IsNan", "T -> y: bool", shape=shapes.unchanged, no_gradient=True, numpy=True, T=FLOATS)
def is_nan(x: Array) -> Array:
    return xp(x).isnan(x)


@op("IsInf", "T -> y: bool", shape=shapes.unchanged, no_gradient=True, numpy=True, T=FLOATS)
def is_inf(x: Array) -> Array:
    return xp(x).isinf(x)


@op("IsFinite", "T -> y: bool", shape=shapes.unchanged, no_gradient=True, numpy=True, T=FLOATS)
def is_finite(x: Array) -> Array:
    return xp(x).isfinite(x)


def abs(x: TensorLike, name: str | None = None) -> Tensor:
    """The absolute value; of complex numbers the modulus: `tf.abs(-1.5)`."""
    with name_scope(name, "Abs", [x]) as scope:
        x = tensor_or_ragged(x, name="x")
        tensor: Tensor
        if x.dtype.is_complex:
            tensor = casting.complex_abs(x, Tout=x.dtype.real_dtype, name=scope)
        else:
            tensor = abs_op(x, name=scope)
        return tensor


def round(x: TensorLike, name: str | None = None) -> Tensor:
    """To the nearest integer, halves to the even one: `tf.round(2.5)` is 2."""
    x = tensor_or_ragged(x, name="x")
    rounded: Tensor = x if x.dtype.is_integer else round_op(x, name=name)
    return rounded
