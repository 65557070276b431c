"""Converts gradients to IndexedSlices, for libraries that add them up themselves."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.indexed_slices import IndexedSlices
from penstock.ops.array.ranges import range as range_
from penstock.ops.array.reshaping import shape_internal
from penstock.ops.math.casting import cast


def _as_indexed_slices(x: Any, optimize: bool = True) -> IndexedSlices:
    """`x` as IndexedSlices; for a tensor these are all of its rows."""
    if isinstance(x, IndexedSlices):
        return x
    tensor = convert_to_tensor(x)
    sizes: Any = shape_internal(tensor, optimize=optimize)
    return IndexedSlices(tensor, range_(0, sizes[0]), sizes)


def _as_indexed_slices_list(inputs: Any, optimize: bool = True) -> list[IndexedSlices]:
    """All of `inputs` as IndexedSlices whose indices have one type: int64 if the types differ."""
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(f"Expected a list or tuple, not {type(inputs).__name__}")
    slices = [_as_indexed_slices(each, optimize) for each in inputs]
    if len({each.indices.dtype for each in slices}) < 2:
        return slices
    return [IndexedSlices(each.values, cast(each.indices, dt.int64), each.dense_shape) for each in slices]
