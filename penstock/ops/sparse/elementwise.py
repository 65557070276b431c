"""Elementwise ops on two sparse tensors: sums, minima, maxima."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.kernel.shapes import merge
from penstock.kernel.types import NUMBERS, QUANTIZED, REALS, Array
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.sparse.dense import sparse_tensor_dense_add
from penstock.ops.sparse.indices import as_sparse, grouped_rows, invalid, length_of, parts, places_of, sparse_shapes

_SUMMED = (*NUMBERS, *QUANTIZED)


def _two(*arrays: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The entries of two sparse tensors of one shape, and that shape."""
    a_rows, a_values, a_dims = parts(*arrays[:3])
    b_rows, b_values, b_dims = parts(*arrays[3:])
    if not np.array_equal(a_dims, b_dims):
        raise invalid(f"Operands' shapes do not match: got {a_dims.tolist()} and {b_dims.tolist()}")
    return a_rows, a_values, b_rows, b_values, a_dims


def _aligned(*arrays: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All indices of both tensors, and the values of each there, zero if it has no entry."""
    a_rows, a_values, b_rows, b_values, dims = _two(*arrays)
    rows, group = grouped_rows(np.concatenate([a_rows, b_rows]))
    left, right = np.zeros(len(rows), a_values.dtype), np.zeros(len(rows), a_values.dtype)
    left[group[: len(a_rows)]] = a_values
    right[group[len(a_rows) :]] = b_values
    return rows, left, right, dims


def _add_shape(op: Operation) -> list[TensorShape]:
    dims = op.input_list[2].shape
    return sparse_shapes(None, dims.as_list()[0] if dims.rank == 1 else None)


def _add_grad(op: Operation, _: Any, grad: Tensor, __: Any) -> list[Any]:
    a_grad, b_grad = sparse_add_grad(grad, op.inputs[0], op.inputs[3], op.outputs[0])
    a_grad.set_shape(op.inputs[1].shape)
    b_grad.set_shape(op.inputs[4].shape)
    return [None, a_grad, None, None, b_grad, None, None]


@op(
    "SparseAdd",
    "int64, T, int64, int64, T, int64, Treal -> sum_indices: int64, sum_values: T, sum_shape: int64",
    host=True,
    shape=_add_shape,
    grad=_add_grad,
    T=_SUMMED,
    Treal=REALS,
)
def sparse_add_op(
    a_indices: Array, a_values: Array, a_shape: Array, b_indices: Array, b_values: Array, b_shape: Array, thresh: Array
) -> tuple[Array, Array, Array]:
    rows, left, right, dims = _aligned(a_indices, a_values, a_shape, b_indices, b_values, b_shape)
    total = left + right
    # A sum that is too small is dropped.
    kept = np.abs(total) >= np.asarray(thresh)
    return rows[kept], total[kept], dims


@op(
    "SparseAddGrad",
    "T, int64, int64, int64 -> a_val_grad: T, b_val_grad: T",
    host=True,
    no_gradient=True,
    T=_SUMMED,
    shape=lambda op: [TensorShape.of((length_of(t),)) for t in op.input_list[1:3]],
)
def sparse_add_grad(
    backprop_val_grad: Array, a_indices: Array, b_indices: Array, sum_indices: Array
) -> tuple[Array, Array]:
    upstream, table = np.asarray(backprop_val_grad), np.asarray(sum_indices)
    padded = np.concatenate([upstream, np.zeros(1, upstream.dtype)])  # place -1 means that the sum was dropped
    return padded[places_of(np.asarray(a_indices), table)], padded[places_of(np.asarray(b_indices), table)]


def sparse_add(a: TensorLike, b: TensorLike, threshold: TensorLike = None, thresh: TensorLike = None) -> Any:
    """The sum of two sparse tensors, a SparseTensor, or of a sparse and a dense one, which is dense.

    Sums of absolute value below `threshold` are left out.

    >>> tf.sparse.add(x, y)
    """
    limit = threshold if threshold is not None else thresh
    sparse = [hasattr(x, "dense_shape") for x in (a, b)]
    if not any(sparse):
        raise TypeError("At least one input should be a SparseTensor; do you mean to use tf.add()?")
    if not all(sparse):
        one, dense = (as_sparse(a), b) if sparse[0] else (as_sparse(b), a)
        result: Tensor = sparse_tensor_dense_add(one.indices, one.values, one.dense_shape, dense)
        return result
    x, y = as_sparse(a), as_sparse(b)
    real = x.dtype.base_dtype.real_dtype
    least = convert_to_tensor(0 if limit is None else limit, dtype=real, name="threshold")
    indices, values, dims = sparse_add_op(x.indices, x.values, x.dense_shape, y.indices, y.values, y.dense_shape, least)
    known = merge(x.shape, y.shape)
    return SparseTensor(indices, values, known.as_list() if known.is_fully_defined() else dims)


def _union_shape(op: Operation) -> list[TensorShape]:
    return [TensorShape.of((None, None)), TensorShape.of((None,))]


@op(
    "SparseSparseMaximum",
    "int64, T, int64, int64, T, int64 -> output_indices: int64, output_values: T",
    host=True,
    grad=refuse_gradient,
    shape=_union_shape,
    T=REALS,
)
def sparse_sparse_maximum(
    a_indices: Array, a_values: Array, a_shape: Array, b_indices: Array, b_values: Array, b_shape: Array
) -> tuple[Array, Array]:
    rows, left, right, _ = _aligned(a_indices, a_values, a_shape, b_indices, b_values, b_shape)
    return rows, np.maximum(left, right)


@op(
    "SparseSparseMinimum",
    "int64, T, int64, int64, T, int64 -> output_indices: int64, output_values: T",
    host=True,
    grad=refuse_gradient,
    shape=_union_shape,
    T=_SUMMED,
)
def sparse_sparse_minimum(
    a_indices: Array, a_values: Array, a_shape: Array, b_indices: Array, b_values: Array, b_shape: Array
) -> tuple[Array, Array]:
    rows, left, right, _ = _aligned(a_indices, a_values, a_shape, b_indices, b_values, b_shape)
    return rows, np.minimum(left, right)


def _either(function: Any, default: str, sp_a: Any, sp_b: Any, name: str | None) -> SparseTensor:
    a, b = as_sparse(sp_a), as_sparse(sp_b)
    with name_scope(name, default, [a.indices, a.values, b.indices, b.values]) as scope:
        indices, values = function(a.indices, a.values, a.dense_shape, b.indices, b.values, b.dense_shape, name=scope)
    return SparseTensor(indices, values, a.dense_shape)


def sparse_maximum(sp_a: Any, sp_b: Any, name: str | None = None) -> SparseTensor:
    """The larger of two sparse tensors, element by element, where either has an entry."""
    return _either(sparse_sparse_maximum, "SparseSparseMaximum", sp_a, sp_b, name)


def sparse_minimum(sp_a: Any, sp_b: Any, name: str | None = None) -> SparseTensor:
    """The smaller of two sparse tensors, element by element, where either has an entry."""
    return _either(sparse_sparse_minimum, "SparseSparseMinimum", sp_a, sp_b, name)
