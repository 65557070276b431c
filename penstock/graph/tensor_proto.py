"""Converts arrays to TensorProtos, TensorFlow's form in graphs and messages, and back with every size checked first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tensorboard.compat.proto.tensor_pb2 import TensorProto

from penstock.graph import dtype as dtypes
from penstock.graph.arrays import MAX_RANK, array_of
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.shape import TensorShape, as_shape

MAX_TENSOR_BYTES = 2**31

# The field for single values of each type and their form there: 16-bit floats are stored as their bits.
_FIELDS: dict[DType, tuple[str, Any]] = {
    dtypes.float16: ("half_val", np.uint16),
    dtypes.bfloat16: ("half_val", np.uint16),
    dtypes.float32: ("float_val", np.float32),
    dtypes.float64: ("double_val", np.float64),
    dtypes.int8: ("int_val", np.int8),
    dtypes.int16: ("int_val", np.int16),
    dtypes.int32: ("int_val", np.int32),
    dtypes.uint8: ("int_val", np.uint8),
    dtypes.uint16: ("int_val", np.uint16),
    dtypes.int4: ("int_val", np.int8),
    dtypes.uint4: ("int_val", np.uint8),
    dtypes.qint8: ("int_val", np.int8),
    dtypes.quint8: ("int_val", np.uint8),
    dtypes.qint16: ("int_val", np.int16),
    dtypes.quint16: ("int_val", np.uint16),
    dtypes.qint32: ("int_val", np.int32),
    dtypes.int64: ("int64_val", np.int64),
    dtypes.uint32: ("uint32_val", np.uint32),
    dtypes.uint64: ("uint64_val", np.uint64),
    dtypes.bool: ("bool_val", np.bool_),
    dtypes.complex64: ("scomplex_val", np.float32),
    dtypes.complex128: ("dcomplex_val", np.float64),
}
_BITS = (dtypes.float16, dtypes.bfloat16)
_FLOAT8 = (
    dtypes.float8_e5m2,
    dtypes.float8_e4m3fn,
    dtypes.float8_e4m3fnuz,
    dtypes.float8_e4m3b11fnuz,
    dtypes.float8_e5m2fnuz,
)
# Several values of these types are written as raw bytes; values of other types one by one.
_AS_CONTENT = frozenset(
    (
        *_FLOAT8,
        dtypes.bfloat16,
        dtypes.float16,
        dtypes.float32,
        dtypes.float64,
        dtypes.int8,
        dtypes.int16,
        dtypes.int32,
        dtypes.int64,
        dtypes.uint8,
        dtypes.uint16,
        dtypes.uint32,
        dtypes.uint64,
        dtypes.qint8,
        dtypes.quint8,
        dtypes.qint16,
        dtypes.quint16,
        dtypes.qint32,
    )
)


def tensor_proto(value: Any, dtype: DType) -> TensorProto:
    """An array, of NumPy or of jax, as a TensorProto. One value repeated (all its strides are 0) is written once.

    >>> tensor_proto(np.broadcast_to(np.float32(7), (3, 4)), tf.float32).float_val
    [7.0]
    """
    array, base = np.asarray(value), dtype.base_dtype
    proto = TensorProto(dtype=base.as_datatype_enum, tensor_shape=TensorShape.of(array.shape).as_proto())
    if array.size > 1:
        if not any(stride for stride, size in zip(array.strides, array.shape, strict=True) if size > 1):
            array = array[(0,) * array.ndim]
        elif base in _AS_CONTENT:
            proto.tensor_content = np.ascontiguousarray(array, _little_endian(array.dtype)).tobytes()
            return proto
    flat = np.asarray(array).reshape(-1)
    if base is dtypes.string:
        proto.string_val.extend(v.encode() if isinstance(v, str) else v for v in flat.tolist())
    elif base in _FLOAT8:
        proto.float8_val = flat.tobytes()
    else:
        if base not in _FIELDS:
            raise TypeError(f"A tensor of type {base.name} cannot be written as a TensorProto.")
        field, stored = _FIELDS[base]
        if base in _BITS or base.is_complex or base.is_quantized:
            flat = np.ascontiguousarray(flat).view(stored)
        else:
            flat = flat.astype(stored, copy=False)
        getattr(proto, field).extend(flat.tolist())
    return proto


def _little_endian(dtype: np.dtype) -> np.dtype:
    return dtype.newbyteorder("<")


def array_from_proto(proto: TensorProto) -> np.ndarray:
    """The array in a TensorProto; ValueError if it does not fit its own shape or is too large.

    Missing values repeat the last one, as TensorFlow's encoding allows; a single repeated value takes no memory.
    """
    dtype = _dtype_of(proto)
    dims = _dims_of(proto)
    size = math.prod(dims)
    item = 8 if dtype is dtypes.string else np.dtype(dtype.as_numpy_dtype).itemsize
    if size * item > MAX_TENSOR_BYTES:
        raise ValueError(f"A tensor of type {dtype.name} and shape {list(dims)} is over {MAX_TENSOR_BYTES} bytes.")
    if proto.tensor_content:
        if dtype is dtypes.string:
            raise ValueError("A tensor of strings cannot have tensor_content.")
        if len(proto.tensor_content) != size * item:
            raise ValueError(
                f"A tensor of type {dtype.name} and shape {list(dims)} takes {size * item} bytes, but its "
                f"tensor_content has {len(proto.tensor_content)}."
            )
        content = np.frombuffer(proto.tensor_content, _little_endian(np.dtype(dtype.as_numpy_dtype)))
        return content.astype(dtype.as_numpy_dtype).reshape(dims)
    values = _values(proto, dtype)
    if values.size > size and size > 0:
        raise ValueError(f"A tensor of shape {list(dims)} holds {size} values, received {values.size}.")
    if values.size == size:
        return values.reshape(dims)
    if values.size <= 1 or size == 0:
        single = values[-1] if values.size else b"" if dtype is dtypes.string else np.zeros((), values.dtype)[()]
        fill = np.empty((), values.dtype)
        fill[()] = single
        return np.broadcast_to(fill, dims)
    array = np.empty(size, values.dtype)
    array[: values.size] = values
    array[values.size :] = values[-1]
    return array.reshape(dims)


def _dtype_of(proto: TensorProto) -> DType:
    try:
        dtype = DType(proto.dtype)
    except TypeError as error:
        raise ValueError(f"A TensorProto has the unknown type {proto.dtype}.") from error
    if dtype._is_ref_dtype or (dtype not in _FIELDS and dtype not in _FLOAT8 and dtype is not dtypes.string):
        raise ValueError(f"A tensor of type {dtype.name} has no value that could be read from a TensorProto.")
    return dtype


def _dims_of(proto: TensorProto) -> tuple[int, ...]:
    # TensorFlow reads a missing shape as that of a scalar.
    dims = () if proto.tensor_shape.unknown_rank else tuple(d.size for d in proto.tensor_shape.dim)
    if len(dims) > MAX_RANK or any(d < 0 for d in dims):
        raise ValueError(f"Shape {list(dims[:8])} of a TensorProto is not that of a value.")
    return dims


def _values(proto: TensorProto, dtype: DType) -> np.ndarray:
    if dtype is dtypes.string:
        values = np.empty(len(proto.string_val), object)
        values[:] = list(proto.string_val)
        return values
    if dtype in _FLOAT8:
        return np.frombuffer(proto.float8_val, dtype.as_numpy_dtype)
    field, stored = _FIELDS[dtype]
    numbers = list(getattr(proto, field))
    if dtype.is_complex:
        pairs = np.array(numbers[: len(numbers) // 2 * 2], stored)
        return pairs.view(dtype.as_numpy_dtype)
    if stored is np.float32 or stored is np.float64:
        return np.array(numbers, stored)
    # int_val is wider than most types that it carries: values out of range wrap, as in TensorFlow.
    wide = np.array(numbers, np.uint64 if stored is np.uint64 else np.int64)
    narrow = wide.astype(stored)
    if dtype in _BITS or dtype.is_quantized:
        return narrow.view(dtype.as_numpy_dtype)
    return narrow.astype(dtype.as_numpy_dtype)


def make_tensor_proto(
    values: Any, dtype: Any = None, shape: Any = None, verify_shape: bool = False, allow_broadcast: bool = False
) -> TensorProto:
    """`values` as a TensorProto.

    >>> tf.make_tensor_proto([1.0, 2.0]).dtype
    1
    """
    if isinstance(values, TensorProto):
        return values
    wanted = None if dtype is None else as_dtype(dtype)
    array, found = array_of(values, wanted, None if verify_shape else shape)
    if verify_shape and shape is not None and tuple(as_shape(shape).as_list()) != array.shape:
        raise TypeError(f"Expected Tensor's shape: {as_shape(shape)}, got {array.shape}.")
    return tensor_proto(array, found)


def make_ndarray(tensor: TensorProto) -> np.ndarray:
    """The array in a TensorProto, as a new writable array.

    >>> tf.make_ndarray(tf.make_tensor_proto([1, 2]))
    array([1, 2], dtype=int32)
    """
    return np.array(array_from_proto(tensor))
