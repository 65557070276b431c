"""Edges of images, and measures of the similarity of two images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, joining, padding, passthrough, ranges, reshaping
from penstock.ops.control import flow
from penstock.ops.conv import depthwise, pool
from penstock.ops.debugging.assertion import Assert
from penstock.ops.image.color import convert_image_dtype
from penstock.ops.image.geometry import shape_of
from penstock.ops.math import arithmetic, casting, compare, reduce, unary
from penstock.ops.nn import activation, layer_parts

_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def image_gradients(image: TensorLike) -> tuple[Tensor, Tensor]:
    """Differences of neighbouring pixels, down and to the right; 0 in the last row and column.

    >>> dy, dx = tf.image.image_gradients(images)
    """
    if image.shape.rank != 4:
        raise ValueError(f"image_gradients expects a 4D tensor [batch_size, h, w, d], not {image.shape}.")
    shape = shape_of(image)
    batch, height, width, depth = joining.unstack(shape)
    dy = image[:, 1:, :, :] - image[:, :-1, :, :]
    dx = image[:, :, 1:, :] - image[:, :, :-1, :]
    last = creation.zeros(joining.stack([batch, 1, width, depth]), image.dtype)
    dy = reshaping.reshape(joining.concat([dy, last], 1), shape)
    last = creation.zeros(joining.stack([batch, height, 1, depth]), image.dtype)
    dx = reshaping.reshape(joining.concat([dx, last], 2), shape)
    return dy, dx


def sobel_edges(image: TensorLike) -> Tensor:
    """Sobel's edge detection; a new last dimension has the vertical and the horizontal differences.

    >>> tf.image.sobel_edges(images)
    """
    static = image.shape
    shape = shape_of(image)
    down = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]])
    both = np.stack([down, down.T], axis=-1)[:, :, None, :]
    kernel = creation.constant(both, dtype=image.dtype.base_dtype)
    kernel = joining.tile(kernel, [1, 1, shape[-1], 1], name="sobel_filters")
    padded = padding.pad(image, [[0, 0], [1, 1], [1, 1], [0, 0]], mode="REFLECT")
    found = depthwise.depthwise_conv2d(padded, kernel, [1, 1, 1, 1], "VALID")
    edges = reshaping.reshape(found, joining.concat([shape, [2]], 0))
    edges.set_shape(static.concatenate([2]))
    return edges


def total_variation(images: TensorLike, name: str | None = None) -> Tensor:
    """The sum of the absolute differences of neighbouring pixels, for each image.

    >>> tf.image.total_variation(images)
    """
    with name_scope(name, "total_variation"):
        rank = images.shape.rank
        axes = None
        if rank == 3:
            down = images[1:, :, :] - images[:-1, :, :]
            right = images[:, 1:, :] - images[:, :-1, :]
        elif rank == 4:
            down = images[:, 1:, :, :] - images[:, :-1, :, :]
            right = images[:, :, 1:, :] - images[:, :, :-1, :]
            axes = [1, 2, 3]
        else:
            raise ValueError(f"'images' must be either 3 or 4-dimensional, received shape {images.shape}.")
        vertical: Any = reduce.reduce_sum(unary.abs(down), axis=axes)
        total: Tensor = vertical + reduce.reduce_sum(unary.abs(right), axis=axes)
    return total


def _shapes_of(tensors: list[Any]) -> list[Any]:
    return list(reshaping.shape_n(tensors))


def _comparable(first: Tensor, second: Tensor) -> tuple[Any, Any, list[Operation]]:
    """Checks that two images can be compared. Returns their shapes, and assertions for sizes that are unknown."""
    one, other = first.shape.with_rank_at_least(3), second.shape.with_rank_at_least(3)
    if one.rank is not None and other.rank is not None:
        one[-3:].assert_is_compatible_with(other[-3:])
        for a, b in zip(reversed(one.as_list()[:-3]), reversed(other.as_list()[:-3]), strict=False):
            if a is not None and b is not None and a != b and 1 not in (a, b):
                raise ValueError(f"Two images are not compatible: {one} and {other}")
    shape1, shape2 = _shapes_of([first, second])
    enough = Assert(compare.greater_equal(reshaping.size(shape1), 3), [shape1, shape2], summarize=10)
    same = reduce.reduce_all(compare.equal(shape1[-3:], shape2[-3:]))
    return shape1, shape2, [enough, Assert(same, [shape1, shape2], summarize=10)]


def psnr(a: TensorLike, b: TensorLike, max_val: TensorLike, name: str | None = None) -> Tensor:
    """The peak signal-to-noise ratio of two images, in decibels; `max_val` is the largest value that a pixel may have.

    >>> tf.image.psnr(image, noisy, max_val=255)
    """
    with name_scope(name, "PSNR", [a, b]):
        a = convert_to_tensor(a) if not isinstance(a, Tensor) else a
        max_val = convert_image_dtype(casting.cast(max_val, a.dtype), dt.float32)
        a = convert_image_dtype(a, dt.float32)
        b = convert_image_dtype(b, dt.float32)
        error = reduce.reduce_mean(arithmetic.squared_difference(a, b), [-3, -2, -1])
        ratio = arithmetic.subtract(
            20 * unary.log(max_val) / unary.log(10.0), np.float32(10 / np.log(10)) * unary.log(error), name="psnr"
        )
        _, _, checks = _comparable(a, b)
        with control_dependencies(checks):
            return passthrough.identity(ratio)


def _gaussian(size: Any, sigma: Any) -> Tensor:
    """A window of normal weights, [size, size, 1, 1]."""
    size = convert_to_tensor(size, dt.int32)
    sigma = convert_to_tensor(sigma)
    at = casting.cast(ranges.range(size), sigma.dtype)
    at -= casting.cast(size - 1, sigma.dtype) / 2.0
    logits = unary.square(at)
    logits *= -0.5 / unary.square(sigma)
    row: Any = reshaping.reshape(logits, [1, -1])
    logits = row + reshaping.reshape(logits, [-1, 1])
    return reshaping.reshape(layer_parts.softmax(reshaping.reshape(logits, [1, -1])), [size, size, 1, 1])


def _similarity(
    images: list[Any], max_val: Any, filter_size: int, filter_sigma: float, k1: float, k2: float
) -> tuple[Tensor, Tensor]:
    """The structural similarity of each channel, and its part without the luminance."""
    first, second = images
    size = creation.constant(filter_size, dtype=dt.int32)
    sigma = creation.constant(filter_sigma, dtype=first.dtype.base_dtype)
    shape1, shape2 = _shapes_of([first, second])
    checks = [
        Assert(reduce.reduce_all(compare.greater_equal(shape[-3:-1], size)), [shape, size], summarize=8)
        for shape in (shape1, shape2)
    ]
    with control_dependencies(checks):
        first = passthrough.identity(first)
    kernel = joining.tile(_gaussian(size, sigma), [1, 1, shape1[-1], 1])

    def mean(x: Any) -> Any:
        shape = shape_of(x)
        x = reshaping.reshape(x, joining.concat([[-1], shape[-3:]], 0))
        y = depthwise.depthwise_conv2d(x, kernel, strides=[1, 1, 1, 1], padding="VALID")
        return reshaping.reshape(y, joining.concat([shape[:-3], shape_of(y)[1:]], 0))

    c1, c2 = (k1 * max_val) ** 2, (k2 * max_val) ** 2
    mean1, mean2 = mean(first), mean(second)
    product = mean1 * mean2 * 2.0
    squares = unary.square(mean1) + unary.square(mean2)
    luminance = (product + c1) / (squares + c1)
    covariance = mean(first * second) * 2.0
    variances = mean(unary.square(first) + unary.square(second))
    c2 = c2 * 1.0
    contrast = (covariance - product + c2) / (variances - squares + c2)
    axes = creation.constant([-3, -2], dtype=dt.int32)
    return reduce.reduce_mean(luminance * contrast, axes), reduce.reduce_mean(contrast, axes)


def _prepared(img1: Any, img2: Any, max_val: Any) -> tuple[list[Any], Any, list[Any]]:
    """Both images and `max_val` as float32, and their shapes."""
    img1, img2 = convert_to_tensor(img1, name="img1"), convert_to_tensor(img2, name="img2")
    shape1, shape2, checks = _comparable(img1, img2)
    with control_dependencies(checks):
        img1 = passthrough.identity(img1)
    largest = convert_image_dtype(casting.cast(max_val, img1.dtype), dt.float32)
    images = [convert_image_dtype(img1, dt.float32), convert_image_dtype(img2, dt.float32)]
    return images, largest, [shape1, shape2]


def ssim(
    img1: TensorLike,
    img2: TensorLike,
    max_val: TensorLike,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """The structural similarity of two images, at most 1.

    >>> tf.image.ssim(image, noisy, max_val=255)
    """
    with name_scope(None, "SSIM", [img1, img2]):
        images, largest, _ = _prepared(img1, img2, max_val)
        per_channel, _ = _similarity(images, largest, filter_size, filter_sigma, k1, k2)
        return reduce.reduce_mean(per_channel, [-1])


def ssim_multiscale(
    img1: TensorLike,
    img2: TensorLike,
    max_val: TensorLike,
    power_factors: Sequence[float] = _WEIGHTS,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """The structural similarity at several scales, each half as large as the one before, multiplied.

    >>> tf.image.ssim_multiscale(images, noisy, max_val=255)
    """
    with name_scope(None, "MS-SSIM", [img1, img2]):
        images, largest, whole = _prepared(img1, img2, max_val)
        heads, tails = [s[:-3] for s in whole], [s[-3:] for s in whole]
        divisor = [1, 2, 2, 1]
        divisors = creation.constant(divisor[1:], dtype=dt.int32)
        contrasts: list[Tensor] = []
        per_channel: Any = None
        for scale in range(len(power_factors)):
            with name_scope(None, f"Scale{scale}", images):
                if scale > 0:
                    halves = _halved(images, tails, divisors, divisor)
                    tails = [s[1:] for s in _shapes_of(halves)]
                    images = [
                        reshaping.reshape(x, joining.concat([h, t], 0))
                        for x, h, t in zip(halves, heads, tails, strict=True)
                    ]
                per_channel, contrast = _similarity(images, largest, filter_size, filter_sigma, k1, k2)
                contrasts.append(activation.relu(contrast))
        contrasts.pop()
        factors = joining.stack([*contrasts, activation.relu(per_channel)], axis=-1)
        combined = reduce.reduce_prod(arithmetic.pow(factors, power_factors), [-1])
        return reduce.reduce_mean(combined, [-1])


def _halved(images: list[Any], tails: list[Any], divisors: Any, divisor: list[int]) -> list[Tensor]:
    """The images at half the size; odd sizes are padded by their last row or column."""
    flat = [reshaping.reshape(x, joining.concat([[-1], t], 0)) for x, t in zip(images, tails, strict=True)]
    remainder = tails[0] % divisors

    def padded() -> list[Tensor]:
        ends = padding.pad(reshaping.expand_dims(remainder, -1), [[1, 0], [1, 0]])
        return [padding.pad(x, ends, mode="SYMMETRIC") for x in flat]

    odd = reduce.reduce_any(compare.not_equal(remainder, 0))
    even = flow.cond(odd, padded, lambda: flat)
    return [pool.avg_pool(x, ksize=divisor, strides=divisor, padding="VALID") for x in even]
