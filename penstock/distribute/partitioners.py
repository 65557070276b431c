"""Partitioners: decide in how many pieces a variable is cut along each axis, from its shape and type."""

from __future__ import annotations

from typing import Any

from penstock.graph.shape import as_shape
from penstock.variables.partitioners import (
    DEFAULT_SLICE_BYTES,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)


class Partitioner:
    """Base class of partitioners. A subclass defines `__call__`.

    >>> class RowByRow(tf.distribute.experimental.partitioners.Partitioner):
    ...     def __call__(self, shape, dtype, axis=0):
    ...         return [size if i == axis else 1 for i, size in enumerate(shape)]
    """

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of pieces along each axis of a variable that is cut along one axis."""
        raise NotImplementedError(f"A {type(self).__name__} must define __call__(self, shape, dtype, axis=0).")


class FixedShardsPartitioner(Partitioner):
    """Cuts a variable into `num_shards` pieces, or fewer if it is shorter.

    >>> FixedShardsPartitioner(num_shards=2)(tf.TensorShape([10, 3]), tf.float32)
    [2, 1]
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of pieces along each axis."""
        sizes = _sizes(shape)
        _require_axis(sizes, axis)
        size = sizes[axis]
        if size is None:
            raise TypeError(
                f"Cannot partition a variable of shape {as_shape(shape)} along axis {axis}, whose size is unknown."
            )
        partitions = [1] * len(sizes)
        partitions[axis] = min(self._num_shards, size)
        return partitions


class MinSizePartitioner(Partitioner):
    """Cuts a variable into as many pieces of at least `min_shard_bytes` as it has, but at most `max_shards`.

    >>> MinSizePartitioner(min_shard_bytes=4, max_shards=10)(tf.TensorShape([6, 1]), tf.float32)
    [6, 1]
    """

    def __init__(
        self, min_shard_bytes: int = DEFAULT_SLICE_BYTES, max_shards: int = 1, bytes_per_string: int = 16
    ) -> None:
        _require_positive(min_shard_bytes=min_shard_bytes, max_shards=max_shards, bytes_per_string=bytes_per_string)
        self._bytes, self._max_shards, self._bytes_per_string = min_shard_bytes, max_shards, bytes_per_string

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of pieces along each axis."""
        if None in _sizes(shape):
            raise TypeError(f"Cannot partition a variable of shape {as_shape(shape)}: it is not fully defined.")
        return min_max_variable_partitioner(self._max_shards, axis, self._bytes, self._bytes_per_string)(shape, dtype)


class MaxSizePartitioner(Partitioner):
    """Cuts a variable into pieces of at most `max_shard_bytes`, unless these would be more than `max_shards`.

    >>> MaxSizePartitioner(max_shard_bytes=4)(tf.TensorShape([6, 1]), tf.float32)
    [6, 1]
    """

    def __init__(self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16) -> None:
        # No bound, in TensorFlow, is None or 0.
        _require_positive(
            max_shard_bytes=max_shard_bytes, max_shards=max_shards or 1, bytes_per_string=bytes_per_string
        )
        self._bytes, self._max_shards, self._bytes_per_string = max_shard_bytes, max_shards, bytes_per_string

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of pieces along each axis."""
        known = as_shape(shape)
        if known.is_fully_defined():
            sizes = _sizes(known)
            _require_axis(sizes, axis)
            if 0 in sizes:
                raise ZeroDivisionError(f"Cannot cut a variable of shape {known} by its bytes: it has none.")
        make = variable_axis_size_partitioner(self._bytes, axis, self._bytes_per_string, self._max_shards)
        return make(known, dtype)


def _sizes(shape: Any) -> list[int | None]:
    known = as_shape(shape)
    if known.rank is None:
        raise ValueError(f"Cannot partition a variable of unknown rank, received the shape {known}.")
    sizes: list[int | None] = known.as_list()
    return sizes


def _require_axis(sizes: list[int | None], axis: int) -> None:
    if not -len(sizes) <= axis < len(sizes):
        raise IndexError(f"Cannot partition a variable along axis {axis} when shape is only {tuple(sizes)}.")


def _require_positive(**arguments: int) -> None:
    for name, value in arguments.items():
        if value < 1:
            raise ValueError(f"Argument `{name}` must be positive. Received: {value}")
