"""Fake quantization: rounds floats to the values that a few bits can hold, so that training takes it into account."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.shapes import merge, require_rank
from penstock.kernel.types import Array


class _Grid(NamedTuple):
    """The range, moved a little so that zero is one of its steps."""

    low: Array
    high: Array
    scale: Array


def _nudged(low: Array, high: Array, num_bits: int, narrow: bool) -> _Grid:
    if not 2 <= num_bits <= 16:
        raise ValueError(f"num_bits must be between 2 and 16, inclusive, received {num_bits}")
    first, last = float(narrow), float(2**num_bits - 1)
    low, high = jnp.asarray(low, np.float32), jnp.asarray(high, np.float32)
    scale = (high - low) / np.float32(last - first)
    zero = np.float32(first) - low / scale
    zero = jnp.where(zero < first, np.float32(first), jnp.where(zero > last, np.float32(last), _half_up(zero)))
    return _Grid((np.float32(first) - zero) * scale, (np.float32(last) - zero) * scale, scale)


def _half_up(x: Array) -> Array:
    """Rounds halves away from zero."""
    return jnp.sign(x) * jnp.floor(jnp.abs(x) + np.float32(0.5))


def _on_grid(inputs: Array, grid: _Grid) -> Array:
    clamped = jnp.clip(inputs, grid.low, grid.high)
    steps = jnp.floor((clamped - grid.low) * (np.float32(1.0) / grid.scale) + np.float32(0.5))
    return steps * grid.scale + grid.low


def _fixed_grid(low: float, high: float, num_bits: int, narrow: bool) -> _Grid:
    if low >= high:
        raise ValueError(f"min has to be smaller than max, was: {low} >= {high}")
    return _nudged(low, high, num_bits, narrow)


def _same_attrs(op: Operation) -> dict[str, Any]:
    return {k: v for k, v in op.attrs.items() if k in ("min", "max", "num_bits", "narrow_range")}


def _args_grad(op: Operation, grad: Tensor) -> list[Any]:
    return [fake_quant_with_min_max_args_gradient(grad, op.input_list[0], **_same_attrs(op))]


@op("FakeQuantWithMinMaxArgs", "float32 -> outputs: float32", shape=shapes.unchanged, grad=_args_grad)
def fake_quant_with_min_max_args(
    inputs: Array, *, min: float = -6.0, max: float = 6.0, num_bits: int = 8, narrow_range: bool = False
) -> Array:
    return _on_grid(inputs, _fixed_grid(min, max, num_bits, narrow_range))


@op(
    "FakeQuantWithMinMaxArgsGradient",
    "float32, float32 -> backprops: float32",
    shape=shapes.unchanged,
    no_gradient=True,
)
def fake_quant_with_min_max_args_gradient(
    gradients: Array,
    inputs: Array,
    *,
    min: float = -6.0,
    max: float = 6.0,
    num_bits: int = 8,
    narrow_range: bool = False,
) -> Array:
    grid = _fixed_grid(min, max, num_bits, narrow_range)
    return jnp.where((inputs >= grid.low) & (inputs <= grid.high), gradients, np.float32(0))


def _vars_shape(op: Operation) -> list[TensorShape]:
    for bound in op.input_list[-2:]:
        require_rank(bound.shape, 0)
    return [op.input_list[0].shape, *(TensorShape.of(()) for _ in op.outputs[1:])]


def _vars_grad(op: Operation, grad: Tensor) -> list[Any]:
    return list(fake_quant_with_min_max_vars_gradient(grad, *op.input_list, **_same_attrs(op)))


@op("FakeQuantWithMinMaxVars", "float32, float32, float32 -> outputs: float32", shape=_vars_shape, grad=_vars_grad)
def fake_quant_with_min_max_vars(
    inputs: Array, min: Array, max: Array, *, num_bits: int = 8, narrow_range: bool = False
) -> Array:
    return _quantized_between(inputs, min, max, num_bits, narrow_range)


def _quantized_between(inputs: Array, low: Array, high: Array, num_bits: int, narrow: bool) -> Array:
    # The range is not set yet, so everything is zero.
    unset = (low == 0) & (high == 0)
    found = _on_grid(inputs, _nudged(low, jnp.where(unset, np.float32(1), high), num_bits, narrow))
    return jnp.where(unset, np.float32(0), found)


def _shared(gradients: Array, inputs: Array, low: Array, high: Array, bits: int, narrow: bool) -> list[Array]:
    """Splits the gradient: each entry's goes to the input, to the lower or to the upper bound."""
    unset = (low == 0) & (high == 0)
    grid = _nudged(low, jnp.where(unset, np.float32(1), high), bits, narrow)
    below, above = ~unset & (inputs < grid.low), ~unset & (inputs > grid.high)
    zero = np.float32(0)
    return [jnp.where(mask, gradients, zero) for mask in (unset | ~(below | above), below, above)]


