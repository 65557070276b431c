"""Evenly spaced numbers between two ends."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, joining, reshaping, selection, slicing
from penstock.ops.array.ranges import range
from penstock.ops.math import arithmetic, casting, compare


def linspace(start: TensorLike, stop: TensorLike, num: TensorLike, name: str | None = None, axis: int = 0) -> Tensor:
    """`num` values evenly from `start` to `stop`, both included, along a new `axis`: `tf.linspace(0.0, 1.0, 5)`."""
    with name_scope(name, "linspace", [start, stop]):
        start = convert_to_tensor(start, name="start")
        stop = convert_to_tensor(stop, dtype=start.dtype.base_dtype, name="stop")
        count: Any = convert_to_tensor(num, name="num", preferred_dtype=dt.int32)
        if count.dtype.base_dtype.is_integer:
            count = casting.cast_op(count, DstT=dt.int32, name="Cast")
        casting.cast_op(count, DstT=start.dtype.base_dtype, name="Cast")
        both = reshaping.broadcast_dynamic_shape(reshaping.shape(start), reshaping.shape(stop))
        ends = [reshaping.broadcast_to(end, both) for end in (start, stop)]
        first, last = (reshaping.expand_dims(end, axis) for end in ends)
        dims: Any = reshaping.shape(first)
        rank: Any = reshaping.shape(dims)[0]  # type: ignore[index]
        at: Any = selection.where_v2(axis >= 0, axis, rank + axis)
        inner = arithmetic.maximum(count - 2, 0)
        steps = arithmetic.maximum(count - 1, 1)
        delta: Any = (last - first) / casting.cast(steps, last.dtype)  # type: ignore[operator]
        # A negative `num` makes an empty range rather than one that counts down.
        end = selection.where_v2(count >= 0, steps, -1)
        numbers = casting.cast(range(1, end, dtype=dt.int64), delta.dtype)
        here = compare.equal(at, range(rank))
        between = first + delta * reshaping.reshape(numbers, selection.where_v2(here, inner, 1))
        whole = joining.concat([first, between, last], axis=at)
        origin = creation.zeros_like(dims)
        size = joining.concat([dims[0:at], reshaping.reshape(count, [1]), dims[at + 1 :]], 0)
        return slicing.slice(whole, origin, size)


lin_space = linspace
