"""Ops that move blocks of space into the batch, and back."""

from __future__ import annotations

import math as pymath
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel.shapes import merge
from penstock.kernel.types import INDEX32, Array
from penstock.ops.array import creation
from penstock.ops.conv.blocks import divided, times


def _batch_shape(op: Operation) -> list[TensorShape]:
    tensor, block_shape, edges = op.input_list
    to_batch = op.type == "SpaceToBatchND"
    count = block_shape.shape.with_rank(1).as_list()[0]
    merge(edges.shape, TensorShape.of((count, 2)))
    blocks, sides = constant_value(block_shape), constant_value(edges)
    dims: Any = None if tensor.shape.rank is None else tensor.shape.as_list()
    if count is None:
        return [TensorShape.of(None if dims is None else (None,) * len(dims))]
    if dims is not None and len(dims) < count + 1:
        raise ValueError(f"Shape must be at least rank {count + 1} but is rank {len(dims)}")
    if dims is None:
        return [TensorShape.of(None)]
    out = list(dims)
    if blocks is not None:
        if (blocks < 1).any():
            raise ValueError("block_shape must be positive")
        whole = int(np.prod(blocks))
        out[0] = times(dims[0], whole) if to_batch else divided(dims[0], whole)
    else:
        out[0] = None
    for i in range(count):
        size = dims[i + 1]
        out[i + 1] = None
        if size is None or blocks is None or sides is None:
            continue
        if (sides[i] < 0).any():
            raise ValueError("paddings cannot be negative" if to_batch else "crops cannot be negative")
        before, after = (int(s) for s in sides[i])
        if to_batch:
            out[i + 1] = divided(size + before + after, int(blocks[i]))
        else:
            out[i + 1] = size * int(blocks[i]) - before - after
            if out[i + 1] < 0:
                raise ValueError("Negative dimension size caused by the crops")
    return [TensorShape.of(tuple(out))]


def _checked_blocks(input: Array, block_shape: np.ndarray, edges: np.ndarray, what: str) -> list[int]:
    blocks = [int(b) for b in block_shape]
    if edges.shape != (len(blocks), 2):
        raise ValueError(f"{what} should have shape [{len(blocks)}, 2] instead of {list(edges.shape)}")
    if input.ndim < len(blocks) + 1:
        raise ValueError(f"input rank should be >= {len(blocks) + 1} instead of {input.ndim}")
    if any(b < 1 for b in blocks) or (edges < 0).any():
        raise ValueError(f"block_shape must be positive and {what} non-negative, received {blocks}, {edges.tolist()}")
    return blocks