@op(
    "FakeQuantWithMinMaxVarsGradient",
    "float32, float32, float32, float32 -> backprops_wrt_input: float32, "
    "backprop_wrt_min: float32, backprop_wrt_max: float32",
    shape=_vars_shape,
    no_gradient=True,
)
def fake_quant_with_min_max_vars_gradient(
    gradients: Array, inputs: Array, min: Array, max: Array, *, num_bits: int = 8, narrow_range: bool = False
) -> tuple[Array, Array, Array]:
    inside, below, above = _shared(gradients, inputs, min, max, num_bits, narrow_range)
    return inside, jnp.sum(below), jnp.sum(above)


def _channel_shape(op: Operation) -> list[TensorShape]:
    inputs = op.input_list[0].shape.with_rank_at_least(1)
    last = inputs[-1:] if inputs.rank is not None else TensorShape.of((None,))
    for bound in op.input_list[-2:]:
        last = merge(last, require_rank(bound.shape, 1))
    if inputs.rank is not None:
        inputs = inputs[:-1].concatenate(last)
    return [inputs, *(last for _ in op.outputs[1:])]


def _channel_grad(op: Operation, grad: Tensor) -> list[Any]:
    return list(fake_quant_with_min_max_vars_per_channel_gradient(grad, *op.input_list, **_same_attrs(op)))


def _require_channels(inputs: Array, low: Array, high: Array) -> None:
    depth = inputs.shape[-1:]
    if tuple(low.shape) != tuple(depth) or tuple(high.shape) != tuple(depth):
        raise ValueError(
            f"min and max must have one entry per channel of inputs, received shapes {list(low.shape)} and "
            f"{list(high.shape)} for inputs of shape {list(inputs.shape)}"
        )


@op(
    "FakeQuantWithMinMaxVarsPerChannel",
    "float32, float32, float32 -> outputs: float32",
    shape=_channel_shape,
    grad=_channel_grad,
)
def fake_quant_with_min_max_vars_per_channel(
    inputs: Array, min: Array, max: Array, *, num_bits: int = 8, narrow_range: bool = False
) -> Array:
    _require_channels(inputs, min, max)
    return _quantized_between(inputs, min, max, num_bits, narrow_range)


@op(
    "FakeQuantWithMinMaxVarsPerChannelGradient",
    "float32, float32, float32, float32 -> backprops_wrt_input: float32, "
    "backprop_wrt_min: float32, backprop_wrt_max: float32",
    shape=_channel_shape,
    no_gradient=True,
)
def fake_quant_with_min_max_vars_per_channel_gradient(
    gradients: Array, inputs: Array, min: Array, max: Array, *, num_bits: int = 8, narrow_range: bool = False
) -> tuple[Array, Array, Array]:
    _require_channels(inputs, min, max)
    inside, below, above = _shared(gradients, inputs, min, max, num_bits, narrow_range)
    others = tuple(range(inputs.ndim - 1))
    return inside, jnp.sum(below, axis=others), jnp.sum(above, axis=others)
