"""Ops that move blocks of space into the depth and back, and patches of images."""

from __future__ import annotations

import math as pymath
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel.shapes import require_rank
from penstock.kernel.types import NUMBERS, REALS, Array

# Space to depth and back


def _depth_shape(op: Operation) -> list[TensorShape]:
    block, to_depth = op.attrs["block_size"], op.type == "SpaceToDepth"
    if block < 2:
        raise ValueError(f"Block size should be > 1: {block}")
    layout = op.attrs["data_format"]
    if layout not in ("NHWC", "NCHW"):
        raise ValueError(f"data_format must be NHWC or NCHW, received {layout}")
    batch, *rest = require_rank(op.input_list[0].shape, 4).as_list()
    (height, width, depth) = rest if layout == "NHWC" else (*rest[1:], rest[0])
    if to_depth:
        sizes = [divided(height, block), divided(width, block), times(depth, block * block)]
    else:
        sizes = [times(height, block), times(width, block), divided(depth, block * block)]
    return [TensorShape.of((batch, *sizes) if layout == "NHWC" else (batch, sizes[2], *sizes[:2]))]


def divided(size: int | None, by: int) -> int | None:
    """`size` divided by `by`, which must divide it; None if it is unknown."""
    if size is not None and size % by:
        raise ValueError(f"Dimension size must be evenly divisible by {by} but is {size}")
    return None if size is None else size // by


def times(size: int | None, by: int) -> int | None:
    """`size` times `by`; None if it is unknown."""
    return None if size is None else size * by


def _require_image(input: Array) -> None:
    if input.ndim != 4:
        raise ValueError(f"Input rank should be: 4 instead of: {input.ndim}")


def _moved(other: str) -> Any:
    """The gradient of each of the two ops, which is the other one."""

    def gradient(op: Operation, grad: Tensor) -> list[Any]:
        raw = {"SpaceToDepth": space_to_depth_op, "DepthToSpace": depth_to_space_op}[other]
        return [raw(grad, block_size=op.attrs["block_size"], data_format=op.attrs["data_format"])]

    return gradient


