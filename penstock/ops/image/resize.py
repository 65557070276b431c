"""Resizing of images: the ops with their gradients, and TensorFlow's functions for them."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import Array
from penstock.ops.array import joining, reshaping
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.image.interpolation import (
    area,
    bicubic,
    bilinear,
    bilinear_taps,
    cubic_taps,
    nearest,
    nearest_places,
    spread_back,
    target_size,
)
from penstock.ops.math import arithmetic, casting, unary

_IMAGES = Types(
    dt.int8, dt.uint8, dt.int16, dt.uint16, dt.int32, dt.int64, dt.float16, dt.float32, dt.float64, dt.bfloat16
)


class ResizeMethodV1:
    """The methods of `tf.image.resize_images`."""

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1
    BICUBIC = 2
    AREA = 3


class ResizeMethodV2:
    """The methods of `tf.image.resize`. Those beyond the first four are not there yet."""

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    AREA = "area"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    GAUSSIAN = "gaussian"
    MITCHELLCUBIC = "mitchellcubic"


_METHODS: dict[Any, str] = {
    ResizeMethodV1.BILINEAR: "bilinear",
    ResizeMethodV1.NEAREST_NEIGHBOR: "nearest",
    ResizeMethodV1.BICUBIC: "bicubic",
    ResizeMethodV1.AREA: "area",
}


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


@op(
    "ResizeBilinear",
    "T, int32 -> resized_images: float",
    static="size",
    numpy=True,
    shape=_resized_shape,
    grad=_bilinear_gradient,
    T=_IMAGES,
)
def resize_bilinear_op(
    images: Array, size: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    target = target_size(images, size, align_corners, half_pixel_centers)
    return bilinear(images.astype(np.float32), target, align_corners, half_pixel_centers)


@op(
    "ResizeBilinearGrad",
    "float, T -> output: T",
    shape=shapes.same_as(1),
    T=Types(dt.float32, dt.bfloat16, dt.float16, dt.float64),
)
def resize_bilinear_grad(
    grads: Array, original_image: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    wide = grads.astype(jnp.promote_types(grads.dtype, original_image.dtype))
    taps = functools.partial(bilinear_taps, align_corners=align_corners, half_pixel_centers=half_pixel_centers)
    return spread_back(wide, original_image.shape[1:3], taps).astype(original_image.dtype)


def _nearest_gradient(op: Operation, dy: Tensor) -> list[Any]:
    images = op.input_list[0]
    static = images.shape[1:3]
    size = static.as_list() if static.is_fully_defined() else _shape(images)[1:3]
    return [resize_nearest_neighbor_grad(dy, size, **_options(op)), None]


@op(
    "ResizeNearestNeighbor",
    "T, int32 -> resized_images: T",
    static="size",
    numpy=True,
    shape=_resized_shape,
    grad=_nearest_gradient,
    T=_IMAGES,
)
def resize_nearest_neighbor_op(
    images: Array, size: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    return nearest(
        images, target_size(images, size, align_corners, half_pixel_centers), align_corners, half_pixel_centers
    )


def _nearest_gradient_gradient(op: Operation, dy: Tensor) -> list[Any]:
    size = _shape(op.input_list[0])[1:3]
    return [resize_nearest_neighbor_op(dy, size, **_options(op)), None]


@op(
    "ResizeNearestNeighborGrad",
    "T, int32 -> output: T",
    static="size",
    shape=_resized_shape,
    grad=_nearest_gradient_gradient,
    T=Types(dt.uint8, dt.int8, dt.int32, dt.float16, dt.float32, dt.float64, dt.bfloat16),
)
def resize_nearest_neighbor_grad(
    grads: Array, size: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    before = target_size(grads, size, align_corners, half_pixel_centers)

    def taps(before: int, after: int) -> tuple[Any, Any]:
        at = nearest_places(before, after, align_corners, half_pixel_centers)
        return at[None], np.ones((1, after), np.float32)

    return spread_back(grads, before, taps)


def _bicubic_gradient(op: Operation, dy: Tensor) -> list[Any]:
    images = op.input_list[0]
    if images.dtype.base_dtype not in (dt.float32, dt.float64):
        return [None, None]
    return [resize_bicubic_grad(dy, images, **_options(op)), None]


@op(
    "ResizeBicubic",
    "T, int32 -> resized_images: float",
    static="size",
    numpy=True,
    shape=_resized_shape,
    grad=_bicubic_gradient,
    T=_IMAGES,
)
def resize_bicubic_op(
    images: Array, size: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    target = target_size(images, size, align_corners, half_pixel_centers)
    return bicubic(images.astype(np.float32), target, align_corners, half_pixel_centers)


@op("ResizeBicubicGrad", "float, T -> output: T", shape=shapes.same_as(1), T=Types(dt.float32, dt.float64))
def resize_bicubic_grad(
    grads: Array, original_image: Array, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Array:
    taps = functools.partial(cubic_taps, align_corners=align_corners, half_pixel_centers=half_pixel_centers)
    return spread_back(grads.astype(original_image.dtype), original_image.shape[1:3], taps)


@op(
    "ResizeArea",
    "T, int32 -> resized_images: float",
    static="size",
    shape=_resized_shape,
    grad=refuse_gradient,
    T=_IMAGES,
)
def resize_area(images: Array, size: Array, *, align_corners: bool = False) -> Array:
    """Each pixel of the result is the mean of the area that it covers."""
    return area(images.astype(np.float32), target_size(images, size, align_corners), align_corners)


# Public functions.


def resize_bilinear(
    images: TensorLike,
    size: TensorLike,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images of another size, by linear interpolation: float32.

    >>> tf.image.resize_bilinear(images, [224, 224])
    """
    tensor: Tensor = resize_bilinear_op(
        images, size, align_corners=align_corners, half_pixel_centers=half_pixel_centers, name=name
    )
    return tensor


