"""Sums, means, extremes and products of ragged tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.ops.array.creation import ones_like
from penstock.ops.array.gathering import gather
from penstock.ops.array.reshaping import expand_dims as dense_expand_dims
from penstock.ops.array.reshaping import reshape
from penstock.ops.math import reduce, segments
from penstock.ops.math.arithmetic import maximum
from penstock.ops.math.casting import cast
from penstock.ops.ragged import row_ops
from penstock.ops.ragged.arranging import expand_dims
from penstock.ops.ragged.ragged_tensor import RaggedTensor

Dense = Callable[..., Any]
_SEGMENTS: dict[str, Dense] = {
    "Sum": segments.unsorted_segment_sum,
    "Prod": segments.unsorted_segment_prod,
    "Max": segments.unsorted_segment_max,
    "Min": segments.unsorted_segment_min,
}
_DENSE: dict[str, Dense] = {
    "Sum": reduce.reduce_sum,
    "Prod": reduce.reduce_prod,
    "Max": reduce.reduce_max,
    "Min": reduce.reduce_min,
    "Mean": reduce.reduce_mean,
    "All": reduce.reduce_all,
    "Any": reduce.reduce_any,
}
KINDS = tuple(_DENSE)
SEGMENTED = tuple(_SEGMENTS)


def reduced(kind: str, ragged: RaggedTensor, axis: Any, keep_dims: bool = False) -> Any:
    """A reduction, named by its op type, along an axis or several."""
    axes = _axes(ragged, axis)
    if len(axes) == ragged.shape.rank:
        total = _DENSE[kind](ragged.flat_values)
        return reshape(total, [1] * len(axes)) if keep_dims else total
    if kind in ("All", "Any"):
        as_numbers = ragged.with_flat_values(cast(ragged.flat_values, dt.int32))
        found = reduced("Min" if kind == "All" else "Max", as_numbers, axes, keep_dims)
        # A row without values is below every number for the largest, and above for the smallest.
        flat: Any = found.flat_values if isinstance(found, Ragged) else found
        truth = flat > 0
        return found.with_flat_values(truth) if isinstance(found, Ragged) else truth
    if kind == "Mean":
        ones: Any = ragged.with_flat_values(ones_like(ragged.flat_values))
        total, count = (reduced("Sum", x, axes, keep_dims) for x in (ragged, ones))
        return total / count
    result: Any = ragged
    for each in reversed(axes):
        result = _along(kind, result, each)
    if keep_dims:
        for each in axes:
            result = expand_dims(result, each) if isinstance(result, Ragged) else dense_expand_dims(result, each)
    return result


def _axes(ragged: RaggedTensor, axis: Any) -> list[int]:
    rank = ragged.shape.rank
    given = constant_value(convert_to_tensor(axis))
    if given is None or rank is None:
        raise ValueError("The axis of a reduction of a ragged tensor, and its rank, must be known when it is built.")
    numbers = np.asarray(given).reshape(-1).tolist()
    if any(not -rank <= a < rank for a in numbers):
        raise ValueError(f"axis={axis} is out of range for a ragged tensor of rank {rank}.")
    return sorted({a % rank for a in numbers})


def _along(kind: str, value: Any, axis: int) -> Any:
    if not isinstance(value, RaggedTensor):
        return _DENSE[kind](value, axis=axis)
    if axis > 1:
        return value.with_values(_along(kind, value.values, axis - 1))
    if axis == 1:
        return segmented(kind, value.values, value.value_rowids(), value.nrows())
    # Values at the same place in their rows belong together.
    places = row_ops.ragged_places([value.row_splits])[:, 1]
    return segmented(kind, value.values, places, value.bounding_shape(axis=1))


def segmented(kind: str, data: Any, ids: Any, count: Any) -> Any:
    """Reduces the rows of each segment; rows that are ragged are reduced place by place."""
    if not isinstance(data, RaggedTensor):
        return _SEGMENTS[kind](data, ids, count)
    longest: Any = segments.unsorted_segment_max(data.row_lengths(), ids, count)
    zero = longest * 0
    splits = row_ops.splits_of(maximum(longest, zero))
    inside = row_ops.ragged_places([data.row_splits])
    starts: Any = gather(gather(splits, ids), inside[:, 0])
    target = starts + inside[:, 1]
    return RaggedTensor(segmented(kind, data.values, target, splits[-1]), splits)
