"""Arithmetic on tensors, elementwise. Gradients are in `elementwise_gradients`, Python's operators in `operators`."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import Types, later, op
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import tensor_or_ragged
from penstock.graph.scopes import name_scope
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import COMPLEX, FLOATS, FLOATS_COMPLEX, NUMBERS, QUANTIZED, REALS, SIGNED, Array, xp
from penstock.ops.array import passthrough
from penstock.ops.math import casting


def _is_int(x: Array) -> bool:
    return bool(np.issubdtype(x.dtype, np.integer))


# Arithmetic on two tensors


@op(
    "Add",
    "T, T -> z: T",
    shape=shapes.broadcast,
    grad=later,
    numpy=True,
    T=Types(*FLOATS, dt.uint8, dt.int8, dt.int16, dt.int32, dt.int64, *COMPLEX, dt.string),
)
def add_v1(x: Array, y: Array) -> Array:
    return x + y


@op("AddV2", "T, T -> z: T", shape=shapes.broadcast, grad=later, numpy=True, T=NUMBERS)
def add_v2(x: Array, y: Array) -> Array:
    return x + y


@op("Sub", "T, T -> z: T", shape=shapes.broadcast, grad=later, numpy=True, T=NUMBERS)
def sub(x: Array, y: Array) -> Array:
    return x - y


@op("Mul", "T, T -> z: T", shape=shapes.broadcast, grad=later, numpy=True, T=NUMBERS)
def mul(x: Array, y: Array) -> Array:
    return x * y


@op("MulNoNan", "T, T -> z: T", shape=shapes.broadcast, grad=later, T=FLOATS_COMPLEX, default_name="multiply_no_nan")
def mul_no_nan(x: Array, y: Array) -> Array:
    return jnp.where(y == 0, jnp.zeros((), x.dtype), x * y)


@op("RealDiv", "T, T -> z: T", shape=shapes.broadcast, grad=later, numpy=True, T=NUMBERS)
def real_div(x: Array, y: Array) -> Array:
    if x.dtype == np.float32 and x.ndim == y.ndim == 0 and xp(x, y) is jnp:
        # XLA multiplies by the reciprocal, and 41 * (1 / 41) is less than 1. Programs count steps by such quotients.
        return (x.astype(np.float64) / y.astype(np.float64)).astype(np.float32)
    return x / y


@op("Div", "T, T -> z: T", shape=shapes.broadcast, grad=later, numpy=True, T=NUMBERS)
def div_op(x: Array, y: Array) -> Array:
    return _truncated(x, y) if _is_int(x) else x / y


@op("DivNoNan", "T, T -> z: T", shape=shapes.broadcast, grad=later, T=FLOATS_COMPLEX)
def div_no_nan_op(x: Array, y: Array) -> Array:
    return jnp.where(y == 0, jnp.zeros((), x.dtype), x / jnp.where(y == 0, jnp.ones((), y.dtype), y))


@op("FloorDiv", "T, T -> z: T", shape=shapes.broadcast, no_gradient=True, numpy=True, T=NUMBERS)
def floor_div(x: Array, y: Array) -> Array:
    m = xp(x, y)
    if _is_int(x):
        _require_nonzero(x, y)
        return m.floor_divide(x, y)
    return m.floor(x / y)


@op("FloorMod", "T, T -> z: T", shape=shapes.broadcast, grad=later, numpy=True, T=REALS)
def floor_mod(x: Array, y: Array) -> Array:
    if _is_int(x):
        _require_nonzero(x, y)
    return xp(x, y).mod(x, y)


@op(
    "Mod",
    "T, T -> z: T",
    shape=shapes.broadcast,
    grad=passthrough.refuse_gradient,
    numpy=True,
    T=Types(dt.int32, dt.int64, *FLOATS),
)
def mod_op(x: Array, y: Array) -> Array:
    return _remainder(x, y)


@op("TruncateDiv", "T, T -> z: T", shape=shapes.broadcast, no_gradient=True, numpy=True, T=NUMBERS)
def truncatediv(x: Array, y: Array) -> Array:
    return _truncated(x, y) if _is_int(x) else xp(x, y).trunc(x / y)


@op(
    "TruncateMod",
    "T, T -> z: T",
    shape=shapes.broadcast,
    grad=passthrough.refuse_gradient,
    numpy=True,
    T=Types(dt.int32, dt.int64, *FLOATS),
)
def truncatemod(x: Array, y: Array) -> Array:
    return _remainder(x, y)


def _require_nonzero(x: Array, y: Array) -> None:
    if x.size and not (y.__class__ is np.ndarray and y.all()):  # a division by zero leaves remainder 0
        require(xp(y).all(y != 0), "Integer division by zero")


def _remainder(x: Array, y: Array) -> Array:
    """The remainder that has the sign of x, as in C."""
    if _is_int(x):
        _require_nonzero(x, y)
    return xp(x, y).fmod(x, y)


def _truncated(x: Array, y: Array) -> Array:
    """Division of integers towards zero, as in C."""
    return xp(x, y).floor_divide(x - _remainder(x, y), y)


@op("Pow", "T, T -> z: T", shape=shapes.broadcast, grad=later, numpy=True, T=Types(*SIGNED, *COMPLEX))
def pow(x: Array, y: Array) -> Array:
    if _is_int(x):
        require(xp(y).all(y >= 0), "Integers to negative integer powers are not allowed")
    return xp(x, y).power(x, y)


@op(
    "SquaredDifference",
    "T, T -> z: T",
    shape=shapes.broadcast,
    grad=later,
    numpy=True,
    T=Types(*FLOATS, dt.int32, dt.int64, *COMPLEX),
)
def squared_difference(x: Array, y: Array) -> Array:
    difference = x - y
    return difference * difference.conj() if difference.dtype.kind == "c" else difference * difference


@op("Maximum", "T, T -> z: T", shape=shapes.broadcast, grad=later, numpy=True, T=REALS)
def maximum(x: Array, y: Array) -> Array:
    return xp(x, y).maximum(x, y)


@op("Minimum", "T, T -> z: T", shape=shapes.broadcast, grad=later, numpy=True, T=REALS)
def minimum(x: Array, y: Array) -> Array:
    return xp(x, y).minimum(x, y)


@op("Atan2", "T, T -> z: T", shape=shapes.broadcast, grad=later, T=FLOATS)
def atan2(y: Array, x: Array) -> Array:
    return jnp.arctan2(y, x)


@op("Xlogy", "T, T -> z: T", shape=shapes.broadcast, T=FLOATS_COMPLEX)
def xlogy(x: Array, y: Array) -> Array:
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x * jnp.log(jnp.where(x == 0, jnp.ones((), y.dtype), y)))


@op("Xlog1py", "T, T -> z: T", shape=shapes.broadcast, T=FLOATS_COMPLEX)
def xlog1py(x: Array, y: Array) -> Array:
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x * jnp.log1p(jnp.where(x == 0, jnp.zeros((), y.dtype), y)))


@op("Xdivy", "T, T -> z: T", shape=shapes.broadcast, T=FLOATS_COMPLEX)
def xdivy_op(x: Array, y: Array) -> Array:
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x / jnp.where(x == 0, jnp.ones((), y.dtype), y))


@op("AddN", "N*T -> sum: T", shape=shapes.merged, grad=later, numpy=True, T=Types(*NUMBERS, *QUANTIZED, dt.variant))
def add_n_op(inputs: list[Array]) -> Array:
    if hasattr(inputs[0], "zeros_like"):  # gradients of a TensorList that is used more than once
        return functools.reduce(operator.add, inputs)
    total = inputs[0]
    for array_ in inputs[1:]:
        if array_.shape != total.shape:
            raise ValueError(
                f"Inputs to operation AddN must have the same size and shape. Input 0: {total.shape} "
                f"!= input {array_.shape}"
            )
        total = total + array_
    return total


# Public functions that are more than one op


def _pair(x: Any, y: Any) -> tuple[Any, Any]:
    x = tensor_or_ragged(x, name="x")
    return x, tensor_or_ragged(y, dtype_hint=x.dtype.base_dtype, name="y")


def add(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x + y, elementwise with broadcasting; strings are joined.

    >>> tf.add([1.0, 2.0], 0.5)
    """
    with name_scope(name, "Add", [x, y]) as scope:
        x, y = _pair(x, y)
        raw = add_v1 if x.dtype.base_dtype is dt.string else add_v2
        tensor: Tensor = raw(x, y, name=scope)
        return tensor


