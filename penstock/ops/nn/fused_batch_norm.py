"""Batch normalisation as one op: statistics and normalisation together, in its three versions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel.types import NUMBERS, QUANTIZED, Array

_HALF = Types(dt.float16, dt.bfloat16, dt.float32)
_STATISTICS = Types(dt.bfloat16, dt.float32)
_SINGLE = Types(dt.float32)
_ANY = Types(*NUMBERS, *QUANTIZED)
# cuDNN refuses smaller values, and TensorFlow follows it on every device.
_LEAST_EPSILON = 1.001e-5


def _channel_axis(data_format: str, rank: int) -> int:
    return 1 if data_format.startswith("NC") else rank - 1


def _fused_shape(op: Operation) -> list[TensorShape]:
    x = op.input_list[0].shape
    rank = 5 if "D" in op.attrs["data_format"] else 4
    dims = x.with_rank(rank).as_list()
    axis = _channel_axis(op.attrs["data_format"], rank)
    channels = TensorShape.of((dims[axis],))
    for tensor in op.input_list[1:] if not op.attrs["is_training"] else op.input_list[1:3]:
        channels = channels.merge_with(tensor.shape.with_rank(1))
    dims[axis] = channels.as_list()[0]
    shapes = [TensorShape.of(tuple(dims)), channels, channels, channels, channels, TensorShape.of(None)]
    return shapes[: len(op.outputs)]


def _fused_gradient(op: Operation, dy: Tensor, *_: Any) -> list[Any]:
    attrs = {k: op.attrs[k] for k in ("epsilon", "data_format", "is_training")}
    x, scale, _offset, mean, variance = op.input_list
    if attrs["is_training"]:
        mean, variance = op.outputs[3], op.outputs[4]
    grad: Any = {"FusedBatchNorm": fused_batch_norm_grad, "FusedBatchNormV2": fused_batch_norm_grad_v2}.get(op.type)
    if grad is not None:
        dx, d_scale, d_offset, _, _ = grad(dy, x, scale, mean, variance, **attrs)
    else:
        dx, d_scale, d_offset, _, _ = fused_batch_norm_grad_v3(dy, x, scale, mean, variance, op.outputs[5], **attrs)
    return [dx, d_scale, d_offset, None, None]


def _along_channels(vector: Array, axis: int, rank: int) -> Array:
    return vector.astype(np.float32).reshape([-1 if i == axis else 1 for i in range(rank)])


@op(
    "FusedBatchNormV3",
    "T, U, U, U, U -> y: T, batch_mean: U, batch_variance: U, reserve_space_1: U, "
    "reserve_space_2: U, reserve_space_3: U",
    shape=_fused_shape,
    grad=_fused_gradient,
    T=_HALF,
    U=_STATISTICS,
)
def fused_batch_norm_v3(
    x: Array,
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float = 0.0001,
    exponential_avg_factor: float = 1.0,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> tuple[Array, ...]:
    """Returns y, the statistics to keep (variance unbiased), those of this step for the gradient, and an empty one."""
    axis = _channel_axis(data_format, x.ndim)
    others = tuple(i for i in range(x.ndim) if i != axis)
    exact = x.astype(np.float32)
    kind = scale.dtype
    if is_training:
        used_mean = jnp.mean(exact, others)
        used_variance = jnp.mean(jnp.square(exact - _along_channels(used_mean, axis, x.ndim)), others)
        count = x.size // x.shape[axis]
        new_mean, new_variance = used_mean, used_variance * (count / max(count - 1, 1))
        if exponential_avg_factor != 1.0:
            share = exponential_avg_factor
            new_mean = (1 - share) * mean + share * new_mean
            new_variance = (1 - share) * variance + share * new_variance
    else:
        new_mean, new_variance = used_mean, used_variance = mean, variance
    factor = lax.rsqrt(used_variance.astype(np.float32) + np.float32(epsilon)) * scale
    centred = exact - _along_channels(used_mean, axis, x.ndim)
    y = centred * _along_channels(factor, axis, x.ndim) + _along_channels(offset, axis, x.ndim)
    statistics = (new_mean, new_variance, used_mean, used_variance)
    return (y.astype(x.dtype), *(jnp.asarray(s).astype(kind) for s in statistics), jnp.zeros((0,), kind))


@op(
    "FusedBatchNormV2",
    "T, U, U, U, U -> y: T, batch_mean: U, batch_variance: U, reserve_space_1: U, reserve_space_2: U",
    shape=_fused_shape,
    grad=_fused_gradient,
    T=_HALF,
    U=_SINGLE,
)
def fused_batch_norm_v2(
    x: Array,
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float = 0.0001,
    exponential_avg_factor: float = 1.0,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> tuple[Array, ...]:
    results: tuple[Array, ...] = fused_batch_norm_v3.kernel(
        x,
        scale,
        offset,
        mean,
        variance,
        epsilon=epsilon,
        exponential_avg_factor=exponential_avg_factor,
        data_format=data_format,
        is_training=is_training,
    )[:5]
    return results


@op(
    "FusedBatchNorm",
    "T, T, T, T, T -> y: T, batch_mean: T, batch_variance: T, reserve_space_1: T, reserve_space_2: T",
    shape=_fused_shape,
    grad=_fused_gradient,
    T=_SINGLE,
)
def fused_batch_norm_v1(
    x: Array,
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float = 0.0001,
    exponential_avg_factor: float = 1.0,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> tuple[Array, ...]:
    results: tuple[Array, ...] = fused_batch_norm_v3.kernel(
        x,
        scale,
        offset,
        mean,
        variance,
        epsilon=epsilon,
        exponential_avg_factor=exponential_avg_factor,
        data_format=data_format,
        is_training=is_training,
    )[:5]
    return results


def _fused_grad_shape(op: Operation) -> list[TensorShape]:
    empty = TensorShape.of((0,))
    channels = op.input_list[2].shape
    return [op.input_list[1].shape, channels, channels, empty, empty]


def _fused_grad_gradient(op: Operation, d_dx: Any, d_scale: Any, d_offset: Any, *_: Any) -> list[Any]:
    attrs = {k: op.attrs[k] for k in ("epsilon", "data_format", "is_training")}
    grads = fused_batch_norm_grad_grad(*op.input_list[:5], d_dx, d_scale, d_offset, **attrs)
    return [*grads, *[None] * (len(op.input_list) - 3)]


@op(
    "FusedBatchNormGradGrad",
    "T, T, float32, float32, float32, T, float32, float32 -> y_backprop_grad: T, x_grad: T, scale_grad: float32",
    shape=lambda op: [t.shape for t in op.input_list[:3]],
    T=_HALF,
)
def fused_batch_norm_grad_grad(
    y_backprop: Array,
    x: Array,
    scale: Array,
    mean: Array,
    variance: Array,
    x_backprop_grad: Array,
    scale_backprop_grad: Array,
    offset_backprop_grad: Array,
    *,
    epsilon: float = 0.0001,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> tuple[Array, ...]:
    """The gradient of the gradient. In training it flows through the statistics too, since they depend on `x`."""
    axis = _channel_axis(data_format, x.ndim)
    others = tuple(i for i in range(x.ndim) if i != axis)

    def gradient(dy: Array, x: Array, scale: Array) -> Any:
        used, spread = mean, variance
        if is_training:
            exact = x.astype(np.float32)
            used = jnp.mean(exact, others)
            spread = jnp.mean(jnp.square(exact - _along_channels(used, axis, x.ndim)), others)
        attrs: dict[str, Any] = {"epsilon": epsilon, "data_format": data_format, "is_training": is_training}
        return fused_batch_norm_grad_v3.kernel(dy, x, scale, used, spread, None, **attrs)[:3]

    _, pull = jax.vjp(gradient, y_backprop, x, scale)
    grads: tuple[Array, ...] = pull((x_backprop_grad, scale_backprop_grad, offset_backprop_grad))
    return grads


@op(
    "FusedBatchNormGradV3",
    "T, T, float32, U, U, U -> x_backprop: T, scale_backprop: U, offset_backprop: U, "
    "reserve_space_4: U, reserve_space_5: U",
    shape=_fused_grad_shape,
    grad=_fused_grad_gradient,
    T=_HALF,
    U=_SINGLE,
)
def fused_batch_norm_grad_v3(
    y_backprop: Array,
    x: Array,
    scale: Array,
    reserve_space_1: Array,
    reserve_space_2: Array,
    reserve_space_3: Array,
    *,
    epsilon: float = 0.0001,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> tuple[Array, ...]:
    axis, rank = _channel_axis(data_format, x.ndim), x.ndim
    others = tuple(i for i in range(rank) if i != axis)
    dy = y_backprop.astype(np.float32)
    inverse = lax.rsqrt(reserve_space_2.astype(np.float32) + np.float32(epsilon))
    centred = x.astype(np.float32) - _along_channels(reserve_space_1, axis, rank)
    normal = centred * _along_channels(inverse, axis, rank)
    d_offset, d_scale = jnp.sum(dy, others), jnp.sum(dy * normal, others)
    dx = dy
    if is_training:
        count = x.size // x.shape[axis]
        through_mean = _along_channels(d_offset / count, axis, rank)
        dx = dy - through_mean - normal * _along_channels(d_scale / count, axis, rank)
    dx = dx * _along_channels(scale * inverse, axis, rank)
    empty = jnp.zeros((0,), np.float32)
    return dx.astype(x.dtype), d_scale, d_offset, empty, empty


@op(
    "FusedBatchNormGradV2",
    "T, T, float32, U, U -> x_backprop: T, scale_backprop: U, offset_backprop: U, "
    "reserve_space_3: U, reserve_space_4: U",
    shape=_fused_grad_shape,
    grad=_fused_grad_gradient,
    T=_HALF,
    U=_SINGLE,
)
def fused_batch_norm_grad_v2(
    y_backprop: Array,
    x: Array,
    scale: Array,
    reserve_space_1: Array,
    reserve_space_2: Array,
    *,
    epsilon: float = 0.0001,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> tuple[Array, ...]:
    grads: tuple[Array, ...] = fused_batch_norm_grad_v3.kernel(
        y_backprop,
        x,
        scale,
        reserve_space_1,
        reserve_space_2,
        None,
        epsilon=epsilon,
        data_format=data_format,
        is_training=is_training,
    )
    return grads


@op(
    "FusedBatchNormGrad",
    "T, T, T, T, T -> x_backprop: T, scale_backprop: T, offset_backprop: T, reserve_space_3: T, reserve_space_4: T",
    shape=_fused_grad_shape,
    grad=_fused_grad_gradient,
    T=_SINGLE,
)
def fused_batch_norm_grad(
    y_backprop: Array,
    x: Array,
    scale: Array,
    reserve_space_1: Array,
    reserve_space_2: Array,
    *,
    epsilon: float = 0.0001,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> tuple[Array, ...]:
    grads: tuple[Array, ...] = fused_batch_norm_grad_v3.kernel(
        y_backprop,
        x,
        scale,
        reserve_space_1,
        reserve_space_2,
        None,
        epsilon=epsilon,
        data_format=data_format,
        is_training=is_training,
    )
    return grads


def _unchanged(op: Operation) -> list[TensorShape]:
    return [op.input_list[0].shape.with_rank(4)]


@op("BatchNormWithGlobalNormalization", "T, T, T, T, T -> result: T", shape=_unchanged, T=_ANY)
def batch_norm_with_global_normalization_op(
    t: Array, m: Array, v: Array, beta: Array, gamma: Array, *, variance_epsilon: float, scale_after_normalization: bool
) -> Array:
    factor = lax.rsqrt(v + np.asarray(variance_epsilon, v.dtype))
    return (t - m) * (factor * gamma if scale_after_normalization else factor) + beta


def fused_batch_norm(
    x: TensorLike,
    scale: TensorLike,
    offset: TensorLike,
    mean: TensorLike = None,
    variance: TensorLike = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises each channel by the batch's own statistics, or by those given when not training.

    >>> y, batch_mean, batch_variance = tf.nn.fused_batch_norm(x, scale, offset)
    """
    if (not is_training or exponential_avg_factor != 1.0) and (mean is None or variance is None):
        raise ValueError(
            f"fused_batch_norm: `mean` and `variance` must be given when is_training={is_training} and "
            f"exponential_avg_factor={exponential_avg_factor}."
        )
    x = convert_to_tensor(x, name="input")
    scale = convert_to_tensor(scale, name="scale")
    offset = convert_to_tensor(offset, name="offset")
    mean = convert_to_tensor([] if mean is None else mean)
    variance = convert_to_tensor([] if variance is None else variance)
    outputs = fused_batch_norm_v3(
        x,
        scale,
        offset,
        mean,
        variance,
        epsilon=max(epsilon, _LEAST_EPSILON),
        data_format=data_format,
        is_training=is_training,
        exponential_avg_factor=exponential_avg_factor,
        name=name,
    )
    return outputs[0], outputs[1], outputs[2]
