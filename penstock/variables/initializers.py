"""Initializers: functions from a shape (and a type) to a tensor, from which variables take their initial values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import registered
from penstock.graph.shape import as_shape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.array import creation, reshaping
from penstock.ops.random import stateful as random


class Initializer:
    """Called as `initializer(shape, dtype=None, partition_info=None)`; `get_config` and `from_config` copy it."""

    dtype: DType

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: Any = None) -> Any:
        raise NotImplementedError

    def _dtype(self, dtype: Any) -> DType:
        return self.dtype if dtype is None else as_dtype(dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal initializer."""
        config = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "dtype"}
        return {**config, "dtype": self.dtype.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes an initializer from the result of `get_config`."""
        return cls(**config)


def _float(dtype: Any) -> DType:
    found = as_dtype(dtype)
    if not found.is_floating:
        raise ValueError(f"This initializer gives floating point numbers, received dtype {found.name}.")
    return found


class Zeros(Initializer):
    """Zeros (False, or empty strings).

    >>> tf.get_variable("b", [10], initializer=tf.zeros_initializer())
    """

    def __init__(self, dtype: DTypeLike = dt.float32) -> None:
        self.dtype = as_dtype(dtype)

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: Any = None) -> Any:
        return creation.zeros(shape, self._dtype(dtype))


class Ones(Initializer):
    """Ones."""

    def __init__(self, dtype: DTypeLike = dt.float32) -> None:
        self.dtype = as_dtype(dtype)

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: Any = None) -> Any:
        return creation.ones(shape, self._dtype(dtype))


class Constant(Initializer):
    """A number, or a list or array whose elements fill the shape in row-major order.

    >>> tf.constant_initializer(0.1)
    """

    def __init__(self, value: TensorLike = 0, dtype: DTypeLike = dt.float32, verify_shape: bool = False) -> None:
        if not (np.isscalar(value) or isinstance(value, (list, tuple, np.ndarray))):
            raise TypeError(f"Invalid initial value: expected a number, list or array, received {value!r:.80}.")
        self.value, self.dtype, self._verify_shape = value, as_dtype(dtype), verify_shape

    def __call__(
        self,
        shape: ShapeLike,
        dtype: DTypeLike | None = None,
        partition_info: Any = None,
        verify_shape: bool | None = None,
    ) -> Any:
        verify = self._verify_shape if verify_shape is None else verify_shape
        return creation.constant(self.value, dtype=self._dtype(dtype), shape=shape, verify_shape=verify)


class RandomUniform(Initializer):
    """Uniform between `minval` and `maxval`."""

    def __init__(
        self,
        minval: TensorLike = 0.0,
        maxval: TensorLike = None,
        seed: int | None = None,
        dtype: DTypeLike = dt.float32,
    ) -> None:
        self.minval, self.maxval, self.seed, self.dtype = minval, maxval, seed, as_dtype(dtype)

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: Any = None) -> Any:
        return random.random_uniform(shape, self.minval, self.maxval, self._dtype(dtype), seed=self.seed)


class RandomNormal(Initializer):
    """Normal with `mean` and `stddev`."""

    def __init__(
        self, mean: TensorLike = 0.0, stddev: TensorLike = 1.0, seed: int | None = None, dtype: DTypeLike = dt.float32
    ) -> None:
        self.mean, self.stddev, self.seed, self.dtype = mean, stddev, seed, _float(dtype)

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: Any = None) -> Any:
        return random.random_normal(shape, self.mean, self.stddev, self._dtype(dtype), seed=self.seed)


class TruncatedNormal(Initializer):
    """Normal with `mean` and `stddev`; values more than two deviations away are drawn again.

    >>> tf.truncated_normal_initializer(stddev=0.1)
    """

    def __init__(
        self, mean: TensorLike = 0.0, stddev: TensorLike = 1.0, seed: int | None = None, dtype: DTypeLike = dt.float32
    ) -> None:
        self.mean, self.stddev, self.seed, self.dtype = mean, stddev, seed, _float(dtype)

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: Any = None) -> Any:
        return random.truncated_normal(shape, self.mean, self.stddev, self._dtype(dtype), seed=self.seed)


def _whole(shape: Any, partition_info: Any) -> list[int]:
    """The shape to scale by: that of the whole variable, even for a slice of it."""
    return list(shape if partition_info is None else partition_info.full_shape)


class UniformUnitScaling(Initializer):
    """Uniform, scaled to keep the variance of a layer's input."""

    def __init__(self, factor: float = 1.0, seed: int | None = None, dtype: DTypeLike = dt.float32) -> None:
        self.factor, self.seed, self.dtype = factor, seed, _float(dtype)

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: Any = None) -> Any:
        inputs = max(float(math.prod(_whole(shape, partition_info)[:-1])), 1.0)
        limit = math.sqrt(3 / inputs) * self.factor
        return random.random_uniform(shape, -limit, limit, self._dtype(dtype), seed=self.seed)


_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("normal", "uniform", "truncated_normal", "untruncated_normal")
_TRUNCATED_STDDEV = 0.87962566103423978  # of a standard normal cut at two deviations


