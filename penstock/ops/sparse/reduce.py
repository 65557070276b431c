"""Reductions of sparse tensors along axes, and the softmax of their rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import make_constant
from penstock.graph.dtype import as_dtype
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import NUMBERS, QUANTIZED, REALS, Array
from penstock.ops.array import gathering, ranges, reshaping
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.math import arithmetic, reduce
from penstock.ops.sparse.indices import as_sparse, flat_indices, grouped_rows, invalid, need_in_bounds, parts

_SUMMED = (*NUMBERS, *QUANTIZED)
_FLOATS = (dt.float16, dt.float32, dt.float64)


def _kept_axes(rank: int, reduction_axes: Any) -> list[int]:
    chosen = set()
    for axis in np.asarray(reduction_axes).reshape(-1).tolist():
        if not -rank <= axis < rank:
            raise invalid(f"Invalid reduction dimension {axis}, for input with {rank} dimensions.")
        chosen.add(axis % rank)
    return [axis for axis in range(rank) if axis not in chosen]


def _dense_shape(op: Operation) -> list[TensorShape]:
    dims, axes = constant_value(op.input_list[2]), constant_value(op.input_list[3])
    if dims is None or axes is None:
        return [TensorShape.of(None)]
    rank = len(dims)
    chosen = set()
    for axis in axes.reshape(-1).tolist():
        if not -rank <= axis < rank:
            raise ValueError(f"Invalid reduction dimension {axis}, for input with {rank} dimensions.")
        chosen.add(axis % rank)
    if op.attrs["keep_dims"]:
        return [TensorShape.of(tuple(1 if i in chosen else int(d) for i, d in enumerate(dims)))]
    return [TensorShape.of(tuple(int(d) for i, d in enumerate(dims) if i not in chosen))]


def _groups(indices: Array, values: Array, shape: Array, axes: Array) -> tuple[Any, ...]:
    """Checked entries, the axes that are kept, and their sizes."""
    rows, entries, dims = parts(indices, values, shape)
    need_in_bounds(rows, dims)
    kept = _kept_axes(len(dims), axes)
    return rows, entries, dims, kept, dims[kept]


def _reduced(method: Any, indices: Array, values: Array, shape: Array, axes: Array, keep: bool) -> np.ndarray:
    rows, entries, dims, kept, sizes = _groups(indices, values, shape, axes)
    place = flat_indices(rows[:, kept], sizes)
    result = np.zeros(int(np.prod(sizes)), entries.dtype)
    if method is np.maximum:
        # Only rows without entries give zero.
        result[place] = as_dtype(entries.dtype).min
    method.at(result, place, entries)
    final = [int(d) if i in kept else 1 for i, d in enumerate(dims)] if keep else sizes.tolist()
    return result.reshape(final)


def _reduced_sparse(
    method: Any, indices: Array, values: Array, shape: Array, axes: Array, keep: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, entries, dims, kept, sizes = _groups(indices, values, shape, axes)
    distinct, group = grouped_rows(rows[:, kept])
    result = np.zeros(len(distinct), entries.dtype)
    if method is np.maximum:
        result[group] = as_dtype(entries.dtype).min
    method.at(result, group, entries)
    if not keep:
        return distinct, result, sizes
    whole = np.zeros((len(distinct), len(dims)), np.int64)
    whole[:, kept] = distinct
    return whole, result, np.where(np.isin(np.arange(len(dims)), kept), dims, 1)


def _sum_grad(op: Operation, grad: Tensor) -> list[Any]:
    """Each entry gets the gradient of the element that it was added to."""
    indices, _, dims, axes = op.inputs
    kept = reduce.reduced_shape(dims, axes)
    scale = arithmetic.floordiv(dims, arithmetic.maximum(kept, 1))
    places = arithmetic.floordiv(indices, arithmetic.maximum(scale, 1))
    return [None, gathering.gather_nd(reshaping.reshape(grad, kept), places), None, None]


@op("SparseReduceSum", "int64, T, int64, int32 -> output: T", host=True, shape=_dense_shape, grad=_sum_grad, T=_SUMMED)
def sparse_reduce_sum_op(
    input_indices: Array, input_values: Array, input_shape: Array, reduction_axes: Array, *, keep_dims: bool = False
) -> Array:
    return _reduced(np.add, input_indices, input_values, input_shape, reduction_axes, keep_dims)


@op(
    "SparseReduceMax",
    "int64, T, int64, int32 -> output: T",
    host=True,
    shape=_dense_shape,
    grad=refuse_gradient,
    T=REALS,
)
def sparse_reduce_max_op(
    input_indices: Array, input_values: Array, input_shape: Array, reduction_axes: Array, *, keep_dims: bool = False
) -> Array:
    return _reduced(np.maximum, input_indices, input_values, input_shape, reduction_axes, keep_dims)


@op(
    "SparseReduceSumSparse",
    "int64, T, int64, int32 -> output_indices: int64, output_values: T, output_shape: int64",
    host=True,
    shape=shapes.unknown,
    grad=refuse_gradient,
    T=_SUMMED,
)
def sparse_reduce_sum_sparse_op(
    input_indices: Array, input_values: Array, input_shape: Array, reduction_axes: Array, *, keep_dims: bool = False
) -> tuple[Array, Array, Array]:
    return _reduced_sparse(np.add, input_indices, input_values, input_shape, reduction_axes, keep_dims)


@op(
    "SparseReduceMaxSparse",
    "int64, T, int64, int32 -> output_indices: int64, output_values: T, output_shape: int64",
    host=True,
    shape=shapes.unknown,
    grad=refuse_gradient,
    T=REALS,
)
def sparse_reduce_max_sparse_op(
    input_indices: Array, input_values: Array, input_shape: Array, reduction_axes: Array, *, keep_dims: bool = False
) -> tuple[Array, Array, Array]:
    return _reduced_sparse(np.maximum, input_indices, input_values, input_shape, reduction_axes, keep_dims)


def _arguments(sp_input: Any, axis: Any, keepdims: Any, reduction_axes: Any, keep_dims: Any) -> tuple[list[Any], bool]:
    sparse = as_sparse(sp_input)
    axes = axis if axis is not None else reduction_axes
    if axes is None:
        rank = sparse.shape.rank
        axes = ranges.range(0, reshaping.rank(sparse)) if rank is None else make_constant(np.arange(rank), dt.int32)
    keep = bool(keepdims if keepdims is not None else keep_dims)
    return [sparse.indices, sparse.values, sparse.dense_shape, axes], keep


def sparse_reduce_sum(
    sp_input: Any,
    axis: TensorLike = None,
    keepdims: bool | None = None,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """The sums along `axis` (all axes by default) as a dense tensor: `tf.sparse.reduce_sum(x, axis=1)`."""
    inputs, keep = _arguments(sp_input, axis, keepdims, reduction_axes, keep_dims)
    result: Tensor = sparse_reduce_sum_op(*inputs, keep_dims=keep)
    return result


def sparse_reduce_max(
    sp_input: Any,
    axis: TensorLike = None,
    keepdims: bool | None = None,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """The largest entries along `axis` as a dense tensor, zero where there are none."""
    inputs, keep = _arguments(sp_input, axis, keepdims, reduction_axes, keep_dims)
    result: Tensor = sparse_reduce_max_op(*inputs, keep_dims=keep)
    return result


def sparse_reduce_sum_sparse(
    sp_input: Any,
    axis: TensorLike = None,
    keepdims: bool | None = None,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """The sums along `axis` as a SparseTensor."""
    inputs, keep = _arguments(sp_input, axis, keepdims, reduction_axes, keep_dims)
    return SparseTensor(*sparse_reduce_sum_sparse_op(*inputs, keep_dims=keep))


def sparse_reduce_max_sparse(
    sp_input: Any,
    axis: TensorLike = None,
    keepdims: bool | None = None,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """The largest entries along `axis` as a SparseTensor."""
    inputs, keep = _arguments(sp_input, axis, keepdims, reduction_axes, keep_dims)
    return SparseTensor(*sparse_reduce_max_sparse_op(*inputs, keep_dims=keep))


# Softmax


@op(
    "SparseSoftmax",
    "int64, T, int64 -> output: T",
    T=_FLOATS,
    shape=lambda op: [shapes.require_rank(op.input_list[1].shape, 1)],
)
def sparse_softmax_op(sp_indices: Array, sp_values: Array, sp_shape: Array) -> Array:
    """Softmax over the entries of each row; indices are in row-major order, so rows are runs of entries."""
    if sp_indices.ndim != 2 or sp_values.shape != sp_indices.shape[:1] or sp_indices.shape[1] < 2:
        raise ValueError(f"Input should have rank >= 2; received indices of shape {list(sp_indices.shape)}")
    count = sp_values.shape[0]
    if not count:
        return sp_values
    row = sp_indices[:, :-1]
    new = jnp.any(row[1:] != row[:-1], axis=1)
    run = jnp.concatenate([jnp.zeros(1, jnp.int64), jnp.cumsum(new)])
    top = jax.ops.segment_max(jax.lax.stop_gradient(sp_values), run, count, indices_are_sorted=True)
    grown = jnp.exp(sp_values - top[run])
    return grown / jax.ops.segment_sum(grown, run, count, indices_are_sorted=True)[run]


def sparse_softmax(sp_input: Any, name: str | None = None) -> SparseTensor:
    """The softmax of each innermost row, over its entries only: `tf.sparse.softmax(logits)`."""
    sparse = as_sparse(sp_input)
    with name_scope(name, "SparseSoftmax", [sparse.indices, sparse.values]):
        values = sparse_softmax_op(sparse.indices, sparse.values, sparse.dense_shape)
        return SparseTensor(sparse.indices, values, sparse.dense_shape)
