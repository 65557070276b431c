"""Joining, splitting and repeating tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value, constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dimension import Dimension
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import tensor_or_ragged
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel.shapes import merge, require_rank
from penstock.kernel.types import INDEX32, INDEX64, Array, array_module, xp
from penstock.ops.array.passthrough import identity, refuse_gradient
from penstock.ops.array.reshaping import concat_offset, expand_dims, rank, shape, shape_n
from penstock.ops.array.slicing import remember_parts
from penstock.ops.array.slicing import slice as slice_

# Concat


def _concat_shape(op: Operation) -> list[TensorShape]:
    parts, axis = [t.shape for t in op.input_list[:-1]], constant_value(op.input_list[-1])
    known = next((s for s in parts if s.rank is not None), None)
    if axis is None:
        for part in parts:
            if known is not None:
                require_rank(part, known.rank)  # type: ignore[arg-type]
        return [TensorShape.of(None if known is None else (None,) * known.rank)]  # type: ignore[operator]
    at = int(axis.reshape(()))
    need = at + 1 if at >= 0 else -at
    for part in parts:
        if part.rank is not None and part.rank < need:
            raise ValueError(f"Shape must be at least rank {need} but is rank {part.rank}")
    if known is None:
        return [TensorShape.of(None)]
    before, after = TensorShape.of(None), TensorShape.of(None)
    total: int | None = 0
    for part in parts:
        dims = require_rank(part, known.rank).as_list()  # type: ignore[arg-type]
        place = at % len(dims)
        before = merge(before, TensorShape.of(tuple(dims[:place])))
        after = merge(after, TensorShape.of(tuple(dims[place + 1 :])))
        middle = dims[place]
        total = None if total is None or middle is None else total + middle
    return [TensorShape.of((*before.as_list(), total, *after.as_list()))]


def _shapes_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The shapes as constants if all are known, else the outputs of one ShapeN."""
    found = []
    for tensor in tensors:
        found.append(shape(tensor))
        if found[-1].op.type != "Const":
            return shape_n(tensors)
    return found


def _concat_grad(op: Operation, grad: Tensor) -> list[Any]:
    values, axis = op.input_list[:-1], op.input_list[-1]
    if len(values) == 1:
        return [grad, None]
    place = axis % rank(values[0])  # type: ignore[operator]
    sizes = _shapes_of(values)
    offsets = concat_offset(place, sizes)
    return [*(slice_(grad, begin, size) for begin, size in zip(offsets, sizes, strict=True)), None]


@op(
    "ConcatV2",
    "N*T, Tidx -> output: T",
    static="axis",
    numpy=True,
    shape=_concat_shape,
    grad=_concat_grad,
    Tidx=INDEX32,
)
def concat_v2(values: list[Array], axis: Array) -> Array:
    place = int(axis.reshape(()))
    if {value.__class__ for value in values} == {np.ndarray}:
        try:
            return np.concatenate(values, axis=place)
        except ValueError:
            return _concatenated(values, place)  # raises a clear error
    return _concatenated(values, place)


def _concatenated(values: list[Array], place: int) -> Array:
    first = values[0].shape
    if first and not -len(first) <= place < len(first):
        raise ValueError(f"Expected the dimension to be in the range [{-len(first)}, {len(first)}), but got {place}")
    place %= max(len(first), 1)
    for i, value in enumerate(values):
        if len(value.shape) != len(first):
            raise ValueError(
                f"Ranks of all inputs should match: shape[0] = {list(first)} vs. shape[{i}] = {list(value.shape)}"
            )
        for d in range(len(first)):
            if d != place and value.shape[d] != first[d]:
                raise ValueError(
                    f"Dimension {d} in both shapes must be equal: shape[0] = {list(first)} vs. "
                    f"shape[{i}] = {list(value.shape)}"
                )
    return xp(*values).concatenate(values, axis=place)


def concat(values: TensorLike, axis: TensorLike, name: str = "concat") -> Tensor:
    """Tensors one after another along `axis`: `tf.concat([x, y], 1)`."""
    parts = values if isinstance(values, (list, tuple)) else [values]
    if len(parts) == 1:
        with name_scope(name, "concat", parts):
            # A wrong axis must be an error even if there is nothing to join.
            where = convert_to_tensor(axis, dtype=dt.int32, name="concat_dim")
            require_rank(where.shape, 0)
            return identity(parts[0], name=name or "concat")
    result: Tensor = concat_v2(parts, axis, name=name or "concat")
    return result


# Stack


def _pack_shape(op: Operation) -> list[TensorShape]:
    merged = TensorShape.of(None)
    for tensor in op.input_list:
        merged = merge(merged, tensor.shape)
    if merged.rank is None:
        return [merged]
    axis, limit = op.attrs["axis"], merged.rank + 1
    if not -limit <= axis < limit:
        raise ValueError(f"Invalid axis: {axis}; must be in [{-limit},{limit})")
    dims = merged.as_list()
    dims.insert(axis % limit, len(op.input_list))
    return [TensorShape.of(tuple(dims))]