def _to_batch(input: Array, block_shape: np.ndarray, paddings: np.ndarray) -> Array:
    blocks = _checked_blocks(input, block_shape, paddings, "paddings")
    count = len(blocks)
    x = jnp.pad(input, [(0, 0), *((as_size(a), as_size(b)) for a, b in paddings)] + [(0, 0)] * (input.ndim - count - 1))
    batch, sizes, rest = x.shape[0], x.shape[1 : count + 1], x.shape[count + 1 :]
    split: list[int] = []
    for size, block in zip(sizes, blocks, strict=True):
        if size % block:
            raise ValueError(f"padded_shape={size} is not divisible by block_shape={block}")
        split += [size // block, block]
    x = x.reshape(batch, *split, *rest)
    inner, outer = [2 + 2 * i for i in range(count)], [1 + 2 * i for i in range(count)]
    x = x.transpose(*inner, 0, *outer, *range(2 * count + 1, x.ndim))
    return x.reshape(batch * pymath.prod(blocks), *split[::2], *rest)


def _from_batch(input: Array, block_shape: np.ndarray, crops: np.ndarray) -> Array:
    blocks = _checked_blocks(input, block_shape, crops, "crops")
    count, whole = len(blocks), pymath.prod(blocks)
    if input.shape[0] % whole:
        raise ValueError(f"Input batch dimension ({input.shape[0]}) is not divisible by the blocks ({whole})")
    batch, sizes, rest = input.shape[0] // whole, input.shape[1 : count + 1], input.shape[count + 1 :]
    x = input.reshape(*blocks, batch, *sizes, *rest)
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    x = x.transpose(*order, *range(2 * count + 1, x.ndim))
    x = x.reshape(batch, *(s * b for s, b in zip(sizes, blocks, strict=True)), *rest)
    for i, (before, after) in enumerate(crops.tolist()):
        if before + after > x.shape[i + 1]:
            raise ValueError(f"crops {crops.tolist()} are more than there is in dimension {i + 1} of {list(x.shape)}")
    kept = [slice(int(a), x.shape[i + 1] - int(b)) for i, (a, b) in enumerate(crops)]
    return x[(slice(None), *kept)]


def _reversed(other: str) -> Any:
    def gradient(op: Operation, grad: Tensor) -> list[Any]:
        raw = {"SpaceToBatchND": space_to_batch_nd, "BatchToSpaceND": batch_to_space_nd}[other]
        return [raw(grad, op.input_list[1], op.input_list[2]), None, None]

    return gradient


@op(
    "SpaceToBatchND",
    "T, Tblock_shape, Tpaddings -> output: T",
    static="block_shape paddings",
    shape=_batch_shape,
    grad=_reversed("BatchToSpaceND"),
    Tblock_shape=INDEX32,
    Tpaddings=INDEX32,
)
def space_to_batch_nd(input: Array, block_shape: Array, paddings: Array) -> Array:
    return _to_batch(input, block_shape, paddings)


@op(
    "BatchToSpaceND",
    "T, Tblock_shape, Tcrops -> output: T",
    static="block_shape crops",
    shape=_batch_shape,
    grad=_reversed("SpaceToBatchND"),
    Tblock_shape=INDEX32,
    Tcrops=INDEX32,
)
def batch_to_space_nd(input: Array, block_shape: Array, crops: Array) -> Array:
    return _from_batch(input, block_shape, crops)


def space_to_batch(
    input: TensorLike,
    paddings: TensorLike,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: TensorLike = None,
) -> Tensor:
    """`space_to_batch_nd` of images in square blocks: `tf.space_to_batch(x, [[0, 0], [0, 0]], 2)`."""
    result: Tensor = space_to_batch_nd(input, _blocks(block_size, block_shape), paddings, name=name)
    if block_shape is None:
        result.set_shape(result.shape.with_rank(4))
    return result


def batch_to_space(
    input: TensorLike,
    crops: TensorLike,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: TensorLike = None,
) -> Tensor:
    """`batch_to_space_nd` of images in square blocks: `tf.batch_to_space(x, [[0, 0], [0, 0]], 2)`."""
    result: Tensor = batch_to_space_nd(input, _blocks(block_size, block_shape), crops, name=name)
    if block_shape is None:
        result.set_shape(result.shape.with_rank(4))
    return result


def _blocks(block_size: int | None, block_shape: Any) -> Any:
    if block_size is not None and block_shape is not None:
        raise ValueError("block_size and block_shape say the same: give one of them.")
    if block_size is None:
        return block_shape
    return np.array([block_size, block_size], np.int64 if block_size > 2**31 - 1 else np.int32)


def required_space_to_batch_paddings(
    input_shape: ShapeLike, block_shape: TensorLike, base_paddings: TensorLike = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Paddings that make `input_shape` divisible by `block_shape`, and the crops that undo what they added.

    >>> paddings, crops = tf.required_space_to_batch_paddings([5, 4], [2, 3])
    """
    with name_scope(name, "required_space_to_batch_paddings", [input_shape, block_shape]):
        sizes: Any = convert_to_tensor(input_shape, dtype=dt.int32, name="input_shape")
        blocks: Any = convert_to_tensor(block_shape, dtype=dt.int32, name="block_shape")
        count = blocks.shape.with_rank(1).as_list()[0]
        if count is None:
            raise ValueError("required_space_to_batch_paddings: block_shape must have a known size.")
        if count == 0:
            empty = creation.zeros([0, 2], dt.int32)
            return empty, empty
        sizes.shape.assert_is_compatible_with(TensorShape.of((count,)))
        if base_paddings is not None:
            base: Any = convert_to_tensor(base_paddings, dtype=dt.int32, name="base_paddings")
            base.shape.assert_is_compatible_with(TensorShape.of((count, 2)))
        else:
            base = creation.zeros([count, 2], dt.int32)
        known = [constant_value(t) for t in (sizes, blocks, base)]
        if all(value is not None for value in known):
            sizes, blocks, base = known
        starts, ends = base[:, 0], base[:, 1]
        whole = sizes + starts + ends
        extra = (blocks - whole % blocks) % blocks
        last = ends + extra
        paddings = convert_to_tensor([[starts[i], last[i]] for i in range(count)], dtype=dt.int32, name="paddings")
        crops = convert_to_tensor([[0, extra[i]] for i in range(count)], dtype=dt.int32, name="crops")
        return paddings, crops