class VarianceScaling(Initializer):
    """Random numbers whose variance is `scale` over the number of inputs, of outputs, or the mean of both.

    >>> tf.variance_scaling_initializer(2.0, "fan_avg", "uniform")
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
        dtype: DTypeLike = dt.float32,
    ) -> None:
        if scale <= 0.0:
            raise ValueError(f"Argument `scale` must be a positive float. Received: {scale}")
        if mode not in _MODES:
            raise ValueError(f"Argument `mode` should be one of {_MODES}. Received: {mode}")
        if distribution.lower() not in _DISTRIBUTIONS:
            raise ValueError(f"Argument `distribution` should be one of {_DISTRIBUTIONS}. Received: {distribution}")
        self.scale, self.mode, self.distribution = scale, mode, distribution.lower()
        self.seed, self.dtype = seed, _float(dtype)

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: Any = None) -> Any:
        fan_in, fan_out = fans(_whole(shape, partition_info))
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, fan)
        kind = self._dtype(dtype)
        if self.distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return random.random_uniform(shape, -limit, limit, kind, seed=self.seed)
        if self.distribution == "untruncated_normal":
            return random.random_normal(shape, 0.0, math.sqrt(variance), kind, seed=self.seed)
        return random.truncated_normal(shape, 0.0, math.sqrt(variance) / _TRUNCATED_STDDEV, kind, seed=self.seed)


def fans(shape: Sequence[int]) -> tuple[float, float]:
    """Number of inputs and outputs of a unit with weights of this shape (kernels of convolutions included)."""
    if len(shape) < 1:
        return 1.0, 1.0
    if len(shape) == 1:
        return float(shape[0]), float(shape[0])
    field = float(math.prod(shape[:-2]))
    return shape[-2] * field, shape[-1] * field


class _Preset(VarianceScaling):
    """VarianceScaling with fixed settings except for the seed."""

    _scale, _mode, _kind = 1.0, "fan_avg", "uniform"

    def __init__(self, seed: int | None = None, dtype: DTypeLike = dt.float32) -> None:
        super().__init__(self._scale, self._mode, self._kind, seed, dtype)

    def get_config(self) -> dict[str, Any]:
        return {"seed": self.seed, "dtype": self.dtype.name}


class GlorotUniform(_Preset):
    """Uniform with the variance of Glorot and Bengio: the default of `get_variable` for floats."""


class GlorotNormal(_Preset):
    """Truncated normal with the variance of Glorot and Bengio."""

    _kind = "truncated_normal"


class LecunNormal(_Preset):
    """Truncated normal with variance 1 / fan_in."""

    _mode, _kind = "fan_in", "truncated_normal"


class LecunUniform(_Preset):
    """Uniform with variance 1 / fan_in."""

    _mode = "fan_in"


class HeNormal(_Preset):
    """Truncated normal with variance 2 / fan_in."""

    _scale, _mode, _kind = 2.0, "fan_in", "truncated_normal"


class HeUniform(_Preset):
    """Uniform with variance 2 / fan_in."""

    _scale, _mode = 2.0, "fan_in"


class Orthogonal(Initializer):
    """An orthogonal matrix (of the flattened shape, the last axis kept), times `gain`."""

    def __init__(self, gain: float = 1.0, seed: int | None = None, dtype: DTypeLike = dt.float32) -> None:
        self.gain, self.seed, self.dtype = gain, seed, _float(dtype)

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: Any = None) -> Any:
        dims = [int(d) for d in as_shape(shape)]
        if len(dims) < 2:
            raise ValueError(f"The tensor to initialize must be at least two-dimensional. Received shape={dims}")
        rows, columns = math.prod(dims[:-1]), dims[-1]
        tall = (max(rows, columns), min(rows, columns))
        qr, diag_part, sign, transpose = (registered(n) for n in ("Qr", "DiagPart", "Sign", "Transpose"))
        assert qr is not None and diag_part is not None and sign is not None and transpose is not None
        q, r = qr(random.random_normal(tall, dtype=self._dtype(dtype), seed=self.seed), full_matrices=False)
        # The signs make the decomposition unique, and so the matrix uniformly distributed.
        q = q * sign(diag_part(r))
        if rows < columns:
            q = transpose(q, [1, 0])
        flat: Any = reshaping.reshape(q, dims)
        return self.gain * flat


class Identity(Initializer):
    """The identity matrix times `gain`; for two-dimensional variables only."""

    def __init__(self, gain: float = 1.0, dtype: DTypeLike = dt.float32) -> None:
        self.gain, self.dtype = gain, _float(dtype)

    def __call__(self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: Any = None) -> Any:
        whole = _whole(shape, partition_info)
        if len(whole) != 2:
            raise ValueError(f"The tensor to initialize must be two-dimensional. Received shape={whole}")
        kind = self._dtype(dtype)
        matrix = np.eye(*(int(d) for d in whole), dtype=kind.as_numpy_dtype) * kind.as_numpy_dtype(self.gain)
        if partition_info is not None:
            part = zip(partition_info.var_offset, map(int, as_shape(shape)), strict=True)
            matrix = matrix[tuple(slice(o, o + n) for o, n in part)]
        return creation.constant(matrix, name="eye")


zeros_initializer = Zeros
ones_initializer = Ones
constant_initializer = Constant
random_uniform_initializer = RandomUniform
random_normal_initializer = RandomNormal
truncated_normal_initializer = TruncatedNormal
uniform_unit_scaling_initializer = UniformUnitScaling
variance_scaling_initializer = VarianceScaling
orthogonal_initializer = Orthogonal
identity_initializer = Identity
glorot_uniform_initializer = GlorotUniform
glorot_normal_initializer = GlorotNormal


def lecun_normal(seed: int | None = None) -> LecunNormal:
    """Truncated normal with variance 1 / fan_in."""
    return LecunNormal(seed)


def lecun_uniform(seed: int | None = None) -> LecunUniform:
    """Uniform with variance 1 / fan_in."""
    return LecunUniform(seed)


def he_normal(seed: int | None = None) -> HeNormal:
    """Truncated normal with variance 2 / fan_in."""
    return HeNormal(seed)


def he_uniform(seed: int | None = None) -> HeUniform:
    """Uniform with variance 2 / fan_in."""
    return HeUniform(seed)
