"""Moments, and normalisation by them: of batches, of neighbouring channels, of vectors."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import Array
from penstock.ops.array import creation, gathering, passthrough, reshaping
from penstock.ops.math import arithmetic, casting, reduce, unary
from penstock.ops.math.reduce import renamed

_HALF32 = Types(dt.float16, dt.bfloat16, dt.float32, default=dt.float32)


def moments(
    x: TensorLike,
    axes: TensorLike,
    shift: TensorLike = None,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
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
        deviation = arithmetic.squared_difference(exact, passthrough.stop_gradient(mean))
        variance = reduce.reduce_mean(deviation, axes, keepdims=True, name="variance")
        if not keep:
            mean, variance = reshaping.squeeze(mean, axes), reshaping.squeeze(variance, axes)
        if half:
            return casting.cast(mean, x.dtype), casting.cast(variance, x.dtype)
        return mean, variance


def weighted_moments(
    x: TensorLike,
    axes: TensorLike,
    frequency_weights: TensorLike,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
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
        count = reduce.reduce_sum(weights + creation.zeros_like(exact), axes, name="sum_of_weights", keepdims=True)
        mean = arithmetic.div_no_nan(total, count)
        deviation = weights * arithmetic.squared_difference(exact, mean)
        squares = reduce.reduce_sum(deviation, axes, name="weighted_distsq", keepdims=True)
        variance = arithmetic.div_no_nan(squares, count)
        if not keep:
            mean, variance = reshaping.squeeze(mean, axes), reshaping.squeeze(variance, axes)
        if half:
            return casting.cast(mean, x.dtype), casting.cast(variance, x.dtype)
        return mean, variance


def sufficient_statistics(
    x: TensorLike,
    axes: TensorLike,
    shift: TensorLike = None,
    keep_dims: bool | None = None,
    name: str | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Count, sum, sum of squares (both of `x - shift`), and the shift, as `normalize_moments` takes them.

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
            first, second = arithmetic.subtract(x, shift), arithmetic.squared_difference(x, shift)
        else:
            first, second = x, unary.square(x)
        first = reduce.reduce_sum(first, axes, keepdims=keep, name="mean_ss")
        return counts, first, reduce.reduce_sum(second, axes, keepdims=keep, name="var_ss"), shift


def normalize_moments(
    counts: TensorLike, mean_ss: TensorLike, variance_ss: TensorLike, shift: TensorLike, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance from the sums that `sufficient_statistics` returns.

    >>> tf.nn.normalize_moments(*tf.nn.sufficient_statistics(x, axes=[0]))
    """
    with name_scope(name, "normalize", [counts, mean_ss, variance_ss, shift]):
        divisor = unary.reciprocal(counts, name="divisor")
        if shift is not None:
            shifted = arithmetic.multiply(mean_ss, divisor, name="shifted_mean")
            mean = arithmetic.add(shifted, shift, name="mean")
        else:
            shifted = mean = arithmetic.multiply(mean_ss, divisor, name="mean")
        squares = arithmetic.multiply(variance_ss, divisor)
        variance = arithmetic.subtract(squares, unary.square(shifted), name="variance")
        return mean, variance


def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: TensorLike,
    scale: TensorLike,
    variance_epsilon: TensorLike,
    name: str | None = None,
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
    t: TensorLike = None,
    m: TensorLike = None,
    v: TensorLike = None,
    beta: TensorLike = None,
    gamma: TensorLike = None,
    variance_epsilon: TensorLike = None,
    scale_after_normalization: bool | None = None,
    name: str | None = None,
    input: TensorLike = None,
    mean: TensorLike = None,
    variance: TensorLike = None,
) -> Tensor:
    """`batch_normalization` under its first name.

    >>> tf.nn.batch_norm_with_global_normalization(x, mean, variance, beta, gamma, 1e-3, True)
    """
    t, m, v = renamed(input, "input", t, "t"), renamed(mean, "mean", m, "m"), renamed(variance, "variance", v, "v")
    return batch_normalization(t, m, v, beta, gamma if scale_after_normalization else None, variance_epsilon, name)


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
    input_grads: Array,
    input_image: Array,
    output_image: Array,
    *,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
) -> Array:
    _, pull = jax.vjp(lambda image: _normalised(image, depth_radius, bias, alpha, beta), input_image)
    return pull(input_grads)[0]


@op("LRN", "T -> output: T", shape=lambda op: [op.input_list[0].shape.with_rank(4)], grad=_lrn_gradient, T=_HALF32)
def lrn_op(input: Array, *, depth_radius: int = 5, bias: float = 1.0, alpha: float = 1.0, beta: float = 0.5) -> Array:
    if input.ndim != 4:
        raise ValueError(f"in must be 4-dimensional, received shape {input.shape}")
    return _normalised(input, depth_radius, bias, alpha, beta)


def local_response_normalization(
    input: TensorLike,
    depth_radius: int = 5,
    bias: float = 1,
    alpha: float = 1,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Divides by (bias + alpha * sum of squares over `depth_radius` channels to either side) ** beta.

    >>> tf.nn.lrn(conv1, depth_radius=4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)
    """
    result: Tensor = lrn_op(input, depth_radius=depth_radius, bias=bias, alpha=alpha, beta=beta, name=name)
    return result


lrn = local_response_normalization


def l2_normalize(
    x: TensorLike, axis: TensorLike = None, epsilon: float = 1e-12, name: str | None = None, dim: TensorLike = None
) -> Tensor:
    """x / sqrt(max(sum(x**2), epsilon)), with the sum over `axis`.

    >>> tf.nn.l2_normalize(vectors, axis=1)
    """
    axis = renamed(axis, "axis", dim, "dim")
    with name_scope(name, "l2_normalize", [x]) as name:
        x = convert_to_tensor(x, name="x")
        total = reduce.reduce_sum(unary.square(x), axis, keepdims=True)
        return arithmetic.multiply(x, unary.rsqrt(arithmetic.maximum(total, epsilon)), name=name)
