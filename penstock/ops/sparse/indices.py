"""Common code of the ops on sparse tensors: checks and orders of indices as NumPy arrays, and shape rules.

A sparse tensor is three arrays: `indices` [n, rank], `values` [n], and `shape` [rank].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel.types import Array


def as_sparse(value: Any, what: str = "Input") -> SparseTensor:
    """A SparseTensor or SparseTensorValue as a SparseTensor; raises TypeError for anything else."""
    if isinstance(value, SparseTensor):
        return value
    parts = ("indices", "values", "dense_shape")
    if isinstance(value, (IndexedSlices, Tensor)) or not all(hasattr(value, part) for part in parts):
        raise TypeError(f"{what} must be a SparseTensor, received {type(value).__name__}.")
    return SparseTensor.from_value(value)


def convert_to_tensor_or_sparse_tensor(
    value: TensorLike, dtype: DTypeLike | None = None, name: str | None = None
) -> Any:
    """`value` as a SparseTensor if it is one (or the value of one), else as a Tensor."""
    if isinstance(value, Tensor) or not hasattr(value, "dense_shape"):
        return convert_to_tensor(value, dtype=dtype, name=name)
    sparse = as_sparse(value)
    if dtype is not None and as_dtype(dtype) != sparse.dtype.base_dtype:
        raise RuntimeError(f"Sparse dtype mismatch: requested {as_dtype(dtype).name}, actual {sparse.dtype.name}")
    return sparse


def invalid(message: str) -> InvalidArgumentError:
    """The error for arrays that do not fit."""
    return InvalidArgumentError(message)


def parts(indices: Array, values: Array, shape: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays of a sparse tensor, after a check that their shapes fit each other."""
    rows, entries, dims = np.asarray(indices), np.asarray(values), np.asarray(shape)
    if rows.ndim != 2:
        raise invalid(f"Input indices should be a matrix but received shape {list(rows.shape)}")
    if entries.ndim != 1:
        raise invalid(f"Input values should be a vector but received shape {list(entries.shape)}")
    if dims.ndim != 1:
        raise invalid(f"Input shape should be a vector but received shape {list(dims.shape)}")
    if len(rows) != len(entries):
        raise invalid(
            f"Number of values must match first dimension of indices. Got {len(entries)} values, "
            f"indices shape: {list(rows.shape)}"
        )
    if rows.shape[1] != len(dims):
        raise invalid(
            f"Number of dimensions must match second dimension of indices. Got {len(dims)} dimensions, "
            f"indices shape: {list(rows.shape)}"
        )
    return rows, entries, dims


def need_in_bounds(rows: np.ndarray, dims: np.ndarray) -> None:
    """Raises InvalidArgumentError unless every index lies in a tensor of shape `dims`."""
    bad = ((rows < 0) | (rows >= dims)).any(axis=1)
    if bad.any():
        at = int(np.argmax(bad))
        raise invalid(f"indices[{at}] = {_brief(rows[at])} is out of bounds: need 0 <= index < {_brief(dims)}")


def need_ordered(rows: np.ndarray) -> None:
    """Raises InvalidArgumentError unless indices rise from row to row, in row-major order."""
    steps = np.diff(rows, axis=0)
    if not len(steps):
        return
    first = np.argmax(steps != 0, axis=1)
    leading = steps[np.arange(len(steps)), first] if rows.shape[1] else np.zeros(len(steps), int)
    bad = leading <= 0
    if bad.any():
        at = int(np.argmax(bad)) + 1
        if leading[at - 1] == 0:
            raise invalid(f"indices[{at}] = {_brief(rows[at])} is repeated")
        raise invalid(
            f"indices[{at}] = {_brief(rows[at])} is out of order. Many sparse ops require sorted indices.\n"
            "    Use `tf.sparse.reorder` to create a correctly ordered copy."
        )


def _brief(row: np.ndarray) -> str:
    return "[" + ",".join(str(int(i)) for i in row) + "]"


def row_major(rows: np.ndarray) -> np.ndarray:
    """The permutation that sorts indices in row-major order; equal ones keep their order."""
    if not rows.shape[1]:
        return np.arange(len(rows))
    return np.lexsort(rows.T[::-1])


def grouped_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows in row-major order, and for each row the number of its group."""
    order = row_major(rows)
    ranked = rows[order]
    starts = np.ones(len(rows), bool)
    starts[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    group = np.empty(len(rows), np.int64)
    group[order] = np.cumsum(starts) - 1
    return ranked[starts], group


def places_of(rows: np.ndarray, table: np.ndarray) -> np.ndarray:
    """For each of `rows` its place in `table`, or -1."""
    distinct, group = grouped_rows(np.concatenate([table, rows]))
    place = np.full(len(distinct), -1, np.int64)
    place[group[: len(table)]] = np.arange(len(table))
    found: np.ndarray = place[group[len(table) :]]
    return found


def flat_indices(rows: np.ndarray, dims: np.ndarray) -> np.ndarray:
    """Positions in the flattened tensor."""
    if any(int(d) for d in dims) and np.prod(dims.astype(float)) >= 2.0**63:
        raise invalid(f"A sparse tensor of shape {_brief(dims)} has more elements than 64-bit indices can count.")
    strides = np.concatenate([np.cumprod(dims[:0:-1])[::-1], [1]]).astype(np.int64)[: len(dims)]
    flat: np.ndarray = rows @ strides if len(dims) else np.zeros(len(rows), np.int64)
    return flat


def spread_indices(flat: np.ndarray, dims: Any) -> np.ndarray:
    """The opposite of `flat_indices`."""
    rows = np.empty((len(flat), len(dims)), np.int64)
    for axis in range(len(dims) - 1, -1, -1):
        size = max(int(dims[axis]), 1)
        rows[:, axis] = flat % size
        flat = flat // size
    return rows


# Shape rules


def length_of(tensor: Tensor) -> int | None:
    """The first dimension of a tensor, or None if it is unknown."""
    return tensor.shape.as_list()[0] if tensor.shape.rank else None


def sparse_shapes(count: int | None, rank: int | None) -> list[TensorShape]:
    """The shapes of indices, values and shape of a sparse tensor."""
    return [TensorShape.of((count, rank)), TensorShape.of((count,)), TensorShape.of((rank,))]
