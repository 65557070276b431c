"""Signals: frames, windows, short-time Fourier transforms, cosine transforms, and mel spectrograms."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import as_dtype
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array import arranging, creation, gathering, joining, padding, ranges, reshaping, selection, spacing
from penstock.ops.math import arithmetic, casting, compare, fourier, reduce, unary

_FLOAT32 = dt.float32

# Windows


def hann_window(
    window_length: TensorLike, periodic: Any = True, dtype: DTypeLike = _FLOAT32, name: str | None = None
) -> Tensor:
    """A Hann window, which is 0 at its ends: `tf.signal.hann_window(512)`."""
    return _raised_cosine(name, "hann_window", window_length, periodic, dtype, 0.5, 0.5)


def hamming_window(
    window_length: TensorLike, periodic: Any = True, dtype: DTypeLike = _FLOAT32, name: str | None = None
) -> Tensor:
    """A Hamming window: `tf.signal.hamming_window(512)`."""
    return _raised_cosine(name, "hamming_window", window_length, periodic, dtype, 0.54, 0.46)


def _raised_cosine(
    name: str | None, default_name: str, window_length: Any, periodic: Any, dtype: Any, a: float, b: float
) -> Tensor:
    kind = as_dtype(dtype)
    if not kind.is_floating:
        raise ValueError(f"{default_name}: dtype must be floating, received {kind.name}.")
    with name_scope(name, default_name, [window_length, periodic]):
        length: Any = convert_to_tensor(window_length, dtype=dt.int32, name="window_length")
        known = constant_value(length)
        if known is not None and int(known) == 1:
            return creation.ones([1], dtype=kind)
        periodic = casting.cast(convert_to_tensor(periodic, dtype=dt.bool, name="periodic"), dt.int32)
        even = 1 - length % 2
        steps = casting.cast(length + periodic * even - 1, kind)
        count: Any = casting.cast(ranges.range(length), kind)
        angle = make_constant(2 * np.pi, kind) * count / steps
        return casting.cast(a - b * unary.cos(angle), kind)  # type: ignore[no-any-return]


# Frames


def frame(
    signal: TensorLike,
    frame_length: TensorLike,
    frame_step: TensorLike,
    pad_end: bool = False,
    pad_value: TensorLike = 0,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """Overlapping frames of `frame_length` elements, every `frame_step` elements along `axis`, as rows.

    >>> tf.signal.frame(audio, frame_length=400, frame_step=160)
    """
    with name_scope(name, "frame", [signal, frame_length, frame_step, pad_value]):
        signal = convert_to_tensor(signal, name="signal")
        length: Any = convert_to_tensor(frame_length, dtype=dt.int32, name="frame_length")
        step: Any = convert_to_tensor(frame_step, dtype=dt.int32, name="frame_step")
        rank = signal.shape.with_rank_at_least(1).rank
        if rank is None:
            if axis != -1:
                raise ValueError("frame: the rank of the signal must be known unless axis is -1.")
            at = -1
        elif not -rank <= axis < rank:
            raise ValueError(f"frame: axis must be in [{-rank}, {rank}), received {axis}.")
        else:
            at = axis % rank
        dims: Any = reshaping.shape(signal)
        size = dims[at]
        if pad_end:
            # As many frames as there are steps; the last ones are padded.
            count: Any = -(-size // step)
            missing = arithmetic.maximum(0, length + step * (count - 1) - size)
            signal = _padded_end(signal, missing, at, pad_value)
        else:
            count = arithmetic.maximum(0, 1 + (size - length) // step)
        starts = reshaping.reshape(ranges.range(count) * step, [-1, 1])
        places = starts + reshaping.reshape(ranges.range(length), [1, -1])  # type: ignore[operator]
        return gathering.gather(signal, places, axis=reshaping.rank(signal) - 1 if at == -1 else at)  # type: ignore[operator]


def _padded_end(signal: Tensor, missing: Any, axis: int, value: Any) -> Tensor:
    count: Any = reshaping.rank(signal)
    here = compare.equal(ranges.range(count), count - 1 if axis == -1 else axis)
    after = casting.cast(here, dt.int32) * missing
    return padding.pad(signal, joining.stack([creation.zeros_like(after), after], axis=1), constant_values=value)


def overlap_and_add(signal: TensorLike, frame_step: TensorLike, name: str | None = None) -> Tensor:
    """The opposite of `frame`: the sum of the rows, each shifted by `frame_step` from the one before.

    >>> tf.signal.overlap_and_add(frames, 160)
    """
    with name_scope(name, "overlap_and_add", [signal, frame_step]):
        signal = convert_to_tensor(signal, name="signal")
        signal.shape.with_rank_at_least(2)
        step: Any = convert_to_tensor(frame_step, name="frame_step")
        if not step.dtype.is_integer:
            raise ValueError(f"overlap_and_add: frame_step must be an integer, received {step.dtype.name}.")
        step = casting.cast(step, dt.int32)
        dims: Any = reshaping.shape(signal)
        outer, count, length = dims[:-2], dims[-2], dims[-1]
        # Each frame is split into pieces of one step; piece j of frame i is added to piece i + j of the sum. Reshaping
        # with one row too few per piece shifts every piece by one row more than the piece before it.
        pieces = -(-length // step)
        flat = reshaping.reshape(signal, joining.concat([[-1], dims[-2:]], 0))
        filled = padding.pad(flat, [[0, 0], [0, pieces], [0, pieces * step - length]])
        parts = reshaping.reshape(filled, [-1, count + pieces, pieces, step])
        rows = reshaping.reshape(arranging.transpose(parts, [0, 2, 1, 3]), [-1, pieces * (count + pieces), step])
        moved = rows[:, : pieces * (count + pieces - 1)]  # type: ignore[index]
        summed = reduce.reduce_sum(reshaping.reshape(moved, [-1, pieces, count + pieces - 1, step]), axis=1)
        total = reshaping.reshape(summed, joining.concat([outer, [(count + pieces - 1) * step]], 0))
        return total[..., : length + step * (count - 1)]  # type: ignore[index, no-any-return]


# Short-time Fourier transforms

Window = Callable[..., Any]


def stft(
    signals: TensorLike,
    frame_length: TensorLike,
    frame_step: TensorLike,
    fft_length: TensorLike = None,
    window_fn: Window | None = hann_window,
    pad_end: bool = False,
    name: str | None = None,
) -> Tensor:
    """The spectra of overlapping frames of real signals: [..., frames, fft_length // 2 + 1], complex.

    >>> tf.abs(tf.signal.stft(audio, frame_length=400, frame_step=160))
    """
    with name_scope(name, "stft", [signals, frame_length, frame_step]):
        signals = convert_to_tensor(signals, name="signals")
        signals.shape.with_rank_at_least(1)
        frame_length = _scalar(frame_length, "frame_length")
        frame_step = _scalar(frame_step, "frame_step")
        length = _enclosing_power_of_two(frame_length) if fft_length is None else _scalar(fft_length, "fft_length")
        framed: Any = frame(signals, frame_length, frame_step, pad_end=pad_end)
        if window_fn is not None:
            framed = framed * window_fn(frame_length, dtype=framed.dtype)
        return fourier.rfft(framed, [length])  # type: ignore[no-any-return]


def _scalar(value: Any, name: str) -> Tensor:
    tensor: Tensor = convert_to_tensor(value, name=name)
    tensor.shape.with_rank(0)
    return tensor


def _enclosing_power_of_two(value: Tensor) -> Tensor:
    known = constant_value(value)
    if known is not None:
        return make_constant(int(2 ** pymath.ceil(pymath.log2(int(known)))), value.dtype.base_dtype)
    exponent = unary.ceil(unary.log(casting.cast(value, _FLOAT32)) / pymath.log(2.0))
    return casting.cast(arithmetic.pow(2.0, exponent), value.dtype)  # type: ignore[no-any-return]


def inverse_stft(
    stfts: TensorLike,
    frame_length: TensorLike,
    frame_step: TensorLike,
    fft_length: TensorLike = None,
    window_fn: Window | None = hann_window,
    name: str | None = None,
) -> Tensor:
    """Signals from their short-time Fourier transforms; `inverse_stft_window_fn` makes the reconstruction exact.

    >>> tf.signal.inverse_stft(spectra, 400, 160, window_fn=tf.signal.inverse_stft_window_fn(160))
    """
    with name_scope(name, "inverse_stft", [stfts]):
        stfts = convert_to_tensor(stfts, name="stfts")
        stfts.shape.with_rank_at_least(2)
        frame_length = _scalar(frame_length, "frame_length")
        frame_step = _scalar(frame_step, "frame_step")
        length = _enclosing_power_of_two(frame_length) if fft_length is None else _scalar(fft_length, "fft_length")
        real: Any = fourier.irfft(stfts, [length])
        # The transform may be longer or shorter than a frame.
        real = real[..., : arithmetic.minimum(frame_length, length)]
        missing: Any = arithmetic.maximum(0, frame_length - length)
        known = constant_value(missing)
        if known is None or int(known):
            real = _padded_end(real, missing, -1, 0)
        if window_fn is not None:
            real = real * window_fn(frame_length, dtype=stfts.dtype.real_dtype)
        return overlap_and_add(real, frame_step)


def inverse_stft_window_fn(
    frame_step: TensorLike, forward_window_fn: Window = hann_window, name: str | None = None
) -> Window:
    """The window for `inverse_stft` that undoes a `stft` with `forward_window_fn` exactly."""

    def window(frame_length: Any, dtype: Any) -> Tensor:
        with name_scope(name, "inverse_stft_window_fn", [forward_window_fn]):
            step: Any = _scalar(frame_step, "frame_step")
            length: Any = _scalar(frame_length, "frame_length")
            forward: Any = forward_window_fn(length, dtype=dtype)
            overlaps = -(-length // step)
            denominator = padding.pad(unary.square(forward), [(0, overlaps * step - length)])
            denominator = reshaping.reshape(denominator, [overlaps, step])
            denominator = reduce.reduce_sum(denominator, 0, keepdims=True)
            denominator = joining.tile(denominator, [overlaps, 1])
            denominator = reshaping.reshape(denominator, [overlaps * step])
            return forward / denominator[:length]  # type: ignore[index, no-any-return]

    return window


# Cosine transforms


def dct(
    input: TensorLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The discrete cosine transform of type 1 to 4 along the last dimension: `tf.signal.dct(x, norm="ortho")`."""
    _check_dct(type, axis, norm)
    with name_scope(name, "dct", [input]):
        x: Any = convert_to_tensor(input)
        if x.dtype.base_dtype not in (dt.float16, dt.float32, dt.float64):
            x = convert_to_tensor(input, dtype=_FLOAT32)
        kind = x.dtype.base_dtype
        zero = make_constant(0.0, kind)
        x = _of_length(x, n)
        size = x.shape.as_list()[-1] if x.shape.rank is not None else None
        length: Any = reshaping.shape(x)[-1] if size is None else size  # type: ignore[index]
        count: Any = casting.cast(length, kind)
        if type == 1:
            if norm:
                raise ValueError("dct: type 1 has no normalization.")
            mirrored = joining.concat([x, x[..., -2:0:-1]], axis=-1)
            return casting.real(fourier.rfft(mirrored))
        if type == 3 and norm == "ortho":
            first, rest = joining.split(x, [1, length - 1], axis=-1)
            x = joining.concat([first * unary.sqrt(count), rest * unary.sqrt(count / 2.0)], axis=-1)
        elif type == 3:
            x = x * count
        if type == 2:
            angle = -ranges.range(count) * np.pi * 0.5 / count  # type: ignore[operator]
            scale = 2.0 * unary.exp(casting.complex(zero, angle))
            result: Any = casting.real(fourier.rfft(x, [2 * length])[..., :length] * scale)
            if norm == "ortho":
                first = 0.5 * unary.rsqrt(count)
                others = first * pymath.sqrt(2.0)
                weights = padding.pad(reshaping.expand_dims(first, 0), [[0, length - 1]], constant_values=others)
                result = result * weights
            return result  # type: ignore[no-any-return]
        if type == 3:
            angle = ranges.range(count) * np.pi * 0.5 / count  # type: ignore[operator]
            scale = 2.0 * unary.exp(casting.complex(zero, angle))
            return fourier.irfft(scale * casting.complex(x, zero), [2 * length])[..., :length]  # type: ignore[no-any-return]
        # Type 4 is every second element of a type 2 of twice the length.
        doubled = joining.concat([x, creation.zeros_like(x)], axis=-1)
        result = dct(doubled, type=2)[..., 1 : 2 * length : 2]  # type: ignore[index]
        return result * unary.rsqrt(2.0 * count) if norm == "ortho" else result  # type: ignore[no-any-return]


def idct(
    input: TensorLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The inverse of `dct`, up to a factor without `norm`: `tf.signal.idct(spectrum, norm="ortho")`."""
    _check_dct(type, axis, norm)
    return dct(input, type={1: 1, 2: 3, 3: 2, 4: 4}[type], n=n, axis=axis, norm=norm, name=name)


def _check_dct(type: int, axis: int, norm: str | None) -> None:
    if axis != -1:
        raise NotImplementedError(f"dct: axis must be -1, received {axis}.")
    if type not in (1, 2, 3, 4):
        raise ValueError(f"dct: type must be 1, 2, 3 or 4, received {type}.")
    if norm not in (None, "ortho"):
        raise ValueError(f"dct: norm must be None or 'ortho', received {norm!r}.")


def _of_length(x: Any, n: int | None) -> Any:
    """`x` with its last dimension cut or padded with zeros to `n`."""
    if n is None:
        return x
    if n < 1:
        raise ValueError(f"dct: n must be positive, received {n}.")
    cut = x[..., :n]
    missing = arithmetic.maximum(0, n - reshaping.shape(cut)[-1])  # type: ignore[index]
    known = constant_value(missing)
    if known is not None and int(known) == 0:
        return cut
    filled = _padded_end(cut, missing, -1, 0)
    filled.set_shape([*cut.shape.as_list()[:-1], n] if cut.shape.rank is not None else None)
    return filled


# Shifts of spectra


def fftshift(x: TensorLike, axes: TensorLike = None, name: str | None = None) -> Tensor:
    """Moves frequency 0 to the middle: `tf.signal.fftshift(spectrum)`."""
    return _shifted("fftshift", x, axes, name, 1)


def ifftshift(x: TensorLike, axes: TensorLike = None, name: str | None = None) -> Tensor:
    """The opposite of `fftshift`."""
    return _shifted("ifftshift", x, axes, name, -1)


def _shifted(default_name: str, x: Any, axes: Any, name: str | None, sign: int) -> Tensor:
    with name_scope(name, default_name, [x]) as scope:
        x = convert_to_tensor(x)
        dims: Any = reshaping.shape(x)
        if axes is None:
            rank = x.shape.rank
            axes = ranges.range(reshaping.rank(x)) if rank is None else tuple(range(rank))
            shift = dims // 2
        else:
            rank_: Any = reshaping.rank(x)
            places: Any = convert_to_tensor(axes, dtype=dt.int32)
            axes = selection.where_v2(places < 0, places + rank_, places)
            shift = gathering.gather(dims, axes) // 2  # type: ignore[operator]
        return arranging.roll(x, shift if sign > 0 else -shift, axes, scope)


# Mel spectrograms


def linear_to_mel_weight_matrix(
    num_mel_bins: int = 20,
    num_spectrogram_bins: TensorLike = 129,
    sample_rate: TensorLike = 8000,
    lower_edge_hertz: float = 125.0,
    upper_edge_hertz: float = 3800.0,
    dtype: DTypeLike = _FLOAT32,
    name: str | None = None,
) -> Tensor:
    """A matrix that turns spectrograms into mel spectrograms: `tf.tensordot(spectrograms, matrix, 1)`."""
    kind = as_dtype(dtype)
    if num_mel_bins <= 0:
        raise ValueError(f"num_mel_bins must be positive, received {num_mel_bins}.")
    if not 0.0 <= lower_edge_hertz < upper_edge_hertz:
        raise ValueError(
            f"lower_edge_hertz must be in [0, upper_edge_hertz), received {lower_edge_hertz} and {upper_edge_hertz}."
        )
    if not isinstance(sample_rate, Tensor) and upper_edge_hertz > sample_rate / 2:
        raise ValueError(f"upper_edge_hertz must be at most sample_rate / 2, received {upper_edge_hertz}.")
    with name_scope(name, "linear_to_mel_weight_matrix") as scope:
        rate: Any = casting.cast(sample_rate, kind, name="sample_rate")
        low, high = (
            _mel(convert_to_tensor(edge, dtype=kind, name=what))
            for edge, what in ((lower_edge_hertz, "lower_edge_hertz"), (upper_edge_hertz, "upper_edge_hertz"))
        )
        zero = convert_to_tensor(0.0, dtype=kind)
        linear: Any = spacing.linspace(zero, rate / 2.0, num_spectrogram_bins)
        # The lowest bin is left out here and added as zeros below.
        bins: Any = reshaping.expand_dims(_mel(linear[1:]), 1)
        edges = frame(spacing.linspace(low, high, num_mel_bins + 2), 3, 1)
        left, centre, right = (reshaping.reshape(t, [1, num_mel_bins]) for t in joining.split(edges, 3, axis=1))
        rising = (bins - left) / (centre - left)  # type: ignore[operator]
        falling = (right - bins) / (right - centre)  # type: ignore[operator]
        weights = arithmetic.maximum(zero, arithmetic.minimum(rising, falling))
        return padding.pad(weights, [[1, 0], [0, 0]], name=scope)


def _mel(frequencies: Any) -> Any:
    with name_scope("hertz_to_mel"):
        return 1127.0 * unary.log(1.0 + frequencies / 700.0)


def mfccs_from_log_mel_spectrograms(log_mel_spectrograms: TensorLike, name: str | None = None) -> Tensor:
    """Mel-frequency cepstral coefficients: a scaled cosine transform of log mel spectrograms."""
    with name_scope(name, "mfccs_from_log_mel_spectrograms", [log_mel_spectrograms]):
        logs = convert_to_tensor(log_mel_spectrograms)
        size = logs.shape.with_rank_at_least(1).as_list()[-1] if logs.shape.rank is not None else None
        if size == 0:
            raise ValueError("mfccs_from_log_mel_spectrograms: there must be at least one mel bin.")
        count: Any = reshaping.shape(logs)[-1] if size is None else size  # type: ignore[index]
        found: Any = dct(logs, type=2)
        return found * unary.rsqrt(casting.cast(count, logs.dtype) * 2.0)  # type: ignore[no-any-return]
