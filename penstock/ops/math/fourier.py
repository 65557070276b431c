"""Fourier transforms over the last one, two or three dimensions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value, constant_value_as_shape
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import DType
from penstock.graph.opdef import OpDef, Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel.types import Array
from penstock.ops.array import creation, joining, padding, reshaping
from penstock.ops.math import arithmetic

_COMPLEX = Types(dt.complex64, dt.complex128, default=dt.complex64)
_REAL = Types(dt.float32, dt.float64, default=dt.float32)
_COMPLEX64, _FLOAT32 = dt.complex64, dt.float32


def _dimensions(rank: int) -> str:
    return "" if rank == 1 else f"{rank}D"


def _axes(rank: int) -> tuple[int, ...]:
    return tuple(range(-rank, 0))


def _require_rank(array_: Array, rank: int) -> None:
    if array_.ndim < rank:
        raise ValueError(f"Input must have rank of at least {rank} but got: {list(array_.shape)}")


# Complex to complex


def _complex_transform(rank: int, inverse: bool) -> OpDef:
    def same_shape(op: Operation) -> list[TensorShape]:
        shape = op.input_list[0].shape
        if shape.rank is not None and shape.rank < rank:
            raise ValueError(f"Shape must be at least rank {rank} but is rank {shape.rank}")
        return [shape]

    @op(
        f"{'I' if inverse else ''}FFT{_dimensions(rank)}",
        "Tcomplex -> output: Tcomplex",
        shape=same_shape,
        Tcomplex=_COMPLEX,
    )
    def transform(input: Array) -> Array:
        _require_rank(input, rank)
        if 0 in input.shape:
            return jnp.asarray(input)
        found = jnp.fft.ifftn(input, axes=_axes(rank)) if inverse else jnp.fft.fftn(input, axes=_axes(rank))
        return found.astype(input.dtype)

    return transform


fft, fft2d, fft3d = (_complex_transform(rank, inverse=False) for rank in (1, 2, 3))
ifft, ifft2d, ifft3d = (_complex_transform(rank, inverse=True) for rank in (1, 2, 3))


# Real to complex and back. The last dimension holds the non-negative frequencies only: the others are conjugates.


def _half_shape(rank: int, inverse: bool) -> Any:
    def rule(op: Operation) -> list[TensorShape]:
        shape = op.input_list[0].shape
        if shape.rank is None:
            return [shape]
        if shape.rank < rank:
            raise ValueError(f"Shape must be at least rank {rank} but is rank {shape.rank}")
        sizes: list[int | None] = list(constant_value_as_shape(op.input_list[1]).with_rank(rank).as_list())
        last = sizes[-1]
        if not inverse and last:
            sizes[-1] = last // 2 + 1
        return [TensorShape.of((*shape.as_list()[:-rank], *sizes))]

    return rule


def _cropped(input: Array, sizes: list[int]) -> Array:
    """The part of `input` that a transform of `sizes` uses."""
    for axis, (size, dim) in enumerate(zip(sizes, input.shape[-len(sizes) :], strict=True)):
        if dim < size:
            at = input.ndim - len(sizes) + axis
            raise ValueError(f"Input dimension {at} must have length of at least {size} but got: {dim}")
    return input[(..., *(slice(size) for size in sizes))]


def _lengths(fft_length: np.ndarray, rank: int) -> list[int]:
    if fft_length.shape != (rank,) or (fft_length < 0).any():
        raise ValueError(f"fft_length must be {rank} sizes that are not negative, received {fft_length.tolist()}")
    return list(map(as_size, fft_length))


def _forward(rank: int) -> OpDef:
    @op(
        f"RFFT{_dimensions(rank)}",
        "Treal, int32 -> output: Tcomplex",
        static="fft_length",
        shape=_half_shape(rank, inverse=False),
        Treal=_REAL,
        Tcomplex=_COMPLEX,
    )
    def transform(input: Array, fft_length: Array, *, Tcomplex: DType = _COMPLEX64) -> Array:
        _require_rank(input, rank)
        kind = Tcomplex.as_numpy_dtype
        sizes = _lengths(fft_length, rank)
        if 0 in input.shape:
            half = sizes[-1] // 2 + 1 if sizes[-1] else 0
            return jnp.zeros((*input.shape[:-rank], *sizes[:-1], half), kind)
        return jnp.fft.rfftn(_cropped(input, sizes), axes=_axes(rank)).astype(kind)

    return transform


def _backward(rank: int) -> OpDef:
    @op(
        f"IRFFT{_dimensions(rank)}",
        "Tcomplex, int32 -> output: Treal",
        static="fft_length",
        shape=_half_shape(rank, inverse=True),
        Treal=_REAL,
        Tcomplex=_COMPLEX,
    )
    def transform(input: Array, fft_length: Array, *, Treal: DType = _FLOAT32) -> Array:
        _require_rank(input, rank)
        kind = Treal.as_numpy_dtype
        sizes = _lengths(fft_length, rank)
        if 0 in input.shape or 0 in sizes:
            return jnp.zeros((*input.shape[:-rank], *sizes), kind)
        half = [*sizes[:-1], sizes[-1] // 2 + 1]
        return jnp.fft.irfftn(_cropped(input, half), s=sizes, axes=_axes(rank)).astype(kind)

    return transform


_RFFT = {rank: _forward(rank) for rank in (1, 2, 3)}
_IRFFT = {rank: _backward(rank) for rank in (1, 2, 3)}


def _inferred_length(tensor: Tensor, rank: int, inverse: bool) -> Tensor:
    """The sizes of the last dimensions of the real side."""
    if tensor.shape.rank is not None:
        sizes: list[Any] = tensor.shape.as_list()[-rank:]
        if None not in sizes:
            if inverse:
                sizes[-1] = max(0, 2 * (sizes[-1] - 1))
            return make_constant(sizes, dt.int32)
    tail: Any = reshaping.shape(tensor)[-rank:]  # type: ignore[index]
    if not inverse:
        found: Tensor = tail
        return found
    parts: list[Any] = joining.unstack(tail)
    parts[-1] = arithmetic.maximum(0, 2 * (parts[-1] - 1))
    return joining.stack(parts)


def _padded(tensor: Tensor, rank: int, fft_length: Any, inverse: bool) -> Tensor:
    """`tensor` padded with zeros at the end if it is shorter than the transform."""
    dims = None if tensor.shape.rank is None else tensor.shape.as_list()
    if dims is not None and 0 in dims:
        return tensor
    known = constant_value(fft_length)
    if known is not None and dims is not None and None not in dims[-rank:]:
        wanted = known.tolist()
        if inverse:
            wanted[-1] = wanted[-1] // 2 + 1
        missing = [[0, max(want - dim, 0)] for want, dim in zip(wanted, dims[-rank:], strict=True)]
        if any(after for _, after in missing):
            return padding.pad(tensor, [[0, 0]] * (len(dims) - rank) + missing)
        return tensor
    whole: Any = reshaping.rank(tensor)
    inner: Any = reshaping.shape(tensor)[-rank:]  # type: ignore[index]
    outer = creation.zeros([arithmetic.maximum(0, whole - rank)], dtype=dt.int32)
    if inverse:
        fft_length = joining.concat([fft_length[:-1], fft_length[-1:] // 2 + 1], 0)
    after = joining.concat([outer, arithmetic.maximum(0, fft_length - inner)], 0)
    return padding.pad(tensor, joining.stack([creation.zeros_like(after), after], axis=1))


def _real_function(rank: int, inverse: bool) -> Any:
    raw = (_IRFFT if inverse else _RFFT)[rank]
    default_name = f"{'i' if inverse else ''}rfft{_dimensions(rank).lower()}"

    def function(input_tensor: TensorLike, fft_length: TensorLike = None, name: str | None = None) -> Tensor:
        with name_scope(name, default_name, [input_tensor, fft_length]) as scope:
            preferred = _COMPLEX64 if inverse else _FLOAT32
            tensor = convert_to_tensor(input_tensor, preferred_dtype=preferred)
            if inverse and not tensor.dtype.base_dtype.is_complex:
                tensor = convert_to_tensor(input_tensor, dtype=_COMPLEX64)
            tensor.shape.with_rank_at_least(rank)
            if fft_length is None:
                length = _inferred_length(tensor, rank, inverse)
            else:
                length = convert_to_tensor(fft_length, dtype=dt.int32)
            tensor = _padded(tensor, rank, length, inverse)
            wide = tensor.dtype.base_dtype in (dt.float64, dt.complex128)
            kinds = {"Treal": dt.float64, "Tcomplex": dt.complex128} if wide else {}
            known = constant_value(length)
            result: Tensor = raw(tensor, length if known is None else known, name=scope, **kinds)
            return result

    function.__name__ = function.__qualname__ = default_name
    meaning = (
        "Real numbers of the last {} dimension(s) from their non-negative frequencies"
        if inverse
        else "The non-negative frequencies of real numbers in the last {} dimension(s)"
    )
    function.__doc__ = f"""{meaning.format(rank)}; `fft_length` crops or pads them first.

    >>> tf.signal.{default_name}(x)
    """
    return function


rfft, rfft2d, rfft3d = (_real_function(rank, inverse=False) for rank in (1, 2, 3))
irfft, irfft2d, irfft3d = (_real_function(rank, inverse=True) for rank in (1, 2, 3))


def _spectrogram_shape(node: Operation) -> list[TensorShape]:
    window, stride = node.attrs["window_size"], node.attrs["stride"]
    samples, channels = node.input_list[0].shape.with_rank(2).as_list()
    frames = None if samples is None or stride < 1 else max(0, 1 + (samples - window) // stride)
    return [TensorShape.of((channels, frames, 1 + _power_of_two(window) // 2))]


def _power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


@op("AudioSpectrogram", "float32 -> spectrogram: float32", shape=_spectrogram_shape, host=True)
def audio_spectrogram(
    input: np.ndarray, *, window_size: int, stride: int, magnitude_squared: bool = False
) -> np.ndarray:
    """The magnitudes of the frequencies in windows of each channel; windows are weighted by a periodic Hann window."""
    if input.ndim != 2:
        raise ValueError(f"input must be 2-dimensional, received shape {list(input.shape)}")
    if window_size < 2 or stride < 1:
        raise ValueError(f"window_size must be at least 2 and stride 1, received {window_size} and {stride}")
    samples, channels = input.shape
    weights = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_size) / window_size)
    starts = range(0, samples - window_size + 1, stride)
    frames = np.empty((channels, len(starts), window_size))
    for i, start in enumerate(starts):
        frames[:, i] = input[start : start + window_size].T * weights
    size = _power_of_two(window_size)
    spectrum = np.abs(np.fft.rfft(frames, size)) if len(starts) else np.empty((channels, 0, 1 + size // 2))
    return (spectrum * spectrum if magnitude_squared else spectrum).astype(np.float32)
