"""Choosing by condition or by value: where, masks, one-hot, unique."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import op, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.jaxprs.symbols import as_size, is_symbol
from penstock.kernel import shapes
from penstock.kernel.shapes import merge, require_rank
from penstock.kernel.types import INDEX32, NUMBERS, QUANTIZED, Array, xp
from penstock.ops.array.creation import zeros_like
from penstock.ops.array.gathering import gather
from penstock.ops.array.joining import concat, tile
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.array.reshaping import expand_dims, reshape, shape, squeeze
from penstock.row_sums import ranked

# Where and select


def _where_shape(op: Operation) -> list[TensorShape]:
    return [TensorShape.of((None, op.input_list[0].shape.rank))]


@op(
    "Where",
    "T -> index: int64",
    host=True,
    numpy=True,
    no_gradient=True,
    shape=_where_shape,
    T=(dt.bool, *NUMBERS, *QUANTIZED),
)
def where_op(input: Array) -> Array:
    return np.argwhere(np.asarray(input)).astype(np.int64)


def _select_shape(op: Operation) -> list[TensorShape]:
    condition, *rest = (t.shape for t in op.input_list)
    data = merge(*rest)
    if data.rank is None or condition.rank is None or condition.rank == 0:
        return [data]
    if condition.rank == 1 and data.rank != 1:
        # A vector chooses whole rows.
        if data.rank == 0:
            raise ValueError("Shape must be rank 1 but is rank 0")
        rows = merge(condition, TensorShape.of((data.as_list()[0],)))
        return [rows.concatenate(data[1:])]
    return [merge(data, condition)]


def _select_grad(op: Operation, grad: Tensor) -> list[Any]:
    condition = op.input_list[0]
    nothing = zeros_like(op.input_list[1])
    return [None, select(condition, grad, nothing), select(condition, nothing, grad)]


@op("Select", "bool, T, T -> output: T", numpy=True, shape=_select_shape, grad=_select_grad)
def select(condition: Array, t: Array, e: Array) -> Array:
    if t.shape != e.shape:
        raise ValueError(f"'then' and 'else' must have the same size, received: {list(t.shape)} vs. {list(e.shape)}")
    if condition.ndim == 1 and t.ndim > 1:
        if condition.shape[0] != t.shape[0]:
            raise ValueError(
                f"Number of batches of 'then' must match size of 'cond', but saw: {t.shape[0]} vs. {condition.shape[0]}"
            )
        condition = condition.reshape(-1, *[1] * (t.ndim - 1))
    elif condition.ndim and condition.shape != t.shape:
        raise ValueError(f"'cond' and 'then' must have the same size: {list(condition.shape)} vs. {list(t.shape)}")
    return xp(condition, t, e).where(condition, t, e)


@op("SelectV2", "bool, T, T -> output: T", numpy=True, shape=shapes.broadcast)
def select_v2(condition: Array, t: Array, e: Array) -> Array:
    return xp(condition, t, e).where(condition, t, e)


def where(condition: TensorLike, x: TensorLike = None, y: TensorLike = None, name: str | None = None) -> Tensor:
    """Elements of `x` where `condition` holds, else of `y`; without them, the positions where it holds.

    >>> tf.where(mask, x, tf.zeros_like(x))
    """
    return _where(condition, x, y, name, select)


def where_v2(condition: TensorLike, x: TensorLike = None, y: TensorLike = None, name: str | None = None) -> Tensor:
    """`where`, with `condition`, `x` and `y` broadcast against each other."""
    return _where(condition, x, y, name, select_v2)


def _where(condition: Any, x: Any, y: Any, name: str | None, choose: Any) -> Tensor:
    if (x is None) != (y is None):
        raise ValueError("x and y must both be non-None or both be None.")
    result: Tensor
    if x is None:
        result = where_op(convert_to_tensor(condition, preferred_dtype=dt.bool, name="condition"), name=name)
    else:
        result = choose(condition, x, y, name=name)
    return result


def boolean_mask(tensor: TensorLike, mask: TensorLike, name: str = "boolean_mask", axis: TensorLike = None) -> Tensor:
    """The elements (or slices) of `tensor` where `mask` holds: `tf.boolean_mask(x, x[:, 0] > 0)`."""
    with name_scope(name, "boolean_mask", [tensor, mask]):
        values = convert_to_tensor(tensor, name="tensor")
        chosen = convert_to_tensor(mask, name="mask")
        count = chosen.shape.rank
        if count == 0:
            raise ValueError("mask cannot be scalar.")
        if count is None:
            raise ValueError(
                "Number of mask dimensions must be specified, even if some dimensions are None. "
                "E.g. shape=[None] is ok, but shape=None is not."
            )
        at = 0 if axis is None else int(constant_value(axis))  # type: ignore[arg-type]
        values.shape[at : at + count].assert_is_compatible_with(chosen.shape)
        inner = shape(values)[at : at + count]  # type: ignore[index]
        length = op_of("Prod")(inner, [0], name="Prod")
        before = shape(values)[:at]  # type: ignore[index]
        after = shape(values)[at + count :]  # type: ignore[index]
        flat = reshape(values, concat([before, [length], after], 0))
        static = values.shape
        if static.rank is not None:
            dims = static.as_list()
            masked = TensorShape.of(tuple(dims[at : at + count])).num_elements()
            flat.set_shape(TensorShape.of((*dims[:at], masked, *dims[at + count :])))
        positions = squeeze(op_of("Where")(reshape(chosen, [-1]), name="Where"), axis=[1])
        return gather(flat, positions, axis=at)


# One-hot and sequence masks


def _one_hot_shape(op: Operation) -> list[TensorShape]:
    source, depth, axis = op.input_list[0].shape, constant_value(op.input_list[1]), op.attrs["axis"]
    if axis < -1:
        raise ValueError(f"axis must be >= -1, received {axis}")
    if depth is not None and int(depth) < 0:
        raise ValueError(f"depth must be non-negative, got: {depth}")
    if source.rank is None or axis > source.rank:
        return [TensorShape.of(None)]
    dims = source.as_list()
    dims.insert(len(dims) if axis == -1 else axis, None if depth is None else int(depth))
    return [TensorShape.of(tuple(dims))]


@op(
    "OneHot",
    "TI, int32, T, T -> output: T",
    static="depth",
    numpy=True,
    no_gradient=True,
    shape=_one_hot_shape,
    TI=(dt.uint8, dt.int8, dt.int32, dt.int64),
)
def one_hot_op(indices: Array, depth: Array, on_value: Array, off_value: Array, *, axis: int = -1) -> Array:
    if not -1 <= axis <= indices.ndim:
        raise ValueError(f"Expected axis to be -1 or between [0, {indices.ndim + 1}).  But received: {axis}")
    count = as_size(depth)
    if count < 0:
        raise ValueError(f"depth must be non-negative, got: {count}")
    place = indices.ndim if axis == -1 else axis
    module = jnp if is_symbol(count) else xp(indices, on_value, off_value)
    levels = (jnp if is_symbol(count) else np).arange(count).reshape(-1, *[1] * (indices.ndim - place))
    hit = module.expand_dims(indices, place) == levels
    return module.where(hit, on_value, off_value)


def one_hot(
    indices: TensorLike,
    depth: TensorLike,
    on_value: TensorLike = None,
    off_value: TensorLike = None,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """`on_value` at each index along a new axis of size `depth`, else `off_value`: `tf.one_hot(labels, 10)`."""
    wanted = None if dtype is None else as_dtype(dtype).base_dtype
    with name_scope(name, "one_hot", [indices, depth, on_value, off_value]) as scope:
        given = [None if v is None else convert_to_tensor(v, preferred_dtype=wanted) for v in (on_value, off_value)]
        for label, value in zip(("on_value", "off_value"), given, strict=True):
            if value is not None and wanted is not None and value.dtype.base_dtype != wanted:
                raise TypeError(f"dtype {value.dtype.base_dtype} of {label} does not match dtype parameter {wanted}")
        kinds = [v.dtype.base_dtype for v in given if v is not None]
        if len(kinds) == 2 and kinds[0] != kinds[1]:
            raise TypeError(f"dtype {kinds[0]} of on_value does not match dtype {kinds[1]} of off_value")
        kind = wanted or next(iter(kinds), dt.float32)
        on, off = (
            value if value is not None else make_constant(_number(default, kind), kind, name=label)
            for value, default, label in zip(given, (1, 0), ("on_value", "off_value"), strict=True)
        )
        result: Tensor = one_hot_op(indices, depth, on, off, axis=-1 if axis is None else axis, name=scope)
        return result


def _number(value: int, kind: DType) -> Any:
    if kind is dt.string:
        raise TypeError("one_hot of strings needs both on_value and off_value.")
    return bool(value) if kind is dt.bool else value


def sequence_mask(
    lengths: TensorLike, maxlen: TensorLike = None, dtype: DTypeLike = dt.bool, name: str | None = None
) -> Tensor:
    """True for the first `lengths` positions of each row: `tf.sequence_mask([1, 3], 5)`."""
    with name_scope(name, "SequenceMask", [lengths, maxlen]):
        counts = convert_to_tensor(lengths)
        limit: Any
        if maxlen is None:
            axes = (
                convert_to_tensor(np.arange(counts.shape.rank or 0, dtype=np.int32))
                if (counts.shape.rank is not None)
                else op_of("Range")(0, op_of("Rank")(counts), 1)
            )
            limit = op_of("Max")(counts, axes, name="Max")
            limit = op_of("Maximum")(make_constant(0, limit.dtype.base_dtype), limit, name="Maximum")
        else:
            limit = convert_to_tensor(maxlen)
        if limit.shape.rank not in (None, 0):
            raise ValueError("Argument `maxlen` must be scalar for sequence_mask.")
        kind = limit.dtype.base_dtype
        row = op_of("Range")(make_constant(0, kind), limit, make_constant(1, kind), name="Range")
        column = op_of("Cast")(expand_dims(counts, -1), DstT=kind, name="Cast")
        result: Tensor = op_of("Less")(row, column, name="Less")
        wanted = as_dtype(dtype)
        if wanted != result.dtype.base_dtype:
            result = op_of("Cast")(result, DstT=wanted, name="Cast")
        return result


# Unique and set difference


class Unique(NamedTuple):
    """The distinct values in order of appearance, and for each element the position of its value among them."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """`Unique`, and how often each value occurs."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]


