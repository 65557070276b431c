"""Quantization: numbers of few bits. `fake_quant` has ops to simulate it in training."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import FLOATS, QUANTIZED, Array
from penstock.ops.array.passthrough import refuse_gradient

_FLOAT32 = dt.float32

# Quantized and back at once


def _to_even(x: Array) -> Array:
    return jnp.round(x)


def _quantize_and_dequantize(
    input: Array, low: Array, high: Array, signed: bool, bits: Any, given: bool, half_up: bool, narrow: bool, axis: int
) -> Array:
    x = jnp.asarray(input)
    kind = x.dtype
    x = x.astype(np.float32) if kind.itemsize < 4 else x
    others = tuple(i for i in range(x.ndim) if axis == -1 or i != axis)
    if given:
        bounds = [jnp.asarray(b).astype(x.dtype) for b in (low, high)]
        if axis != -1:
            bounds = [jnp.expand_dims(b, [i for i in range(x.ndim) if i != axis]) for b in bounds]
        low, high = bounds
        require(low <= high, "Invalid range: input_min > input_max")
    else:
        low, high = jnp.min(x, axis=others, keepdims=True), jnp.max(x, axis=others, keepdims=True)
    last = 2.0 ** (bits - 1) - 1 if signed else 2.0**bits - 1
    first = (-last if narrow else -(2.0 ** (bits - 1))) if signed else (1.0 if narrow else 0.0)
    # The side that needs the larger steps decides the scale; 0 stays 0.
    largest = np.finfo(x.dtype).max
    from_low = jnp.where(first * low > 0, first / low, largest)
    from_high = jnp.where(last * high > 0, last / high, largest)
    scale = jnp.minimum(from_low, from_high)
    back = jnp.where(scale == largest, 0, 1 / scale)
    by_low = from_low < from_high
    low_edge = jnp.where(by_low, low, first * back)
    high_edge = jnp.where(by_low, last * back, high)
    if not given:
        low_edge, high_edge = low, high
    steps = jnp.clip(x, low_edge, high_edge) * scale
    rounded = jnp.floor(steps + 0.5) if half_up else _to_even(steps)
    found = jnp.where(scale == largest, x * 0 if given else x, rounded * back)
    return found.astype(kind)


def _straight_through(op: Operation, grad: Tensor) -> list[Any]:
    return [grad, *(None for _ in op.input_list[1:])]


@op("QuantizeAndDequantizeV2", "T, T, T -> output: T", shape=shapes.unchanged, grad=_straight_through, T=FLOATS)
def quantize_and_dequantize_op(
    input: Array,
    input_min: Array,
    input_max: Array,
    *,
    signed_input: bool = True,
    num_bits: int = 8,
    range_given: bool = False,
    round_mode: str = "HALF_TO_EVEN",
    narrow_range: bool = False,
    axis: int = -1,
) -> Array:
    return _quantize_and_dequantize(
        input, input_min, input_max, signed_input, num_bits, range_given, round_mode == "HALF_UP", narrow_range, axis
    )


@op(
    "QuantizeAndDequantizeV3",
    "T, T, T, int32 -> output: T",
    static="num_bits",
    shape=shapes.unchanged,
    grad=_straight_through,
    T=FLOATS,
)
def quantize_and_dequantize_v3(
    input: Array,
    input_min: Array,
    input_max: Array,
    num_bits: Array,
    *,
    signed_input: bool = True,
    range_given: bool = True,
    narrow_range: bool = False,
    axis: int = -1,
) -> Array:
    bits = int(num_bits)
    return _quantize_and_dequantize(
        input, input_min, input_max, signed_input, bits, range_given, False, narrow_range, axis
    )


def _within_range(op: Operation, grad: Tensor) -> list[Any]:
    return list(quantize_and_dequantize_v4_grad(grad, *op.input_list, axis=op.attrs["axis"]))


@op(
    "QuantizeAndDequantizeV4Grad",
    "T, T, T, T -> input_backprop: T, input_min_backprop: T, input_max_backprop: T",
    T=FLOATS,
    no_gradient=True,
    shape=lambda op: [op.input_list[0].shape, op.input_list[2].shape, op.input_list[3].shape],
)
def quantize_and_dequantize_v4_grad(
    gradients: Array, input: Array, input_min: Array, input_max: Array, *, axis: int = -1
) -> tuple[Array, Array, Array]:
    low, high = input_min, input_max
    others = tuple(i for i in range(input.ndim) if i != axis)
    if axis != -1:
        low, high = (jnp.expand_dims(b, others) for b in (low, high))
    zero = jnp.zeros((), input.dtype)
    inside, below, above = (
        jnp.where(mask, gradients, zero) for mask in ((input >= low) & (input <= high), input < low, input > high)
    )
    summed = None if axis == -1 else others
    return inside, jnp.sum(below, axis=summed), jnp.sum(above, axis=summed)


@op("QuantizeAndDequantizeV4", "T, T, T -> output: T", shape=shapes.unchanged, grad=_within_range, T=FLOATS)
def quantize_and_dequantize_v4(
    input: Array,
    input_min: Array,
    input_max: Array,
    *,
    signed_input: bool = True,
    num_bits: int = 8,
    range_given: bool = False,
    round_mode: str = "HALF_TO_EVEN",
    narrow_range: bool = False,
    axis: int = -1,
) -> Array:
    return _quantize_and_dequantize(
        input, input_min, input_max, signed_input, num_bits, range_given, round_mode == "HALF_UP", narrow_range, axis
    )


def quantize_and_dequantize(
    input: TensorLike,
    input_min: TensorLike,
    input_max: TensorLike,
    signed_input: bool = True,
    num_bits: int = 8,
    range_given: bool = False,
    round_mode: str = "HALF_TO_EVEN",
    name: str | None = None,
    narrow_range: bool = False,
    axis: int | None = None,
) -> Tensor:
    """`input` rounded to values that `num_bits` can hold; gradients pass through.

    >>> tf.quantization.quantize_and_dequantize(x, -1.0, 1.0, range_given=True)
    """
    result: Tensor = quantize_and_dequantize_op(
        input,
        input_min,
        input_max,
        signed_input=signed_input,
        num_bits=num_bits,
        range_given=range_given,
        round_mode=round_mode,
        narrow_range=narrow_range,
        axis=-1 if axis is None else axis,
        name=name,
    )
    return result


def quantize_and_dequantize_v2(
    input: TensorLike,
    input_min: TensorLike,
    input_max: TensorLike,
    signed_input: bool = True,
    num_bits: int = 8,
    range_given: bool = False,
    round_mode: str = "HALF_TO_EVEN",
    name: str | None = None,
    narrow_range: bool = False,
    axis: int | None = None,
) -> Tensor:
    """`quantize_and_dequantize` with gradients only inside the range, and to its bounds from outside it."""
    result: Tensor = quantize_and_dequantize_v4(
        input,
        input_min,
        input_max,
        signed_input=signed_input,
        num_bits=num_bits,
        range_given=range_given,
        round_mode=round_mode,
        narrow_range=narrow_range,
        axis=-1 if axis is None else axis,
        name=name,
    )
    return result


# Ops on quantized types. XLA has no such types, so these run on NumPy arrays.


def _limits(kind: DType, mode: str, narrow: bool) -> tuple[np.dtype[Any], int, int]:
    plain: np.dtype[Any] = np.dtype(kind.as_numpy_dtype)[0]
    info = np.iinfo(plain)
    low = info.min + 1 if narrow and mode == "SCALED" and info.min < 0 else info.min
    return plain, int(low), int(info.max)


def _half_away(x: np.ndarray) -> np.ndarray:
    """Rounds halves away from zero."""
    found: np.ndarray = np.sign(x) * np.floor(np.abs(x) + 0.5)
    return found


def _quantize_shape(op: Operation) -> list[TensorShape]:
    axis = op.attrs["axis"]
    bound = TensorShape.of(()) if axis == -1 else TensorShape.of((None,))
    return [op.input_list[0].shape, bound, bound]


@op(
    "QuantizeV2",
    "float32, float32, float32 -> output: T, output_min: float32, output_max: float32",
    host=True,
    shape=_quantize_shape,
    grad=refuse_gradient,
    T=QUANTIZED,
)
def quantize_op(
    input: Any,
    min_range: Any,
    max_range: Any,
    *,
    T: DType,
    mode: str = "MIN_COMBINED",
    round_mode: str = "HALF_AWAY_FROM_ZERO",
    narrow_range: bool = False,
    axis: int = -1,
    ensure_minimum_range: float = 0.01,
) -> Any:
    plain, first, last = _limits(T, mode, narrow_range)
    low = np.minimum(np.float32(0), np.asarray(min_range, np.float32))
    high = np.asarray(max_range, np.float32)
    require(min_range <= max_range, "max_range must be at least min_range")
    # An empty range cannot be divided into steps.
    widest = np.maximum(np.abs(low), np.abs(high)) * np.float32(ensure_minimum_range)
    high = np.maximum(np.float32(0), np.maximum(high, low + np.maximum(np.float32(ensure_minimum_range), widest)))
    inner_low, inner_high = low, high
    if axis != -1:
        inner_low, inner_high = (np.expand_dims(b, [i for i in range(input.ndim) if i != axis]) for b in (low, high))
    x = np.asarray(input, np.float32)
    half: Any = _half_away if round_mode == "HALF_AWAY_FROM_ZERO" else np.round
    if mode == "SCALED":
        by_high = np.float32(last) / inner_high
        scale = (
            by_high
            if first >= 0
            else np.minimum(
                by_high, np.where(inner_low < 0, np.float32(first) / np.where(inner_low < 0, inner_low, -1), np.inf)
            )
        )
        steps = np.clip(half(x.astype(np.float64) * scale), first, last)
        low, high = (np.asarray(np.float32(b) / scale, np.float32).reshape(low.shape) for b in (first, last))
        low = np.zeros_like(low) if first == 0 else low
    else:
        count = 2.0 ** (plain.itemsize * 8)
        scale = (count - 1.0) / (inner_high.astype(np.float64) - inner_low)
        if mode == "MIN_FIRST":
            steps = half(x * scale) - half(inner_low * scale) + first
        else:
            offset = count / 2 if first < 0 else 0.0
            steps = half((np.clip(x, inner_low, inner_high) - inner_low) * scale - offset)
        steps = np.clip(steps, first, last)
    return steps.astype(plain).view(T.as_numpy_dtype), low, high


@op(
    "Dequantize",
    "T, float32, float32 -> output: dtype",
    host=True,
    shape=shapes.unchanged,
    grad=refuse_gradient,
    T=QUANTIZED,
    dtype=Types(dt.bfloat16, dt.float32, default=dt.float32),
)
def dequantize_op(
    input: Any,
    min_range: Any,
    max_range: Any,
    *,
    T: DType,
    mode: str = "MIN_COMBINED",
    narrow_range: bool = False,
    axis: int = -1,
    dtype: DType = _FLOAT32,
) -> Any:
    plain, first, last = _limits(T, mode, narrow_range)
    x = np.asarray(input).view(plain).astype(np.float32)
    low, high = np.asarray(min_range, np.float32), np.asarray(max_range, np.float32)
    if axis != -1:
        low, high = (np.expand_dims(b, [i for i in range(x.ndim) if i != axis]) for b in (low, high))
    if mode == "SCALED":
        by_high = high / np.float32(last)
        scale = by_high if first >= 0 else np.maximum(low / np.float32(first), by_high)
        found = x * scale
    else:
        scale = (high - low) / np.float32(2.0 ** (plain.itemsize * 8) - 1)
        if mode == "MIN_FIRST":
            start = np.round(low / scale) * scale
            found = (x - np.float32(first)) * scale + start
        else:
            offset = np.float32(2.0 ** (plain.itemsize * 8) / 2 if first < 0 else 0)
            found = (x + offset) * scale + low
    return found.astype(dtype.as_numpy_dtype)


@op(
    "QuantizedConcat",
    "int32, N*T, N*float32, N*float32 -> output: T, output_min: float32, output_max: float32",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of(None), TensorShape.of(()), TensorShape.of(())],
)
def quantized_concat(
    concat_dim: Any, values: list[Any], input_mins: list[Any], input_maxes: list[Any], *, T: DType
) -> Any:
    """The inputs joined in the widest of their ranges; inputs of another range are quantized again."""
    low, high = min(float(m) for m in input_mins), max(float(m) for m in input_maxes)
    parts = []
    for value, first, last in zip(values, input_mins, input_maxes, strict=True):
        if (float(first), float(last)) != (low, high):
            floats = dequantize_op.kernel(value, first, last, T=T)
            value = quantize_op.kernel(floats, np.float32(low), np.float32(high), T=T)[0]
        parts.append(value)
    axis = int(concat_dim)
    rank = parts[0].ndim
    if not -rank <= axis < rank or any(p.ndim != rank for p in parts):
        raise InvalidArgumentError(f"concat_dim {axis} does not fit values of {rank} dimensions")
    try:
        joined = np.concatenate(parts, axis)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error
    return joined, np.float32(low), np.float32(high)


class QuantizedTensor(NamedTuple):
    """The result of `quantize`."""

    output: Any
    output_min: Any
    output_max: Any


def quantize(
    input: TensorLike,
    min_range: TensorLike,
    max_range: TensorLike,
    T: DTypeLike,
    mode: str = "MIN_COMBINED",
    round_mode: str = "HALF_AWAY_FROM_ZERO",
    name: str | None = None,
    narrow_range: bool = False,
    axis: int | None = None,
    ensure_minimum_range: float = 0.01,
) -> QuantizedTensor:
    """Floats as numbers of the quantized type `T`, and the range of these numbers.

    >>> tf.quantize(x, -1.0, 1.0, tf.qint8).output
    """
    return QuantizedTensor(
        *quantize_op(
            input,
            min_range,
            max_range,
            T=as_dtype(T),
            mode=mode,
            round_mode=round_mode,
            narrow_range=narrow_range,
            axis=-1 if axis is None else axis,
            ensure_minimum_range=ensure_minimum_range,
            name=name,
        )
    )


quantize_v2 = quantize


def dequantize(
    input: TensorLike,
    min_range: TensorLike,
    max_range: TensorLike,
    mode: str = "MIN_COMBINED",
    name: str | None = None,
    axis: int | None = None,
    narrow_range: bool = False,
    dtype: DTypeLike = _FLOAT32,
) -> Tensor:
    """Quantized numbers as floats between `min_range` and `max_range`.

    >>> tf.dequantize(quantized.output, quantized.output_min, quantized.output_max)
    """
    result: Tensor = dequantize_op(
        input,
        min_range,
        max_range,
        mode=mode,
        narrow_range=narrow_range,
        axis=-1 if axis is None else axis,
        dtype=as_dtype(dtype),
        name=name,
    )
    return result
