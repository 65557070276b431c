"""Ops that partition rows into several tensors, and stitch them together again."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph.checks import require_in_range
from penstock.graph.constant import constant_value
from penstock.graph.opdef import op, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel.shapes import merge
from penstock.kernel.types import Array
from penstock.memory import aligned_empty
from penstock.ops.array.gathering import gather
from penstock.ops.array.reshaping import reshape, shape


def _partition_shape(op: Operation) -> list[TensorShape]:
    data, partitions = (t.shape for t in op.input_list)
    count = op.attrs["num_partitions"]
    if data.rank is None or partitions.rank is None:
        return [TensorShape.of(None)] * count
    merge(data[: partitions.rank], partitions)
    return [TensorShape.of((None,)).concatenate(data[partitions.rank :])] * count


def _partition_grad(op: Operation, *grads: Tensor) -> list[Any]:
    data, partitions = op.input_list
    prefix = shape(partitions)
    count = op_of("Prod")(prefix, [0], name="Prod")
    order = reshape(op_of("Range")(0, count, 1, name="Range"), prefix)
    places = dynamic_partition(order, partitions, op.attrs["num_partitions"])
    whole = parallel_dynamic_stitch(places, list(grads))
    return [reshape(whole, shape(data)), None]


@op(
    "DynamicPartition",
    "T, int32 -> outputs: num_partitions*T",
    host=True,
    numpy=True,
    shape=_partition_shape,
    grad=_partition_grad,
)
def dynamic_partition_op(data: Array, partitions: Array, *, num_partitions: int) -> list[Array]:
    values, chosen = np.asarray(data), np.asarray(partitions)
    if values.shape[: chosen.ndim] != chosen.shape:
        raise ValueError(
            f"data.shape must start with partitions.shape, got {list(values.shape)} and {list(chosen.shape)}"
        )
    require_in_range(chosen, num_partitions, "partitions")
    return [values[chosen == i] for i in range(num_partitions)]


def dynamic_partition(
    data: TensorLike, partitions: TensorLike, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Distributes `data`: element i goes to output `partitions[i]`."""
    result: list[Tensor] = dynamic_partition_op(data, partitions, num_partitions=num_partitions, name=name)
    return result


def _stitch_shape(op: Operation) -> list[TensorShape]:
    count = op.attrs["N"]
    extra = TensorShape.of(None)
    largest: int | None = -1
    for indices, data in zip(op.input_list[:count], op.input_list[count:], strict=True):
        if data.shape.rank is not None and indices.shape.rank is not None:
            merge(data.shape[: indices.shape.rank], indices.shape)
            extra = merge(extra, data.shape[indices.shape.rank :])
        known = constant_value(indices)
        if known is None:
            largest = None
        elif largest is not None and known.size:
            largest = max(largest, int(known.max()))
    return [TensorShape.of((None if largest is None else largest + 1,)).concatenate(extra)]


def _stitch_grad(op: Operation, grad: Tensor) -> list[Any]:
    count = op.attrs["N"]
    return [None] * count + [gather(grad, indices) for indices in op.input_list[:count]]


def _stitch(indices: list[Array], data: list[Array]) -> Array:
    places, pieces = [np.asarray(i) for i in indices], [np.asarray(d) for d in data]
    first = pieces[0]
    in_order = _follow_each_other(places, pieces)
    length = sum(map(len, places)) if in_order else max((int(i.max()) + 1 for i in places if i.size), default=0)
    covered = np.zeros(length, bool)
    for i in () if in_order else places:
        require_in_range(i, length)
        covered[i] = True
    # Zeros that are overwritten would double the time. Aligned memory is read by compiled code without a copy.
    new = aligned_empty if (in_order or covered.all()) and first.dtype != object else np.zeros
    merged = new((length, *first.shape[places[0].ndim :]), first.dtype)
    if in_order:
        return np.concatenate(pieces, out=merged)
    for i, d in zip(places, pieces, strict=True):
        if i.size:
            merged[i] = d
    return merged


def _follow_each_other(places: list[np.ndarray], pieces: list[np.ndarray]) -> bool:
    """True if the places of each piece directly follow those of the piece before it."""
    begin = 0
    for i, piece in zip(places, pieces, strict=True):
        end = begin + i.size
        if i.ndim != 1 or len(piece) != i.size or (end > begin and i[-1] != end - 1):
            return False
        if np.count_nonzero(i != np.arange(begin, end)):
            return False
        begin = end
    return True


@op("DynamicStitch", "N*int32, N*T -> merged: T", host=True, numpy=True, shape=_stitch_shape, grad=_stitch_grad)
def dynamic_stitch(indices: list[Array], data: list[Array]) -> Array:
    return _stitch(indices, data)


@op("ParallelDynamicStitch", "N*int32, N*T -> merged: T", host=True, numpy=True, shape=_stitch_shape, grad=_stitch_grad)
def parallel_dynamic_stitch(indices: list[Array], data: list[Array]) -> Array:
    return _stitch(indices, data)
