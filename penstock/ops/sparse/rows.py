"""Ops that choose, add and build entries by rows: retain, fill_empty_rows, mask, merge, indicators."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel.shapes import merge
from penstock.kernel.types import Array
from penstock.ops.array import creation, gathering, joining, passthrough, ranges, reshaping, selection
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.math import arithmetic, casting
from penstock.ops.sparse.arranging import sparse_reorder
from penstock.ops.sparse.dense import sparse_tensor_to_dense
from penstock.ops.sparse.indices import as_sparse, invalid, length_of, parts


def sparse_retain(sp_input: Any, to_retain: TensorLike) -> SparseTensor:
    """The entries for which the vector `to_retain` is True: `tf.sparse.retain(x, [True, False, True])`."""
    sparse = as_sparse(sp_input)
    chosen = convert_to_tensor(to_retain)
    if chosen.shape.rank is not None:
        merge(sparse.values.shape, chosen.shape)
    places = reshaping.reshape(selection.where(chosen), [-1])
    indices = gathering.gather(sparse.indices, places)
    values = gathering.gather(sparse.values, places)
    return SparseTensor(indices, values, passthrough.identity(sparse.dense_shape))


# Rows without entries


def _fill_shape(op: Operation) -> list[TensorShape]:
    indices, values, dims, _ = op.input_list
    sizes = constant_value_as_shape(dims)
    rows = sizes.as_list()[0] if sizes.rank else None
    columns = indices.shape.as_list()[1] if indices.shape.rank == 2 else length_of(dims)
    count = length_of(indices) if length_of(indices) is not None else length_of(values)
    return [TensorShape.of(s) for s in ((None, columns), (None,), (rows,), (count,))]


def _fill_grad(op: Operation, _: Any, grad: Tensor, *__: Any) -> list[Any]:
    values_grad, default_grad = sparse_fill_empty_rows_grad(op.outputs[3], grad)
    return [None, values_grad, None, default_grad]


@op(
    "SparseFillEmptyRows",
    "int64, T, int64, T -> output_indices: int64, output_values: T, empty_row_indicator: bool, "
    "reverse_index_map: int64",
    host=True,
    shape=_fill_shape,
    grad=_fill_grad,
)
def sparse_fill_empty_rows_op(
    indices: Array, values: Array, dense_shape: Array, default_value: Array
) -> tuple[Array, Array, Array, Array]:
    rows, entries, dims = parts(indices, values, dense_shape)
    if not len(dims) or np.ndim(default_value):
        raise invalid(
            "Dense shape cannot be empty, and default_value must be a scalar; received shapes "
            f"{list(dims.shape)} and {list(np.shape(default_value))}"
        )
    count = int(dims[0])
    if count == 0 and len(rows):
        raise invalid(f"Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {len(rows)}")
    first = rows[:, 0]
    bad = np.flatnonzero((first < 0) | (first >= count))
    if len(bad):
        raise invalid(f"indices({bad[0]}, 0) is invalid: {first[bad[0]]} >= {count}")
    empty = np.ones(count, bool)
    empty[first] = False
    missing = np.flatnonzero(empty)
    extra = np.zeros((len(missing), rows.shape[1]), np.int64)
    extra[:, 0] = missing
    joined = np.concatenate([rows, extra])
    filled = np.concatenate([entries, np.full(len(missing), np.asarray(default_value)[()], entries.dtype)])
    order = np.argsort(joined[:, 0], kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return joined[order], filled[order], empty, place[: len(rows)]


@op(
    "SparseFillEmptyRowsGrad",
    "int64, T -> d_values: T, d_default_value: T",
    host=True,
    grad=refuse_gradient,
    shape=lambda op: [op.input_list[0].shape, TensorShape.of(())],
)
def sparse_fill_empty_rows_grad(reverse_index_map: Array, grad_values: Array) -> tuple[Array, Array]:
    upstream, places = np.asarray(grad_values), np.asarray(reverse_index_map)
    if len(places) and not ((places >= 0) & (places < len(upstream))).all():
        raise invalid(f"Elements in reverse index must be in [0, {len(upstream)})")
    added = np.ones(len(upstream), bool)
    added[places] = False
    return upstream[places], upstream[added].sum(dtype=upstream.dtype)


def sparse_fill_empty_rows(
    sp_input: Any, default_value: TensorLike, name: str | None = None
) -> tuple[SparseTensor, Tensor]:
    """Each row without entries gets `default_value` in its first column; also returns which rows were empty.

    >>> filled, was_empty = tf.sparse.fill_empty_rows(x, 0)
    """
    sparse = as_sparse(sp_input)
    with name_scope(name, "SparseFillEmptyRows", [sparse.indices, sparse.values]):
        default = convert_to_tensor(default_value, dtype=sparse.values.dtype.base_dtype)
        indices, values, empty, _ = sparse_fill_empty_rows_op(
            sparse.indices, sparse.values, sparse.dense_shape, default
        )
        return SparseTensor(indices, values, sparse.dense_shape), empty


# Built from others


def sparse_mask(a: TensorLike, mask_indices: TensorLike, name: str | None = None) -> IndexedSlices:
    """The slices of IndexedSlices except those at `mask_indices`: `tf.sparse.mask(slices, [3])`."""
    with name_scope(name, "sparse_mask", [a, mask_indices]) as scope:
        indices, places = selection.setdiff1d(a.indices, mask_indices)
        return IndexedSlices(gathering.gather(a.values, places, name=scope), indices, a.dense_shape)


def sparse_merge(
    sp_ids: Any, sp_values: Any, vocab_size: TensorLike, name: str | None = None, already_sorted: bool = False
) -> SparseTensor:
    """Features given as ids and as values: the values at [row, id], in a matrix with `vocab_size` columns.

    >>> tf.sparse.merge(ids, values, 1000)
    """
    if not isinstance(vocab_size, (list, tuple)):
        vocab_size = [vocab_size]
    one = hasattr(sp_ids, "dense_shape") or not isinstance(sp_ids, (list, tuple))  # a SparseTensorValue is a tuple
    ids = [sp_ids] if one else list(sp_ids)
    if len(vocab_size) != len(ids):
        raise ValueError(f"sp_ids and vocab_size must have equal lengths, received {len(ids)} and {len(vocab_size)}.")
    with name_scope(name, "SparseMerge", [sp_ids, sp_values]):
        sparse_ids, values = [as_sparse(x) for x in ids], as_sparse(sp_values)
        columns = []
        for x in sparse_ids:
            column = x.values if x.values.dtype.base_dtype == dt.int64 else casting.cast(x.values, dt.int64)
            columns.append(reshaping.expand_dims(column, axis=1))
        sizes = [casting.cast(size, dt.int64) for size in vocab_size]
        rows: Any = sparse_ids[0].indices[:, :-1]  # type: ignore[index]
        indices = joining.concat([rows, *columns], axis=1)
        outer: Any = sparse_ids[0].dense_shape[:-1]  # type: ignore[index]
        dims = joining.concat([outer, sizes], axis=0)
        result = SparseTensor(indices, values.values, dims)
        if already_sorted:
            return result
        ordered = sparse_reorder(result)
        return SparseTensor(ordered.indices, ordered.values, dims)


def sparse_to_indicator(sp_input: Any, vocab_size: TensorLike, name: str | None = None) -> Tensor:
    """For sparse ids a dense tensor of truth values, True at [row, id]: `tf.sparse.to_indicator(ids, 100)`."""
    sparse = as_sparse(sp_input)
    with name_scope(name, "SparseToIndicator", [sparse.indices, sparse.values]) as scope:
        count: Any = reshaping.shape(sparse.indices)[0]  # type: ignore[index]
        flags = creation.fill(reshaping.expand_dims(count, 0), True)
        marks = SparseTensor(sparse.indices, flags, sparse.dense_shape)
        merged = sparse_merge(sparse, marks, vocab_size, name=scope)
        return sparse_tensor_to_dense(merged, default_value=False, validate_indices=False, name=scope)


def sparse_eye(
    num_rows: TensorLike, num_columns: TensorLike = None, dtype: DTypeLike = dt.float32, name: str | None = None
) -> SparseTensor:
    """The identity matrix as a SparseTensor: `tf.sparse.eye(3)`."""
    with name_scope(name, "eye", [num_rows, num_columns]):
        rows = convert_to_tensor(num_rows, dt.int64, name="num_rows")
        columns = rows if num_columns is None else convert_to_tensor(num_columns, dt.int64, name="num_columns")
        count = arithmetic.minimum(rows, columns)
        diagonal = ranges.range(count, dtype=dt.int64)
        values = creation.ones(count, as_dtype(dtype))
        return SparseTensor(joining.stack([diagonal, diagonal], axis=1), values, [rows, columns])
