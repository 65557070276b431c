"""Random parts of images that show enough of an object."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import Array
from penstock.ops.random import philox


def _sampled_shape(op: Operation) -> list[TensorShape]:
    size = shapes.require_rank(op.input_list[0].shape, 1).as_list()[0]
    boxes = shapes.require_rank(op.input_list[1].shape, 3).as_list()
    if size not in (None, 3) or boxes[2] not in (None, 4):
        raise ValueError("image_size must have 3 elements and bounding_boxes 4 coordinates")
    return [TensorShape.of((3,)), TensorShape.of((3,)), TensorShape.of((1, 1, 4))]


def _candidates(
    draws: Array, height: Array, width: Array, aspect_range: list[float], area_range: list[float]
) -> tuple[Array, Array, Array, Array, Array]:
    """Rectangles (top, left, height, width) of the wanted areas and proportions, and which of them fit."""
    ratio = draws[0] * (aspect_range[1] - aspect_range[0]) + aspect_range[0]
    area = height * width
    least, most = area * area_range[0], area * area_range[1]
    low, high = jnp.rint(jnp.sqrt(least / ratio)), jnp.rint(jnp.sqrt(most / ratio))
    widest = jnp.floor((width + 0.5 - 1e-7) / ratio)
    widest = jnp.where(jnp.rint(widest * ratio) > width, widest - 1, widest)
    high = jnp.minimum(jnp.where(jnp.rint(high * ratio) > width, widest, high), height)
    low = jnp.minimum(low, high)
    rows = low + jnp.floor(draws[1] * (high - low + 1))
    # After rounding an area may be out of range.
    rows = jnp.where(jnp.rint(rows * ratio) * rows < least, rows + 1, rows)
    rows = jnp.where(jnp.rint(rows * ratio) * rows > most, rows - 1, rows)
    columns = jnp.rint(rows * ratio)
    covered = rows * columns
    exists = (covered >= least) & (covered <= most) & (columns <= width) & (rows <= height) & (columns > 0) & (rows > 0)
    top = jnp.floor(draws[2] * jnp.maximum(height - rows, 1)) * (rows < height)
    left = jnp.floor(draws[3] * jnp.maximum(width - columns, 1)) * (columns < width)
    return top, left, rows, columns, exists


def _sample(
    image_size: Array,
    boxes: Array,
    coverage: Array,
    key: Array,
    aspect: list[float],
    area: list[float],
    attempts: int,
    whole_if_none: bool,
) -> tuple[Array, Array, Array]:
    if image_size.shape != (3,):
        raise ValueError(f"image_size must contain 3 elements, received shape {list(image_size.shape)}")
    if boxes.ndim != 3 or boxes.shape[2] != 4:
        raise ValueError(f"bounding boxes must have shape [batch, boxes, 4], received {list(boxes.shape)}")
    for what, bounds in (("aspect_ratio_range", aspect), ("area_range", area)):
        if len(bounds) != 2 or min(bounds) <= 0:
            raise ValueError(f"{what} must be two positive numbers, received {bounds}")
    if max(area) > 1:
        raise ValueError(f"area_range must lie within (0, 1], received {area}")
    if attempts <= 0:
        raise ValueError(f"max_attempts must be positive, received {attempts}")
    if boxes.shape[0] * boxes.shape[1] == 0:
        if not whole_if_none:
            raise ValueError(
                "No bounding boxes provided as input. One must enable use_image_if_no_bounding_boxes if you wish to "
                "not provide any bounding boxes."
            )
        boxes = np.array([[[0, 0, 1, 1]]], np.float32)
    require((coverage >= 0) & (coverage <= 1), "min_object_covered must be in [0, 1], received {}", coverage)
    require((boxes >= 0) & (boxes <= 1), "All bounding box coordinates must be in [0.0, 1.0]")
    height, width = (jnp.asarray(image_size[i]).astype(np.float64) for i in (0, 1))
    draws = jax.random.uniform(philox.jax_key(key, "rbg"), (4, attempts), np.float64)
    top, left, rows, columns, exists = _candidates(draws, height, width, aspect, area)
    flat = jnp.asarray(boxes).reshape(-1, 4)
    y1, x1, y2, x2 = (jnp.floor(flat[:, k] * (height, width)[k % 2].astype(np.float32)) for k in range(4))
    overlap_y = jnp.minimum((top + rows)[:, None], y2) - jnp.maximum(top[:, None], y1)
    overlap_x = jnp.minimum((left + columns)[:, None], x2) - jnp.maximum(left[:, None], x1)
    object_area = (y2 - y1) * (x2 - x1)
    share = jnp.maximum(overlap_y, 0) * jnp.maximum(overlap_x, 0) / jnp.maximum(object_area, 1)
    good = exists & jnp.any((share >= coverage) & (object_area >= 1), axis=1)
    first, found = jnp.argmax(good), jnp.any(good)
    zero = jnp.zeros(())
    top, left = (jnp.where(found, v[first], zero) for v in (top, left))
    rows, columns = jnp.where(found, rows[first], height), jnp.where(found, columns[first], width)
    kind = image_size.dtype
    begin = jnp.stack([top, left, zero]).astype(kind)
    size = jnp.stack([rows, columns, zero - 1]).astype(kind)
    corners = jnp.stack([top / height, left / width, (top + rows) / height, (left + columns) / width])
    return begin, size, corners.astype(np.float32).reshape(1, 1, 4)


_SIZES = Types(dt.uint8, dt.int8, dt.int16, dt.int32, dt.int64)
_ASPECT, _AREA = [0.75, 1.33], [0.05, 1.0]


@op(
    "SampleDistortedBoundingBox",
    "T, float -> begin: T, size: T, bboxes: float",
    random=True,
    no_gradient=True,
    shape=_sampled_shape,
    T=_SIZES,
)
def sample_distorted_bounding_box_v1(
    image_size: Array,
    bounding_boxes: Array,
    *,
    seed: int = 0,
    seed2: int = 0,
    min_object_covered: float = 0.1,
    aspect_ratio_range: list[float] = _ASPECT,
    area_range: list[float] = _AREA,
    max_attempts: int = 100,
    use_image_if_no_bounding_boxes: bool = False,
    key: Array,
) -> tuple[Array, Array, Array]:
    return _sample(
        image_size,
        bounding_boxes,
        np.float32(min_object_covered),
        key,
        aspect_ratio_range,
        area_range,
        max_attempts,
        use_image_if_no_bounding_boxes,
    )


@op(
    "SampleDistortedBoundingBoxV2",
    "T, float, float -> begin: T, size: T, bboxes: float",
    random=True,
    no_gradient=True,
    shape=_sampled_shape,
    T=_SIZES,
)
def sample_distorted_bounding_box_v2(
    image_size: Array,
    bounding_boxes: Array,
    min_object_covered: Array,
    *,
    seed: int = 0,
    seed2: int = 0,
    aspect_ratio_range: list[float] = _ASPECT,
    area_range: list[float] = _AREA,
    max_attempts: int = 100,
    use_image_if_no_bounding_boxes: bool = False,
    key: Array,
) -> tuple[Array, Array, Array]:
    return _sample(
        image_size,
        bounding_boxes,
        min_object_covered,
        key,
        aspect_ratio_range,
        area_range,
        max_attempts,
        use_image_if_no_bounding_boxes,
    )


class Sampled(NamedTuple):
    """The result of `sample_distorted_bounding_box`."""

    begin: Tensor
    size: Tensor
    bboxes: Tensor


def sample_distorted_bounding_box(
    image_size: TensorLike,
    bounding_boxes: TensorLike,
    seed: int | None = None,
    seed2: int | None = None,
    min_object_covered: TensorLike = 0.1,
    aspect_ratio_range: TensorLike = None,
    area_range: TensorLike = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> Sampled:
    """A random part of an image that covers at least `min_object_covered` of one of the boxes: begin, size, box.

    >>> begin, size, box = tf.image.sample_distorted_bounding_box(tf.shape(image), boxes)
    """
    with name_scope(name, "sample_distorted_bounding_box"):
        return Sampled(
            *sample_distorted_bounding_box_v2(
                image_size,
                bounding_boxes,
                min_object_covered,
                seed=seed or 0,
                seed2=seed2 or 0,
                aspect_ratio_range=_ASPECT if aspect_ratio_range is None else list(aspect_ratio_range),
                area_range=_AREA if area_range is None else list(area_range),
                max_attempts=100 if max_attempts is None else max_attempts,
                use_image_if_no_bounding_boxes=bool(use_image_if_no_bounding_boxes),
                name=name,
            )
        )
