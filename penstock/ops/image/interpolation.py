"""Interpolation: each pixel of a resized image is a weighted sum of pixels.

The place of a result's pixel in the image is computed in float32, as in TensorFlow. The sizes are known while tracing,
so places and weights are constants of the compiled code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.jaxprs.symbols import as_number, as_size, is_symbol
from penstock.kernel.types import Array

_TABLE = 1024  # steps of the table of bicubic weights
_UNROLLED = 8  # sums of more pixels become loops
_Taps = TypeVar("_Taps", bound=Callable[..., Any])


# Places and weights.


def known(taps: _Taps) -> _Taps:
    """Keeps places and weights for sizes that come again; NumPy needs them for each image of a dataset."""
    kept = functools.lru_cache(64)(taps)

    @functools.wraps(taps)
    def found(before: int, after: int, align_corners: bool, half_pixel_centers: bool) -> Any:
        function = taps if is_symbol(before) or is_symbol(after) else kept
        return function(before, after, align_corners, half_pixel_centers)

    return cast(_Taps, found)


def target_size(images: Array, size: Array, align_corners: bool, half_pixel_centers: bool = False) -> tuple[int, int]:
    """The height and width of the result, after checks of the arguments."""
    if half_pixel_centers and align_corners:
        raise ValueError("If half_pixel_centers is True, align_corners must be False.")
    if images.ndim != 4:
        raise ValueError(f"input must be 4-dimensional, received shape {list(images.shape)}")
    if size.shape != (2,):
        raise ValueError(f"shape_t must be 1-dimensional with 2 elements, received shape {list(size.shape)}")
    height, width = map(as_size, size)
    if height <= 0 or width <= 0:
        raise ValueError(f"output dimensions must be positive, received {height} and {width}")
    if images.shape[3] == 0:
        raise ValueError("image must have at least one channel")
    if 0 in images.shape[1:3]:
        raise ValueError(f"input image must be of non-zero size, received shape {list(images.shape)}")
    return height, width


def _module(before: int, after: int) -> Any:
    """The module that computes places: NumPy, while tracing, or jax.numpy if a size is a symbol."""
    return jnp if is_symbol(before) or is_symbol(after) else np


def _scale(before: int, after: int, align_corners: bool) -> Any:
    if align_corners and after > 1:
        before, after = before - 1, after - 1
    m = _module(before, after)
    return m.float32(m.float32(as_number(before)) / m.float32(as_number(after)))


def _places(before: int, after: int, align_corners: bool, half_pixel_centers: bool) -> np.ndarray:
    """The places of the result's pixels along one axis of the image."""
    at = _module(before, after).arange(after, dtype=np.float32)
    scale = _scale(before, after, align_corners)
    half = np.float32(0.5)
    places: np.ndarray = (at + half) * scale - half if half_pixel_centers else at * scale
    return places


@known
def nearest_places(before: int, after: int, align_corners: bool, half_pixel_centers: bool) -> np.ndarray:
    m = _module(before, after)
    at = m.arange(after, dtype=np.float32)
    half = np.float32(0.5)
    scaled = (at + half if half_pixel_centers else at) * _scale(before, after, align_corners)
    # Halves are rounded up, as in C.
    whole = m.floor(scaled + half) if align_corners else m.floor(scaled)
    nearest: np.ndarray = m.clip(whole.astype(np.int64), 0, as_number(before - 1))
    return nearest


def _cubic_weights(a: float) -> np.ndarray:
    """A table whose row i has the weights of pixels at distances i / 1024 and 1 + i / 1024."""
    x = np.arange(_TABLE + 1, dtype=np.float64) / _TABLE
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    x = x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.stack([near, far], 1).astype(np.float32)