class ListDiff(NamedTuple):
    """The values of the first list that are not in the second, and their positions."""

    out: Tensor
    idx: Tensor


def _unique_shape(op: Operation) -> list[TensorShape]:
    source = op.input_list[0].shape
    if source.rank not in (None, 1):
        raise ValueError(f"Shape must be rank 1 but is rank {source.rank}")
    values = TensorShape.of((None,))
    return [values, source, values][: len(op.outputs)]


def _distinct(x: np.ndarray, index: Any) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values in order of first appearance, and for each element the index of its value."""
    if x.dtype.kind in "iu":
        first, inverse = ranked(x)
    else:  # strings, and numbers that may differ from themselves (NaN)
        _, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    by_place = np.argsort(first, kind="stable")
    place = np.empty(len(first), index)
    place[by_place] = np.arange(len(first))
    return x[first[by_place]], place[inverse.reshape(-1)]


@op(
    "Unique",
    "T -> y: T, idx: out_idx",
    host=True,
    numpy=True,
    shape=_unique_shape,
    grad=refuse_gradient,
    out_idx=INDEX32,
)
def unique_op(x: Array, *, out_idx: DType = dt.int32) -> Any:
    return _distinct(np.asarray(x), out_idx.as_numpy_dtype)


def unique(x: TensorLike, out_idx: DTypeLike = dt.int32, name: str | None = None) -> Unique:
    """The distinct values of a vector: `y, idx = tf.unique(x)` gives `x == tf.gather(y, idx)`."""
    return Unique(*unique_op(x, out_idx=as_dtype(out_idx), name=name))


@op(
    "UniqueWithCounts",
    "T -> y: T, idx: out_idx, count: out_idx",
    host=True,
    numpy=True,
    shape=_unique_shape,
    grad=refuse_gradient,
    out_idx=INDEX32,
)
def unique_with_counts_op(x: Array, *, out_idx: DType = dt.int32) -> Any:
    kind = out_idx.as_numpy_dtype
    values, places = _distinct(np.asarray(x), kind)
    return values, places, np.bincount(places, minlength=len(values)).astype(kind)


def unique_with_counts(x: TensorLike, out_idx: DTypeLike = dt.int32, name: str | None = None) -> UniqueWithCounts:
    """The distinct values of a vector and how often each occurs."""
    return UniqueWithCounts(*unique_with_counts_op(x, out_idx=as_dtype(out_idx), name=name))


@op(
    "ListDiff",
    "T, T -> out: T, idx: out_idx",
    host=True,
    numpy=True,
    no_gradient=True,
    out_idx=INDEX32,
    shape=lambda op: [TensorShape.of((None,))] * 2,
)
def list_diff(x: Array, y: Array, *, out_idx: DType = dt.int32) -> Any:
    unwanted = set(np.asarray(y).tolist())
    kept = np.array([i for i, v in enumerate(np.asarray(x).tolist()) if v not in unwanted], out_idx.as_numpy_dtype)
    return np.asarray(x)[kept], kept


def setdiff1d(x: TensorLike, y: TensorLike, index_dtype: DTypeLike = dt.int32, name: str | None = None) -> ListDiff:
    """The values of `x` that are not in `y`, in their order."""
    return ListDiff(*list_diff(x, y, out_idx=as_dtype(index_dtype), name=name))


listdiff = setdiff1d


def repeat(input: TensorLike, repeats: TensorLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """Each element (or slice along `axis`) `repeats` times: `tf.repeat([1, 2], [2, 3])`."""
    if axis is None:
        input, axis = reshape(input, [-1]), 0
    with name_scope(name, "Repeat", [input, repeats]):
        data: Any = convert_to_tensor(input, name="input")
        times: Any = op_of("Cast")(convert_to_tensor(repeats, name="repeats"), DstT=dt.int32, name="Cast")
        count = data.shape.with_rank_at_least(1).rank
        if count is None:
            raise TypeError("repeat: the rank of the input must be known.")
        at = axis % count
        dims: Any = shape(data)
        if times.shape.num_elements() == 1:
            once = reshape(times, [])
            tiled = tile(expand_dims(data, at + 1), [once if i == at + 1 else 1 for i in range(count + 1)])
            return reshape(tiled, concat([dims[:at], [once * dims[at]], dims[at + 1 :]], 0))
        require_rank(times.shape, 1)
        times = op_of("BroadcastTo")(times, [dims[at]], name="BroadcastTo")
        most = op_of("Maximum")(0, op_of("Max")(times, [0], name="Max"), name="Maximum")
        mask = sequence_mask(times, most)
        tiled = tile(expand_dims(data, at + 1), [most if i == at + 1 else 1 for i in range(count + 1)])
        return boolean_mask(tiled, mask, axis=at)