def _pack_grad(op: Operation, grad: Tensor) -> list[Any]:
    return unstack(grad, num=op.attrs["N"], axis=op.attrs["axis"])


@op("Pack", "N*T -> output: T", numpy=True, shape=_pack_shape, grad=_pack_grad)
def pack(values: list[Array], *, axis: int = 0) -> Array:
    if any(v.shape != values[0].shape for v in values):
        raise ValueError(f"Shapes of all inputs must match: {', '.join(str(list(v.shape)) for v in values)}")
    result = xp(*values).stack(values, axis=axis)
    if not isinstance(result, np.ndarray) and values[0].shape == () and result.dtype.kind == "i":
        remember_parts(result, values)
    return result


def stack(values: TensorLike, axis: int = 0, name: str = "stack") -> Tensor:
    """Tensors of rank R as one of rank R + 1: `tf.stack([x, y], axis=1)`."""
    if axis == 0:
        try:
            # A list of numbers becomes one constant.
            return convert_to_tensor(values, name=name)
        except (TypeError, ValueError):
            pass  # the op raises a clear error
    elif len(values):
        count = tensor_or_ragged(values[0], name=name).shape.rank
        if count is not None and not -count - 1 <= axis <= count:
            raise ValueError(f"Argument `axis` = {axis} not in range [{-count - 1}, {count + 1})")
    result: Tensor = pack(values, axis=axis, name=name)
    return result


@op("ParallelConcat", "N*T -> output: T", shape=lambda op: [_full(op.attrs["shape"])], grad=refuse_gradient)
def parallel_concat(values: list[Array], *, shape: TensorShape) -> Array:
    return xp(*values).concatenate(values, axis=0)


def _full(wanted: TensorShape) -> TensorShape:
    if not wanted.is_fully_defined():
        raise ValueError("shape attr must be fully defined.")
    return wanted


def parallel_stack(values: TensorLike, name: str = "parallel_stack") -> Tensor:
    """`stack` along the first axis of tensors whose shapes are all known."""
    with name_scope(name):
        first = convert_to_tensor(values[0]).shape
        whole = TensorShape([len(values)]).concatenate(first)
        result: Tensor = parallel_concat([expand_dims(v, 0) for v in values], shape=whole)
        return result


def _unpack_shape(op: Operation) -> list[TensorShape]:
    source, axis, num = op.input_list[0].shape, op.attrs["axis"], op.attrs["num"]
    if source.rank is None:
        return [source] * num
    if not -source.rank <= axis < source.rank:
        raise ValueError(f"Invalid axis: {axis}; must be in [{-source.rank},{source.rank})")
    dims = source.as_list()
    found = dims.pop(axis)
    if found not in (None, num):
        raise ValueError(f"Dimension must be {num} but is {found}")
    return [TensorShape.of(tuple(dims))] * num


@op(
    "Unpack",
    "T -> output: num*T",
    numpy=True,
    shape=_unpack_shape,
    grad=lambda op, *grads: [stack(list(grads), axis=op.attrs["axis"])],
)
def unpack(value: Array, *, num: int, axis: int = 0) -> list[Array]:
    if value.shape[axis] != num:
        raise ValueError(f"Input shape axis {axis} must equal {num}, got shape {list(value.shape)}")
    moved = xp(value).moveaxis(value, axis, 0)
    return [moved[i, ...] for i in range(num)]


def unstack(value: TensorLike, num: int | None = None, axis: int = 0, name: str = "unstack") -> list[Tensor]:
    """The slices along `axis` as a list: `a, b = tf.unstack(x)`."""
    if num is None:
        tensor = value = convert_to_tensor(value)
        if tensor.shape.rank is not None:
            if not -tensor.shape.rank <= axis < tensor.shape.rank:
                raise ValueError(f"`axis` = {axis} not in [{-tensor.shape.rank}, {tensor.shape.rank})")
            num = tensor.shape.as_list()[axis]
        if num is None:
            raise ValueError(f"Cannot infer argument `num` from shape {tensor.shape}")
    result: list[Tensor] = unpack(value, num=num, axis=axis, name=name)
    return result


# Split


def _place(axis: np.ndarray, rank: int) -> int:
    at = int(axis.reshape(()))
    if not -rank <= at < rank:
        raise ValueError(f"Dimension size, given by scalar input {at}, must be in range [{-rank}, {rank})")
    return at % rank


def _split_shape(op: Operation) -> list[TensorShape]:
    axis, source, count = constant_value(op.input_list[0]), op.input_list[1].shape, op.attrs["num_split"]
    if source.rank is None or axis is None:
        return [TensorShape.of(None if source.rank is None else (None,) * source.rank)] * count
    dims = source.as_list()
    place = _place(axis, len(dims))
    whole = dims[place]
    if whole is not None:
        if whole % count:
            raise ValueError(f"Dimension size must be evenly divisible by {count} but is {whole}")
        dims[place] = whole // count
    return [TensorShape.of(tuple(dims))] * count