@known
def cubic_taps(before: int, after: int, align_corners: bool, half_pixel_centers: bool) -> tuple[Any, Any]:
    """The four pixels along one axis that contribute to a pixel of the result, [4, after], and their weights."""
    at = _places(before, after, align_corners, half_pixel_centers)
    first = np.floor(at)
    offset = np.rint((at - first) * np.float32(_TABLE)).astype(np.int64)
    table = _cubic_weights(-0.5 if half_pixel_centers else -0.75)
    near, far = table[:, 0], table[:, 1]
    weights = np.stack([far[offset], near[offset], near[_TABLE - offset], far[_TABLE - offset]])
    wanted = first.astype(np.int64) + np.arange(-1, 3)[:, None]
    places = np.clip(wanted, 0, before - 1)
    if half_pixel_centers:
        # Pixels outside the image do not count; the other weights are scaled up to sum to 1.
        weights = np.where(places == wanted, weights, np.float32(0))
        total = weights.sum(0, dtype=np.float32)
        weights = weights / np.where(np.abs(total) >= 1000 * np.finfo(np.float32).tiny, total, np.float32(1))
    return places, weights.astype(np.float32)


def _area_taps(before: int, after: int, align_corners: bool) -> tuple[Any, Any, np.float32]:
    """The pixels along one axis that a pixel of the result covers, and how much of each; others have weight 0."""
    scale = _scale(before, after, align_corners)
    at = np.arange(after + 1, dtype=np.float32)
    start, end = at[:-1] * scale, at[1:] * scale
    first, last = np.floor(start).astype(np.int64), np.ceil(end).astype(np.int64)
    pixel = first + np.arange(max(1, int((last - first).max())))[:, None]
    upper = (pixel + 1).astype(np.float32)
    lower = pixel.astype(np.float32)
    cut = np.where(lower < start, np.where(upper > end, scale, upper - start), np.where(upper > end, end - lower, 1))
    weights = np.where(pixel < last, cut, 0).astype(np.float32)
    return np.clip(pixel, 0, before - 1), weights, scale


def _along(axis: int, weights: np.ndarray) -> np.ndarray:
    """One weight per pixel of `axis`, to multiply [batch, height, width, channels] with."""
    return weights.reshape((-1, 1, 1) if axis == 1 else (-1, 1))


# Kernels.


def _taken(images: Array, places: Any, axis: int) -> Array:
    """Rows (axis 1) or columns (axis 2) of the images."""
    if isinstance(images, np.ndarray):
        return images.take(places, axis, mode="clip")
    if axis == 1:
        return jnp.take(images, places, axis=1, mode="clip")
    # The elements of a column lie far apart in memory: XLA is several times as fast if columns are rows.
    return jnp.moveaxis(jnp.take(jnp.moveaxis(images, 2, 0), places, axis=0, mode="clip"), 0, 2)


@known
def bilinear_taps(before: int, after: int, align_corners: bool, half_pixel_centers: bool) -> tuple[Any, Any]:
    """The two pixels along one axis that contribute to a pixel of the result, [2, after], and their weights."""
    at = _places(before, after, align_corners, half_pixel_centers)
    m = _module(before, after)
    floor, last = m.floor(at), as_number(before - 1)
    places = m.stack([m.maximum(floor.astype(np.int64), 0), m.minimum(m.ceil(at).astype(np.int64), last)])
    second = (at - floor).astype(np.float32)
    return places, m.stack([np.float32(1) - second, second])


def bilinear(images: Array, target: tuple[int, int], align_corners: bool, half_pixel_centers: bool) -> Array:
    result = images
    for axis in (2, 1):
        places, weights = bilinear_taps(images.shape[axis], target[axis - 1], align_corners, half_pixel_centers)
        first, second = _taken(result, places[0], axis), _taken(result, places[1], axis)
        result = _between(first, second, weights[1].astype(result.dtype, copy=False), axis)
    return result


