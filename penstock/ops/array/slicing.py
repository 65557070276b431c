"""Slices: `tf.slice`, `tf.strided_slice`, and `x[...]`."""

from __future__ import annotations

import builtins
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph.checks import NotTraceable, require
from penstock.graph.constant import constant_value, constant_value_as_shape
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.jaxprs.symbols import as_number, as_size, is_symbol
from penstock.kernel.shapes import merge, require_rank
from penstock.kernel.types import INDEX, INDEX16, Array
from penstock.ops.array.creation import ones_like
from penstock.ops.array.reshaping import shape

slice_of = builtins.slice  # `slice` is TensorFlow's here

# Slice


def _slice_shape(op: Operation) -> list[TensorShape]:
    tensor, begin, size = op.input_list
    source = tensor.shape
    vector = merge(require_rank(begin.shape, 1), require_rank(size.shape, 1)).as_list()[0]
    if vector is not None and source.rank is not None:
        source = require_rank(source, vector)
    count = source.rank if vector is None else vector
    if count is None:
        return [TensorShape.of(None)]
    sizes: list[Any] = constant_value_as_shape(size).with_rank(count).as_list()
    starts, wanted = constant_value(begin), constant_value(size)
    if starts is not None and wanted is not None and source.rank is not None:
        for i, dim in enumerate(source.as_list()):
            if wanted[i] == -1 and dim is not None:
                sizes[i] = dim - int(starts[i])
                if sizes[i] < 0:
                    raise ValueError(f"Negative dimension size caused by subtracting {starts[i]} from {dim}")
    return [TensorShape.of(tuple(sizes))]


@op("Slice", "T, Index, Index -> output: T", static="size", numpy=True, shape=_slice_shape, Index=INDEX)
def slice_op(input: Array, begin: Array, size: Array) -> Array:
    if not isinstance(begin, np.ndarray):
        return _dynamic_slice(input, begin, size)
    index = []
    for i, (start, length, dim) in enumerate(zip(begin.tolist(), size.tolist(), input.shape, strict=True)):
        length = dim - start if length == -1 else length
        if not 0 <= start <= dim:
            raise ValueError(f"Expected begin[{i}] in [0, {dim}], but got {start}")
        if not 0 <= length <= dim - start:
            raise ValueError(f"Expected size[{i}] in [0, {dim - start}], but got {length}")
        index.append(slice_of(start, start + length))
    return input[tuple(index)]


def _dynamic_slice(input: Array, begin: Array, size: Array) -> Array:
    limits = []
    for i, (length, dim) in enumerate(zip(size.tolist(), input.shape, strict=True)):
        if length == -1:
            raise NotTraceable(f"size[{i}] is -1, so begin[{i}] must be computable from constants and shapes")
        if length > dim:
            raise ValueError(f"Expected size[{i}] in [0, {dim}], but got {length}")
        limits.append(dim - length)
    for i, limit in enumerate(limits):
        require((begin[i] >= 0) & (begin[i] <= limit), f"Expected begin[{i}] in [0, {limit}], but got {{}}", begin[i])
    return lax.dynamic_slice(input, [begin[i] for i in range(len(limits))], size.tolist())


def slice(input_: TensorLike, begin: TensorLike, size: TensorLike, name: str | None = None) -> Tensor:
    """`size` elements from `begin` on, per dimension; -1 means all that remain: `tf.slice(x, [0, 1], [-1, 2])`."""
    result: Tensor = slice_op(input_, begin, size, name=name)
    return result


# StridedSlice: begin, end and strides have one entry per item of `x[a, b:c, ..., None]`; masks say what the items are.


@dataclass(frozen=True, slots=True)
class _Item:
    """One item of a slice after the ellipsis is expanded: a new axis (`dim` is None), an index or a range."""

    dim: int | None
    entry: int | None = None  # position in begin, end and strides; None if the whole dimension is taken
    shrink: bool = False
    open_begin: bool = True
    open_end: bool = True