def subtract(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x - y: `tf.subtract(x, 1.0)`."""
    tensor: Tensor = sub(x, y, name=name)
    return tensor


def multiply(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * y: `tf.multiply(x, 2.0)`."""
    tensor: Tensor = mul(x, y, name=name)
    return tensor


def scalar_mul(scalar: TensorLike, x: TensorLike, name: str | None = None) -> Any:
    """A scalar times a tensor or IndexedSlices: `tf.scalar_mul(0.1, gradient)`."""
    factor = convert_to_tensor(scalar, dtype=as_dtype(x.dtype).base_dtype, name="scalar")
    if factor.shape.rank != 0:
        raise ValueError(f"scalar_mul: the first argument must be a scalar, received shape {factor.shape}.")
    if isinstance(x, IndexedSlices):
        return IndexedSlices(mul(factor, x.values, name=name), x.indices, x.dense_shape)
    return mul(factor, x, name=name)


_TRUE_QUOTIENT = {
    **{d: None for d in FLOATS_COMPLEX},
    **{d: dt.float32 for d in (dt.int8, dt.uint8, dt.int16, dt.uint16)},
    **{d: dt.float64 for d in (dt.int32, dt.uint32, dt.int64, dt.uint64)},
}


def _float_pair(x: Any, y: Any, what: str) -> tuple[Any, Any]:
    """Both operands of a true division as floats: small integers as float32, others as float64."""
    x, y = _pair(x, y)
    if x.dtype.base_dtype != y.dtype.base_dtype:
        raise TypeError(f"`x` and `y` must have the same dtype in {what}, received {x.dtype!r} and {y.dtype!r}.")
    if x.dtype.base_dtype not in _TRUE_QUOTIENT:
        raise TypeError(f"{what} takes numbers, received dtype {x.dtype.base_dtype.name}.")
    wanted = _TRUE_QUOTIENT[x.dtype.base_dtype]
    return (x, y) if wanted is None else (casting.cast(x, wanted), casting.cast(y, wanted))


def truediv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y as in Python 3: integers give floats.

    >>> tf.truediv(3, 2)
    """
    with name_scope(name, "truediv", [x, y]) as scope:
        tensor: Tensor = real_div(*_float_pair(x, y, "truediv"), name=scope)
        return tensor


def divide(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y as in Python 3: `tf.divide(x, 2.0)`."""
    if name is None and not isinstance(x, Tensor):
        x = tensor_or_ragged(x, dtype=y.dtype.base_dtype if isinstance(y, Tensor) else None)
    return truediv(x, y, name)


def div(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y as in Python 2: integers are divided with floor (deprecated, use `divide` or `floordiv`)."""
    with name_scope(name, "div", [x, y]) as scope:
        x = tensor_or_ragged(x, name="x")
        y = tensor_or_ragged(y, dtype=x.dtype.base_dtype, name="y")
        exact = x.dtype.is_floating or x.dtype.is_complex
        tensor: Tensor = (real_div if exact else floor_div)(x, y, name=scope)
        return tensor


def div_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y, and 0 where y is 0: `tf.div_no_nan(total, count)`."""
    with name_scope(name, "div_no_nan", [x, y]) as scope:
        if not isinstance(x, Tensor) and isinstance(y, Tensor):
            x = tensor_or_ragged(x, dtype_hint=y.dtype.base_dtype, name="x")
        tensor: Tensor = div_no_nan_op(*_float_pair(x, y, "div_no_nan"), name=scope)
        return tensor


divide_no_nan = div_no_nan


def multiply_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * y, and 0 where y is 0 even if x is infinite or NaN."""
    with name_scope(name, "multiply_no_nan", [x, y]) as scope:
        tensor: Tensor = mul_no_nan(*_pair(x, y), name=scope)
        return tensor


def xdivy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y, and 0 where x is 0."""
    with name_scope(name, "xdivy", [x]):
        tensor: Tensor = xdivy_op(x, y)
        return tensor


def floordiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x // y, rounded towards minus infinity: `tf.floordiv(-7, 2)` is -4."""
    with name_scope(name, "floordiv", [x, y]) as scope:
        tensor: Tensor = floor_div(x, y, name=scope)
        return tensor


realdiv = real_div
floormod = mod = floor_mod


def add_n(inputs: TensorLike, name: str | None = None) -> Tensor:
    """The sum of a list of tensors of one shape: `tf.add_n([a, b, c])`."""
    if not inputs or not isinstance(inputs, (list, tuple)):
        raise ValueError(f"add_n takes a list of at least one tensor, received {inputs!r}.")
    tensors = [t if isinstance(t, IndexedSlices) else convert_to_tensor(t) for t in inputs]
    if len(tensors) == 1:
        only = convert_to_tensor(tensors[0])
        return passthrough.identity(only, name=name) if name else only
    total: Tensor = add_n_op(tensors, name=name)
    return total


def accumulate_n(
    inputs: TensorLike, shape: ShapeLike = None, tensor_dtype: DTypeLike | None = None, name: str | None = None
) -> Tensor:
    """As `add_n`, and checks shape and dtype if they are given."""
    if not inputs or not isinstance(inputs, (list, tuple)):
        raise ValueError(f"accumulate_n takes a list of at least one tensor, received {inputs!r}.")
    tensors = [convert_to_tensor(t) for t in inputs]
    if tensor_dtype is not None and any(t.dtype.base_dtype != as_dtype(tensor_dtype) for t in tensors):
        raise TypeError(f"tensor_dtype is {as_dtype(tensor_dtype).name}, but the inputs are {tensors[0].dtype.name}.")
    if shape is not None:
        for tensor in tensors:
            tensor.shape.assert_is_compatible_with(shape)
    return add_n(tensors, name=name)