@op(
    "Split",
    "int32, T -> output: num_split*T",
    static="split_dim",
    numpy=True,
    shape=_split_shape,
    grad=lambda op, *grads: [None, concat(list(grads), op.input_list[0])],
)
def split_op(split_dim: Array, value: Array, *, num_split: int) -> list[Array]:
    place = _place(split_dim, value.ndim)
    if value.shape[place] % num_split:
        raise ValueError(
            f"Number of ways to split should evenly divide the split dimension, but got split_dim {place} "
            f"(size = {value.shape[place]}) and num_split {num_split}"
        )
    return list(xp(value).split(value, num_split, axis=place))


def _split_v_shape(op: Operation) -> list[TensorShape]:
    value, sizes_of, axis_of = op.input_list
    source, sizes, axis = value.shape, constant_value(sizes_of), constant_value(axis_of)
    count = op.attrs["num_split"]
    if source.rank is None or axis is None:
        return [TensorShape.of(None if source.rank is None else (None,) * source.rank)] * count
    dims = source.as_list()
    place = _place(axis, len(dims))
    parts: list[int | None] = [None] * count
    if sizes is not None:
        whole = dims[place]
        if whole is not None:
            parts = list(_sizes(sizes, whole))
        else:
            parts = [None if s < 0 else int(s) for s in sizes.tolist()]
    return [TensorShape.of((*dims[:place], part, *dims[place + 1 :])) for part in parts]


def _sizes(sizes: np.ndarray, whole: int) -> list[int]:
    """Sizes of the parts; a -1 is replaced by the remaining size."""
    found: list[int] = [as_size(s) for s in sizes.reshape(-1)]
    if found.count(-1) == 1:
        rest = whole - sum(s for s in found if s != -1)
        found[found.index(-1)] = rest
    if min(found, default=0) < 0 or sum(found) != whole:
        raise ValueError(f"can't split axis of size {whole} into pieces of size {sizes.tolist()}")
    return found


@op(
    "SplitV",
    "T, Tlen, int32 -> output: num_split*T",
    static="size_splits split_dim",
    numpy=True,
    shape=_split_v_shape,
    grad=lambda op, *grads: [concat(list(grads), op.input_list[2]), None, None],
    Tlen=(dt.int8, *INDEX64),
)
def split_v(value: Array, size_splits: Array, split_dim: Array, *, num_split: int) -> list[Array]:
    place = _place(split_dim, value.ndim)
    ends = np.cumsum(_sizes(size_splits, value.shape[place]))[:-1]
    return list(xp(value).split(value, ends, axis=place))


def split(
    value: TensorLike, num_or_size_splits: TensorLike, axis: TensorLike = 0, num: int | None = None, name: str = "split"
) -> list[Tensor]:
    """A number of equal parts, or parts of given sizes: `a, b = tf.split(x, [1, -1], axis=1)`."""
    result: list[Tensor]
    if isinstance(num_or_size_splits, (int, np.integer, Dimension)) and not isinstance(num_or_size_splits, bool):
        result = split_op(axis, value, num_split=int(num_or_size_splits), name=name)
        return result
    sizes = convert_to_tensor(num_or_size_splits)
    if sizes.shape.rank == 0:
        raise ValueError("Rank-0 tensors are not supported as the num_or_size_splits argument to split.")
    count = sizes.shape.as_list()[0] if num is None and sizes.shape.rank == 1 else num
    if count is None:
        raise ValueError(f"Cannot infer argument `num` from shape {sizes.shape}")
    result = split_v(value, sizes, axis, num_split=count, name=name)
    return result


# Tile


def _tile_shape(op: Operation) -> list[TensorShape]:
    source, multiples = op.input_list[0].shape, constant_value_as_shape(op.input_list[1])
    if multiples.rank is not None and source.rank is not None and multiples.rank != source.rank:
        raise ValueError(f"Shape must be rank {source.rank} but is rank {multiples.rank}")
    count = multiples.rank if source.rank is None else source.rank
    if count is None:
        return [TensorShape.of(None)]
    pairs = zip(source.with_rank(count).as_list(), multiples.with_rank(count).as_list(), strict=True)
    return [TensorShape.of(tuple(None if d is None or m is None else d * m for d, m in pairs))]


@op("Tile", "T, Tmultiples -> output: T", static="multiples", numpy=True, shape=_tile_shape, Tmultiples=INDEX32)
def tile_op(input: Array, multiples: Array) -> Array:
    times = tuple(as_size(m) for m in multiples)
    if len(times) != input.ndim:
        raise ValueError(f"Expected multiples to be a vector of length {input.ndim} but got length {len(times)}")
    if any(m < 0 for m in times):
        raise ValueError(f"Expected multiples to be >= 0, received {list(times)}")
    return array_module(input.size * math.prod(times), input).tile(input, times)


def tile(input: TensorLike, multiples: TensorLike, name: str | None = None) -> Tensor:
    """`input` repeated in every dimension: `tf.tile(x, [2, 1])`."""
    result: Tensor = tile_op(input, multiples, name=name)
    return result
