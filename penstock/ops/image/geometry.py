"""Ops that flip, turn, crop and pad images."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.ops.array import arranging, creation, joining, padding, reshaping, slicing
from penstock.ops.control import flow, grouping
from penstock.ops.debugging import check_ops
from penstock.ops.debugging.assertion import Assert
from penstock.ops.image import resize
from penstock.ops.math import arithmetic, casting, compare, unary
from penstock.ops.random import stateful as random


def shape_of(tensor: Any) -> Any:
    """The sizes of a tensor, as a tensor."""
    return reshaping.shape(tensor)


# Checks. Known sizes are checked while the graph is built; for the others assertions are added.


def check_at_least_3d(image: Tensor) -> list[Operation]:
    """Assertions that `image` has at least three dimensions, the last three of them not empty."""
    shape = image.shape
    if shape.rank is not None and shape.rank < 3:
        raise ValueError(f"'image' (shape {shape}) must be at least three-dimensional.")
    inner = TensorShape([None] * 3) if shape.rank is None else shape[-3:]
    if 0 in inner.as_list():
        raise ValueError(f"inner 3 dims of 'image.shape' must be > 0: {shape}")
    if inner.is_fully_defined():
        return []
    return [
        check_ops.assert_positive(shape_of(image)[-3:], ["inner 3 dims of 'image.shape' must be > 0."]),
        check_ops.assert_greater_equal(reshaping.rank(image), 3, message="'image' must be at least three-dimensional."),
    ]


def checked_image(image: Any) -> Tensor:
    """`image` as a tensor that depends on the assertions about it."""
    tensor: Tensor = grouping.with_dependencies(check_at_least_3d(image), image)
    return tensor


def _demand(condition: Any, message: str) -> list[Operation]:
    """A list with an assertion; empty if the condition is known to hold."""
    if isinstance(condition, Tensor):
        return [Assert(condition, [message])]
    if not condition:
        raise ValueError(message)
    return []


def image_dimensions(image: Tensor, rank: int) -> list[Any]:
    """The sizes of `image`: numbers where they are known, else tensors."""
    static = image.shape.with_rank(rank).as_list()
    if None not in static:
        return static
    dynamic = joining.unstack(reshaping.shape(image), rank)
    return [d if s is None else s for s, d in zip(static, dynamic, strict=True)]


def _not_3_or_4(shape: TensorShape) -> ValueError:
    return ValueError(f"'image' (shape {shape}) must have either 3 or 4 dimensions.")


def _as_batch(image: Tensor) -> tuple[Tensor, bool]:
    """`image` with a batch dimension, and True if it had one."""
    rank = image.shape.rank
    if rank == 4:
        return image, True
    if rank not in (3, None):
        raise _not_3_or_4(image.shape)
    batch = reshaping.expand_dims(image, 0)
    if rank is None:
        batch.set_shape([None] * 4)
    return batch, False


def _maximum(x: Any, y: Any) -> Any:
    return arithmetic.maximum(x, y) if isinstance(x, Tensor) or isinstance(y, Tensor) else max(x, y)


def _minimum(x: Any, y: Any) -> Any:
    return arithmetic.minimum(x, y) if isinstance(x, Tensor) or isinstance(y, Tensor) else min(x, y)


def _equal(x: Any, y: Any) -> Any:
    return compare.equal(x, y) if isinstance(x, Tensor) or isinstance(y, Tensor) else x == y


def _by_rank(image: Tensor, rank3: Any, rank4: Any) -> Tensor:
    """`rank3()` for one image, `rank4()` for a batch; decided at run time if the rank is unknown."""
    rank = image.shape.rank
    tensor: Tensor
    if rank is None:
        tensor = flow.cond(compare.equal(reshaping.rank(image), 3), rank3, rank4)
        return tensor
    if rank not in (3, 4):
        raise _not_3_or_4(image.shape)
    tensor = rank3() if rank == 3 else rank4()
    return tensor


def _flip_shape(image: Tensor, result: Tensor) -> Tensor:
    if image.shape.rank is None:
        result.set_shape([None, None, None])
    else:
        result.set_shape(image.shape)
    return result


# Flips and turns.


def _flip(image: Any, axis: int, scope: str) -> Tensor:
    with name_scope(None, scope, [image]):
        image = checked_image(convert_to_tensor(image, name="image"))
        return _by_rank(
            image,
            lambda: _flip_shape(image, arranging.reverse(image, [axis])),
            lambda: arranging.reverse(image, [axis + 1]),
        )


def flip_left_right(image: TensorLike) -> Tensor:
    """The image, or each image of a batch, mirrored: left becomes right.

    >>> tf.image.flip_left_right(image)
    """
    return _flip(image, 1, "flip_left_right")


def flip_up_down(image: TensorLike) -> Tensor:
    """The image, or each image of a batch, upside down.

    >>> tf.image.flip_up_down(image)
    """
    return _flip(image, 0, "flip_up_down")


def _random_flip(image: Any, axis: int, seed: int | None, scope: str) -> Tensor:
    with name_scope(None, scope, [image]) as scope:
        image = checked_image(convert_to_tensor(image, name="image"))

        def rank3() -> Tensor:
            drawn = random.random_uniform([], 0, 1.0, seed=seed)
            flipped = flow.cond(
                compare.less(drawn, 0.5), lambda: arranging.reverse(image, [axis]), lambda: image, name=scope
            )
            return _flip_shape(image, flipped)

        def rank4() -> Tensor:
            batch = shape_of(image)[0]
            drawn = random.random_uniform([batch], 0, 1.0, seed=seed)
            flips = casting.cast(unary.round(reshaping.reshape(drawn, [batch, 1, 1, 1])), image.dtype)
            mixed: Tensor = flips * arranging.reverse(image, [axis + 1]) + (1 - flips) * image
            return mixed

        return _by_rank(image, rank3, rank4)


def random_flip_left_right(image: TensorLike, seed: int | None = None) -> Tensor:
    """`flip_left_right` of each image with probability 1/2.

    >>> tf.image.random_flip_left_right(image)
    """
    return _random_flip(image, 1, seed, "random_flip_left_right")


def random_flip_up_down(image: TensorLike, seed: int | None = None) -> Tensor:
    """`flip_up_down` of each image with probability 1/2.

    >>> tf.image.random_flip_up_down(image)
    """
    return _random_flip(image, 0, seed, "random_flip_up_down")


def rot90(image: TensorLike, k: TensorLike = 1, name: str | None = None) -> Tensor:
    """The image, or each image of a batch, turned counter-clockwise by `k` times 90 degrees.

    >>> tf.image.rot90(image, k=2)
    """
    with name_scope(name, "rot90", [image, k]) as scope:
        image = checked_image(convert_to_tensor(image, name="image"))
        k = convert_to_tensor(k, dtype=dt.int32, name="k")
        k.shape.assert_has_rank(0)
        k = arithmetic.mod(k, 4)
        return _by_rank(image, lambda: _turned(image, k, 0, scope), lambda: _turned(image, k, 1, scope))


def _turned(image: Tensor, k: Tensor, rows: int, scope: str) -> Tensor:
    """`rows` is the dimension of the rows, 0 or 1."""
    columns = rows + 1
    order = [0, 2, 1, 3] if rows else [1, 0, 2]
    result: Tensor = flow.case(
        [
            (compare.equal(k, 1), lambda: arranging.transpose(arranging.reverse(image, [columns]), order)),
            (compare.equal(k, 2), lambda: arranging.reverse(image, [rows, columns])),
            (compare.equal(k, 3), lambda: arranging.reverse(arranging.transpose(image, order), [columns])),
        ],
        default=lambda: image,
        exclusive=True,
        name=scope,
    )
    dims = [None] * (rows + 3) if image.shape.rank is None else image.shape.as_list()
    result.set_shape([dims[0], None, None, dims[3]] if rows else [None, None, dims[2]])
    return result


def transpose(image: TensorLike, name: str | None = None) -> Tensor:
    """The image, or each image of a batch, with rows and columns exchanged.

    >>> tf.image.transpose(image)
    """
    with name_scope(name, "transpose", [image]):
        image = checked_image(convert_to_tensor(image, name="image"))
        inner = name or "transpose"
        return _by_rank(
            image,
            lambda: arranging.transpose(image, [1, 0, 2], name=inner),
            lambda: arranging.transpose(image, [0, 2, 1, 3], name=inner),
        )


# Crops and pads.


def central_crop(image: TensorLike, central_fraction: TensorLike) -> Tensor:
    """The middle of an image, or of each image of a batch: `central_fraction` of its height and width.

    >>> tf.image.central_crop(image, 0.875)
    """
    with name_scope(None, "central_crop", [image]):
        image = convert_to_tensor(image, name="image")
        fraction = constant_value(central_fraction) if isinstance(central_fraction, Tensor) else central_fraction
        if fraction is not None:
            if fraction <= 0.0 or fraction > 1.0:
                raise ValueError(f"central_fraction must be within (0, 1], received {fraction}.")
            if fraction == 1.0:
                whole: Tensor = image
                return whole
        else:
            within = compare.logical_or(central_fraction > 0.0, central_fraction <= 1.0)
            image = grouping.with_dependencies(_demand(within, "central_fraction must be within (0, 1]"), image)
        checked_image(image)
        rank = image.shape.rank
        if rank not in (3, 4):
            raise ValueError(f"`image` should either be a Tensor with rank = 3 or rank = 4. Had rank = {rank}.")
        static = image.shape.as_list()
        sizes = [shape_of(image)[i] if static[i] is None else static[i] for i in (rank - 3, rank - 2)]
        starts = [_crop_start(size, central_fraction, fraction) for size in sizes]
        kept = [size - start * 2 for size, start in zip(sizes, starts, strict=True)]
        lead = [0] * (rank - 3)
        begin = joining.stack([*lead, *starts, 0])
        extent = joining.stack([*([-1] * (rank - 3)), *kept, -1])
        image = slicing.slice(image, begin, extent)
        known = [None if isinstance(size, Tensor) else size for size in kept]
        image.set_shape([*static[: rank - 3], *known, static[-1]])
        cropped: Tensor = image
        return cropped


def _crop_start(size: Any, fraction: Any, known: Any) -> Any:
    if known is None or isinstance(size, Tensor):
        exact = casting.cast(size, dt.float64)
        return casting.cast((exact - exact * casting.cast(fraction, dt.float64)) / 2, dt.int32)
    return int((float(size) - float(size) * float(known)) / 2)


def pad_to_bounding_box(
    image: TensorLike,
    offset_height: TensorLike,
    offset_width: TensorLike,
    target_height: TensorLike,
    target_width: TensorLike,
) -> Tensor:
    """The image at (offset_height, offset_width) of a black one of the target's size.

    >>> tf.image.pad_to_bounding_box(image, 2, 2, 32, 32)
    """
    with name_scope(None, "pad_to_bounding_box", [image]):
        image, is_batch = _as_batch(convert_to_tensor(image, name="image"))
        batch, height, width, depth = image_dimensions(image, 4)
        right = target_width - offset_width - width
        below = target_height - offset_height - height
        checks = check_at_least_3d(image)
        checks += _demand(offset_height >= 0, "offset_height must be >= 0")
        checks += _demand(offset_width >= 0, "offset_width must be >= 0")
        checks += _demand(right >= 0, "width must be <= target - offset")
        checks += _demand(below >= 0, "height must be <= target - offset")
        image = grouping.with_dependencies(checks, image)
        ends = joining.stack([0, 0, offset_height, below, offset_width, right, 0, 0])
        padded = padding.pad(image, reshaping.reshape(ends, [4, 2]))
        sizes = (batch, target_height, target_width, depth)
        padded.set_shape([None if isinstance(size, Tensor) else size for size in sizes])
        return padded if is_batch else reshaping.squeeze(padded, axis=[0])


def crop_to_bounding_box(
    image: TensorLike,
    offset_height: TensorLike,
    offset_width: TensorLike,
    target_height: TensorLike,
    target_width: TensorLike,
) -> Tensor:
    """The part of the image of the target's size whose top left corner is (offset_height, offset_width).

    >>> tf.image.crop_to_bounding_box(image, 2, 2, 24, 24)
    """
    with name_scope(None, "crop_to_bounding_box", [image]):
        image, is_batch = _as_batch(convert_to_tensor(image, name="image"))
        checks = check_at_least_3d(image)
        batch, height, width, depth = image_dimensions(image, 4)
        checks += _demand(offset_width >= 0, "offset_width must be >= 0.")
        checks += _demand(offset_height >= 0, "offset_height must be >= 0.")
        checks += _demand(target_width > 0, "target_width must be > 0.")
        checks += _demand(target_height > 0, "target_height must be > 0.")
        checks += _demand(width >= target_width + offset_width, "width must be >= target + offset.")
        checks += _demand(height >= target_height + offset_height, "height must be >= target + offset.")
        image = grouping.with_dependencies(checks, image)
        begin = joining.stack([0, offset_height, offset_width, 0])
        extent = joining.stack([shape_of(image)[0], target_height, target_width, shape_of(image)[3]])
        cropped = slicing.slice(image, begin, extent)
        sizes = (batch, target_height, target_width, depth)
        cropped.set_shape([None if isinstance(size, Tensor) else size for size in sizes])
        return cropped if is_batch else reshaping.squeeze(cropped, axis=[0])


def resize_image_with_crop_or_pad(image: TensorLike, target_height: TensorLike, target_width: TensorLike) -> Tensor:
    """The image cut to the target's size around its middle, or padded with black where it is smaller.

    >>> tf.image.resize_image_with_crop_or_pad(image, 24, 24)
    """
    with name_scope(None, "resize_image_with_crop_or_pad", [image]):
        image, is_batch = _as_batch(convert_to_tensor(image, name="image"))
        checks = check_at_least_3d(image)
        checks += _demand(target_width > 0, "target_width must be > 0.")
        checks += _demand(target_height > 0, "target_height must be > 0.")
        image = grouping.with_dependencies(checks, image)
        if isinstance(target_height, Tensor):
            target_height = grouping.with_dependencies(checks, target_height)
        if isinstance(target_width, Tensor):
            target_width = grouping.with_dependencies(checks, target_width)
        _, height, width, _ = image_dimensions(image, 4)
        wider = target_width - width
        crop_left, pad_left = _maximum(-wider // 2, 0), _maximum(wider // 2, 0)
        higher = target_height - height
        crop_top, pad_top = _maximum(-higher // 2, 0), _maximum(higher // 2, 0)
        cropped = crop_to_bounding_box(
            image, crop_top, crop_left, _minimum(target_height, height), _minimum(target_width, width)
        )
        resized = pad_to_bounding_box(cropped, pad_top, pad_left, target_height, target_width)
        _, new_height, new_width, _ = image_dimensions(resized, 4)
        checks = _demand(_equal(new_height, target_height), "resized height is not correct.")
        checks += _demand(_equal(new_width, target_width), "resized width is not correct.")
        resized = grouping.with_dependencies(checks, resized)
        return resized if is_batch else reshaping.squeeze(resized, axis=[0])


def resize_image_with_pad(
    image: TensorLike,
    target_height: TensorLike,
    target_width: TensorLike,
    method: Any = resize.ResizeMethodV1.BILINEAR,
    align_corners: bool = False,
) -> Tensor:
    """The image resized to fit into the target's size with its own proportions, padded with black.

    >>> tf.image.resize_image_with_pad(image, 224, 224)
    """
    with name_scope(None, "resize_image_with_pad", [image]):
        image, is_batch = _as_batch(convert_to_tensor(image, name="image"))
        checks = check_at_least_3d(image)
        checks += _demand(target_width > 0, "target_width must be > 0.")
        checks += _demand(target_height > 0, "target_height must be > 0.")
        image = grouping.with_dependencies(checks, image)
        _, height, width, _ = image_dimensions(image, 4)
        old_height, old_width = casting.cast(height, dt.float32), casting.cast(width, dt.float32)
        new_height, new_width = casting.cast(target_height, dt.float32), casting.cast(target_width, dt.float32)
        ratio = _maximum(old_width / new_width, old_height / new_height)
        inner_height, inner_width = old_height / ratio, old_width / ratio
        size = [casting.cast(unary.floor(s), dt.int32) for s in (inner_height, inner_width)]
        around_height, around_width = (new_height - inner_height) / 2, (new_width - inner_width) / 2
        top, left = unary.floor(around_height), unary.floor(around_width)
        top = _maximum(0, casting.cast(top, dt.int32))
        left = _maximum(0, casting.cast(left, dt.int32))
        resized = resize.resize_images(image, size, method, align_corners=align_corners)
        padded = pad_to_bounding_box(resized, top, left, target_height, target_width)
        image_dimensions(padded, 4)
        return padded if is_batch else reshaping.squeeze(padded, axis=[0])


def grayscale_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Images of one channel as images of three equal ones.

    >>> tf.image.grayscale_to_rgb(image)
    """
    with name_scope(name, "grayscale_to_rgb", [images]) as scope:
        images = convert_to_tensor(images, name="images") if not isinstance(images, Tensor) else images
        images = grouping.with_dependencies(_check_grayscale(images), images)
        rank: Any = reshaping.rank(images)
        last = reshaping.expand_dims(rank - 1, 0)
        multiples = joining.concat([creation.ones(last, dtype=dt.int32), reshaping.expand_dims(3, 0)], 0)
        rgb = joining.tile(images, multiples, name=scope)
        if images.shape.rank is not None:
            rgb.set_shape(images.shape[:-1].concatenate([3]))
        return rgb


def _check_grayscale(image: Tensor) -> list[Operation]:
    shape = image.shape
    if shape.rank is not None and shape.rank < 2:
        raise ValueError(f"A grayscale image (shape {shape}) must be at least two-dimensional.")
    if shape.is_fully_defined():
        if shape.as_list()[-1] != 1:
            raise ValueError(f"Last dimension of a grayscale image should be size 1, received shape {shape}.")
        return []
    return [
        check_ops.assert_equal(shape_of(image)[-1], 1, message="Last dimension of a grayscale image should be size 1."),
        check_ops.assert_greater_equal(
            reshaping.rank(image), 3, message="A grayscale image must be at least two-dimensional."
        ),
    ]
