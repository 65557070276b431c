"""Moments, and normalisation by them: of batches, of neighbouring channels, of vectors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.tensor import Tensor
from penstock.ops import array, casting, gathering, math, passthrough, reduce, reshaping, shapes, unary
from penstock.ops.reduce import renamed
from penstock.ops.types import Array

_HALF = Types(dt.float16, dt.bfloat16, dt.float32)
_HALF32 = Types(*_HALF, default=dt.float32)
_STATISTICS = Types(dt.bfloat16, dt.float32)
# cuDNN refuses less, and TensorFlow keeps to that on every device.
_LEAST_EPSILON = 1.001e-5


def moments(
    x: Any, axes: Any, shift: Any = None, name: str | None = None, keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and variance of `x` over `axes`. `shift` is ignored.

    >>> mean, variance = tf.nn.moments(x, axes=[0])
    """
    keep = renamed(keepdims, "keepdims", keep_dims, "keep_dims")
    with name_scope(name, "moments", [x, axes]):
        x = convert_to_tensor(x)
        half = x.dtype.base_dtype in (dt.float16, dt.bfloat16)
        exact = casting.cast(x, dt.float32) if half else x
        mean = reduce.reduce_mean(exact, axes, keepdims=True, name="mean")
        # The gradient through the mean is zero: the deviations sum to zero.
        deviation = math.squared_difference(exact, passthrough.stop_gradient(mean))
        variance = reduce.reduce_mean(deviation, axes, keepdims=True, name="variance")
        if not keep:
            mean, variance = reshaping.squeeze(mean, axes), reshaping.squeeze(variance, axes)
        if half:
            return casting.cast(mean, x.dtype), casting.cast(variance, x.dtype)
        return mean, variance


