"""Conversion between types, and complex numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.errors import UnimplementedError
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import Types, later, op, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import COMPLEX, NUMBERS, QUANTIZED, Array
from penstock.ops.array import creation, selection
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.math import compare

_FROM_COMPLEX = Types(*COMPLEX, default=dt.complex64)
_TO_REAL = Types(dt.float32, dt.float64, default=dt.float32)


@op("ComplexAbs", "T -> y: Tout", shape=shapes.unchanged, grad=later, T=_FROM_COMPLEX, Tout=_TO_REAL)
def complex_abs(x: Array) -> Array:
    return jnp.abs(x)


@op("Complex", "T, T -> out: Tout", shape=shapes.broadcast, grad=later, T=_TO_REAL, Tout=_FROM_COMPLEX)
def complex_op(real: Array, imag: Array) -> Array:
    return jax.lax.complex(*jnp.broadcast_arrays(real, imag))


@op("Real", "T -> output: Tout", shape=shapes.unchanged, grad=later, T=_FROM_COMPLEX, Tout=_TO_REAL)
def real_op(input: Array) -> Array:
    return jnp.real(input)


@op("Imag", "T -> output: Tout", shape=shapes.unchanged, grad=later, T=_FROM_COMPLEX, Tout=_TO_REAL)
def imag_op(input: Array) -> Array:
    return jnp.imag(input)


@op("Angle", "T -> output: Tout", shape=shapes.unchanged, grad=later, T=_FROM_COMPLEX, Tout=_TO_REAL)
def angle_op(input: Array) -> Array:
    return jnp.angle(input)


@op("Conj", "T -> output: T", shape=shapes.unchanged, grad=later, T=_FROM_COMPLEX)
def conj_op(input: Array) -> Array:
    return jnp.conj(input)


@op("Cast", "SrcT -> y: DstT", shape=shapes.unchanged, grad=later, numpy=True)
def cast_op(x: Array, *, DstT: DType, Truncate: bool = False) -> Array:
    if x.dtype == object or DstT is dt.string:
        source = "string" if x.dtype == object else as_dtype(x.dtype).name
        raise UnimplementedError(f"Cast {source} to {DstT.name} is not supported")
    if x.dtype.kind == "c" and not DstT.is_complex:
        x = x.real
    if DstT.is_bool:
        return x != 0
    is_exact = x.dtype.kind in "biu" and DstT.is_integer
    if isinstance(x, (np.ndarray, np.generic)) and not is_exact:
        with np.errstate(all="ignore"):
            return x.astype(DstT.as_numpy_dtype)
    return x.astype(DstT.as_numpy_dtype)


@op("ClipByValue", "T, T, T -> output: T", shape=shapes.unchanged, T=NUMBERS)
def clip_by_value_op(t: Array, clip_value_min: Array, clip_value_max: Array) -> Array:
    return jnp.minimum(clip_value_max, jnp.maximum(t, clip_value_min))


def complex(real: TensorLike, imag: TensorLike, name: str | None = None) -> Tensor:
    """Complex numbers from their parts: `tf.complex(1.0, 2.0)`."""
    with name_scope(name, "Complex", [real, imag]) as scope:
        real = convert_to_tensor(real, name="real")
        imag = convert_to_tensor(imag, name="imag")
        kinds = {dt.float32: dt.complex64, dt.float64: dt.complex128}
        found = real.dtype.base_dtype
        if found not in kinds or imag.dtype.base_dtype != found:
            raise TypeError(
                f"complex: both parts must be float32 or both float64, received {real.dtype} and {imag.dtype}."
            )
        tensor: Tensor = complex_op(real, imag, Tout=kinds[found], name=scope)
        return tensor


def real(input: TensorLike, name: str | None = None) -> Tensor:
    """The real part; real tensors are returned unchanged."""
    with name_scope(name, "Real", [input]) as scope:
        input = convert_to_tensor(input, name="input")
        if input.dtype.is_complex:
            input = real_op(input, Tout=input.dtype.real_dtype, name=scope)
        part: Tensor = input
        return part


def imag(input: TensorLike, name: str | None = None) -> Tensor:
    """The imaginary part; 0 for real tensors."""
    with name_scope(name, "Imag", [input]) as scope:
        input = convert_to_tensor(input, name="input")
        tensor: Tensor
        if input.dtype.is_complex:
            tensor = imag_op(input, Tout=input.dtype.real_dtype, name=scope)
        else:
            tensor = creation.zeros_like(input)
        return tensor


def angle(input: TensorLike, name: str | None = None) -> Tensor:
    """The argument of complex numbers; 0 or pi for real ones."""
    with name_scope(name, "Angle", [input]) as scope:
        input = convert_to_tensor(input, name="input")
        tensor: Tensor
        if input.dtype.is_complex:
            tensor = angle_op(input, Tout=input.dtype.real_dtype, name=scope)
        else:
            below = compare.less(input, 0)
            straight = op_of("Mul")(np.pi, creation.ones_like(input), T=input.dtype.base_dtype, name="mul")
            tensor = selection.select(below, straight, creation.zeros_like(input))
        return tensor


def conj(x: TensorLike, name: str | None = None) -> Tensor:
    """The complex conjugate; real tensors are returned unchanged."""
    if isinstance(x, Tensor) and (x.dtype.is_floating or x.dtype.is_integer):
        return x
    with name_scope(name, "Conj", [x]) as scope:
        x = convert_to_tensor(x, name="x")
        if x.dtype.is_floating or x.dtype.is_integer:
            number: Tensor = x
            return number
        if not x.dtype.is_complex:
            raise TypeError(f"conj takes numbers, received dtype {x.dtype.name}.")
        tensor: Tensor = conj_op(x, name=scope)
        return tensor


def cast(x: TensorLike, dtype: DTypeLike, name: str | None = None) -> Any:
    """`x` with elements of another type; floats are cut to integers, integers wrap around.

    >>> tf.cast([1.9, -1.9], tf.int32)  # [1, -1]
    """
    wanted = as_dtype(dtype).base_dtype
    if isinstance(x, (Tensor, IndexedSlices, SparseTensor, Ragged)) and x.dtype == wanted:
        return x
    with name_scope(name, "Cast", [x]) as scope:
        if isinstance(x, SparseTensor):
            return SparseTensor(x.indices, cast(x.values, wanted, name=scope), x.dense_shape)
        if isinstance(x, Ragged):
            return x.with_flat_values(cast(x.flat_values, wanted, name=scope))
        if isinstance(x, IndexedSlices):
            return IndexedSlices(cast(x.values, wanted, name=scope), x.indices, x.dense_shape)
        x = convert_to_tensor(x, name="x")
        return x if x.dtype == wanted else cast_op(x, DstT=wanted, name=scope)


def saturate_cast(value: TensorLike, dtype: DTypeLike, name: str | None = None) -> Tensor:
    """As `cast`, but values out of range become the nearest in range: `tf.saturate_cast(300, tf.uint8)` is 255."""
    with name_scope(name, "saturate_cast", [value]) as scope:
        value = convert_to_tensor(value, name="value")
        wanted, given = as_dtype(dtype).base_dtype, value.dtype.base_dtype
        if given.min < wanted.min or given.max > wanted.max:
            low, high = _bounds(given, wanted)
            value = clip_by_value_op(value, make_constant(low, given), make_constant(high, given), name="clamp")
        tensor: Tensor = cast(value, wanted, name=scope)
        return tensor


def _bounds(given: DType, wanted: DType) -> tuple[Any, Any]:
    """The range of `wanted` in values of type `given`, rounded inwards."""
    numpy = given.as_numpy_dtype
    low, high = max(given.min, wanted.min), min(given.max, wanted.max)
    lowest, highest = np.asarray(low).astype(numpy), np.asarray(high).astype(numpy)
    if given.is_floating and int(highest) > int(high):
        highest = np.nextafter(highest, numpy(0))
    if given.is_floating and int(lowest) < int(low):
        lowest = np.nextafter(lowest, numpy(0))
    return lowest, highest


def _caster(dtype: DType, default: str) -> Any:
    def convert(x: TensorLike, name: str = default) -> Any:
        return cast(x, dtype, name=name)

    convert.__doc__ = f"`tf.cast(x, tf.{dtype.name})` (deprecated)."
    return convert


to_float = _caster(dt.float32, "ToFloat")
to_double = _caster(dt.float64, "ToDouble")
to_int32 = _caster(dt.int32, "ToInt32")
to_int64 = _caster(dt.int64, "ToInt64")
to_bfloat16 = _caster(dt.bfloat16, "ToBFloat16")
to_complex64 = _caster(dt.complex64, "ToComplex64")
to_complex128 = _caster(dt.complex128, "ToComplex128")


def _bitcast_shape(op: Operation) -> list[TensorShape]:
    shape, old, new = op.input_list[0].shape, op.attrs["T"].size, op.attrs["type"].size
    if shape.rank is None or old == new:
        return [shape]
    dims = shape.as_list()
    if old > new:
        return [TensorShape.of((*dims, old // new))]
    if not dims or dims[-1] not in (None, new // old):
        raise ValueError(f"Cannot bitcast from {new} to {old} due to shape. {dims[-1:]} does not match {new // old}")
    return [TensorShape.of(tuple(dims[:-1]))]


@op(
    "Bitcast",
    "T -> output: type",
    shape=_bitcast_shape,
    grad=refuse_gradient,
    T=(*NUMBERS, *QUANTIZED),
    type=(*NUMBERS, *QUANTIZED),
)
def bitcast_op(input: Array, *, type: DType) -> Array:
    return lax.bitcast_convert_type(input, type.as_numpy_dtype)


def bitcast(input: TensorLike, type: DTypeLike, name: str | None = None) -> Tensor:
    """The same bytes read as another type."""
    tensor: Tensor = bitcast_op(input, type=as_dtype(type), name=name)
    return tensor