@op("SpaceToDepth", "T -> output: T", shape=_depth_shape, grad=_moved("DepthToSpace"))
def space_to_depth_op(input: Array, *, block_size: int, data_format: str = "NHWC") -> Array:
    _require_image(input)
    x = input if data_format == "NHWC" else jnp.moveaxis(input, 1, -1)
    n, h, w, c = x.shape
    b = block_size
    if h % b or w % b:
        raise ValueError(f"Image width {w} and height {h} should be divisible by block_size: {b}")
    x = x.reshape(n, h // b, b, w // b, b, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h // b, w // b, b * b * c)
    return x if data_format == "NHWC" else jnp.moveaxis(x, -1, 1)


@op("DepthToSpace", "T -> output: T", shape=_depth_shape, grad=_moved("SpaceToDepth"))
def depth_to_space_op(input: Array, *, block_size: int, data_format: str = "NHWC") -> Array:
    _require_image(input)
    x = input if data_format == "NHWC" else jnp.moveaxis(input, 1, -1)
    n, h, w, c = x.shape
    b = block_size
    if c % (b * b):
        raise ValueError(f"Input depth dimension {c} should be divisible by: {b * b}")
    x = x.reshape(n, h, w, b, b, c // (b * b)).transpose(0, 1, 3, 2, 4, 5).reshape(n, h * b, w * b, c // (b * b))
    return x if data_format == "NHWC" else jnp.moveaxis(x, -1, 1)


def space_to_depth(input: TensorLike, block_size: int, name: str | None = None, data_format: str = "NHWC") -> Tensor:
    """Blocks of `block_size` x `block_size` pixels as one pixel with all their channels: `tf.space_to_depth(x, 2)`."""
    result: Tensor = space_to_depth_op(input, block_size=block_size, data_format=data_format, name=name)
    return result


def depth_to_space(input: TensorLike, block_size: int, name: str | None = None, data_format: str = "NHWC") -> Tensor:
    """The channels of one pixel as a block of `block_size` x `block_size` pixels: `tf.depth_to_space(x, 2)`."""
    result: Tensor = depth_to_space_op(input, block_size=block_size, data_format=data_format, name=name)
    return result


# Patches


def _window(size: int | None, kernel: int, stride: int, padding: str) -> int | None:
    """The number of windows that fit; `kernel` is their extent with gaps."""
    if size is None:
        return None
    if padding == "SAME":
        return -(-size // stride)
    if size - kernel + stride < 0:
        raise ValueError(f"Negative dimension size caused by subtracting {kernel} from {size}")
    return (size - kernel + stride) // stride


def _patch_shape(op: Operation) -> list[TensorShape]:
    kernel = op.attrs["ksizes"]
    rates = op.attrs.get("rates", (1,) * len(kernel))
    dims = require_rank(op.input_list[0].shape, len(kernel)).as_list()
    for attr in ("ksizes", "strides", "rates"):
        values = op.attrs.get(attr, rates)
        if len(values) != len(kernel) or min(values) < 1 or values[0] != 1 or values[-1] != 1:
            raise ValueError(f"{attr} must be {len(kernel)} positive numbers with 1 first and last, received {values}")
    if op.attrs["padding"] not in ("SAME", "VALID"):
        raise ValueError(f"padding must be SAME or VALID, received {op.attrs['padding']}")
    sizes = [
        _window(dims[i], (kernel[i] - 1) * rates[i] + 1, op.attrs["strides"][i], op.attrs["padding"])
        for i in range(1, len(kernel) - 1)
    ]
    return [TensorShape.of((dims[0], *sizes, times(dims[-1], pymath.prod(kernel))))]


def _patches(input: Array, kernel: Any, strides: Any, rates: Any, padding: str) -> Array:
    """Windows of all dimensions but the first and last, flattened into the last."""
    if input.ndim != len(kernel):
        raise ValueError(f"input must be {len(kernel)}-dimensional, received shape {list(input.shape)}")
    spatial = range(1, input.ndim - 1)
    pads = [(0, 0)] * input.ndim
    counts = []
    for i in spatial:
        extent = (kernel[i] - 1) * rates[i] + 1
        count = _window(input.shape[i], extent, strides[i], padding)
        assert count is not None
        counts.append(count)
        missing = max(0, (count - 1) * strides[i] + extent - input.shape[i])
        pads[i] = (missing // 2, missing - missing // 2)
    x = jnp.pad(input, pads)
    found = []
    for offset in np.ndindex(*(kernel[i] for i in spatial)):
        start, limit, step = [0] * x.ndim, list(x.shape), [1] * x.ndim
        for i, at, count in zip(spatial, offset, counts, strict=True):
            start[i] = at * rates[i]
            limit[i] = start[i] + (count - 1) * strides[i] + 1 if count else start[i]
            step[i] = strides[i]
        found.append(lax.slice(x, start, limit, step))
    return jnp.concatenate(found, axis=-1)


@op("ExtractImagePatches", "T -> patches: T", shape=_patch_shape, T=Types(*NUMBERS, dt.bool))
def extract_image_patches_op(
    images: Array, *, ksizes: list[int], strides: list[int], rates: list[int], padding: str
) -> Array:
    return _patches(images, ksizes, strides, rates, padding)


def extract_image_patches(
    images: TensorLike,
    ksizes: TensorLike = None,
    strides: Any = None,
    rates: Any = None,
    padding: str | None = None,
    name: str | None = None,
    sizes: Any = None,
) -> Tensor:
    """Windows of images, each flattened into the depth of one pixel.

    >>> tf.extract_image_patches(images, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
    """
    if ksizes is not None and sizes is not None:
        raise ValueError("ksizes and sizes say the same: give one of them.")
    result: Tensor = extract_image_patches_op(
        images, ksizes=sizes if ksizes is None else ksizes, strides=strides, rates=rates, padding=padding, name=name
    )
    return result


@op("ExtractVolumePatches", "T -> patches: T", shape=_patch_shape, T=REALS)
def extract_volume_patches_op(input: Array, *, ksizes: list[int], strides: list[int], padding: str) -> Array:
    return _patches(input, ksizes, strides, [1] * len(ksizes), padding)


def extract_volume_patches(
    input: TensorLike, ksizes: TensorLike, strides: Any, padding: str, name: str | None = None
) -> Tensor:
    """`extract_image_patches` of volumes: [batch, depth, height, width, channels]."""
    result: Tensor = extract_volume_patches_op(input, ksizes=ksizes, strides=strides, padding=padding, name=name)
    return result
