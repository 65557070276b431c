"""Norms of vectors and matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import arranging, joining, ranges, reshaping, selection
from penstock.ops.linalg.decompose import svd
from penstock.ops.math import arithmetic, casting, reduce, unary

_MATRIX_NORMS = ["euclidean", "fro", 1, 2, np.inf]
_VECTOR_NORMS = ["euclidean", 1, 2, np.inf]


def norm(
    tensor: TensorLike,
    ord: Any = "euclidean",
    axis: TensorLike = None,
    keepdims: bool | None = None,
    name: str | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """The norm of vectors along one axis, of matrices along two, or of all elements.

    >>> tf.norm(x, ord=1, axis=-1)
    """
    keep = bool(keepdims if keepdims is not None else keep_dims)
    of_matrix = isinstance(axis, (tuple, list)) and len(axis) == 2
    axes = _checked(ord, axis, of_matrix)
    with name_scope(name, "norm", [tensor]):
        x = convert_to_tensor(tensor)
        result: Any
        if ord in ("fro", "euclidean", 2):
            if of_matrix and ord == 2:
                result = _largest_singular_value(x, axes)
            else:
                squares = arithmetic.mul(x, casting.conj(x), name="mul")
                result = unary.sqrt(reduce.reduce_sum(squares, axes, keepdims=True))
        else:
            result = unary.abs(x)
            if ord == 1:
                result = reduce.reduce_sum(result, None if axes is None else axes[0], keepdims=True)
                if of_matrix:
                    result = reduce.reduce_max(result, axes[-1], keepdims=True)
            elif ord == np.inf:
                if of_matrix:
                    result = reduce.reduce_sum(result, axes[1], keepdims=True)
                result = reduce.reduce_max(result, None if axes is None else axes[0], keepdims=True)
            else:
                powers = reduce.reduce_sum(arithmetic.pow(result, ord), axes, keepdims=True)
                result = arithmetic.pow(powers, 1.0 / ord)
        found: Tensor = result if keep else reshaping.squeeze(result, axis=axes)
        return found


def _checked(ord: Any, axis: Any, of_matrix: bool) -> Any:
    """The axes as a list, or None for all."""
    if of_matrix:
        if axis[0] == axis[1]:
            raise ValueError("'axis' must be None, an integer, or a tuple of 2 unique integers")
        if ord not in _MATRIX_NORMS:
            raise ValueError(f"'ord' must be a supported matrix norm in {_MATRIX_NORMS}, got {ord}")
        return list(axis)
    if axis is not None and not isinstance(axis, (int, np.integer)):
        raise ValueError(f"'axis' must be None, an integer, or a tuple of 2 unique integers, received {axis!r}")
    if ord not in _VECTOR_NORMS and (isinstance(ord, str) or not np.isreal(ord) or ord <= 0):
        raise ValueError(f"'ord' must be a supported vector norm, got {ord}")
    return None if axis is None else [int(axis)]


def _largest_singular_value(x: Tensor, axes: list[int]) -> Tensor:
    """The largest singular value of the matrices along two axes; both keep length 1."""
    rank = x.shape.rank
    order: Any
    back: Any
    if rank is not None:
        chosen = [a % rank for a in axes]
        order = [i for i in range(rank) if i not in chosen] + chosen
        back = np.argsort(order).tolist()
    else:
        count: Any = reshaping.rank(x)
        chosen_t = joining.stack([count + a if a < 0 else count * 0 + a for a in axes])
        order = joining.concat([selection.list_diff(ranges.range(count), chosen_t)[0], chosen_t], 0)
        back = arranging.invert_permutation(order)
    values = svd(arranging.transpose(x, order), compute_uv=False)
    largest = reduce.reduce_max(unary.abs(values), axis=-1, keepdims=True)
    return arranging.transpose(reshaping.expand_dims(largest, -1), back)


def normalize(
    tensor: TensorLike, ord: Any = "euclidean", axis: TensorLike = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """`tensor` divided by its norm along `axis`, and that norm: `unit, length = tf.linalg.normalize(x)`."""
    with name_scope(name, "normalize", [tensor]):
        x = convert_to_tensor(tensor)
        length = casting.cast(norm(x, ord=ord, axis=axis, keepdims=True), x.dtype.base_dtype)
        return x / length, length
