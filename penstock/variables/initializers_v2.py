"""Initializers of TensorFlow 2: they are given a type when they are called, and a seed repeats their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph.dtype import DType, as_dtype
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.array import creation
from penstock.ops.random import stateful, stateless

_PARTITION = frozenset(("partition_shape", "partition_offset"))


class Initializer:
    """Makes initial values: `initializer(shape, dtype)`. A shard of a variable gives its `partition_shape`, too."""

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _shape(self, shape: ShapeLike, kwargs: dict[str, Any]) -> Any:
        unknown = sorted(kwargs.keys() - _PARTITION)
        if unknown:
            raise TypeError(f"{type(self).__name__} got unknown keyword arguments {unknown}.")
        return kwargs.get("partition_shape", shape)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Initializer:
        """An initializer from what `get_config` gave."""
        return cls(**{key: value for key, value in config.items() if key != "dtype"})


class Zeros(Initializer):
    """Zeros: `tf.zeros_initializer()([2, 3], tf.int32)`."""

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = "float32", **kwargs: Any) -> Any:
        return creation.zeros(self._shape(shape, kwargs), as_dtype(dtype))


class Ones(Initializer):
    """Ones: `tf.ones_initializer()([2, 3])`."""

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = "float32", **kwargs: Any) -> Any:
        return creation.ones(self._shape(shape, kwargs), as_dtype(dtype))


class Constant(Initializer):
    """A number, or as many numbers as the shape has elements: `tf.constant_initializer([1, 2])([2])`."""

    def __init__(self, value: TensorLike = 0, support_partition: bool = False) -> None:
        if not (np.isscalar(value) or isinstance(value, (list, tuple, np.ndarray))):
            raise TypeError(f"Invalid initial value: expected a number, list or array, received {value!r:.80}.")
        self.value, self.support_partition = value, support_partition

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, **kwargs: Any) -> Any:
        shape = self._shape(shape, kwargs)
        if kwargs and not self.support_partition:
            raise ValueError("constant_initializer: give support_partition=True to use it for parts of a variable.")
        return creation.constant(self.value, None if dtype is None else as_dtype(dtype), shape)


class _Random(Initializer):
    seed: int | None

    def _drawn(self, kind: str, shape: Any, first: Any, second: Any, dtype: DType) -> Any:
        if self.seed is not None:
            # A seed gives the same values at every call.
            return getattr(stateless, f"stateless_{kind}")(shape, [self.seed, 0], first, second, dtype)
        return getattr(stateful, f"random_{kind}")(shape, first, second, dtype)


class RandomUniform(_Random):
    """Uniform between `minval` and `maxval`: `tf.random_uniform_initializer(-1.0, 1.0)([3])`."""

    def __init__(self, minval: TensorLike = -0.05, maxval: TensorLike = 0.05, seed: int | None = None) -> None:
        self.minval, self.maxval, self.seed = minval, maxval, seed

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = "float32", **kwargs: Any) -> Any:
        kind = as_dtype(dtype)
        if not kind.is_floating and not kind.is_integer:
            raise ValueError(f"Expected float or integer dtype, received {kind.name}.")
        return self._drawn("uniform", self._shape(shape, kwargs), self.minval, self.maxval, kind)


class RandomNormal(_Random):
    """Normal with `mean` and `stddev`: `tf.random_normal_initializer(stddev=0.1)([3])`."""

    def __init__(self, mean: TensorLike = 0.0, stddev: TensorLike = 0.05, seed: int | None = None) -> None:
        self.mean, self.stddev, self.seed = mean, stddev, seed

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = "float32", **kwargs: Any) -> Any:
        kind = as_dtype(dtype)
        if not kind.is_floating:
            raise ValueError(f"Expected floating point type, received {kind.name}.")
        return self._drawn("normal", self._shape(shape, kwargs), self.mean, self.stddev, kind)


zeros_initializer = Zeros
ones_initializer = Ones
constant_initializer = Constant
random_uniform_initializer = RandomUniform
random_normal_initializer = RandomNormal
