"""Shapes as tensors, and the same elements in another shape: reshape, expand_dims, squeeze, broadcast_to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value, constant_value_as_shape
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import op, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape, broadcast_shape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.jaxprs.symbols import as_size, broadcast_shapes, sizes
from penstock.kernel import shapes
from penstock.kernel.shapes import brief, require_rank
from penstock.kernel.types import INDEX32, Array, array_module, xp
from penstock.ops.array.dense_rows import dense_rows

# Shapes as tensors


def _rank_vectors(op: Operation) -> list[TensorShape]:
    return [TensorShape.of((t.shape.rank,)) for t in op.input_list]


@op("Shape", "T -> output: out_type", numpy=True, no_gradient=True, shape=_rank_vectors, out_type=INDEX32)
def shape_op(input: Array, *, out_type: DType = dt.int32) -> Array:
    return sizes(input.shape, out_type.as_numpy_dtype)


@op("ShapeN", "N*T -> output: N*out_type", numpy=True, no_gradient=True, shape=_rank_vectors, out_type=INDEX32)
def shape_n_op(input: list[Array], *, out_type: DType = dt.int32) -> list[Array]:
    return [sizes(x.shape, out_type.as_numpy_dtype) for x in input]


@op("Size", "T -> output: out_type", numpy=True, no_gradient=True, shape=shapes.scalar, out_type=INDEX32)
def size_op(input: Array, *, out_type: DType = dt.int32) -> Array:
    return sizes(math.prod(input.shape), out_type.as_numpy_dtype)


@op("Rank", "T -> output: int32", numpy=True, no_gradient=True, shape=shapes.scalar)
def rank_op(input: Array) -> Array:
    return np.array(len(input.shape), np.int32)


def shape(input: TensorLike, name: str | None = None, out_type: DTypeLike = dt.int32) -> Tensor:
    """The shape of a tensor as an integer vector; a constant if it is known.

    >>> batch = tf.shape(x)[0]
    """
    return shape_internal(input, name, True, out_type)


def shape_internal(
    input: Any, name: str | None = None, optimize: bool = True, out_type: Any = dt.int32, const_name: str = ""
) -> Tensor:
    """As `shape`, but only a constant if `optimize`; `const_name` is its name under the scope."""
    with name_scope(name, "Shape", [input]) as scope:
        if hasattr(input, "dense_shape"):
            result: Tensor = op_of("Cast")(input.dense_shape, DstT=as_dtype(out_type), name="Cast")
            return result
        tensor = convert_to_tensor(input)
        if optimize and tensor.shape.is_fully_defined():
            return make_constant(tensor.shape.as_list(), as_dtype(out_type), name=const_name or scope)
        result = shape_op(tensor, out_type=as_dtype(out_type), name=scope)
        return result


@op(
    "ConcatOffset",
    "int32, N*shape_type -> offset: N*shape_type",
    numpy=True,
    no_gradient=True,
    static="concat_dim shape",
    shape=lambda op: [t.shape for t in op.input_list[1:]],
    shape_type=INDEX32,
)
def concat_offset(concat_dim: Array, shape: list[Array]) -> list[Array]:
    axis, at = int(concat_dim), 0
    offsets = []
    for dims in shape:
        offset = np.zeros_like(dims)
        offset[axis] = at
        at += as_size(dims[axis])
        offsets.append(offset)
    return offsets


def shape_n(input: TensorLike, out_type: DTypeLike = dt.int32, name: str | None = None) -> list[Tensor]:
    """The shapes of several tensors: `a, b = tf.shape_n([x, y])`."""
    result: list[Tensor] = shape_n_op(input, out_type=as_dtype(out_type), name=name)
    return result


def size(input: TensorLike, name: str | None = None, out_type: DTypeLike = dt.int32) -> Tensor:
    """The number of elements; a constant if it is known."""
    with name_scope(name, "Size", [input]) as scope:
        if hasattr(input, "dense_shape"):
            dims = op_of("Cast")(input.dense_shape, DstT=as_dtype(out_type), name="Cast")
            result: Tensor = op_of("Prod")(dims, [0], name=scope)
            return result
        tensor = input.flat_values if isinstance(input, Ragged) else convert_to_tensor(input)
        count = tensor.shape.num_elements()
        if count is not None:
            return make_constant(count, as_dtype(out_type), name=scope)
        result = size_op(tensor, out_type=as_dtype(out_type), name=scope)
        return result


def rank(input: TensorLike, name: str | None = None) -> Tensor:
    """The number of dimensions; a constant if it is known."""
    with name_scope(name, "Rank", [input]) as scope:
        if hasattr(input, "dense_shape"):
            return size(input.dense_shape, name=scope)
        tensor: Any = input if isinstance(input, Ragged) else convert_to_tensor(input)
        if tensor.shape.rank is not None:
            return make_constant(tensor.shape.rank, dt.int32, name=scope)
        result: Tensor = rank_op(tensor, name=scope)
        return result


# Reshapes


def _reshape_shape(op: Operation) -> list[TensorShape]:
    tensor, wanted = op.input_list
    if wanted.shape.rank not in (None, 1):
        raise ValueError(f"Shape must be rank 1 but is rank {wanted.shape.rank}")
    target, count = constant_value_as_shape(wanted), tensor.shape.num_elements()
    if target.rank is None or count is None:
        return [target]
    dims = target.as_list()
    known = math.prod(d for d in dims if d is not None)
    unknown = dims.count(None)
    if unknown == 0 and known != count:
        raise ValueError(f"Cannot reshape a tensor with {count} elements to shape {brief(target)} ({known} elements)")
    if unknown == 1 and known > 0:
        if count % known:
            raise ValueError(f"Dimension size must be evenly divisible by {known} but is {count}")
        dims[dims.index(None)] = count // known
    return [TensorShape.of(tuple(dims))]


def _reshape_to_input(op: Operation, grad: Tensor) -> list[Any]:
    """The gradient of an op that only regroups elements."""
    return [reshape(dense_rows(grad), shape(op.input_list[0]))] + [None] * (len(op.input_list) - 1)


@op(
    "Reshape",
    "T, Tshape -> output: T",
    static="shape",
    numpy=True,
    shape=_reshape_shape,
    grad=_reshape_to_input,
    Tshape=INDEX32,
)
def reshape_op(tensor: Array, shape: Array) -> Array:
    if tensor.__class__ is np.ndarray and shape.__class__ is np.ndarray and shape.dtype.kind == "i":
        dims = shape.tolist()
        if tuple(dims) == tensor.shape:
            return tensor
        try:
            return tensor.reshape([d if d >= -1 else None for d in dims])
        except (ValueError, TypeError):
            return _reshaped(tensor, shape)  # raises a clear error
    return _reshaped(tensor, shape)


def _reshaped(tensor: Array, shape: Array) -> Array:
    dims = [as_size(d) for d in shape]
    unknown = [i for i, d in enumerate(dims) if d == -1]
    if len(unknown) > 1:
        raise ValueError(f"Only one input size may be -1, not both {unknown[0]} and {unknown[1]}")
    known = math.prod(d for d in dims if d != -1)
    if unknown and 0 in dims and tensor.size == 0:
        # The unknown size follows from the dimensions that are not empty.
        dims[unknown[0]] = math.prod(d for d in tensor.shape if d) // math.prod(d for d in dims if d not in (0, -1))
    elif unknown and known:
        if tensor.size % known:
            raise ValueError(
                f"Input to reshape is a tensor with {tensor.size} values, but the requested shape requires a multiple "
                f"of {known}"
            )
        dims[unknown[0]] = tensor.size // known
    elif unknown or known != tensor.size:
        raise ValueError(f"Input to reshape is a tensor with {tensor.size} values, but the requested shape has {known}")
    return tensor.reshape(dims)


def reshape(tensor: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """The same elements in another shape; one size may be -1: `tf.reshape(x, [-1, 784])`."""
    result: Tensor = reshape_op(tensor, shape, name=name)
    return result


def _expand_shape(op: Operation) -> list[TensorShape]:
    source, dim = op.input_list[0].shape, constant_value(op.input_list[1])
    if dim is None or source.rank is None:
        return [TensorShape.of(None)]
    axis, limit = int(dim.reshape(())), source.rank + 1
    if not -limit <= axis < limit:
        raise ValueError(f"dim {axis} not in the interval [{-limit}, {limit - 1}].")
    dims = source.as_list()
    dims.insert(axis % limit, 1)
    return [TensorShape.of(tuple(dims))]


@op(
    "ExpandDims",
    "T, Tdim -> output: T",
    static="dim",
    numpy=True,
    shape=_expand_shape,
    grad=_reshape_to_input,
    Tdim=INDEX32,
)
def expand_dims_op(input: Array, dim: Array) -> Array:
    return xp(input).expand_dims(input, int(dim.reshape(())))


def expand_dims(input: TensorLike, axis: TensorLike = None, name: str | None = None, dim: TensorLike = None) -> Tensor:
    """A dimension of size 1 inserted at `axis`: `tf.expand_dims(x, -1)`."""
    if (axis is None) == (dim is None):
        raise ValueError("expand_dims: exactly one of `axis` and its old name `dim` must be given.")
    result: Tensor = expand_dims_op(input, dim if axis is None else axis, name=name)
    return result


def _squeezed(dims: list[int | None], wanted: tuple[int, ...]) -> tuple[int | None, ...]:
    chosen = set()
    for axis in wanted:
        if not -len(dims) <= axis < len(dims):
            raise ValueError(f"Squeeze dim {axis} is not in [{-len(dims)}, {len(dims)})")
        chosen.add(axis % len(dims))
        if dims[axis] not in (1, None):
            raise ValueError(f"Can not squeeze dim[{axis % len(dims)}], expected a dimension of 1, got {dims[axis]}")
    return tuple(d for i, d in enumerate(dims) if (i not in chosen if wanted else d != 1))


def _squeeze_shape(op: Operation) -> list[TensorShape]:
    source, wanted = op.input_list[0].shape, op.attrs["squeeze_dims"]
    if source.rank is None or (not wanted and not source.is_fully_defined()):
        return [TensorShape.of(None)]
    return [TensorShape.of(_squeezed(source.as_list(), wanted))]


@op("Squeeze", "T -> output: T", numpy=True, shape=_squeeze_shape, grad=_reshape_to_input)
def squeeze_op(input: Array, *, squeeze_dims: list[int] = []) -> Array:  # noqa: B006
    return input.reshape(_squeezed(list(input.shape), tuple(squeeze_dims)))


def squeeze(input: TensorLike, axis: TensorLike = None, name: str | None = None, squeeze_dims: Any = None) -> Tensor:
    """Without the dimensions of size 1, or without those in `axis`: `tf.squeeze(x, [1])`."""
    if axis is not None and squeeze_dims is not None:
        raise ValueError("squeeze: give only one of `axis` and its old name `squeeze_dims`.")
    chosen = axis if squeeze_dims is None else squeeze_dims
    dims = [] if chosen is None else [chosen] if np.ndim(chosen) == 0 else list(chosen)
    result: Tensor = squeeze_op(input, squeeze_dims=dims, name=name)
    return result


def _broadcast_to_shape(op: Operation) -> list[TensorShape]:
    source, target = op.input_list[0].shape, constant_value_as_shape(op.input_list[1])
    if source.rank is not None and target.rank is not None:
        if source.rank > target.rank:
            raise ValueError(f"Shape must be at most rank {target.rank} but is rank {source.rank}")
        shapes.broadcast_pair(source, target)
    return [target]


@op("BroadcastTo", "T, Tidx -> output: T", static="shape", numpy=True, shape=_broadcast_to_shape, Tidx=INDEX32)
def broadcast_to_op(input: Array, shape: Array) -> Array:
    dims = tuple(as_size(d) for d in shape)
    return array_module(math.prod(dims), input).broadcast_to(input, dims)


def broadcast_to(input: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """`input` repeated to `shape` by the rules of broadcasting: `tf.broadcast_to(row, [10, 3])`."""
    result: Tensor = broadcast_to_op(input, shape, name=name)
    return result


def broadcast_static_shape(shape_x: TensorShape, shape_y: TensorShape) -> TensorShape:
    """The static shape that two shapes broadcast to."""
    return broadcast_shape(shape_x, shape_y)


@op(
    "BroadcastArgs",
    "T, T -> r0: T",
    numpy=True,
    no_gradient=True,
    static="s0 s1",
    T=INDEX32,
    shape=lambda op: [_longer(op)],
)
def broadcast_args(s0: Array, s1: Array) -> Array:
    return sizes(broadcast_shapes(s0.tolist(), s1.tolist()), s0.dtype)


def _longer(op: Operation) -> TensorShape:
    a, b = (require_rank(t.shape, 1).as_list()[0] for t in op.input_list)
    return TensorShape.of((None if a is None or b is None else max(a, b),))


def broadcast_dynamic_shape(shape_x: ShapeLike, shape_y: ShapeLike) -> Tensor:
    """The shape that two shapes, given as integer vectors, broadcast to."""
    result: Tensor = broadcast_args(shape_x, shape_y)
    return result
