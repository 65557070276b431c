"""Rows of ragged tensors: picked by their numbers, sliced, and indexed as Python does."""

from __future__ import annotations

from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.ops.array.creation import ones
from penstock.ops.array.gathering import gather as dense_gather
from penstock.ops.array.reshaping import shape
from penstock.ops.math.casting import cast
from penstock.ops.ragged import row_ops


def row_count(value: Any, dtype: Any = None) -> Any:
    """The number of rows of a tensor, ragged or dense."""
    if isinstance(value, Ragged):
        splits: Any = shape(value.row_splits, out_type=dtype or value.row_splits.dtype)
        return splits[0] - 1
    dims: Any = shape(value, out_type=dtype or "int64")
    return dims[0]


def gather_rows(params: Any, indices: Any) -> Any:
    """The rows of `params`, ragged or dense, with the given numbers, a vector."""
    if not isinstance(params, Ragged):
        return dense_gather(params, indices)
    starts, limits = params.row_splits[:-1], params.row_splits[1:]
    return _between(params, dense_gather(starts, indices), dense_gather(limits, indices))


def _between(ragged: Ragged, starts: Tensor, limits: Tensor) -> Any:
    """Rows that reach from `starts` to `limits` in the values of a ragged tensor."""
    splits, places = row_ops.ragged_range(starts, limits, ones([], starts.dtype), Tsplits=starts.dtype)
    return type(ragged)(gather_rows(ragged.values, places), splits, ragged._uniform_row_length)


def get_item(ragged: Ragged, key: Any) -> Any:
    """`ragged[key]`: integers, slices, `...` and `tf.newaxis`. Rows are picked by number, values inside of rows only
    by slices, since not every row has a value at a place.

    >>> tf.ragged.constant([[1, 2, 3], [4]])[:, :2]
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise ValueError("Only one `...` may be in the index of a ragged tensor.")
    if dots:
        rank = ragged.shape.rank or ragged.ragged_rank + 1
        missing = rank - sum(k is not None for k in keys) + 1
        keys[dots[0] : dots[0] + 1] = [slice(None)] * missing
    return _item(ragged, keys)


def _item(ragged: Any, keys: list[Any]) -> Any:
    if not keys:
        return ragged
    if not isinstance(ragged, Ragged):
        return ragged[tuple(keys)]
    first, *rest = keys
    if first is None:
        return alone(type(ragged), _item(ragged, rest))
    if isinstance(first, slice):
        return _inside(_row_slice(ragged, first), rest)
    return _item(_row(ragged, first), rest)


def alone(kind: type[Ragged], inner: Any) -> Any:
    """A ragged tensor of one row."""
    return kind(inner, row_ops.splits_of(row_count(inner)[None]), inner.shape.as_list()[0])


def _row(ragged: Ragged, number: Any) -> Any:
    splits = ragged.row_splits
    count = ragged.shape.as_list()[0]
    if isinstance(number, int) and count is not None and number >= count:
        raise IndexError(f"Row {number} is out of bounds: there are {count} rows.")
    if isinstance(number, int) and number < 0:
        start, end = splits[number - 1], splits[number]
    else:
        start, end = splits[number], splits[number + 1]
    return ragged.values[start:end]


def _row_slice(ragged: Ragged, rows: slice) -> Any:
    if rows == slice(None):
        return ragged
    return _between(ragged, ragged.row_splits[:-1][rows], ragged.row_splits[1:][rows])


def _inside(ragged: Any, keys: list[Any]) -> Any:
    """Applies an index to each row."""
    if not keys:
        return ragged
    first, *rest = keys
    if first is None:
        lengths = ragged.row_splits[1:] * 0 + 1
        return type(ragged)(_inside(ragged, rest), row_ops.splits_of(lengths), 1)
    if not isinstance(first, slice):
        if ragged._uniform_row_length is None:
            raise ValueError(
                f"Cannot index into an inner ragged dimension, received {first!r}: not every row has a value there. "
                "Use a slice."
            )
        values = gather_rows(ragged.values, ragged.row_splits[:-1] + first % ragged._uniform_row_length)
        return _item(values, [slice(None), *rest]) if rest else values
    if first != slice(None):
        dtype = ragged.row_splits.dtype

        def bound(given: Any, default: int) -> Any:
            return cast(convert_to_tensor(default if given is None else given), dtype)

        places, splits = row_ops.sliced_rows(
            ragged.row_splits,
            bound(first.start, 0),
            bound(first.stop, 0),
            bound(first.step, 1),
            has_start=first.start is not None,
            has_stop=first.stop is not None,
        )
        ragged = type(ragged)(gather_rows(ragged.values, places), splits)
    return ragged.with_values(_item(ragged.values, [slice(None), *rest])) if rest else ragged
