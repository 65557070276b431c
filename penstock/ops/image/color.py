"""Colours and brightness of images: conversions, adjustments, random adjustments, and the types of pixels."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel.types import Array
from penstock.ops.array import passthrough, reshaping
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.control import grouping
from penstock.ops.debugging.assertion import Assert
from penstock.ops.image.geometry import checked_image, shape_of
from penstock.ops.linalg import matmul
from penstock.ops.math import arithmetic, casting, reduce, unary
from penstock.ops.random import stateful as random

_FLOATS = Types(dt.float16, dt.bfloat16, dt.float32, dt.float64, default=dt.float32)
_ADJUSTED = Types(dt.float16, dt.float32, default=dt.float32)


# Kernels.


def _three_channels(op: Operation) -> list[TensorShape]:
    shape = op.input_list[0].shape
    if shape.rank is None:
        return [shape]
    if shape.rank < 1:
        raise ValueError(f"Shape must be at least rank 1 but is rank {shape.rank}")
    last = shape.as_list()[-1]
    if last not in (None, 3):
        raise ValueError(f"Dimension must be 3 but is {last}")
    return [TensorShape.of((*shape.as_list()[:-1], 3))]


def _at_least_3d(op: Operation) -> list[TensorShape]:
    shape = op.input_list[0].shape
    if shape.rank is not None and shape.rank < 3:
        raise ValueError(f"Shape must be at least rank 3 but is rank {shape.rank}")
    if op.input_list[1].shape.rank not in (None, 0):
        raise ValueError(f"Shape must be rank 0 but is rank {op.input_list[1].shape.rank}")
    return [shape]


def _channels(images: Array) -> tuple[Array, Array, Array]:
    if images.ndim < 1 or images.shape[-1] != 3:
        raise ValueError(f"input must have 3 channels, received shape {list(images.shape)}")
    return images[..., 0], images[..., 1], images[..., 2]


def _extremes(red: Array, green: Array, blue: Array) -> tuple[Array, Array]:
    """The largest and the smallest channel."""
    most = jnp.where((red >= green) & (red >= blue), red, jnp.where(green >= blue, green, blue))
    least = jnp.where((red < blue) & (red < green), red, jnp.where((green <= red) & (green < blue), green, blue))
    return most, least


def _to_hsv(images: Array) -> tuple[Array, Array, Array]:
    """Hue, saturation and value. Among equal channels red comes before green before blue, also in the derivative."""
    red, green, blue = _channels(images)
    zero, one = np.zeros((), images.dtype), np.ones((), images.dtype)
    red_most, green_most = (red >= green) & (red >= blue), green >= blue
    most, least = _extremes(red, green, blue)
    value, spread = most, most - least
    # As in TensorFlow, channels that are not positive do not change the saturation, nor the hue if none is positive.
    most, least = _extremes(*_channels(jnp.where(images > zero, images, lax.stop_gradient(images))))
    # Both branches of `where` are differentiated, so neither may divide by zero.
    saturation = jnp.where(value > zero, (most - least) / jnp.where(value > zero, most, one), zero)
    unit = one / (jnp.where(spread > zero, spread, one) * images.dtype.type(6))
    third = images.dtype.type(1 / 3)
    hue = jnp.where(
        red_most,
        unit * (green - blue),
        jnp.where(green_most, unit * (blue - red) + third, unit * (red - green) + third + third),
    )
    hue = jnp.where(spread > zero, hue, zero)
    hue = jnp.where(value > zero, hue, lax.stop_gradient(hue))
    return jnp.where(hue < zero, hue + one, hue), saturation, value


def _ramps(hue6: Array) -> Array:
    """The share of each channel in a hue in [0, 6), in [0, 1]."""
    parts = [jnp.abs(hue6 - 3) - 1, 2 - jnp.abs(hue6 - 2), 2 - jnp.abs(hue6 - 4)]
    return jnp.clip(jnp.stack(parts, axis=-1), 0, 1)


def _to_rgb(hue: Array, saturation: Array, value: Array) -> Array:
    s, v = saturation[..., None], value[..., None]
    return ((1 - s) + s * _ramps(hue * 6)) * v


@op("RGBToHSV", "T -> output: T", shape=_three_channels, T=_FLOATS)
def rgb_to_hsv(images: Array) -> Array:
    """Red, green and blue in [0, 1] as hue, saturation and value in [0, 1]."""
    return jnp.stack(_to_hsv(images), axis=-1)


@op("HSVToRGB", "T -> output: T", shape=_three_channels, no_gradient=True, T=_FLOATS)
def hsv_to_rgb(images: Array) -> Array:
    """Hue, saturation and value in [0, 1] as red, green and blue in [0, 1]."""
    return _to_rgb(*_channels(images)).astype(images.dtype)


def _image_rank(images: Array, scale: Array, what: str) -> Array:
    if images.ndim < 3:
        raise ValueError(f"input must be at least 3-D, got shape {list(images.shape)}")
    if scale.ndim != 0:
        raise ValueError(f"{what} must be scalar: {list(scale.shape)}")
    return images.astype(np.float32)


@op("AdjustContrastv2", "T, float -> output: T", shape=_at_least_3d, grad=refuse_gradient, T=_ADJUSTED)
def adjust_contrastv2(images: Array, contrast_factor: Array) -> Array:
    wide = _image_rank(images, contrast_factor, "contrast_factor")
    mean = jnp.mean(wide, axis=(-3, -2), keepdims=True)
    return ((wide - mean) * contrast_factor + mean).astype(images.dtype)


@op("AdjustHue", "T, float -> output: T", shape=_at_least_3d, grad=refuse_gradient, T=_ADJUSTED)
def adjust_hue_op(images: Array, delta: Array) -> Array:
    wide = _image_rank(images, delta, "delta")
    hue, _, _ = _to_hsv(wide)
    most, least = jnp.max(wide, axis=-1, keepdims=True), jnp.min(wide, axis=-1, keepdims=True)
    turned = jnp.mod(hue * 6 + delta * 6, np.float32(6))
    return (least + (most - least) * _ramps(turned)).astype(images.dtype)


@op("AdjustSaturation", "T, float -> output: T", shape=_at_least_3d, grad=refuse_gradient, T=_ADJUSTED)
def adjust_saturation_op(images: Array, scale: Array) -> Array:
    hue, saturation, value = _to_hsv(_image_rank(images, scale, "scale"))
    return _to_rgb(hue, jnp.clip(saturation * scale, 0, 1), value).astype(images.dtype)


# The types of pixels.


def convert_image_dtype(image: TensorLike, dtype: DTypeLike, saturate: bool = False, name: str | None = None) -> Tensor:
    """Pixels of another type: floats in [0, 1] become integers from 0 to the largest, and vice versa.

    >>> tf.image.convert_image_dtype(image, tf.float32)
    """
    image = convert_to_tensor(image, name="image")
    wanted, given = as_dtype(dtype).base_dtype, image.dtype.base_dtype
    for what, kind in (("dtype", wanted), ("image dtype", given)):
        if not kind.is_floating and not kind.is_integer:
            raise AttributeError(f"{what} must be either floating point or integer, received {kind.name}.")
    if wanted == given:
        return passthrough.identity(image, name=name)
    with name_scope(name, "convert_image", [image]) as scope:
        convert = casting.saturate_cast if saturate else casting.cast
        tensor: Tensor
        if given.is_floating and wanted.is_floating:
            tensor = casting.cast(image, wanted, name=scope)
        elif given.is_floating:
            # Half a step more than the largest integer, so that all integers have intervals of the same width.
            tensor = convert(arithmetic.multiply(image, wanted.max + 0.5), wanted, name=scope)
        elif wanted.is_floating:
            tensor = arithmetic.multiply(casting.cast(image, wanted), 1.0 / given.max, name=scope)
        elif given.max > wanted.max:
            scaled = arithmetic.floordiv(image, (given.max + 1) // (wanted.max + 1))
            tensor = convert(scaled, wanted, name=scope)
        else:
            tensor = arithmetic.multiply(convert(image, wanted), (wanted.max + 1) // (given.max + 1), name=scope)
        return tensor


def _floating(image: Tensor) -> Tensor:
    """`image` in a type that adjustments can compute in: float16 and float32 stay, others become float32."""
    return image if image.dtype.base_dtype in (dt.float16, dt.float32) else convert_image_dtype(image, dt.float32)


def per_image_standardization(image: TensorLike) -> Tensor:
    """Each image with mean 0 and standard deviation 1 (at least 1 / sqrt(pixels), so that a blank image stays 0).

    >>> tf.image.per_image_standardization(image)
    """
    with name_scope(None, "per_image_standardization", [image]) as scope:
        image = checked_image(convert_to_tensor(image, name="image"))
        image = casting.cast(image, dt.float32)
        count = reduce.reduce_prod(shape_of(image)[-3:])
        mean = reduce.reduce_mean(image, axis=[-1, -2, -3], keepdims=True)
        deviation = reduce.reduce_std(image, axis=[-1, -2, -3], keepdims=True)
        least = unary.rsqrt(casting.cast(count, dt.float32))
        divisor = arithmetic.maximum(deviation, least)
        tensor: Tensor = arithmetic.divide(image - mean, divisor, name=scope)
        return tensor


# Adjustments.


def adjust_brightness(image: TensorLike, delta: TensorLike) -> Tensor:
    """`delta` added to all pixels, in the scale of [0, 1].

    >>> tf.image.adjust_brightness(image, 0.1)
    """
    with name_scope(None, "adjust_brightness", [image, delta]) as scope:
        image = convert_to_tensor(image, name="image")
        pixels = _floating(image)
        adjusted = arithmetic.add(pixels, casting.cast(delta, pixels.dtype), name=scope)
        return convert_image_dtype(adjusted, image.dtype, saturate=True)


def adjust_contrast(images: TensorLike, contrast_factor: TensorLike) -> Tensor:
    """Each channel of each image stretched around its mean: `(x - mean) * contrast_factor + mean`.

    >>> tf.image.adjust_contrast(image, 1.5)
    """
    with name_scope(None, "adjust_contrast", [images, contrast_factor]) as scope:
        images = convert_to_tensor(images, name="images")
        adjusted = adjust_contrastv2(_floating(images), contrast_factor, name=scope)
        return convert_image_dtype(adjusted, images.dtype, saturate=True)


def adjust_gamma(image: TensorLike, gamma: TensorLike = 1, gain: TensorLike = 1) -> Tensor:
    """`gain * x ** gamma` for all pixels.

    >>> tf.image.adjust_gamma(image, gamma=0.5)
    """
    with name_scope(None, "adjust_gamma", [image, gamma, gain]):
        image = convert_to_tensor(image, name="image")
        pixels = _floating(image)
        message = "Gamma should be a non-negative real number."
        positive = gamma >= 0
        if isinstance(positive, Tensor):
            gamma = grouping.with_dependencies([Assert(positive, [message])], gamma)
        elif not positive:
            raise ValueError(f"{message} Received {gamma}.")
        return convert_image_dtype(gain * pixels**gamma, image.dtype, saturate=True)


def adjust_hue(image: TensorLike, delta: TensorLike, name: str | None = None) -> Tensor:
    """The hue of all pixels moved by `delta` in [-1, 1]; 1 is once around the circle.

    >>> tf.image.adjust_hue(image, 0.1)
    """
    with name_scope(name, "adjust_hue", [image]):
        image = convert_to_tensor(image, name="image")
        return convert_image_dtype(adjust_hue_op(_floating(image), delta), image.dtype)


def adjust_saturation(image: TensorLike, saturation_factor: TensorLike, name: str | None = None) -> Tensor:
    """The saturation of all pixels times `saturation_factor`.

    >>> tf.image.adjust_saturation(image, 0.5)
    """
    with name_scope(name, "adjust_saturation", [image]):
        image = convert_to_tensor(image, name="image")
        return convert_image_dtype(adjust_saturation_op(_floating(image), saturation_factor), image.dtype)


def random_brightness(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """`adjust_brightness` by a random amount in [-max_delta, max_delta).

    >>> tf.image.random_brightness(image, max_delta=0.2)
    """
    if max_delta < 0:
        raise ValueError(f"max_delta must be non-negative, received {max_delta}.")
    return adjust_brightness(image, random.random_uniform([], -max_delta, max_delta, seed=seed))


def _require_range(lower: float, upper: float) -> None:
    if upper <= lower:
        raise ValueError(f"upper must be > lower, received {upper} and {lower}.")
    if lower < 0:
        raise ValueError(f"lower must be non-negative, received {lower}.")


def random_contrast(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """`adjust_contrast` by a random factor in [lower, upper).

    >>> tf.image.random_contrast(image, 0.5, 1.5)
    """
    _require_range(lower, upper)
    return adjust_contrast(image, random.random_uniform([], lower, upper, seed=seed))


def random_hue(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """`adjust_hue` by a random amount in [-max_delta, max_delta), at most 0.5.

    >>> tf.image.random_hue(image, 0.1)
    """
    if not 0 <= max_delta <= 0.5:
        bound = "<= 0.5" if max_delta > 0.5 else "non-negative"
        raise ValueError(f"max_delta must be {bound}, received {max_delta}.")
    return adjust_hue(image, random.random_uniform([], -max_delta, max_delta, seed=seed))


def random_saturation(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """`adjust_saturation` by a random factor in [lower, upper).

    >>> tf.image.random_saturation(image, 0.5, 1.5)
    """
    _require_range(lower, upper)
    return adjust_saturation(image, random.random_uniform([], lower, upper, seed=seed))


# Colour spaces.


def rgb_to_grayscale(images: TensorLike, name: str | None = None) -> Tensor:
    """Colour images as images of one channel, the luminance.

    >>> tf.image.rgb_to_grayscale(image)
    """
    with name_scope(name, "rgb_to_grayscale", [images]) as scope:
        images = convert_to_tensor(images, name="images")
        pixels = convert_image_dtype(images, dt.float32)
        gray = reshaping.expand_dims(matmul.tensordot(pixels, [0.2989, 0.587, 0.114], [-1, -1]), -1)
        return convert_image_dtype(gray, images.dtype, name=scope)


# Column j has the weights of the input channels in output channel j.
_YIQ = [[0.299, 0.59590059, 0.2115], [0.587, -0.27455667, -0.52273617], [0.114, -0.32134392, 0.31119955]]
_FROM_YIQ = [[1, 1, 1], [0.95598634, -0.27201283, -1.10674021], [0.6208248, -0.64720424, 1.70423049]]
_YUV = [[0.299, -0.14714119, 0.61497538], [0.587, -0.28886916, -0.51496512], [0.114, 0.43601035, -0.10001026]]
_FROM_YUV = [[1, 1, 1], [0, -0.394642334, 2.03206185], [1.13988303, -0.58062185, 0]]


def _mixed(images: Any, matrix: Any) -> Tensor:
    images = convert_to_tensor(images, name="images")
    kernel = convert_to_tensor(matrix, dtype=images.dtype.base_dtype, name="kernel")
    rank: Any = images.shape.rank
    if rank is None:
        raise TypeError("The rank of the images must be known.")
    return matmul.tensordot(images, kernel, axes=[[rank - 1], [0]])


def rgb_to_yiq(images: TensorLike) -> Tensor:
    """Red, green and blue as luma and the two chroma components of NTSC.

    >>> tf.image.rgb_to_yiq(image)
    """
    return _mixed(images, _YIQ)


def yiq_to_rgb(images: TensorLike) -> Tensor:
    """The reverse of `rgb_to_yiq`.

    >>> tf.image.yiq_to_rgb(image)
    """
    return _mixed(images, _FROM_YIQ)


def rgb_to_yuv(images: TensorLike) -> Tensor:
    """Red, green and blue as luma and the two chroma components of PAL.

    >>> tf.image.rgb_to_yuv(image)
    """
    return _mixed(images, _YUV)


def yuv_to_rgb(images: TensorLike) -> Tensor:
    """The reverse of `rgb_to_yuv`.

    >>> tf.image.yuv_to_rgb(image)
    """
    return _mixed(images, _FROM_YUV)