_MASKS = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask", "begin_mask", "end_mask")


def _items(attrs: dict[str, Any], count: int, rank: int) -> Sequence[_Item]:
    """The items that `count` entries of begin, end and strides stand for, for an input of `rank`."""
    return _items_of(*[attrs[mask] for mask in _MASKS], count=count, rank=rank)


@functools.lru_cache(1024)
def _items_of(
    ellipsis: int, new_axis: int, shrink_axis: int, begin: int, end: int, *, count: int, rank: int
) -> Sequence[_Item]:
    if bin(ellipsis).count("1") > 1:
        raise ValueError("Multiple ellipses in slice spec not allowed")
    taken = sum(1 for i in range(count) if not (ellipsis | new_axis) >> i & 1)
    if taken > rank:
        raise ValueError(f"Index out of range using input dim {rank}; input has only {rank} dims")
    items: list[_Item] = []
    dim = 0
    for i in range(count if ellipsis else count + 1):
        if i == count or ellipsis >> i & 1:
            items += [_Item(d) for d in range(dim, dim + rank - taken)]
            dim += rank - taken
        elif new_axis >> i & 1:
            items.append(_Item(None))
        else:
            shrink, is_open, is_endless = (bool(mask >> i & 1) for mask in (shrink_axis, begin, end))
            items.append(_Item(dim, i, shrink, is_open and not shrink, is_endless and not shrink))
            dim += 1
    return items


def _range(item: _Item, begin: Any, end: Any, strides: np.ndarray) -> Any:
    """The Python slice of an item. Python clips and counts from the end just as TensorFlow does."""
    if item.entry is None:
        return slice_of(None)
    step = int(strides[item.entry])
    if step == 0:
        raise ValueError(f"strides[{item.entry}] must be non-zero")
    first = None if item.open_begin else as_size(begin[item.entry])
    last = None if item.open_end else as_size(end[item.entry])
    return slice_of(first, last, step)


def _in_bounds(index: int, item: _Item, dim: int) -> int:
    if not -dim <= index < dim:
        raise ValueError(f"slice index {index} of dimension {item.dim} out of bounds.")
    return index if index >= 0 else index + dim


def _strided_shape(op: Operation) -> list[TensorShape]:
    source = op.input_list[0].shape
    begin, end, strides = (constant_value(t) for t in op.input_list[1:])
    if source.rank is None or strides is None:
        return [TensorShape.of(None)]
    sizes = source.as_list()
    dims: list[int | None] = []
    for item in _items(op.attrs, len(strides), source.rank):
        if item.dim is None:
            dims.append(1)
            continue
        dim = sizes[item.dim]
        if item.shrink:
            if strides[item.entry] <= 0:
                raise ValueError("only stride 1 allowed on non-range indexing.")
            if dim is not None and begin is not None:
                _in_bounds(int(begin[item.entry]), item, dim)
            continue
        # As in TensorFlow, both ends must be known, unless the range is open at both.
        known = (begin is not None and end is not None) or (item.open_begin and item.open_end)
        range_ = _range(item, begin, end, strides) if known else None
        dims.append(len(range(dim)[range_]) if dim is not None and range_ is not None else None)
    return [TensorShape.of(tuple(dims))]


# The parts of vectors that were packed while tracing: in `x[i, 0:2]` in a loop, `i` is traced and the rest is known.
_PARTS: dict[int, tuple[Any, list[Any]]] = {}


def remember_parts(vector: Array, parts: list[Array]) -> None:
    """Remembers the parts that a traced vector was packed from, for as long as it lives."""
    key = id(vector)
    _PARTS[key] = (weakref.ref(vector, lambda _: _PARTS.pop(key, None)), parts)


