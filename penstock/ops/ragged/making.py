"""`tf.ragged`: ragged tensors of Python lists, ranges, stacks and partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.ragged_value import RaggedTensorValue
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import DTypeLike
from penstock.ops.array.creation import constant as dense_constant
from penstock.ops.array.creation import placeholder as dense_placeholder
from penstock.ops.array.gathering import gather
from penstock.ops.array.sorting import argsort
from penstock.ops.math.casting import cast
from penstock.ops.ragged import arranging, row_ops
from penstock.ops.ragged.broadcasting import mapped
from penstock.ops.ragged.ragged_tensor import RaggedTensor


def constant(
    pylist: Any,
    dtype: DTypeLike | None = None,
    ragged_rank: int | None = None,
    inner_shape: Any = None,
    name: str | None = None,
    row_splits_dtype: Any = dt.int64,
) -> Any:
    """A ragged tensor of nested Python lists; a dense one if they are not nested.

    >>> tf.ragged.constant([[1, 2], [], [3]])
    <tf.RaggedTensor [[1, 2], [], [3]]>
    """
    level, splits = _partitioned(pylist, ragged_rank, inner_shape, row_splits_dtype)
    found: Any = _dense(level, dtype, inner_shape)
    for partition in reversed(splits):
        found = RaggedTensor(found, dense_constant(partition))
    return found


def constant_value(
    pylist: Any,
    dtype: DTypeLike | None = None,
    ragged_rank: int | None = None,
    inner_shape: Any = None,
    row_splits_dtype: Any = "int64",
) -> Any:
    """The value of a ragged tensor, to be fed; an array if the lists are not nested.

    >>> tf.ragged.constant_value([[1, 2], [3]])
    """
    level, splits = _partitioned(pylist, ragged_rank, inner_shape, row_splits_dtype)
    values = np.array(level, None if dtype is None else as_dtype(dtype).as_numpy_dtype)
    if inner_shape is not None:
        values = values.reshape((len(level), *inner_shape))
    return RaggedTensorValue.of_parts(values.astype(object) if values.dtype.kind in "SU" else values, *splits)


def placeholder(dtype: DTypeLike, ragged_rank: int, value_shape: Any = None, name: str | None = None) -> Any:
    """A ragged tensor that must be fed with a RaggedTensorValue; `value_shape` is that of its innermost values.

    >>> words = tf.ragged.placeholder(tf.string, ragged_rank=1, value_shape=[])
    """
    if ragged_rank == 0:
        return dense_placeholder(dtype, value_shape, name)
    with name_scope(name, "RaggedPlaceholder"):
        flat = TensorShape.of((None,)).concatenate(as_shape(value_shape))
        found: Any = dense_placeholder(dtype, flat, "flat_values")
        for i in reversed(range(ragged_rank)):
            found = RaggedTensor(found, dense_placeholder(dt.int64, [None], f"row_splits_{i}"))
    return found


def _partitioned(
    pylist: Any, ragged_rank: int | None, inner_shape: Any, row_splits_dtype: Any
) -> tuple[Any, list[np.ndarray]]:
    """The innermost values of nested lists, and the splits of all levels above them, the outermost first."""
    depth = _depth(pylist)
    if inner_shape is not None:
        levels = depth - len(inner_shape) if ragged_rank is None else ragged_rank + 1
        ragged_rank = max(levels - 1, 0) if ragged_rank is None else ragged_rank
    elif ragged_rank is None:
        ragged_rank = max(depth - 1, 0)
    if ragged_rank >= max(depth, 1):
        raise ValueError(f"ragged.constant: pylist has {depth} levels, too few for ragged_rank={ragged_rank}.")
    splits, level = [], pylist
    for _ in range(ragged_rank):
        if not all(_is_list(row) for row in level):
            raise ValueError("ragged.constant: all scalar values must have the same nesting depth.")
        splits.append(np.cumsum([0, *(len(row) for row in level)]).astype(as_dtype(row_splits_dtype).as_numpy_dtype))
        level = [item for row in level for item in row]
    if ragged_rank == depth - 1 and _is_list(level) and any(_is_list(item) for item in level):
        raise ValueError("ragged.constant: all scalar values must have the same nesting depth.")
    return level, splits


def _dense(level: Any, dtype: Any, inner_shape: Any) -> Tensor:
    if dtype is None and _is_list(level) and not len(level):
        dtype = dt.float32
    if inner_shape is None:
        return dense_constant(level, dtype=dtype)
    return dense_constant(level, dtype=dtype, shape=[len(level), *inner_shape])


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _depth(value: Any) -> int:
    """The depth of nested lists, where they are deepest."""
    return 1 + max((_depth(item) for item in value), default=0) if _is_list(value) else 0


def range_(
    starts: Any,
    limits: Any = None,
    deltas: Any = 1,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    row_splits_dtype: Any = dt.int64,
) -> RaggedTensor:
    """A range of numbers in each row: `tf.ragged.range([2, 0, 3])`."""
    if limits is None:
        starts, limits = 0, starts
    given = [convert_to_tensor(v, dtype=dtype) for v in (starts, limits, deltas)]
    kinds = [g.dtype for g, v in zip(given, (starts, limits, deltas), strict=True) if hasattr(v, "dtype")]
    wide = max(kinds or [g.dtype for g in given], key=_width)
    splits, values = row_ops.ragged_range(*[cast(g, wide) for g in given], Tsplits=as_dtype(row_splits_dtype))
    return RaggedTensor(values, splits)


def _width(dtype: Any) -> int:
    return [dt.int32, dt.int64, dt.float32, dt.float64].index(dtype.base_dtype)


def stack(values: Sequence[Any], axis: int = 0, name: str | None = None) -> Any:
    """Tensors of rank R, whose sizes may differ, as a ragged one of rank R + 1: `tf.ragged.stack([[1], [2, 3]])`."""
    items = list(values) if isinstance(values, (list, tuple)) else [values]
    return arranging.stack(items, axis)


def map_flat_values(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Applies a function to the innermost values, and keeps the rows: `tf.ragged.map_flat_values(tf.square, r)`."""
    named = list(kwargs)
    given = [*args, *kwargs.values()]
    places = [i for i, value in enumerate(given) if isinstance(value, Ragged)]
    if not places:
        return op(*args, **kwargs)

    def call(flat: list[Any]) -> Any:
        full = list(given)
        for place, value in zip(places, flat, strict=True):
            full[place] = value
        return op(*full[: len(args)], **dict(zip(named, full[len(args) :], strict=True)))

    return mapped(call, [given[i] for i in places])