def _between(first: Array, second: Array, weights: Any, axis: int) -> Array:
    """Pixels between those of two new arrays, of which `second` counts by the weights along `axis`."""
    if not isinstance(first, np.ndarray):
        return first + (second - first) * _along(axis, weights)
    second -= first
    # NumPy is several times as fast if the few channels of a pixel are no dimension of their own.
    batch, height, width, channels = second.shape
    rows = second.reshape(batch, height, width * channels)
    rows *= weights.repeat(channels) if axis == 2 else weights[:, None]
    second += first
    return second


def nearest(images: Array, target: tuple[int, int], align_corners: bool, half_pixel_centers: bool) -> Array:
    for axis in (1, 2):
        at = nearest_places(images.shape[axis], target[axis - 1], align_corners, half_pixel_centers)
        images = _taken(images, at, axis)
    return images


def bicubic(images: Array, target: tuple[int, int], align_corners: bool, half_pixel_centers: bool) -> Array:
    for axis in (1, 2):
        places, weights = cubic_taps(images.shape[axis], target[axis - 1], align_corners, half_pixel_centers)
        taps = [
            _taken(images, p, axis) * _along(axis, w.astype(images.dtype)) for p, w in zip(places, weights, strict=True)
        ]
        images = taps[0] + taps[1] + taps[2] + taps[3]
    return images


def area(images: Array, target: tuple[int, int], align_corners: bool) -> Array:
    size = np.float32(1)
    for axis in (2, 1):
        places, weights, scale = _area_taps(images.shape[axis], target[axis - 1], align_corners)
        images = _weighted(images, places, weights, axis)
        size = size * scale
    return images * (np.float32(1) / size)


def _weighted(images: Array, places: np.ndarray, weights: np.ndarray, axis: int) -> Array:
    """Sums of pixels along `axis`: those at `places`, [pixels, size of the result], times their weights."""
    zero = np.zeros((), images.dtype)
    weights = weights.astype(images.dtype).reshape((*weights.shape, 1, 1) if axis == 1 else (*weights.shape, 1))

    def part(place: Any, weight: Any) -> Array:
        # A pixel of weight 0 may be infinite, and must not give NaN.
        return jnp.where(weight == 0, zero, _taken(images, place, axis) * weight)

    total = part(places[0], weights[0])
    if len(places) <= _UNROLLED:
        for place, weight in zip(places[1:], weights[1:], strict=True):
            total = total + part(place, weight)
        return total
    # Images that are known while tracing are a NumPy array, which cannot be indexed by the places of an iteration.
    images = jnp.asarray(images)
    rest = (jnp.asarray(places), jnp.asarray(weights))
    return lax.fori_loop(1, len(places), lambda i, so_far: so_far + part(rest[0][i], rest[1][i]), total)


def _transposed(places: np.ndarray, weights: np.ndarray, before: int) -> tuple[np.ndarray, np.ndarray]:
    """The transpose: for each of `before` pixels, the pixels of the result it contributes to, and its weights there."""
    into = np.tile(np.arange(places.shape[1]), len(places))
    pixel, weight = places.reshape(-1), weights.reshape(-1)
    order = np.argsort(pixel, kind="stable")
    order = order[weight[order] != 0]
    pixel, weight, into = pixel[order], weight[order], into[order]
    counts = np.bincount(pixel, minlength=before)
    rank = np.arange(len(pixel)) - (np.cumsum(counts) - counts)[pixel]
    depth = max(1, int(counts.max()))
    found, by = np.zeros((depth, before), np.int64), np.zeros((depth, before), np.float32)
    found[rank, pixel], by[rank, pixel] = into, weight
    return found, by


def spread_back(grads: Array, before: tuple[int, int], taps: Any) -> Array:
    """The gradient of images of size `before`; `taps(before, after)` gives the places and weights of the resizing."""
    if grads.ndim != 4:
        raise ValueError(f"input_grad must be 4-dimensional, received shape {list(grads.shape)}")
    for axis in (1, 2):
        places, weights = taps(before[axis - 1], grads.shape[axis])
        grads = _weighted(grads, *_transposed(places, weights, before[axis - 1]), axis)
    return grads