def resize_nearest_neighbor(
    images: TensorLike,
    size: TensorLike,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images of another size, of the nearest pixels; the type stays.

    >>> tf.image.resize_nearest_neighbor(masks, [224, 224])
    """
    tensor: Tensor = resize_nearest_neighbor_op(
        images, size, align_corners=align_corners, half_pixel_centers=half_pixel_centers, name=name
    )
    return tensor


def resize_bicubic(
    images: TensorLike,
    size: TensorLike,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images of another size, by cubic interpolation: float32.

    >>> tf.image.resize_bicubic(images, [224, 224])
    """
    tensor: Tensor = resize_bicubic_op(
        images, size, align_corners=align_corners, half_pixel_centers=half_pixel_centers, name=name
    )
    return tensor


def resize_images(
    images: TensorLike,
    size: TensorLike,
    method: Any = ResizeMethodV1.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """One image or a batch in another size; `method` is a ResizeMethod or its name.

    >>> tf.image.resize_images(images, [224, 224], method=tf.image.ResizeMethod.AREA)
    """
    resizer = _resizer(method)
    return _resized(images, size, preserve_aspect_ratio, name, lambda x, n: resizer(x, n, align_corners=align_corners))


def resize_images_v2(
    images: TensorLike,
    size: TensorLike,
    method: str = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> Tensor:
    """One image or a batch in another size. A pixel is at the centre of its square, unlike in `resize_images`.

    >>> tf.image.resize(images, [224, 224], method="nearest")
    """
    resizer = _resizer(method)
    if antialias and method != "nearest":
        raise NotImplementedError(
            "resize: penstock has no antialias=True; method='area' averages the pixels that a smaller image loses."
        )
    centers = {} if resizer is resize_area else {"half_pixel_centers": True}
    return _resized(images, size, preserve_aspect_ratio, name, lambda x, n: resizer(x, n, **centers))


def _resized(images: Any, size: Any, preserve_aspect_ratio: bool, name: str | None, resizer: Any) -> Tensor:
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
            images = resizer(images, size)
            images.set_shape([None, *wanted, None])
            images.set_shape([None, *known, None])
        return reshaping.squeeze(images, axis=[0]) if rank == 3 else images


def _resizer(method: Any) -> Any:
    chosen = {
        "bilinear": resize_bilinear_op,
        "nearest": resize_nearest_neighbor_op,
        "bicubic": resize_bicubic_op,
        "area": resize_area,
    }.get(str(_METHODS.get(method, method)))
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
    """The result of `_inside` as numbers, None where it is not known yet."""
    limits, current = constant_value_as_shape(size).as_list(), images.shape.as_list()[1:3]
    if None in limits or None in current:
        return [None, None]
    before = np.array(current, np.float32)
    scale = np.min(np.array(limits, np.float32) / before)
    return [int(n) for n in np.rint(scale * before)]


def _inside(images: Tensor, size: Any) -> Tensor:
    """The largest size inside `size` that has the images' own proportions."""
    static = images.shape.as_list()[1:3]
    dynamic: Any = [None] * 4 if None not in images.shape.as_list() else joining.unstack(_shape(images), 4)
    current = [d if s is None else s for s, d in zip(static, dynamic[1:3], strict=True)]
    scales = [casting.cast(size[i], dt.float32) / casting.cast(current[i], dt.float32) for i in (0, 1)]
    scale = arithmetic.minimum(*scales)
    scaled = [casting.cast(unary.round(scale * casting.cast(c, dt.float32)), dt.int32) for c in current]
    tensor: Tensor = convert_to_tensor(scaled, dt.int32, name="size")
    return tensor
