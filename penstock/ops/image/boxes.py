"""Boxes in images: crops that are resized, glimpses, and drawings of boxes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.checks import require_in_range
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import Array
from penstock.ops.array import reshaping
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.conv import blocks
from penstock.ops.math.reduce import renamed
from penstock.ops.random import philox

_CROPPED = Types(dt.uint8, dt.uint16, dt.int8, dt.int16, dt.int32, dt.int64, dt.float16, dt.float32, dt.float64)
_FLOATS = Types(dt.float32, dt.float16, dt.float64)
_DRAWN_ON = Types(dt.float32, dt.float16, default=dt.float32)


# Cut out and resized.


def _two_sizes(tensor: Tensor) -> list[int | None]:
    shapes.require_rank(tensor.shape, 1)
    return shapes.require_rank(constant_value_as_shape(tensor), 2).as_list()


def _crops_shape(op: Operation) -> list[TensorShape]:
    image, boxes, indices, size = op.input_list
    depth = shapes.require_rank(image.shape, 4).as_list()[3]
    count, four = shapes.require_rank(boxes.shape, 2).as_list()
    if four not in (None, 4):
        raise ValueError(f"Dimension must be 4 but is {four}")
    other = shapes.require_rank(indices.shape, 1).as_list()[0]
    if count is not None and other is not None and count != other:
        raise ValueError(f"Dimensions must be equal, but are {count} and {other}")
    return [TensorShape.of((other if count is None else count, *_two_sizes(size), depth))]


def _check_boxes(boxes: Array, indices: Array, batch: int) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes must be of shape [boxes, 4], received {list(boxes.shape)}")
    if indices.shape != boxes.shape[:1]:
        raise ValueError(f"box_index has incompatible shape {list(indices.shape)} with {boxes.shape[0]} boxes")
    require_in_range(indices, batch, message="box_index has values outside [0, batch_size): {}")


def _lines(first: Array, last: Array, size: int, count: int) -> Array:
    """The places of `count` lines from `first` to `last`, given as fractions of an axis of `size`: [boxes, count]."""
    # Rounded to float32 after each operation, as in TensorFlow: a line on the border must not lie outside, but
    # XLA may multiply by inverses and fuse products with sums.
    rounded = functools.partial(lax.reduce_precision, exponent_bits=8, mantissa_bits=23)
    first, last = (jnp.asarray(v).astype(np.float64)[:, None] for v in (first, last))
    if count > 1:
        step = rounded(rounded(rounded(last - first) * (size - 1)) / (count - 1))
        lines = rounded(first * (size - 1)) + rounded(np.arange(count, dtype=np.float64) * step)
    else:
        lines = rounded((first + last) * 0.5) * (size - 1)
    return rounded(lines).astype(np.float32)


def _crops(image: Array, boxes: Array, indices: Array, size: tuple[int, int], method: str, beyond: float) -> Array:
    image, indices = jnp.asarray(image), jnp.asarray(indices)
    _, height, width, _ = image.shape
    y = _lines(boxes[:, 0], boxes[:, 2], height, size[0])
    x = _lines(boxes[:, 1], boxes[:, 3], width, size[1])
    inside = (((y >= 0) & (y <= height - 1))[:, :, None] & ((x >= 0) & (x <= width - 1))[:, None, :])[..., None]

    def pixels(rows: Array, columns: Array) -> Array:
        rows = jnp.clip(rows, 0, height - 1).astype(np.int32)
        columns = jnp.clip(columns, 0, width - 1).astype(np.int32)
        found = image[indices[:, None, None], rows[:, :, None], columns[:, None, :]]
        return found.astype(jnp.promote_types(found.dtype, np.float32))

    if method == "nearest":
        half = np.float32(0.5)
        result = pixels(jnp.floor(y + half), jnp.floor(x + half))
    else:
        top, left = jnp.floor(y), jnp.floor(x)
        bottom, right = jnp.ceil(y), jnp.ceil(x)
        down, along = (y - top)[:, :, None, None], (x - left)[:, None, :, None]
        upper = pixels(top, left)
        upper = upper + (pixels(top, right) - upper) * along
        lower = pixels(bottom, left)
        lower = lower + (pixels(bottom, right) - lower) * along
        result = upper + (lower - upper) * down
    return jnp.where(inside, result, np.float32(beyond))


def _size_of(crop_size: Array) -> tuple[int, int]:
    if crop_size.shape != (2,):
        raise ValueError(f"crop_size must have two elements, received shape {list(crop_size.shape)}")
    height, width = (int(s) for s in crop_size)
    if height <= 0 or width <= 0:
        raise ValueError(f"crop dimensions must be positive, received {height} and {width}")
    return height, width


def _check_image(image: Array) -> None:
    if image.ndim != 4:
        raise ValueError(f"input image must be 4-D, received shape {list(image.shape)}")
    if 0 in image.shape[1:3]:
        raise ValueError(f"image dimensions must be positive, received shape {list(image.shape)}")


def _crop_gradient(op: Operation, dy: Tensor) -> list[Any]:
    image, boxes, indices, _ = op.input_list
    kind = image.dtype.base_dtype
    shape: Any = image.shape.as_list() if image.shape.is_fully_defined() else reshaping.shape(image)
    d_image = None
    if kind in _FLOATS:
        d_image = crop_and_resize_grad_image(dy, boxes, indices, shape, T=kind, method=op.attrs["method"])
    return [d_image, crop_and_resize_grad_boxes(dy, image, boxes, indices), None, None]


@op(
    "CropAndResize",
    "T, float, int32, int32 -> crops: float",
    static="crop_size",
    shape=_crops_shape,
    grad=_crop_gradient,
    T=_CROPPED,
)
def crop_and_resize_op(
    image: Array,
    boxes: Array,
    box_ind: Array,
    crop_size: Array,
    *,
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
) -> Array:
    _check_image(image)
    _check_boxes(boxes, box_ind, image.shape[0])
    if method not in ("bilinear", "nearest"):
        raise ValueError(f"method must be 'bilinear' or 'nearest', received '{method}'")
    size = _size_of(crop_size)
    if image.shape[0] == 0:
        return jnp.zeros((boxes.shape[0], *size, image.shape[3]), np.float32)
    return _crops(image, boxes, box_ind, size, method, extrapolation_value)


@op(
    "CropAndResizeGradImage",
    "float, float, int32, int32 -> output: T",
    static="image_size",
    shape=lambda op: [shapes.require_rank(constant_value_as_shape(op.input_list[3]), 4)],
    T=_FLOATS,
)
def crop_and_resize_grad_image(
    grads: Array, boxes: Array, box_ind: Array, image_size: Array, *, T: DType, method: str = "bilinear"
) -> Array:
    shape = tuple(int(s) for s in image_size)
    wide = jnp.promote_types(T.as_numpy_dtype, np.float32)
    if 0 in shape:
        return jnp.zeros(shape, wide)
    resize = lambda image: _crops(image, boxes, box_ind, grads.shape[1:3], method, 0.0)  # noqa: E731
    _, pull = jax.vjp(resize, jnp.zeros(shape, wide))
    return pull(grads.astype(wide))[0]


@op("CropAndResizeGradBoxes", "float, T, float, int32 -> output: float", shape=shapes.same_as(2), T=_CROPPED)
def crop_and_resize_grad_boxes(
    grads: Array, image: Array, boxes: Array, box_ind: Array, *, method: str = "bilinear"
) -> Array:
    if image.shape[0] == 0:
        return jnp.zeros(boxes.shape, np.float32)
    pixels = jnp.asarray(image).astype(np.float32)
    _, pull = jax.vjp(lambda at: _crops(pixels, at, box_ind, grads.shape[1:3], method, 0.0), jnp.asarray(boxes))
    return pull(grads)[0]


def crop_and_resize(
    image: TensorLike,
    boxes: TensorLike,
    box_ind: TensorLike = None,
    crop_size: TensorLike = None,
    method: str = "bilinear",
    extrapolation_value: float = 0,
    name: str | None = None,
    box_indices: TensorLike = None,
) -> Tensor:
    """A crop of size `crop_size` for each box [y1, x1, y2, x2], in fractions of the image that `box_ind` names.

    >>> tf.image.crop_and_resize(images, boxes, box_ind=[0, 0, 1], crop_size=[7, 7])
    """
    tensor: Tensor = crop_and_resize_op(
        image,
        boxes,
        renamed(box_indices, "box_indices", box_ind, "box_ind"),
        crop_size,
        method=method,
        extrapolation_value=extrapolation_value,
        name=name,
    )
    return tensor


# Glimpses.


def _glimpse_shape(op: Operation) -> list[TensorShape]:
    batch, _, _, depth = shapes.require_rank(op.input_list[0].shape, 4).as_list()
    count, two = shapes.require_rank(op.input_list[2].shape, 2).as_list()
    if two not in (None, 2):
        raise ValueError(f"Dimension must be 2 but is {two}")
    if batch is not None and count is not None and batch != count:
        raise ValueError(f"Dimensions must be equal, but are {batch} and {count}")
    return [TensorShape.of((count if batch is None else batch, *_two_sizes(op.input_list[1]), depth))]


def _glimpses(images: Array, size: Array, starts: list[Array], noise: str, key: Array) -> Array:
    """Windows of `size` at `starts` (of rows, of columns); outside the image they have noise like its pixels."""
    images = jnp.asarray(images)
    batch, height, width, depth = images.shape
    extent = (int(size[0]), int(size[1]))
    rows, columns = (
        jnp.clip(jnp.trunc(s), -(2**30), 2**30).astype(np.int32)[:, None] + np.arange(n, dtype=np.int32)
        for s, n in zip(starts, extent, strict=True)
    )
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    at = np.arange(batch)[:, None, None]
    found = images[at, jnp.clip(rows, 0, height - 1)[:, :, None], jnp.clip(columns, 0, width - 1)[:, None, :]]
    axes = (1, 2, 3)
    shape = (batch, *extent, depth)
    if noise == "zero":
        return jnp.where(inside[..., None], found, np.float32(0))
    draw = philox.jax_key(key, "rbg")
    if noise == "gaussian":
        mean = jnp.mean(images, axis=axes, keepdims=True)
        filling = jax.random.normal(draw, shape, np.float32) * jnp.std(images, axis=axes, keepdims=True) + mean
    else:
        low = jnp.min(images, axis=axes, keepdims=True)
        span = jnp.max(images, axis=axes, keepdims=True) - low
        filling = jax.random.uniform(draw, shape, np.float32) * span + low
    return jnp.where(inside[..., None], found, filling)


def _check_glimpse(images: Array, size: Array, offsets: Array, uniform_noise: bool, noise: str) -> None:
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(f"input must be a 4-D tensor that is not empty, received shape {list(images.shape)}")
    if size.shape != (2,) or min(int(s) for s in size) <= 0:
        raise ValueError(f"size must be two positive numbers, received {size.tolist()}")
    if offsets.shape != (images.shape[0], 2):
        raise ValueError(f"offsets must have shape {[images.shape[0], 2]}, received {list(offsets.shape)}")
    if noise not in ("uniform", "gaussian", "zero"):
        raise ValueError(f"noise must be 'uniform', 'gaussian' or 'zero', received '{noise}'")
    if uniform_noise and noise != "uniform":
        raise ValueError("The uniform_noise and noise should not be specified at the same time")


@op(
    "ExtractGlimpse",
    "float, int32, float -> glimpse: float",
    static="size",
    random=True,
    no_gradient=True,
    shape=_glimpse_shape,
)
def extract_glimpse_op(
    input: Array,
    size: Array,
    offsets: Array,
    *,
    centered: bool = True,
    normalized: bool = True,
    uniform_noise: bool = True,
    noise: str = "uniform",
    key: Array,
) -> Array:
    _check_glimpse(input, size, offsets, uniform_noise, noise)
    starts = []
    for axis in (0, 1):
        at = offsets[:, axis] * (input.shape[axis + 1] if normalized else 1)
        if centered:
            at = at / 2 + np.float32(input.shape[axis + 1] / 2)
        starts.append(at - np.float32(int(size[axis]) / 2))
    return _glimpses(input, size, starts, noise, key)


@op(
    "ExtractGlimpseV2",
    "float, int32, float -> glimpse: float",
    static="size",
    random=True,
    grad=refuse_gradient,
    shape=_glimpse_shape,
)
def extract_glimpse_v2(
    input: Array,
    size: Array,
    offsets: Array,
    *,
    centered: bool = True,
    normalized: bool = True,
    uniform_noise: bool = True,
    noise: str = "uniform",
    key: Array,
) -> Array:
    _check_glimpse(input, size, offsets, uniform_noise, noise)
    starts = []
    for axis in (0, 1):
        extent = input.shape[axis + 1]
        at = offsets[:, axis] * (extent if normalized else 1)
        if centered and normalized:
            at = at / 2 + np.float32(extent / 2) - np.float32(int(size[axis]) / 2)
        elif centered:
            at = at + np.float32(extent / 2)
        starts.append(at)
    return _glimpses(input, size, starts, noise, key)


def extract_glimpse(
    input: TensorLike,
    size: TensorLike,
    offsets: TensorLike,
    centered: bool = True,
    normalized: bool = True,
    uniform_noise: bool = True,
    name: str | None = None,
) -> Tensor:
    """A window of `size` of each image around its offset; (0, 0) is the centre, (-1, -1) the top left corner.

    >>> tf.image.extract_glimpse(images, [32, 32], offsets)
    """
    tensor: Tensor = extract_glimpse_op(
        input, size, offsets, centered=centered, normalized=normalized, uniform_noise=uniform_noise, name=name
    )
    return tensor


def extract_patches(
    images: TensorLike, sizes: Any, strides: Any, rates: Any, padding: Any, name: str | None = None
) -> Tensor:
    """`tf.extract_image_patches` with TensorFlow's newer names: windows of the images, each as one row of channels.

    >>> tf.image.extract_patches(images, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
    """
    return blocks.extract_image_patches(images, sizes, strides, rates, padding, name)


# Drawn.


# The colours of the boxes in turn: red, green, blue and opacity.
_COLORS = np.array(
    [
        [1, 1, 0, 1],
        [0, 0, 1, 1],
        [1, 0, 0, 1],
        [0, 1, 0, 1],
        [0.5, 0, 0.5, 1],
        [0.5, 0.5, 0, 1],
        [0.5, 0, 0, 1],
        [0, 0, 0.5, 1],
        [0, 1, 1, 1],
        [1, 0, 1, 1],
    ],
    np.float32,
)


_DEPTHS = "Channel depth should be either 1 (GRY), 3 (RGB), or 4 (RGBA)"


def _drawn_shape(op: Operation) -> list[TensorShape]:
    images = op.input_list[0].shape
    if images.rank not in (None, 4):
        raise ValueError(f"Shape must be rank 4 but is rank {images.rank}")
    if op.type == "DrawBoundingBoxes" and images.rank is not None and images.as_list()[3] not in (None, 1, 3, 4):
        raise ValueError(f"{_DEPTHS}, received {images.as_list()[3]}")
    boxes = shapes.require_rank(op.input_list[1].shape, 3).as_list()
    if boxes[2] not in (None, 4):
        raise ValueError(f"Dimension must be 4 but is {boxes[2]}")
    return [images]


def _drawn(images: Array, boxes: Array, colors: Array) -> Array:
    if images.ndim != 4:
        raise ValueError(f"The rank of the images should be 4, received shape {list(images.shape)}")
    batch, height, width, depth = images.shape
    if depth not in (1, 3, 4):
        raise ValueError(f"{_DEPTHS}, received {depth}")
    if boxes.ndim != 3 or boxes.shape[0] != batch or boxes.shape[2] != 4:
        raise ValueError(f"boxes must have shape [{batch}, boxes, 4], received {list(boxes.shape)}")
    if colors.ndim != 2 or colors.shape[1] < depth:
        raise ValueError(f"colors must have a row of {depth} numbers per colour, received {list(colors.shape)}")
    if 0 in images.shape or boxes.shape[1] == 0 or colors.shape[0] == 0:
        return jnp.asarray(images)
    extents = np.array([height - 1, width - 1] * 2, np.float32)
    edges = jnp.clip(jnp.trunc(boxes.astype(np.float32) * extents), -(2**30), 2**30).astype(np.int32)
    paint = jnp.asarray(colors)[np.arange(boxes.shape[1]) % colors.shape[0], :depth].astype(images.dtype)
    rows = np.arange(height, dtype=np.int32)[None, :, None]
    columns = np.arange(width, dtype=np.int32)[None, None, :]

    def draw(i: Array, canvas: Array) -> Array:
        top, left, bottom, right = (edges[:, i, k][:, None, None] for k in range(4))
        # Only the lines inside the image are visible.
        across = (columns >= left) & (columns <= right)
        along = (rows >= top) & (rows <= bottom)
        line = across & ((rows == top) | (rows == bottom)) | along & ((columns == left) | (columns == right))
        line &= (top <= bottom) & (left <= right)
        return jnp.where(line[..., None], paint[i], canvas)

    return lax.fori_loop(0, boxes.shape[1], draw, jnp.asarray(images))


@op("DrawBoundingBoxes", "T, float -> output: T", no_gradient=True, shape=_drawn_shape, T=_DRAWN_ON)
def draw_bounding_boxes_op(images: Array, boxes: Array) -> Array:
    # Gray images have white boxes.
    gray = images.ndim == 4 and images.shape[3] == 1
    return _drawn(images, boxes, np.ones_like(_COLORS) if gray else _COLORS)


@op("DrawBoundingBoxesV2", "T, float, float -> output: T", grad=refuse_gradient, shape=_drawn_shape, T=_DRAWN_ON)
def draw_bounding_boxes_v2(images: Array, boxes: Array, colors: Array) -> Array:
    return _drawn(images, boxes, colors)


def draw_bounding_boxes(
    images: TensorLike, boxes: TensorLike, name: str | None = None, colors: TensorLike = None
) -> Tensor:
    """The images with the outlines of boxes [y1, x1, y2, x2], in fractions of their height and width.

    >>> tf.image.draw_bounding_boxes(images, [[[0.1, 0.2, 0.5, 0.9]]])
    """
    tensor: Tensor
    if colors is None:
        tensor = draw_bounding_boxes_op(images, boxes, name=name)
    else:
        tensor = draw_bounding_boxes_v2(images, boxes, colors, name=name)
    return tensor
