"""Partitioners: decide the axis and the number of pieces for a variable of a given shape and type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from penstock.graph.dtype import DType, as_dtype
from penstock.graph.shape import as_shape

Partitioner = Callable[..., list[int]]
DEFAULT_SLICE_BYTES = 256 << 10


def _element_bytes(dtype: DType, bytes_per_string: int) -> int:
    return bytes_per_string if dtype.base_dtype.name == "string" else dtype.size


def _sizes(shape: Any) -> list[int]:
    known = as_shape(shape)
    if not known.is_fully_defined():
        raise ValueError(f"Shape is not fully defined: {known}")
    return [int(d) for d in known]


def _along(rank: int, axis: int, count: int) -> list[int]:
    partitions = [1] * rank
    partitions[axis] = count
    return partitions


def variable_axis_size_partitioner(
    max_shard_bytes: int, axis: int = 0, bytes_per_string_element: int = 16, max_shards: int | None = None
) -> Partitioner:
    """Pieces of at most `max_shard_bytes` along `axis`.

    >>> tf.variable_axis_size_partitioner(1 << 20)(shape=tf.TensorShape([1000, 1024]), dtype=tf.float32)
    [4, 1]
    """
    if max_shard_bytes < 1 or bytes_per_string_element < 1:
        raise ValueError(
            "Both max_shard_bytes and bytes_per_string_element must be positive, received max_shard_bytes "
            f"{max_shard_bytes} and bytes_per_string_element {bytes_per_string_element}."
        )
    if max_shards and max_shards < 1:
        raise ValueError(f"max_shards must be positive, received {max_shards}.")

    def partitioner(shape: Any, dtype: Any) -> list[int]:
        dims = _sizes(shape)
        bytes_per_slice = (math.prod(dims) // dims[axis]) * _element_bytes(as_dtype(dtype), bytes_per_string_element)
        slices_per_shard = max(1, max_shard_bytes // bytes_per_slice)
        count = -(-dims[axis] // slices_per_shard)
        return _along(len(dims), axis, min(max_shards, count) if max_shards else count)

    return partitioner


def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = DEFAULT_SLICE_BYTES,
    bytes_per_string_element: int = 16,
) -> Partitioner:
    """At most `max_partitions` pieces along `axis`, each of `min_slice_size` bytes or more.

    >>> cut = tf.min_max_variable_partitioner(max_partitions=4, min_slice_size=64)
    >>> cut(shape=tf.TensorShape([13, 4]), dtype=tf.float32)
    [4, 1]
    """

    def partitioner(shape: Any, dtype: Any) -> list[int]:
        dims = _sizes(shape)
        if axis >= len(dims):
            raise ValueError(f"Cannot partition variable along axis {axis} when shape is only {tuple(dims)}")
        total = math.prod(dims) * _element_bytes(as_dtype(dtype), bytes_per_string_element)
        wanted = math.ceil(total / min_slice_size)
        return _along(len(dims), axis, max(1, min(dims[axis], max_partitions, wanted)))

    return partitioner


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """`num_shards` pieces along `axis`, or fewer if the axis is shorter.

    >>> tf.fixed_size_partitioner(3)(shape=tf.TensorShape([10, 2]), dtype=tf.float32)
    [3, 1]
    """

    def partitioner(shape: Any, **_: Any) -> list[int]:
        dims = _sizes(shape)
        return _along(len(dims), axis, min(dims[axis], num_shards))

    return partitioner
