"""Resizing of images: the ops with their gradients, and TensorFlow's functions for them.

Where a pixel of the result lies in the image is computed in float32, as TensorFlow does it: the sizes are known while
tracing, so places and weights are constants of the compiled code.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.jaxprs.symbols import as_number, as_size, is_symbol
from penstock.kernel import shapes
from penstock.kernel.types import Array
from penstock.ops.array import joining, reshaping
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.math import arithmetic, casting, unary

_IMAGES = Types(
    dt.int8, dt.uint8, dt.int16, dt.uint16, dt.int32, dt.int64, dt.float16, dt.float32, dt.float64, dt.bfloat16
)
_TABLE = 1024  # steps of the table of bicubic weights
_UNROLLED = 8  # sums of more pixels are loops


class ResizeMethodV1:
    """The methods of `tf.image.resize_images`."""

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1
    BICUBIC = 2
    AREA = 3


_METHODS: dict[Any, str] = {
    ResizeMethodV1.BILINEAR: "bilinear",
    ResizeMethodV1.NEAREST_NEIGHBOR: "nearest",
    ResizeMethodV1.BICUBIC: "bicubic",
    ResizeMethodV1.AREA: "area",
}


# Places and weights.


def _target(images: Array, size: Array, align_corners: bool, half_pixel_centers: bool = False) -> tuple[int, int]:
    """The height and width to make, checked against the images."""
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
    """Places are computed by NumPy, once and for all, or by the program, where a size is a symbol."""
    return jnp if is_symbol(before) or is_symbol(after) else np


def _scale(before: int, after: int, align_corners: bool) -> Any:
    if align_corners and after > 1:
        before, after = before - 1, after - 1
    m = _module(before, after)
    return m.float32(m.float32(as_number(before)) / m.float32(as_number(after)))


def _places(before: int, after: int, align_corners: bool, half_pixel_centers: bool) -> np.ndarray:
    """Where the pixels of the result lie along one axis of the image."""
    at = _module(before, after).arange(after, dtype=np.float32)
    scale = _scale(before, after, align_corners)
    half = np.float32(0.5)
    places: np.ndarray = (at + half) * scale - half if half_pixel_centers else at * scale
    return places


def _nearest_places(before: int, after: int, align_corners: bool, half_pixel_centers: bool) -> np.ndarray:
    m = _module(before, after)
    at = m.arange(after, dtype=np.float32)
    half = np.float32(0.5)
    scaled = (at + half if half_pixel_centers else at) * _scale(before, after, align_corners)
    # Halves go up, as in C.
    whole = m.floor(scaled + half) if align_corners else m.floor(scaled)
    nearest: np.ndarray = m.clip(whole.astype(np.int64), 0, as_number(before - 1))
    return nearest


def _cubic_weights(a: float) -> np.ndarray:
    """Row i: the weights of the pixels at distances i / 1024 and 1 + i / 1024."""
    x = np.arange(_TABLE + 1, dtype=np.float64) / _TABLE
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    x = x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.stack([near, far], 1).astype(np.float32)


def _cubic_taps(before: int, after: int, align_corners: bool, half_pixel_centers: bool) -> tuple[Any, Any]:
    """The four pixels along one axis that make a pixel of the result, [4, after], and their weights."""
    at = _places(before, after, align_corners, half_pixel_centers)
    first = np.floor(at)
    offset = np.rint((at - first) * np.float32(_TABLE)).astype(np.int64)
    table = _cubic_weights(-0.5 if half_pixel_centers else -0.75)
    near, far = table[:, 0], table[:, 1]
    weights = np.stack([far[offset], near[offset], near[_TABLE - offset], far[_TABLE - offset]])
    wanted = first.astype(np.int64) + np.arange(-1, 3)[:, None]
    places = np.clip(wanted, 0, before - 1)
    if half_pixel_centers:
        # Pixels beyond the border do not count, and the others make up for them.
        weights = np.where(places == wanted, weights, np.float32(0))
        total = weights.sum(0, dtype=np.float32)
        weights = weights / np.where(np.abs(total) >= 1000 * np.finfo(np.float32).tiny, total, np.float32(1))
    return places, weights.astype(np.float32)


def _area_taps(before: int, after: int, align_corners: bool) -> tuple[Any, Any, np.float32]:
    """The pixels along one axis that a pixel of the result covers, and how much of each; the rest weigh 0."""
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
    if axis == 1:
        return jnp.take(images, places, axis=1, mode="clip")
    # Columns lie far apart: XLA moves them several times as fast where they are rows.
    return jnp.moveaxis(jnp.take(jnp.moveaxis(images, 2, 0), places, axis=0, mode="clip"), 0, 2)


def _bilinear_taps(before: int, after: int, align_corners: bool, half_pixel_centers: bool) -> tuple[Any, Any]:
    """The two pixels along one axis that make a pixel of the result, [2, after], and their weights."""
    at = _places(before, after, align_corners, half_pixel_centers)
    m = _module(before, after)
    floor, last = m.floor(at), as_number(before - 1)
    places = m.stack([m.maximum(floor.astype(np.int64), 0), m.minimum(m.ceil(at).astype(np.int64), last)])
    second = (at - floor).astype(np.float32)
    return places, m.stack([np.float32(1) - second, second])


def _bilinear(images: Array, target: tuple[int, int], align_corners: bool, half_pixel_centers: bool) -> Array:
    result = images
    for axis in (2, 1):
        places, weights = _bilinear_taps(images.shape[axis], target[axis - 1], align_corners, half_pixel_centers)
        first, second = _taken(result, places[0], axis), _taken(result, places[1], axis)
        result = first + (second - first) * _along(axis, weights[1].astype(result.dtype))
    return result


def _nearest(images: Array, target: tuple[int, int], align_corners: bool, half_pixel_centers: bool) -> Array:
    for axis in (1, 2):
        at = _nearest_places(images.shape[axis], target[axis - 1], align_corners, half_pixel_centers)
        images = _taken(images, at, axis)
    return images


def _bicubic(images: Array, target: tuple[int, int], align_corners: bool, half_pixel_centers: bool) -> Array:
    for axis in (1, 2):
        places, weights = _cubic_taps(images.shape[axis], target[axis - 1], align_corners, half_pixel_centers)
        taps = [
            _taken(images, p, axis) * _along(axis, w.astype(images.dtype)) for p, w in zip(places, weights, strict=True)
        ]
        images = taps[0] + taps[1] + taps[2] + taps[3]
    return images


def _area(images: Array, target: tuple[int, int], align_corners: bool) -> Array:
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
        # What does not count may be infinite.
        return jnp.where(weight == 0, zero, _taken(images, place, axis) * weight)

    total = part(places[0], weights[0])
    if len(places) <= _UNROLLED:
        for place, weight in zip(places[1:], weights[1:], strict=True):
            total = total + part(place, weight)
        return total
    rest = (jnp.asarray(places), jnp.asarray(weights))
    return lax.fori_loop(1, len(places), lambda i, so_far: so_far + part(rest[0][i], rest[1][i]), total)


def _transposed(places: np.ndarray, weights: np.ndarray, before: int) -> tuple[np.ndarray, np.ndarray]:
    """The other way round: which pixels of the result each of `before` pixels goes into, and with what weight."""
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


def _spread(grads: Array, before: tuple[int, int], taps: Any) -> Array:
    """The gradient of images of size `before`; `taps(before, after)` says what pixels of the result are made of."""
    if grads.ndim != 4:
        raise ValueError(f"input_grad must be 4-dimensional, received shape {list(grads.shape)}")
    for axis in (1, 2):
        places, weights = taps(before[axis - 1], grads.shape[axis])
        grads = _weighted(grads, *_transposed(places, weights, before[axis - 1]), axis)
    return grads


# Ops.


def _resized_shape(op: Operation) -> list[TensorShape]:
    batch, _, _, channels = shapes.require_rank(op.input_list[0].shape, 4).as_list()
    sizes = shapes.require_rank(op.input_list[1].shape, 1).as_list()[0]
    if sizes not in (None, 2):
        raise ValueError(f"Dimension must be 2 but is {sizes}")
    height, width = shapes.require_rank(constant_value_as_shape(op.input_list[1]), 2).as_list()
    return [TensorShape.of((batch, height, width, channels))]


def _shape(tensor: Tensor) -> Any:
    return reshaping.shape(tensor)


def _options(op: Operation) -> dict[str, Any]:
    return {k: op.attrs[k] for k in ("align_corners", "half_pixel_centers")}


def _bilinear_gradient(op: Operation, dy: Tensor) -> list[Any]:
    return [resize_bilinear_grad(dy, op.input_list[0], **_options(op)), None]


@op("ResizeBilinear", "T, int32 -> resized_images: float", static="size", shape=_resized_shape,
    grad=_bilinear_gradient, T=_IMAGES)  # fmt: skip
def resize_bilinear_op(
    images: Array, size: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    target = _target(images, size, align_corners, half_pixel_centers)
    return _bilinear(images.astype(np.float32), target, align_corners, half_pixel_centers)


@op("ResizeBilinearGrad", "float, T -> output: T", shape=shapes.same_as(1),
    T=Types(dt.float32, dt.bfloat16, dt.float16, dt.float64))  # fmt: skip
def resize_bilinear_grad(
    grads: Array, original_image: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    wide = grads.astype(jnp.promote_types(grads.dtype, original_image.dtype))
    taps = functools.partial(_bilinear_taps, align_corners=align_corners, half_pixel_centers=half_pixel_centers)
    return _spread(wide, original_image.shape[1:3], taps).astype(original_image.dtype)


def _nearest_gradient(op: Operation, dy: Tensor) -> list[Any]:
    images = op.input_list[0]
    static = images.shape[1:3]
    size = static.as_list() if static.is_fully_defined() else _shape(images)[1:3]
    return [resize_nearest_neighbor_grad(dy, size, **_options(op)), None]


@op("ResizeNearestNeighbor", "T, int32 -> resized_images: T", static="size", shape=_resized_shape,
    grad=_nearest_gradient, T=_IMAGES)  # fmt: skip
def resize_nearest_neighbor_op(
    images: Array, size: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    return _nearest(images, _target(images, size, align_corners, half_pixel_centers), align_corners, half_pixel_centers)


def _nearest_gradient_gradient(op: Operation, dy: Tensor) -> list[Any]:
    size = _shape(op.input_list[0])[1:3]
    return [resize_nearest_neighbor_op(dy, size, **_options(op)), None]


@op("ResizeNearestNeighborGrad", "T, int32 -> output: T", static="size", shape=_resized_shape,
    grad=_nearest_gradient_gradient,
    T=Types(dt.uint8, dt.int8, dt.int32, dt.float16, dt.float32, dt.float64, dt.bfloat16))  # fmt: skip
def resize_nearest_neighbor_grad(
    grads: Array, size: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    before = _target(grads, size, align_corners, half_pixel_centers)

    def taps(before: int, after: int) -> tuple[Any, Any]:
        at = _nearest_places(before, after, align_corners, half_pixel_centers)
        return at[None], np.ones((1, after), np.float32)

    return _spread(grads, before, taps)


def _bicubic_gradient(op: Operation, dy: Tensor) -> list[Any]:
    images = op.input_list[0]
    if images.dtype.base_dtype not in (dt.float32, dt.float64):
        return [None, None]
    return [resize_bicubic_grad(dy, images, **_options(op)), None]


@op("ResizeBicubic", "T, int32 -> resized_images: float", static="size", shape=_resized_shape,
    grad=_bicubic_gradient, T=_IMAGES)  # fmt: skip
def resize_bicubic_op(
    images: Array, size: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    target = _target(images, size, align_corners, half_pixel_centers)
    return _bicubic(images.astype(np.float32), target, align_corners, half_pixel_centers)


@op("ResizeBicubicGrad", "float, T -> output: T", shape=shapes.same_as(1), T=Types(dt.float32, dt.float64))
def resize_bicubic_grad(
    grads: Array, original_image: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    taps = functools.partial(_cubic_taps, align_corners=align_corners, half_pixel_centers=half_pixel_centers)
    return _spread(grads.astype(original_image.dtype), original_image.shape[1:3], taps)


@op("ResizeArea", "T, int32 -> resized_images: float", static="size", shape=_resized_shape, grad=refuse_gradient,
    T=_IMAGES)  # fmt: skip
def resize_area(images: Array, size: Array, *, align_corners: bool = False) -> Array:
    """Each pixel of the result is the mean of the area that it covers."""
    return _area(images.astype(np.float32), _target(images, size, align_corners), align_corners)


# Public functions.


def resize_bilinear(
    images: Any, size: Any, align_corners: bool = False, name: str | None = None, half_pixel_centers: bool = False
) -> Tensor:
    """Images of another size, by linear interpolation: float32.

    >>> tf.image.resize_bilinear(images, [224, 224])
    """
    tensor: Tensor = resize_bilinear_op(
        images, size, align_corners=align_corners, half_pixel_centers=half_pixel_centers, name=name
    )
    return tensor


def resize_nearest_neighbor(
    images: Any, size: Any, align_corners: bool = False, name: str | None = None, half_pixel_centers: bool = False
) -> Tensor:
    """Images of another size, of the nearest pixels; the type stays.

    >>> tf.image.resize_nearest_neighbor(masks, [224, 224])
    """
    tensor: Tensor = resize_nearest_neighbor_op(
        images, size, align_corners=align_corners, half_pixel_centers=half_pixel_centers, name=name
    )
    return tensor


def resize_bicubic(
    images: Any, size: Any, align_corners: bool = False, name: str | None = None, half_pixel_centers: bool = False
) -> Tensor:
    """Images of another size, by cubic interpolation: float32.

    >>> tf.image.resize_bicubic(images, [224, 224])
    """
    tensor: Tensor = resize_bicubic_op(
        images, size, align_corners=align_corners, half_pixel_centers=half_pixel_centers, name=name
    )
    return tensor


def resize_images(
    images: Any, size: Any, method: Any = ResizeMethodV1.BILINEAR, align_corners: bool = False,
    preserve_aspect_ratio: bool = False, name: str | None = None,
) -> Tensor:  # fmt: skip
    """One image or a batch in another size; `method` is a ResizeMethod or its name.

    >>> tf.image.resize_images(images, [224, 224], method=tf.image.ResizeMethod.AREA)
    """
    with name_scope(name, "resize", [images, size]):
        images = convert_to_tensor(images, name="images")
        rank = images.shape.rank
        if rank is None:
            raise ValueError("'images' contains no shape.")
        if rank not in (3, 4):
            raise ValueError(f"'images' must have either 3 or 4 dimensions, received shape {images.shape}.")
        if rank == 3:
            images = reshaping.expand_dims(images, 0)
        size = _size_tensor(size)
        known: list[int | None] = [None, None]
        if preserve_aspect_ratio:
            known = _known_inside(images, size)
            size = _inside(images, size)
        wanted = constant_value_as_shape(size).as_list()
        if None in wanted or wanted != images.shape.as_list()[1:3]:
            images = _resizer(method)(images, size, align_corners=align_corners)
            images.set_shape([None, *wanted, None])
            images.set_shape([None, *known, None])
        return reshaping.squeeze(images, axis=[0]) if rank == 3 else images


def _resizer(method: Any) -> Any:
    chosen = {
        "bilinear": resize_bilinear_op, "nearest": resize_nearest_neighbor_op,
        "bicubic": resize_bicubic_op, "area": resize_area,
    }.get(str(_METHODS.get(method, method)))  # fmt: skip
    if chosen is None:
        raise ValueError(f"Resize method is not implemented: {method}")
    return chosen


def _size_tensor(size: Any) -> Tensor:
    try:
        size = convert_to_tensor(size, dt.int32, name="size")
    except (TypeError, ValueError) as error:
        raise ValueError(f"'size' must be a 1-D int32 Tensor: {error}") from error
    if not size.shape.is_compatible_with([2]):
        raise ValueError(
            f"'size' must be a 1-D Tensor of 2 elements: new_height, new_width; received shape {size.shape}."
        )
    tensor: Tensor = size
    return tensor


def _known_inside(images: Tensor, size: Tensor) -> list[int | None]:
    """What `_inside` gives, where that is known now."""
    limits, current = constant_value_as_shape(size).as_list(), images.shape.as_list()[1:3]
    if None in limits or None in current:
        return [None, None]
    before = np.array(current, np.float32)
    scale = np.min(np.array(limits, np.float32) / before)
    return [int(n) for n in np.rint(scale * before)]


def _inside(images: Tensor, size: Any) -> Tensor:
    """The largest size of the images' own proportions inside `size`."""
    static = images.shape.as_list()[1:3]
    dynamic: Any = [None] * 4 if None not in images.shape.as_list() else joining.unstack(_shape(images), 4)
    current = [d if s is None else s for s, d in zip(static, dynamic[1:3], strict=True)]
    scales = [casting.cast(size[i], dt.float32) / casting.cast(current[i], dt.float32) for i in (0, 1)]
    scale = arithmetic.minimum(*scales)
    scaled = [casting.cast(unary.round(scale * casting.cast(c, dt.float32)), dt.int32) for c in current]
    tensor: Tensor = convert_to_tensor(scaled, dt.int32, name="size")
    return tensor