def _entries(vector: Array) -> Any:
    """The entries of begin or end: a NumPy array, or a list of NumPy scalars and tracers."""
    if isinstance(vector, np.ndarray):
        return vector
    found = _PARTS.get(id(vector))
    return found[1] if found is not None else [vector[i] for i in range(vector.shape[0])]


def _is_known(value: Any) -> bool:
    return isinstance(value, (int, np.integer, np.ndarray)) or is_symbol(value)


def index_of(
    attrs: dict[str, Any], dims: tuple[int, ...], begin: Array, end: Array, strides: np.ndarray
) -> tuple[Sequence[_Item], list[Any], bool]:
    """The items; per dimension the slice, or the index if the axis is dropped; and True if all are known."""
    items = _items(attrs, len(strides), len(dims))
    starts, ends = _entries(begin), _entries(end)
    index: list[Any] = []
    known = True
    for item in items:
        if item.dim is None:
            continue
        if item.shrink:
            start = starts[item.entry]
            dim = dims[item.dim]
            if _is_known(start):
                at = _in_bounds(as_size(start), item, dim)
                known = known and not is_symbol(at)
                index.append(as_number(at))
            else:
                known = False
                fits = (start >= -dim) & (start < dim)
                require(fits, f"slice index {{}} of dimension {item.dim} out of bounds.", start)
                index.append(jnp.where(start < 0, start + dim, start))
            continue
        for open_, bound in ((item.open_begin, starts), (item.open_end, ends)):
            if item.entry is not None and not open_ and not _is_known(bound[item.entry]):
                raise NotTraceable(
                    f"the bounds of the slice of dimension {item.dim} must be computable from constants and shapes: "
                    "compiled code has fixed shapes; use tf.slice with a constant size, or tf.gather"
                )
        index.append(_range(item, starts, ends, strides))
    return items, index, known


def _as_key(vector: np.ndarray) -> tuple[str, bytes]:
    return vector.dtype.char, vector.tobytes()


@functools.lru_cache(1024)
def _numpy_index(masks: tuple[int, ...], rank: int, *vectors: tuple[str, bytes]) -> tuple[Any, ...]:
    """The index of a NumPy array of some rank, for begin, end and strides of these types and bytes."""
    begin, end, strides = (np.frombuffer(data, kind) for kind, data in vectors)
    full = [
        None if item.dim is None else int(begin[item.entry]) if item.shrink else _range(item, begin, end, strides)
        for item in _items_of(*masks, count=len(strides), rank=rank)
    ]
    return (*full, ...)  # the ellipsis keeps a NumPy scalar an array


def _masks(op: Operation) -> dict[str, Any]:
    return {mask: op.attrs[mask] for mask in _MASKS}


def _strided_grad(op: Operation, grad: Tensor) -> list[Any]:
    tensor, begin, end, strides = op.input_list
    dims = shape(tensor, out_type=begin.dtype)
    return [strided_slice_grad(dims, begin, end, strides, grad, **_masks(op)), None, None, None]


