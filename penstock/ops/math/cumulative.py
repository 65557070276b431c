"""Running sums, products and log-sum-exps along an axis."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import OpDef, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import FLOATS, INDEX32, Array
from penstock.ops.math import arithmetic
from penstock.ops.math.reduce import SUMMED


def _cumsum_grad(op: Operation, grad: Any) -> list[Any]:
    exclusive, reverse = op.attrs["exclusive"], op.attrs["reverse"]
    return [cumsum(grad, op.inputs[1], exclusive=exclusive, reverse=not reverse), None]


def _cumprod_grad(op: Operation, grad: Any) -> list[Any]:
    (x, axis), exclusive, reverse = op.inputs, op.attrs["exclusive"], op.attrs["reverse"]
    product = cumprod(x, axis, exclusive=exclusive, reverse=reverse)
    total = cumsum(arithmetic.mul(product, grad, name="mul"), axis, exclusive=exclusive, reverse=not reverse)
    return [arithmetic.div_no_nan(total, x), None]


def _cumulated(function: Any, x: Array, axis: Array, exclusive: bool, reverse: bool, first: float) -> Array:
    at = int(axis)
    if not -x.ndim <= at < x.ndim:
        raise ValueError(f"Expected scan axis in the range [{-x.ndim}, {x.ndim}), but got {at}")
    at %= x.ndim
    if exclusive and x.shape[at]:
        # Shifted by one, so that an element is not part of its own result.
        inside = jax.lax.slice_in_dim(x, 1, None, axis=at) if reverse else jax.lax.slice_in_dim(x, 0, -1, axis=at)
        widths = [(0, 0)] * x.ndim
        widths[at] = (0, 1) if reverse else (1, 0)
        x = jnp.pad(inside, widths, constant_values=np.asarray(first).astype(x.dtype))
    return function(x, axis=at, reverse=reverse)


@op("Cumsum", "T, Tidx -> out: T", static="axis", shape=shapes.unchanged, grad=_cumsum_grad, T=SUMMED, Tidx=INDEX32)
def cumsum_op(x: Array, axis: Array, *, exclusive: bool = False, reverse: bool = False) -> Array:
    return _cumulated(jax.lax.cumsum, x, axis, exclusive, reverse, 0)


@op("Cumprod", "T, Tidx -> out: T", static="axis", shape=shapes.unchanged, grad=_cumprod_grad, T=SUMMED, Tidx=INDEX32)
def cumprod_op(x: Array, axis: Array, *, exclusive: bool = False, reverse: bool = False) -> Array:
    return _cumulated(jax.lax.cumprod, x, axis, exclusive, reverse, 1)


@op("CumulativeLogsumexp", "T, Tidx -> out: T", static="axis", shape=shapes.unchanged, T=FLOATS, Tidx=INDEX32)
def cumulative_logsumexp_op(x: Array, axis: Array, *, exclusive: bool = False, reverse: bool = False) -> Array:
    return _cumulated(jax.lax.cumlogsumexp, x, axis, exclusive, reverse, -np.inf)


def _scan(raw: OpDef, default: str, x: Any, axis: Any, exclusive: bool, reverse: bool, name: str | None) -> Tensor:
    with name_scope(name, default, [x]) as scope:
        x = convert_to_tensor(x, name="x")
        result: Tensor = raw(x, axis, exclusive=exclusive, reverse=reverse, name=scope)
        return result


def cumsum(
    x: TensorLike, axis: TensorLike = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Running sums along `axis`: `tf.cumsum([1, 2, 3])` is [1, 3, 6]."""
    return _scan(cumsum_op, "Cumsum", x, axis, exclusive, reverse, name)


def cumprod(
    x: TensorLike, axis: TensorLike = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Running products along `axis`: `tf.cumprod([1, 2, 3])` is [1, 2, 6]."""
    return _scan(cumprod_op, "Cumprod", x, axis, exclusive, reverse, name)


def cumulative_logsumexp(
    x: TensorLike, axis: TensorLike = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Running log-sum-exp along `axis`, without overflow."""
    return _scan(cumulative_logsumexp_op, "CumulativeLogsumexp", x, axis, exclusive, reverse, name)
