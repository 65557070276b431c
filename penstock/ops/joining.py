"""Joining, splitting, repeating, padding and reordering tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value, constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.tensor import Tensor
from penstock.ops import shapes
from penstock.ops.array import (
    array_module,
    concat_offset,
    expand_dims,
    identity,
    merge,
    ones,
    op_of,
    rank,
    require_rank,
    reshape,
    shape,
    shape_n,
    size,
)
from penstock.ops.slicing import remember_parts
from penstock.ops.slicing import slice as slice_
from penstock.ops.types import INDEX, INDEX32, INDEX64, Array, xp

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
    """The shapes as constants where they all are, else of one ShapeN."""
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


@op("ConcatV2", "N*T, Tidx -> output: T", static="axis", numpy=True, shape=_concat_shape, grad=_concat_grad,
    Tidx=INDEX32)  # fmt: skip
def concat_v2(values: list[Array], axis: Array) -> Array:
    first = values[0].shape
    place = int(axis.reshape(())) % max(len(first), 1)
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


def concat(values: Any, axis: Any, name: str = "concat") -> Tensor:
    """Tensors one after another along `axis`: `tf.concat([x, y], 1)`."""
    parts = values if isinstance(values, (list, tuple)) else [values]
    if len(parts) == 1:
        with name_scope(name, "concat", parts):
            # A wrong axis must not go unnoticed because there is nothing to join.
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


def stack(values: Any, axis: int = 0, name: str = "stack") -> Tensor:
    """Tensors of rank R as one of rank R + 1: `tf.stack([x, y], axis=1)`."""
    if axis == 0:
        try:
            # A list of numbers becomes one constant.
            return convert_to_tensor(values, name=name)
        except (TypeError, ValueError):
            pass  # the op says what is wrong
    elif len(values):
        count = convert_to_tensor(values[0], name=name).shape.rank
        if count is not None and not -count - 1 <= axis <= count:
            raise ValueError(f"Argument `axis` = {axis} not in range [{-count - 1}, {count + 1})")
    result: Tensor = pack(values, axis=axis, name=name)
    return result


@op("ParallelConcat", "N*T -> output: T", shape=lambda op: [_full(op.attrs["shape"])], no_gradient=True)
def parallel_concat(values: list[Array], *, shape: TensorShape) -> Array:
    return jnp.concatenate(values, axis=0)


def _full(wanted: TensorShape) -> TensorShape:
    if not wanted.is_fully_defined():
        raise ValueError("shape attr must be fully defined.")
    return wanted


def parallel_stack(values: Any, name: str = "parallel_stack") -> Tensor:
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


@op("Unpack", "T -> output: num*T", numpy=True, shape=_unpack_shape,
    grad=lambda op, *grads: [stack(list(grads), axis=op.attrs["axis"])])  # fmt: skip
def unpack(value: Array, *, num: int, axis: int = 0) -> list[Array]:
    if value.shape[axis] != num:
        raise ValueError(f"Input shape axis {axis} must equal {num}, got shape {list(value.shape)}")
    moved = xp(value).moveaxis(value, axis, 0)
    return [moved[i, ...] for i in range(num)]


def unstack(value: Any, num: int | None = None, axis: int = 0, name: str = "unstack") -> list[Tensor]:
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


@op("Split", "int32, T -> output: num_split*T", static="split_dim", numpy=True, shape=_split_shape,
    grad=lambda op, *grads: [None, concat(list(grads), op.input_list[0])])  # fmt: skip
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
    """Sizes of the parts, with what remains in place of a -1."""
    found: list[int] = [int(s) for s in sizes.reshape(-1)]
    if found.count(-1) == 1:
        rest = whole - sum(s for s in found if s != -1)
        found[found.index(-1)] = rest
    if min(found, default=0) < 0 or sum(found) != whole:
        raise ValueError(f"can't split axis of size {whole} into pieces of size {sizes.tolist()}")
    return found


@op("SplitV", "T, Tlen, int32 -> output: num_split*T", static="size_splits split_dim", numpy=True, shape=_split_v_shape,
    grad=lambda op, *grads: [concat(list(grads), op.input_list[2]), None, None],
    Tlen=(dt.int8, *INDEX64))  # fmt: skip
def split_v(value: Array, size_splits: Array, split_dim: Array, *, num_split: int) -> list[Array]:
    place = _place(split_dim, value.ndim)
    ends = np.cumsum(_sizes(size_splits, value.shape[place]))[:-1]
    return list(xp(value).split(value, ends, axis=place))


def split(
    value: Any, num_or_size_splits: Any, axis: Any = 0, num: int | None = None, name: str = "split"
) -> list[Tensor]:
    """A number of equal parts, or parts of given sizes: `a, b = tf.split(x, [1, -1], axis=1)`."""
    result: list[Tensor]
    if isinstance(num_or_size_splits, (int, np.integer)) and not isinstance(num_or_size_splits, bool):
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


# Tile and pad


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
    times = tuple(int(m) for m in multiples)
    if len(times) != input.ndim:
        raise ValueError(f"Expected multiples to be a vector of length {input.ndim} but got length {len(times)}")
    return array_module(input.size * math.prod(times), input).tile(input, times)


def tile(input: Any, multiples: Any, name: str | None = None) -> Tensor:
    """`input` repeated in every dimension: `tf.tile(x, [2, 1])`."""
    result: Tensor = tile_op(input, multiples, name=name)
    return result


def _pad_shape(op: Operation) -> list[TensorShape]:
    source, paddings = op.input_list[0].shape, op.input_list[1]
    rows = merge(require_rank(paddings.shape, 2), TensorShape.of((None, 2))).as_list()[0]
    if source.rank is not None and rows is not None and source.rank != rows:
        raise ValueError(f"Shape must be rank {rows} but is rank {source.rank}")
    count = rows if source.rank is None else source.rank
    if count is None:
        return [TensorShape.of(None)]
    known = constant_value(paddings)
    if known is None:
        return [TensorShape.of((None,) * count)]
    if (known < 0).any():
        raise ValueError("Paddings must be non-negative")
    dims = source.with_rank(count).as_list()
    return [TensorShape.of(tuple(None if d is None else d + int(k) for d, k in zip(dims, known.sum(1), strict=True)))]


def _pad_grad(op: Operation, grad: Tensor) -> list[Any]:
    tensor, paddings = op.input_list[:2]
    before = slice_(paddings, [0, 0], stack([rank(tensor), 1]))
    begin = reshape(before, [-1])
    inner = slice_(grad, begin, shape(tensor, out_type=begin.dtype))
    return [inner, None, None] if op.type == "PadV2" else [inner, None]


def _pad_values(input: Array, paddings: Array, value: Any) -> Array:
    if paddings.shape != (input.ndim, 2):
        raise ValueError(
            "The first dimension of paddings must be the rank of inputs: "
            f"{list(paddings.shape)} for {list(input.shape)}"
        )
    module = xp(input, value)
    return module.pad(input, [(int(a), int(b)) for a, b in paddings], constant_values=value)


@op("Pad", "T, Tpaddings -> output: T", static="paddings", numpy=True, shape=_pad_shape, grad=_pad_grad,
    Tpaddings=INDEX32)  # fmt: skip
def pad_op(input: Array, paddings: Array) -> Array:
    zero = np.array(b"", object) if input.dtype == object else np.zeros((), input.dtype)
    return _pad_values(input, paddings, zero)


@op("PadV2", "T, Tpaddings, T -> output: T", static="paddings", numpy=True, shape=_pad_shape, grad=_pad_grad,
    Tpaddings=INDEX32)  # fmt: skip
def pad_v2(input: Array, paddings: Array, constant_values: Array) -> Array:
    return _pad_values(input, paddings, constant_values)


@op("MirrorPad", "T, Tpaddings -> output: T", static="paddings", numpy=True, shape=_pad_shape, Tpaddings=INDEX32)
def mirror_pad(input: Array, paddings: Array, *, mode: str) -> Array:
    widths = [(int(a), int(b)) for a, b in paddings]
    for (before, after), dim in zip(widths, input.shape, strict=True):
        if max(before, after) > dim - (mode == "REFLECT"):
            raise ValueError(f"paddings must be no greater than the dimension: {before}, {after} greater than {dim}")
    return xp(input).pad(input, widths, mode=mode.lower())


def pad(
    tensor: Any, paddings: Any, mode: str = "CONSTANT", name: str | None = None, constant_values: Any = 0
) -> Tensor:
    """`tensor` with room before and after in every dimension: `tf.pad(x, [[1, 1], [0, 2]])`."""
    kind = mode.upper()
    result: Tensor
    if kind == "CONSTANT":
        # Numbers alone decide: a tensor of zeros is a value like any other.
        if not isinstance(constant_values, Tensor) and np.ndim(constant_values) == 0 and constant_values == 0:
            result = pad_op(tensor, paddings, name=name)
        else:
            result = pad_v2(tensor, paddings, constant_values, name=name)
    elif kind in ("REFLECT", "SYMMETRIC"):
        result = mirror_pad(tensor, paddings, mode=kind, name=name)
    else:
        raise ValueError(
            'Value of argument `mode` expected to be one of "CONSTANT", "REFLECT", or "SYMMETRIC". '
            f"Received `mode` = {mode}"
        )
    return result


# Reordering


def _transpose_shape(op: Operation) -> list[TensorShape]:
    source, perm = op.input_list[0].shape, op.input_list[1]
    length = require_rank(perm.shape, 1).as_list()[0]
    if source.rank is not None and length is not None and source.rank != length:
        raise ValueError(f"Dimension must be {source.rank} but is {length}")
    count = length if source.rank is None else source.rank
    if count is None:
        return [TensorShape.of(None)]
    order = constant_value(perm)
    if order is None:
        return [TensorShape.of((None,) * count)]
    for axis in order.tolist():
        if not -count <= axis < count:
            raise ValueError(f"perm dim {axis} is out of range of input rank {count}")
    dims = source.with_rank(count).as_list()
    return [TensorShape.of(tuple(dims[axis] for axis in order.tolist()))]


@op("InvertPermutation", "T -> y: T", numpy=True, no_gradient=True, T=INDEX32,
    shape=lambda op: [require_rank(op.input_list[0].shape, 1)])  # fmt: skip
def invert_permutation(x: Array) -> Array:
    return xp(x).argsort(x).astype(x.dtype)


@op("Transpose", "T, Tperm -> y: T", static="perm", numpy=True, shape=_transpose_shape, Tperm=INDEX32,
    grad=lambda op, grad: [transpose(grad, invert_permutation(op.input_list[1])), None])  # fmt: skip
def transpose_op(x: Array, perm: Array) -> Array:
    return xp(x).transpose(x, perm.tolist())


@op("ConjugateTranspose", "T, Tperm -> y: T", static="perm", numpy=True, shape=_transpose_shape, Tperm=INDEX32,
    grad=lambda op, grad: [transpose(grad, invert_permutation(op.input_list[1]), conjugate=True), None])  # fmt: skip
def conjugate_transpose(x: Array, perm: Array) -> Array:
    return xp(x).transpose(xp(x).conj(x), perm.tolist())


def transpose(a: Any, perm: Any = None, name: str = "transpose", conjugate: bool = False) -> Tensor:
    """The dimensions in the order `perm`, by default reversed: `tf.transpose(x, [1, 0, 2])`."""
    with name_scope(name, "transpose", [a]) as scope:
        tensor = convert_to_tensor(a, name="a")
        if perm is None:
            count = tensor.shape.rank
            if count is not None:
                perm = np.arange(count - 1, -1, -1, dtype=np.int32)
            else:
                perm = op_of("Range")(rank(tensor) - 1, -1, -1, name="Range")  # type: ignore[operator]
        apply = conjugate_transpose if conjugate and tensor.dtype.is_complex else transpose_op
        result: Tensor = apply(tensor, perm, name=scope)
        return result


def matrix_transpose(a: Any, name: str = "matrix_transpose", conjugate: bool = False) -> Tensor:
    """The last two dimensions exchanged."""
    with name_scope(name, "matrix_transpose", [a]):
        tensor = convert_to_tensor(a, name="a")
        count = tensor.shape.rank
        if count is not None:
            if count < 2:
                raise ValueError(f"Argument `a` should be a (batch) matrix with rank >= 2. Received `a` = {tensor!r}")
            perm: Any = [*range(count - 2), count - 1, count - 2]
        else:
            n: Any = rank(tensor)
            perm = concat([op_of("Range")(0, n - 2, 1, name="Range"), [n - 1, n - 2]], 0)
        return transpose(tensor, perm, conjugate=conjugate)


def adjoint(matrix: Any, name: str | None = None) -> Tensor:
    """The last two dimensions exchanged and every element conjugated."""
    with name_scope(name, "adjoint", [matrix]):
        return matrix_transpose(convert_to_tensor(matrix, name="matrix"), conjugate=True)


@op("ReverseV2", "T, Tidx -> output: T", static="axis", numpy=True, shape=shapes.unchanged, Tidx=INDEX32,
    grad=lambda op, grad: [reverse(grad, op.input_list[1]), None])  # fmt: skip
def reverse_v2(tensor: Array, axis: Array) -> Array:
    return xp(tensor).flip(tensor, tuple({int(a) % tensor.ndim for a in axis.reshape(-1)}))


def reverse(tensor: Any, axis: Any, name: str | None = None) -> Tensor:
    """The elements in opposite order along the axes in `axis`: `tf.reverse(x, [0])`."""
    result: Tensor = reverse_v2(tensor, axis, name=name)
    return result


def _sequence_shape(op: Operation) -> list[TensorShape]:
    source, lengths = op.input_list[0].shape, require_rank(op.input_list[1].shape, 1)
    if source.rank is None:
        return [source]
    batch = op.attrs["batch_dim"]
    dims = source.as_list()
    if max(batch, op.attrs["seq_dim"]) >= len(dims):
        raise ValueError(f"batch_dim and seq_dim must be < input rank: {len(dims)}")
    dims[batch] = merge(TensorShape.of((dims[batch],)), lengths).as_list()[0]
    return [TensorShape.of(tuple(dims))]


@op("ReverseSequence", "T, Tlen -> output: T", shape=_sequence_shape, Tlen=INDEX64,
    grad=lambda op, grad: [reverse_sequence(
        grad, op.input_list[1], seq_axis=op.attrs["seq_dim"], batch_axis=op.attrs["batch_dim"]), None])  # fmt: skip
def reverse_sequence_op(input: Array, seq_lengths: Array, *, seq_dim: int, batch_dim: int = 0) -> Array:
    moved = jnp.moveaxis(input, (batch_dim, seq_dim), (0, 1))
    steps = jnp.arange(moved.shape[1])
    lengths = jnp.asarray(seq_lengths)[:, None]
    source = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    picked = jnp.take_along_axis(moved, source.reshape(*source.shape, *[1] * (moved.ndim - 2)), axis=1)
    return jnp.moveaxis(picked, (0, 1), (batch_dim, seq_dim))


def reverse_sequence(
    input: Any, seq_lengths: Any, seq_axis: Any = None, batch_axis: Any = None, name: str | None = None,
    seq_dim: Any = None, batch_dim: Any = None,
) -> Tensor:  # fmt: skip
    """Each sequence of a batch in opposite order up to its length, unchanged after it."""
    seq = seq_dim if seq_axis is None else seq_axis
    result: Tensor = reverse_sequence_op(
        input, seq_lengths, seq_dim=seq, batch_dim=(batch_dim if batch_axis is None else batch_axis) or 0, name=name
    )
    return result


def _roll_grad(op: Operation, grad: Tensor) -> list[Any]:
    shift: Any = op.input_list[1]
    return [roll(grad, -shift, op.input_list[2]), None, None]


@op("Roll", "T, Tshift, Taxis -> output: T", static="shift axis", numpy=True, shape=shapes.unchanged, grad=_roll_grad,
    Tshift=INDEX, Taxis=INDEX)  # fmt: skip
def roll_op(input: Array, shift: Array, axis: Array) -> Array:
    pairs = (shift.reshape(-1).tolist(), axis.reshape(-1).tolist())
    return xp(input).roll(input, *map(tuple, pairs))


def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Tensor:
    """The elements moved round by `shift` along `axis`: `tf.roll(x, 1, 0)`."""
    result: Tensor = roll_op(input, shift, axis, name=name)
    return result


def meshgrid(*args: Any, **kwargs: Any) -> list[Tensor]:
    """The coordinates of a grid: `x, y = tf.meshgrid(xs, ys, indexing="xy")`."""
    indexing, name = kwargs.pop("indexing", "xy"), kwargs.pop("name", "meshgrid")
    if kwargs:
        raise TypeError(f"'{next(iter(kwargs))}' is an invalid keyword argument for meshgrid.")
    if indexing not in ("xy", "ij"):
        raise ValueError(f"Argument `indexing` must be 'xy' or 'ij', received {indexing!r}.")
    with name_scope(name, "meshgrid", args):
        count = len(args)
        columns = [
            reshape(stack(x), [1] * i + [-1] + [1] * (count - i - 1)) for i, x in enumerate(args)
        ]
        sizes = [size(x) for x in args]
        if not args:
            return []
        kind = convert_to_tensor(args[0]).dtype.base_dtype
        if indexing == "xy" and count > 1:
            columns[0] = reshape(columns[0], [1, -1] + [1] * (count - 2))
            columns[1] = reshape(columns[1], [-1, 1] + [1] * (count - 2))
            sizes[0], sizes[1] = sizes[1], sizes[0]
        grid = ones(sizes, kind)
        return [c * grid for c in columns]  # type: ignore[operator]