def row_splits_to_segment_ids(splits: Any, name: str | None = None, out_type: Any = None) -> Tensor:
    """The number of its row for each value: `tf.ragged.row_splits_to_segment_ids([0, 3, 3, 5])`."""
    given = convert_to_tensor(splits, dtype=None if hasattr(splits, "dtype") else dt.int64)
    ids: Tensor = row_ops.row_ids(given)
    return ids if out_type is None else cast(ids, out_type)


def segment_ids_to_row_splits(
    segment_ids: Any, num_segments: Any = None, out_type: Any = None, name: str | None = None
) -> Tensor:
    """The splits of rows by the numbers of rows: `tf.ragged.segment_ids_to_row_splits([0, 0, 2])`."""
    ids = convert_to_tensor(segment_ids, dtype=None if hasattr(segment_ids, "dtype") else dt.int64)
    count = cast(convert_to_tensor(-1 if num_segments is None else num_segments), ids.dtype)
    splits: Tensor = row_ops.splits_of_row_ids(ids, count)
    return splits if out_type is None else cast(splits, out_type)


def stack_dynamic_partitions(data: Any, partitions: Any, num_partitions: Any, name: str | None = None) -> RaggedTensor:
    """The rows of `data` with the same number in `partitions`, together: row i has those with number i."""
    numbers = convert_to_tensor(partitions)
    order = argsort(numbers, stable=True)
    values = arranging.gather(data, order)
    return RaggedTensor.from_value_rowids(
        values, cast(gather(numbers, order), dt.int64), cast(num_partitions, dt.int64)
    )
