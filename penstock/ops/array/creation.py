"""Making tensors: constants, placeholders, and tensors filled with one value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.arrays import array_of
from penstock.graph.constant import constant_value, constant_value_as_shape
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dimension import Dimension
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.graph import get_default_graph
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel import shapes
from penstock.kernel.shapes import merge, require_rank
from penstock.kernel.types import INDEX32, NUMBERS, Array, array_module
from penstock.ops.array.reshaping import reshape, shape_internal

_SMALL = 1000  # zeros and ones below this many elements are one Const, as in TensorFlow

# Constants and placeholders


@op("Const", "-> output: dtype", shape=lambda op: [TensorShape.of(op.attrs["value"].shape)], no_gradient=True)
def const(*, value: np.ndarray, dtype: DType) -> Array:
    return value


def constant(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    shape: ShapeLike = None,
    name: str = "Const",
    verify_shape: bool = False,
) -> Tensor:
    """A tensor with a fixed value; the last value is repeated if there are too few, unless `verify_shape`.

    >>> tf.constant(0.5, shape=[2, 3]).shape
    TensorShape([Dimension(2), Dimension(3)])
    """
    if isinstance(value, Tensor):
        raise TypeError(f"constant takes a value, received {value!r}; use tf.identity for a copy of a tensor.")
    wanted = None if dtype is None else as_dtype(dtype)
    if verify_shape and shape is not None:
        found = array_of(value, wanted)[0].shape
        if tuple(as_shape(shape).as_list()) != found:
            raise TypeError(f"Expected Tensor's shape: {as_shape(shape)}, but got {as_shape(found)}.")
    return make_constant(value, wanted, shape, name or "Const")


@op("Placeholder", "-> output: dtype", shape=shapes.from_attr, no_gradient=True)
def placeholder_op(*, dtype: DType, shape: TensorShape = TensorShape(None)) -> None:  # noqa: B008
    """A tensor that must be fed; it has no kernel."""


def placeholder(dtype: DTypeLike, shape: ShapeLike = None, name: str | None = None) -> Tensor:
    """A tensor that must be fed.

    >>> x = tf.placeholder(tf.float32, [None, 784])
    """
    if get_default_graph().is_eager:
        raise RuntimeError("tf.placeholder() is not compatible with eager execution: pass values as arguments.")
    tensor: Tensor = placeholder_op(dtype=as_dtype(dtype), shape=as_shape(shape), name=name)
    return tensor


def _default_shape(op: Operation) -> list[TensorShape]:
    shape = op.attrs["shape"]
    merge(op.input_list[0].shape, shape)
    return [shape]


@op("PlaceholderWithDefault", "dtype -> output: dtype", shape=_default_shape, grad=lambda op, grad: [grad])
def placeholder_with_default_op(input: Array, *, shape: TensorShape) -> Array:
    return input


def placeholder_with_default(input: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """A tensor that may be fed, and is `input` otherwise.

    >>> rate = tf.placeholder_with_default(0.1, [])
    """
    tensor: Tensor = placeholder_with_default_op(input, shape=as_shape(shape), name=name)
    return tensor


def sparse_placeholder(dtype: DTypeLike, shape: ShapeLike = None, name: str | None = None) -> SparseTensor:
    """A SparseTensor that must be fed with a SparseTensorValue or (indices, values, dense_shape).

    >>> x = tf.sparse_placeholder(tf.float32, shape=[None, 100])
    """

    def part(suffix: str) -> str | None:
        return None if name is None else f"{name}/{suffix}"

    rank: int | None = None
    if shape is None:
        dense_shape = placeholder(dt.int64, [None], part("shape"))
    elif isinstance(shape, Tensor):
        dense_shape, rank = shape, shape.shape.as_list()[0]
    else:
        dims = as_shape(shape).as_list()
        rank = len(dims)
        value = np.array([-1 if d is None else d for d in dims], np.int64)
        default = constant(value, name=part("shape_default") or "Const")
        dense_shape = placeholder_with_default(default, [rank], part("shape"))
    values = placeholder(dtype, [None], part("values"))
    return SparseTensor(placeholder(dt.int64, [None, rank], part("indices")), values, dense_shape)


# Fills


def _fill_shape(op: Operation) -> list[TensorShape]:
    dims = op.input_list[0]
    require_rank(dims.shape, 1)
    require_rank(op.input_list[1].shape, 0)
    known = constant_value(dims)
    if known is not None and (known < 0).any():
        raise ValueError("Fill dimensions must be >= 0")
    return [constant_value_as_shape(dims)]


@op("Fill", "index_type, T -> output: T", static="dims", numpy=True, shape=_fill_shape, index_type=INDEX32)
def fill_op(dims: Array, value: Array) -> Array:
    size = tuple(as_size(d) for d in dims)
    if any(d < 0 for d in size):
        raise ValueError(f"dims must be non-negative, received {list(size)}")
    module = array_module(math.prod(size), value)
    return module.full(size, value[()] if module is np else value, value.dtype)


def fill(dims: ShapeLike, value: TensorLike, name: str | None = None) -> Tensor:
    """A tensor of shape `dims` filled with a scalar: `tf.fill([2, 3], 9.0)`."""
    tensor: Tensor = fill_op(dims, value, name=name)
    return tensor


def zeros(shape: ShapeLike, dtype: DTypeLike = dt.float32, name: str | None = None) -> Tensor:
    """A tensor of zeros (False, empty strings): `tf.zeros([10])`."""
    return _filled(shape, dtype, name, "zeros", {"bool": False, "string": b""}, 0)


def ones(shape: ShapeLike, dtype: DTypeLike = dt.float32, name: str | None = None) -> Tensor:
    """A tensor of ones (True): `tf.ones([2, 2])`."""
    return _filled(shape, dtype, name, "ones", {"bool": True}, 1)


def _filled(shape: Any, dtype: Any, name: str | None, default: str, special: dict[str, Any], number: int) -> Tensor:
    base = as_dtype(dtype).base_dtype
    value = special.get(base.name, number)
    with name_scope(name, default, [shape]) as scope:
        if not isinstance(shape, Tensor):
            try:
                static = as_shape(shape)
            except (TypeError, ValueError):
                static = TensorShape(None)
            count = static.num_elements()
            # A bare size stays a Fill, as in TensorFlow.
            if count is not None and count < _SMALL and not isinstance(shape, (int, np.integer, Dimension)):
                return make_constant(value, base, static, scope)
            if count is not None:
                dims = make_constant(static, None, name="shape_as_tensor")
            else:
                dims = convert_to_tensor(shape, dtype=dt.int32)
        else:
            dims = shape if shape.shape.rank else reshape(shape, [-1])
        return fill(dims, make_constant(value, base), name=scope)


@op("ZerosLike", "T -> y: T", shape=shapes.unchanged, numpy=True, no_gradient=True)
def zeros_like_op(x: Array) -> Array:
    if hasattr(x, "zeros_like"):  # a list of tensors
        return x.zeros_like()
    return np.full(x.shape, b"", object) if x.dtype == object else array_module(x.size, x).zeros_like(x)


@op("OnesLike", "T -> y: T", shape=shapes.unchanged, numpy=True, no_gradient=True, T=(*NUMBERS, dt.bool))
def ones_like_op(x: Array) -> Array:
    return array_module(x.size, x).ones_like(x)


def zeros_like(
    tensor: TensorLike, dtype: DTypeLike | None = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Zeros of the shape (and type) of `tensor`."""
    if isinstance(tensor, Ragged):
        zeroed: Any = tensor.with_flat_values(zeros_like(tensor.flat_values, dtype, name, optimize))
        rows: Tensor = zeroed
        return rows
    with name_scope(name, "zeros_like", [tensor]) as scope:
        source = convert_to_tensor(tensor, name="tensor")
        wanted = source.dtype.base_dtype if dtype is None else as_dtype(dtype)
        if optimize and source.shape.is_fully_defined() and wanted is not dt.variant:
            return zeros(source.shape, wanted, name=scope)
        if wanted != source.dtype.base_dtype:
            return zeros(shape_internal(source, optimize=optimize), wanted, name=scope)
        result: Tensor = zeros_like_op(source, name=scope)
        return result


def ones_like(
    tensor: TensorLike, dtype: DTypeLike | None = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Ones of the shape (and type) of `tensor`."""
    if isinstance(tensor, Ragged):
        filled: Any = tensor.with_flat_values(ones_like(tensor.flat_values, dtype, name, optimize))
        rows: Tensor = filled
        return rows
    with name_scope(name, "ones_like", [tensor]) as scope:
        source = convert_to_tensor(tensor, name="tensor")
        dims = shape_internal(source, optimize=optimize, const_name="shape_as_tensor")
        result = ones(dims, source.dtype if dtype is None else dtype, name=scope)
        result.set_shape(source.shape)
        return result