@op(
    "StridedSlice",
    "T, Index, Index, Index -> output: T",
    static="strides",
    numpy=True,
    shape=_strided_shape,
    grad=_strided_grad,
    Index=INDEX16,
)
def strided_slice_op(
    input: Array,
    begin: Array,
    end: Array,
    strides: Array,
    *,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Array:
    masks = ellipsis_mask, new_axis_mask, shrink_axis_mask, begin_mask, end_mask
    if input.__class__ is begin.__class__ is end.__class__ is np.ndarray:
        try:
            return input[_numpy_index(masks, input.ndim, *[_as_key(vector) for vector in (begin, end, strides)])]
        except IndexError:
            return _checked_slice(input, begin, end, strides, masks)  # raises a clear error
    return _checked_slice(input, begin, end, strides, masks)


def _checked_slice(input: Array, begin: Array, end: Array, strides: Array, masks: Sequence[int]) -> Array:
    items, index, known = index_of(dict(zip(_MASKS, masks, strict=True)), input.shape, begin, end, strides)
    if not known:
        # Traced indices come first, each keeping its axis with size 1; then all others at once.
        for axis, at in enumerate(index):
            if not isinstance(at, slice_of) and not _is_known(at):
                input = lax.dynamic_slice_in_dim(input, at, 1, axis)
                index[axis] = 0
    rest = iter(index)
    full = tuple(None if item.dim is None else next(rest) for item in items)
    # The ellipsis keeps a NumPy scalar an array.
    return input[(*full, ...)]


def _grad_shape(op: Operation) -> list[TensorShape]:
    return [constant_value_as_shape(op.input_list[0])]


@op(
    "StridedSliceGrad",
    "Index, Index, Index, Index, T -> output: T",
    static="shape strides",
    shape=_grad_shape,
    Index=INDEX,
    grad=lambda op, grad: [None, None, None, None, strided_slice_op(grad, *op.input_list[1:4], **_masks(op))],
)
def strided_slice_grad(
    shape: Array,
    begin: Array,
    end: Array,
    strides: Array,
    dy: Array,
    *,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Array:
    attrs = {
        "begin_mask": begin_mask,
        "end_mask": end_mask,
        "ellipsis_mask": ellipsis_mask,
        "new_axis_mask": new_axis_mask,
        "shrink_axis_mask": shrink_axis_mask,
    }
    dims = tuple(as_size(d) for d in shape)
    _, index, _ = index_of(attrs, dims, begin, end, strides)
    whole = jnp.zeros(dims, dy.dtype)
    if any(map(is_symbol, dims)):
        kept = jax.eval_shape(lambda x: x[tuple(index)], whole).shape
    else:
        kept = tuple(len(range(d)[at]) for d, at in zip(dims, index, strict=True) if isinstance(at, slice_of))
    return whole.at[tuple(index)].set(dy.reshape(kept))


class SlicedVariable(Tensor):
    """A slice of a variable that can be assigned to: `v[0:2].assign([5.0, 6.0])`."""

    __slots__ = ()

    def assign(self, value: Any, name: str | None = None) -> Any:
        """Changes this slice of the variable. Returns the variable after the change."""
        bounds = dict(zip(("begin", "end", "strides"), self.op.input_list[1:], strict=True))
        name = f"{self.op.name}/_assign" if name is None else name
        return self._attributes._assign_slice(bounds, _masks(self.op), value, name)


@functools.cache
def _sliced(kind: Any) -> Any:
    """A class of tensors with values whose `assign` changes the variable that they are a slice of."""

    def assign(self: Tensor, value: Any, name: str | None = None) -> Any:
        return self._attributes(value, name)

    return type("SlicedVariable", (kind,), {"__slots__": (), "assign": assign})


def strided_slice(
    input_: TensorLike,
    begin: TensorLike,
    end: TensorLike,
    strides: Any = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: Any = None,
    name: str | None = None,
) -> Tensor:
    """`input_[begin:end:strides]` in every dimension, where the bits of the masks change the meaning of an entry.

    >>> tf.strided_slice(x, [0, 1], [4, 5], [2, 2])
    """
    steps = ones_like(begin) if strides is None else strides
    masks = {
        "begin_mask": begin_mask,
        "end_mask": end_mask,
        "ellipsis_mask": ellipsis_mask,
        "new_axis_mask": new_axis_mask,
        "shrink_axis_mask": shrink_axis_mask,
    }
    result: Tensor = strided_slice_op(input_, begin, end, steps, **masks, name=name or "StridedSlice")
    if var is not None and result.graph.is_eager:
        bounds = {"begin": begin, "end": end, "strides": steps}
        kind: Any = type(result)
        result.__class__ = _sliced(kind)
        result._attributes = functools.partial(var._assign_slice, bounds, masks)
    elif var is not None:
        result.__class__ = SlicedVariable
        result._attributes = var
    return result