def weighted_moments(
    x: Any, axes: Any, frequency_weights: Any, name: str | None = None, keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and variance of `x` over `axes`, each element counted `frequency_weights` times.

    >>> mean, variance = tf.nn.weighted_moments(x, [0], weights)
    """
    keep = renamed(keepdims, "keepdims", keep_dims, "keep_dims")
    with name_scope(name, "weighted_moments", [x, frequency_weights, axes]):
        x = convert_to_tensor(x, name="x")
        weights = convert_to_tensor(frequency_weights, name="weights")
        half = x.dtype.base_dtype is dt.float16
        exact = casting.cast(x, dt.float32) if half else x
        weights = casting.cast(weights, exact.dtype.base_dtype)
        total = reduce.reduce_sum(weights * exact, axes, name="weighted_input_sum", keepdims=True)
        count = reduce.reduce_sum(weights + array.zeros_like(exact), axes, name="sum_of_weights", keepdims=True)
        mean = math.div_no_nan(total, count)
        deviation = weights * math.squared_difference(exact, mean)
        squares = reduce.reduce_sum(deviation, axes, name="weighted_distsq", keepdims=True)
        variance = math.div_no_nan(squares, count)
        if not keep:
            mean, variance = reshaping.squeeze(mean, axes), reshaping.squeeze(variance, axes)
        if half:
            return casting.cast(mean, x.dtype), casting.cast(variance, x.dtype)
        return mean, variance


def sufficient_statistics(
    x: Any, axes: Any, shift: Any = None, keep_dims: bool | None = None, name: str | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Any]:  # fmt: skip
    """Count, sum, sum of squares (both of `x - shift`), and the shift: what `normalize_moments` takes.

    >>> tf.nn.sufficient_statistics(x, axes=[0])
    """
    keep = bool(renamed(keepdims, "keepdims", keep_dims, "keep_dims"))
    axes = sorted(set(axes)) if isinstance(axes, (list, tuple)) else [axes]
    with name_scope(name, "sufficient_statistics", [x, shift]):
        x = convert_to_tensor(x, name="x")
        dims: list[Any] = [None] if x.shape.rank is None else [x.shape.as_list()[d] for d in axes]
        if None not in dims:
            counts = convert_to_tensor(float(np.prod(dims)), dtype=x.dtype.base_dtype)
        else:
            sizes = gathering.gather(casting.cast(reshaping.shape(x), x.dtype.base_dtype), axes)
            counts = reduce.reduce_prod(sizes, name="count")
        if shift is not None:
            shift = convert_to_tensor(shift, name="shift")
            first, second = math.subtract(x, shift), math.squared_difference(x, shift)
        else:
            first, second = x, unary.square(x)
        first = reduce.reduce_sum(first, axes, keepdims=keep, name="mean_ss")
        return counts, first, reduce.reduce_sum(second, axes, keepdims=keep, name="var_ss"), shift


def normalize_moments(
    counts: Any, mean_ss: Any, variance_ss: Any, shift: Any, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance from the sums that `sufficient_statistics` gives.

    >>> tf.nn.normalize_moments(*tf.nn.sufficient_statistics(x, axes=[0]))
    """
    with name_scope(name, "normalize", [counts, mean_ss, variance_ss, shift]):
        divisor = unary.reciprocal(counts, name="divisor")
        if shift is not None:
            shifted = math.multiply(mean_ss, divisor, name="shifted_mean")
            mean = math.add(shifted, shift, name="mean")
        else:
            shifted = mean = math.multiply(mean_ss, divisor, name="mean")
        variance = math.subtract(math.multiply(variance_ss, divisor), unary.square(shifted), name="variance")
        return mean, variance


def batch_normalization(
    x: Any, mean: Any, variance: Any, offset: Any, scale: Any, variance_epsilon: Any, name: str | None = None
) -> Tensor:
    """scale * (x - mean) / sqrt(variance + epsilon) + offset; scale and offset may be None.

    >>> tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)
    """
    with name_scope(name, "batchnorm", [x, mean, variance, scale, offset]):
        factor = unary.rsqrt(variance + variance_epsilon)
        if scale is not None:
            factor = factor * scale
        scaled = x * casting.cast(factor, x.dtype)
        rest = offset - mean * factor if offset is not None else -mean * factor
        result: Tensor = scaled + casting.cast(rest, x.dtype)
        return result


def batch_norm_with_global_normalization(
    t: Any = None, m: Any = None, v: Any = None, beta: Any = None, gamma: Any = None, variance_epsilon: Any = None,
    scale_after_normalization: bool | None = None, name: str | None = None, input: Any = None, mean: Any = None,
    variance: Any = None,
) -> Tensor:  # fmt: skip
    """`batch_normalization` under its first name.

    >>> tf.nn.batch_norm_with_global_normalization(x, mean, variance, beta, gamma, 1e-3, True)
    """
    t, m, v = renamed(input, "input", t, "t"), renamed(mean, "mean", m, "m"), renamed(variance, "variance", v, "v")
    return batch_normalization(t, m, v, beta, gamma if scale_after_normalization else None, variance_epsilon, name)


# The fused form: statistics and normalisation in one op.


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
    return [TensorShape.of(tuple(dims)), channels, channels, channels, channels, TensorShape.of(None)]


def _fused_gradient(op: Operation, dy: Tensor, *_: Any) -> list[Any]:
    attrs = {k: op.attrs[k] for k in ("epsilon", "data_format", "is_training")}
    x, scale, _offset, mean, variance = op.input_list
    if attrs["is_training"]:
        mean, variance = op.outputs[3], op.outputs[4]
    dx, d_scale, d_offset, _, _ = fused_batch_norm_grad(dy, x, scale, mean, variance, op.outputs[5], **attrs)
    return [dx, d_scale, d_offset, None, None]


def _along_channels(vector: Array, axis: int, rank: int) -> Array:
    return vector.astype(np.float32).reshape([-1 if i == axis else 1 for i in range(rank)])


@op("FusedBatchNormV3", "T, U, U, U, U -> y: T, batch_mean: U, batch_variance: U, reserve_space_1: U, "
    "reserve_space_2: U, reserve_space_3: U",
    shape=_fused_shape, grad=_fused_gradient, T=_HALF, U=_STATISTICS)  # fmt: skip
def fused_batch_norm_v3(
    x: Array, scale: Array, offset: Array, mean: Array, variance: Array, *, epsilon: float = 0.0001,
    exponential_avg_factor: float = 1.0, data_format: str = "NHWC", is_training: bool = True,
) -> tuple[Array, ...]:  # fmt: skip
    """y; the statistics to keep (their variance unbiased); those used in this step, for the gradient; nothing."""
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


def _fused_grad_shape(op: Operation) -> list[TensorShape]:
    empty = TensorShape.of((0,))
    channels = op.input_list[2].shape
    return [op.input_list[1].shape, channels, channels, empty, empty]


@op("FusedBatchNormGradV3", "T, T, float32, U, U, U -> x_backprop: T, scale_backprop: U, offset_backprop: U, "
    "reserve_space_4: U, reserve_space_5: U", shape=_fused_grad_shape, T=_HALF, U=Types(dt.float32))  # fmt: skip
def fused_batch_norm_grad(
    y_backprop: Array, x: Array, scale: Array, reserve_space_1: Array, reserve_space_2: Array, reserve_space_3: Array,
    *, epsilon: float = 0.0001, data_format: str = "NHWC", is_training: bool = True,
) -> tuple[Array, ...]:  # fmt: skip
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


def fused_batch_norm(
    x: Any, scale: Any, offset: Any, mean: Any = None, variance: Any = None, epsilon: float = 0.001,
    data_format: str = "NHWC", is_training: bool = True, name: str | None = None, exponential_avg_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
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
        x, scale, offset, mean, variance, epsilon=max(epsilon, _LEAST_EPSILON), data_format=data_format,
        is_training=is_training, exponential_avg_factor=exponential_avg_factor, name=name,
    )  # fmt: skip
    return outputs[0], outputs[1], outputs[2]


# Neighbouring channels, and vectors.


def _normalised(image: Array, depth_radius: int, bias: float, alpha: float, beta: float) -> Array:
    window = (1,) * (image.ndim - 1) + (2 * depth_radius + 1,)
    padding = ((0, 0),) * (image.ndim - 1) + ((depth_radius, depth_radius),)
    exact = image.astype(np.float32)
    squares = lax.reduce_window(exact * exact, np.float32(0), lax.add, window, (1,) * image.ndim, padding)
    return (exact * (bias + alpha * squares) ** -beta).astype(image.dtype)


def _lrn_gradient(op: Operation, dy: Tensor) -> list[Any]:
    attrs = {k: op.attrs[k] for k in ("depth_radius", "bias", "alpha", "beta")}
    return [lrn_grad(dy, op.input_list[0], op.outputs[0], **attrs)]


@op("LRNGrad", "T, T, T -> output: T", shape=shapes.merged, T=_HALF32)
def lrn_grad(
    input_grads: Array, input_image: Array, output_image: Array, *, depth_radius: int = 5, bias: float = 1.0,
    alpha: float = 1.0, beta: float = 0.5,
) -> Array:  # fmt: skip
    _, pull = jax.vjp(lambda image: _normalised(image, depth_radius, bias, alpha, beta), input_image)
    return pull(input_grads)[0]


@op("LRN", "T -> output: T", shape=lambda op: [op.input_list[0].shape.with_rank(4)], grad=_lrn_gradient, T=_HALF32)
def lrn_op(
    input: Array, *, depth_radius: int = 5, bias: float = 1.0, alpha: float = 1.0, beta: float = 0.5
) -> Array:
    if input.ndim != 4:
        raise ValueError(f"in must be 4-dimensional, received shape {input.shape}")
    return _normalised(input, depth_radius, bias, alpha, beta)


def local_response_normalization(
    input: Any, depth_radius: int = 5, bias: float = 1, alpha: float = 1, beta: float = 0.5, name: str | None = None
) -> Tensor:
    """Divides by (bias + alpha * sum of squares over `depth_radius` channels to either side) ** beta.

    >>> tf.nn.lrn(conv1, depth_radius=4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)
    """
    result: Tensor = lrn_op(input, depth_radius=depth_radius, bias=bias, alpha=alpha, beta=beta, name=name)
    return result


lrn = local_response_normalization


def l2_normalize(
    x: Any, axis: Any = None, epsilon: float = 1e-12, name: str | None = None, dim: Any = None
) -> Tensor:
    """x / sqrt(max(sum(x**2), epsilon)), with the sum over `axis`.

    >>> tf.nn.l2_normalize(vectors, axis=1)
    """
    axis = renamed(axis, "axis", dim, "dim")
    with name_scope(name, "l2_normalize", [x]) as name:
        x = convert_to_tensor(x, name="x")
        total = reduce.reduce_sum(unary.square(x), axis, keepdims=True)
        return math.multiply(x, unary.rsqrt(math.maximum(total, epsilon)), name=name)
