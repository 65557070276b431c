"""Mathematical functions that are composed of other ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.graph.checks import require
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.kernel.types import INDEX32, Array, xp
from penstock.ops.array.creation import zeros_like
from penstock.ops.array.reshaping import reshape, shape
from penstock.ops.array.slicing import strided_slice
from penstock.ops.math import arithmetic, compare, reduce, special, unary
from penstock.ops.nn import activation


def log_sigmoid(x: TensorLike, name: str | None = None) -> Tensor:
    """log(sigmoid(x)), without overflow: `tf.log_sigmoid(logits)`."""
    with name_scope(name, "LogSigmoid", [x]) as scope:
        x = convert_to_tensor(x, name="x")
        result: Tensor = unary.negative(activation.softplus(-x), name=scope)
        return result


def reciprocal_no_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / x, and 0 where x is 0: `tf.math.reciprocal_no_nan(counts)`."""
    with name_scope(name, "reciprocal_no_nan", [x]) as scope:
        x = convert_to_tensor(x, name="x")
        one = make_constant(1, x.dtype.base_dtype, name="one")
        result: Tensor = arithmetic.div_no_nan_op(one, x, name=scope)
        return result


def erfcinv(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse of erfc: `tf.math.erfcinv(0.5)`."""
    with name_scope(name, "erfcinv", [x]):
        x = convert_to_tensor(x, name="start")
        result: Tensor = -special.ndtri(0.5 * x) * np.sqrt(0.5)  # type: ignore[operator]
        return result


def polyval(coeffs: Sequence[Any], x: TensorLike, name: str | None = None) -> Tensor:
    """The polynomial with `coeffs`, the highest power first, at `x`: `tf.math.polyval([1.0, 0.0, -2.0], x)`."""
    if not isinstance(coeffs, list):
        raise ValueError(f"polyval: coeffs must be a list, received {type(coeffs).__name__}.")
    with name_scope(name, "polyval", [*coeffs, x]):
        x = convert_to_tensor(x, name="x")
        result: Any
        if not coeffs:
            result = zeros_like(x, name=name)
            return result  # type: ignore[no-any-return]
        terms: list[Any] = [convert_to_tensor(c, name=f"coeff_{i}") for i, c in enumerate(coeffs)]
        result = terms[0]
        for term in terms[1:]:
            result = term + result * x
        return result  # type: ignore[no-any-return]


def lbeta(x: TensorLike, name: str | None = None) -> Tensor:
    """log |Beta(x)|, over the last dimension: `tf.math.lbeta([0.5, 0.5])`."""
    with name_scope(name, "lbeta", [x]):
        x = convert_to_tensor(x, name="x")
        logs: Any = reduce.reduce_sum(special.lgamma(x), axis=[-1])
        return logs - special.lgamma(reduce.reduce_sum(x, axis=[-1]))  # type: ignore[no-any-return]


# Order


def is_non_decreasing(x: TensorLike, name: str | None = None) -> Tensor:
    """True if no element is smaller than the one before it: `tf.math.is_non_decreasing([1, 1, 2])`."""
    with name_scope(name, "is_non_decreasing", [x]):
        return _holds_between(compare.greater_equal, x)


def is_strictly_increasing(x: TensorLike, name: str | None = None) -> Tensor:
    """True if every element is larger than the one before it: `tf.math.is_strictly_increasing([1, 2])`."""
    with name_scope(name, "is_strictly_increasing", [x]):
        return _holds_between(compare.greater, x)


def _holds_between(compared: Any, x: Any) -> Tensor:
    flat = reshape(convert_to_tensor(x, name="x"), [-1])
    last: Any = shape(flat) - 1  # type: ignore[operator]
    # For a short tensor both slices are empty, and the result is True.
    return reduce.reduce_all(compared(strided_slice(flat, [1], last + 1), strided_slice(flat, [0], last)))


# Places


def _unravel_shape(op: Operation) -> list[TensorShape]:
    indices, dims = (t.shape for t in op.input_list)
    if dims.rank not in (None, 0, 1):
        raise ValueError(f"Shape must be at most rank 1 but is rank {dims.rank}")
    if indices.rank is None or dims.rank is None:
        return [TensorShape.of(None)]
    if indices.rank > 1:
        raise ValueError(f"Shape must be at most rank 1 but is rank {indices.rank}")
    return [TensorShape.of((*(dims.as_list() or (1,)), *indices.as_list()))]


@op("UnravelIndex", "Tidx, Tidx -> output: Tidx", numpy=True, no_gradient=True, shape=_unravel_shape, Tidx=INDEX32)
def unravel_index_op(indices: Array, dims: Array) -> Array:
    if indices.ndim > 1 or dims.ndim > 1:
        raise ValueError(f"indices and dims must be scalars or vectors, received {indices.shape} and {dims.shape}")
    m = xp(indices, dims)
    sizes = dims.reshape(-1)
    # The distance between neighbours in each dimension.
    after = m.cumprod(m.concatenate([sizes[1:], m.ones(1, sizes.dtype)])[::-1], dtype=sizes.dtype)[::-1]
    require((indices >= 0) & (indices < m.prod(sizes)), "index is out of bound as with dims")
    require(sizes > 0, "dims cannot contain a dim of zero")
    wide = (slice(None), None) if indices.ndim else (slice(None),)
    return (indices[None] // m.maximum(after, 1)[wide] % m.maximum(sizes, 1)[wide]).astype(indices.dtype)


def unravel_index(indices: TensorLike, dims: ShapeLike, name: str | None = None) -> Tensor:
    """The coordinates in a tensor of shape `dims` of flat `indices`: `tf.unravel_index([5], [2, 3])`."""
    result: Tensor = unravel_index_op(indices, dims, name=name)
    return result
