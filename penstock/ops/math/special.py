"""Special functions: error, gamma, Bessel and related functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as scipy

from penstock.graph import dtype as dt
from penstock.graph.opdef import OpDef, Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import FLOATS, Array
from penstock.ops.array.creation import zeros_like
from penstock.ops.math import arithmetic, elementwise_gradients, unary

_WIDE = Types(dt.float32, dt.float64)


@op("Erf", "T -> y: T", shape=shapes.unchanged, T=FLOATS)
def erf(x: Array) -> Array:
    return jax.lax.erf(x)


@op("Erfc", "T -> y: T", shape=shapes.unchanged, T=FLOATS)
def erfc(x: Array) -> Array:
    return jax.lax.erfc(x)


@op("Erfinv", "T -> y: T", shape=shapes.unchanged, T=FLOATS)
def erfinv_op(x: Array) -> Array:
    return jax.lax.erf_inv(x)


@op("Ndtri", "T -> y: T", shape=shapes.unchanged, T=FLOATS)
def ndtri_op(x: Array) -> Array:
    return scipy.ndtri(x)


@op("Lgamma", "T -> y: T", shape=shapes.unchanged, T=FLOATS)
def lgamma(x: Array) -> Array:
    return jax.lax.lgamma(x)


@op("Digamma", "T -> y: T", shape=shapes.unchanged, T=FLOATS)
def digamma(x: Array) -> Array:
    return jnp.where(x == 0, jnp.nan, jax.lax.digamma(x))  # jax's value at this pole depends on its version


@op("BesselI0e", "T -> y: T", shape=shapes.unchanged, T=FLOATS)
def bessel_i0e_op(x: Array) -> Array:
    return scipy.i0e(x)


@op("BesselI1e", "T -> y: T", shape=shapes.unchanged, T=FLOATS)
def bessel_i1e_op(x: Array) -> Array:
    return scipy.i1e(x)


@op("BesselI0", "T -> y: T", shape=shapes.unchanged, T=FLOATS)
def bessel_i0_op(x: Array) -> Array:
    return scipy.i0(x)


@op("BesselI1", "T -> y: T", shape=shapes.unchanged, T=FLOATS)
def bessel_i1_op(x: Array) -> Array:
    return scipy.i1(x)


def _nextafter_grad(op: Operation, dy: Tensor) -> list[Any]:
    x, y = op.input_list
    return elementwise_gradients.unbroadcast(x, y, dy, zeros_like(dy))


@op(
    "NextAfter",
    "T, T -> output: T",
    shape=shapes.broadcast,
    grad=_nextafter_grad,
    T=Types(dt.float64, dt.float32, default=dt.float32),
)
def nextafter(x1: Array, x2: Array) -> Array:
    return jnp.nextafter(x1, x2)


@op("Igamma", "T, T -> z: T", shape=shapes.broadcast, T=FLOATS)
def igamma(a: Array, x: Array) -> Array:
    return scipy.gammainc(a, x)


@op("Igammac", "T, T -> z: T", shape=shapes.broadcast, T=FLOATS)
def igammac(a: Array, x: Array) -> Array:
    return scipy.gammaincc(a, x)


def _zeta_grad(op: Operation, grad: Any) -> list[Any]:
    x, q = op.inputs
    slope = unary.negative(arithmetic.mul(x, zeta(arithmetic.add_v2(x, 1.0, name="add"), q), name="mul"))
    return [None, elementwise_gradients.unbroadcast(x, q, None, arithmetic.mul(slope, grad, name="mul"))[1]]


@op("Zeta", "T, T -> z: T", shape=shapes.broadcast, grad=_zeta_grad, T=_WIDE)
def zeta(x: Array, q: Array) -> Array:
    return scipy.zeta(x, q)


def _polygamma_grad(op: Operation, grad: Any) -> list[Any]:
    n, x = op.inputs
    slope = polygamma(arithmetic.add_v2(n, 1.0, name="add"), x)
    return [None, elementwise_gradients.unbroadcast(n, x, None, arithmetic.mul(grad, slope, name="mul"))[1]]


@op("Polygamma", "T, T -> z: T", shape=shapes.broadcast, grad=_polygamma_grad, T=_WIDE)
def polygamma(a: Array, x: Array) -> Array:
    # jax's own takes integers n only.
    derivative = -jnp.cos(jnp.pi * a) * jnp.exp(jax.lax.lgamma(a + 1)) * scipy.zeta(a + 1, x)
    return jnp.where(a == 0, jax.lax.digamma(x), derivative)


@op("BetaincGrad", "T, T, T, T -> dx: T", shape=shapes.same_as(2), T=_WIDE)
def betainc_grad(a: Array, b: Array, x: Array, dy: Array) -> Array:
    log_beta = jax.lax.lgamma(a) + jax.lax.lgamma(b) - jax.lax.lgamma(a + b)
    return dy * jnp.exp((a - 1) * jnp.log(x) + (b - 1) * jnp.log1p(-x) - log_beta)


@op(
    "Betainc",
    "T, T, T -> z: T",
    shape=shapes.broadcast,
    T=_WIDE,
    grad=lambda op, grad: [None, None, betainc_grad(*op.inputs, grad)],
)
def betainc(a: Array, b: Array, x: Array) -> Array:
    return scipy.betainc(a, b, x)


def erfinv(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of erf: `tf.math.erfinv(0.5)`."""
    return _inside(erfinv_op, "erfinv", x, name)


def ndtri(x: TensorLike, name: str | None = None) -> Tensor:
    """The quantile function of the standard normal distribution: `tf.math.ndtri(0.975)`."""
    return _inside(ndtri_op, "ndtri", x, name)


def bessel_i0e(x: TensorLike, name: str | None = None) -> Tensor:
    """exp(-|x|) times the modified Bessel function of order 0."""
    return _inside(bessel_i0e_op, "bessel_i0e", x, name)


def bessel_i1e(x: TensorLike, name: str | None = None) -> Tensor:
    """exp(-|x|) times the modified Bessel function of order 1."""
    return _inside(bessel_i1e_op, "bessel_i1e", x, name)


def bessel_i0(x: TensorLike, name: str | None = None) -> Tensor:
    """The modified Bessel function of order 0."""
    return _inside(bessel_i0_op, "bessel_i0", x, name)


def bessel_i1(x: TensorLike, name: str | None = None) -> Tensor:
    """The modified Bessel function of order 1."""
    return _inside(bessel_i1_op, "bessel_i1", x, name)


def _inside(raw: OpDef, default: str, x: Any, name: str | None) -> Tensor:
    with name_scope(name, default, [x]):
        result: Tensor = raw(x)
        return result
