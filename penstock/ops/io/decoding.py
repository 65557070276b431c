"""Ops that decode strings of bytes: raw numbers, compressed data, serialized messages."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.tensor_pb2 import TensorProto

from penstock.errors import DataLossError, InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.tensor_proto import array_from_proto
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import COMPLEX, FLOATS
from penstock.ops.io.example_proto import Example
from penstock.ops.string.forms import each, invalid, listed, shown, texts

bytes_ = bytes  # some functions have a parameter of that name
_RAW = Types(*FLOATS, *COMPLEX, dt.int8, dt.int16, dt.int32, dt.int64, dt.uint8, dt.uint16, dt.bool)


def _one_more(op: Operation) -> list[TensorShape]:
    return [op.input_list[0].shape.concatenate([None])]


@op("DecodeRaw", "string -> output: out_type", host=True, no_gradient=True, shape=_one_more, out_type=_RAW)
def decode_raw_op(bytes: Any, *, out_type: DType, little_endian: bool = True) -> Any:
    texts = np.asarray(bytes, object)
    flat = texts.reshape(-1).tolist()
    sizes = {len(text) for text in flat}
    if len(sizes) > 1:
        raise InvalidArgumentError(
            f"DecodeRaw requires input strings to all be the same size, received sizes {sorted(sizes)}"
        )
    size = sizes.pop() if sizes else 0
    wanted = np.dtype(out_type.as_numpy_dtype)
    if size % wanted.itemsize:
        raise InvalidArgumentError(
            f"Input to DecodeRaw has length {size} that is not a multiple of {wanted.itemsize}, the size of "
            f"{out_type.name}"
        )
    values = np.frombuffer(b"".join(flat), wanted).reshape(*texts.shape, size // wanted.itemsize)
    return values.copy() if little_endian else values.byteswap()


def decode_raw(
    input_bytes: TensorLike = None,
    out_type: DTypeLike | None = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: TensorLike = None,
) -> Tensor:
    """The bytes of strings of one length as numbers, along a new last dimension.

    >>> tf.decode_raw(["ab"], tf.uint8)  # [[97, 98]]
    """
    if input_bytes is None:
        input_bytes = bytes
    tensor: Tensor = decode_raw_op(input_bytes, out_type=out_type, little_endian=little_endian, name=name)
    return tensor


# Compressed strings

_MAX_DECOMPRESSED = 2**31


@op("DecodeCompressed", "string -> output: string", host=True, no_gradient=True, shape=shapes.unchanged)
def decode_compressed(bytes: Any, *, compression_type: str = "") -> Any:
    """Strings that were compressed by `"GZIP"` or `"ZLIB"`: `tf.decode_compressed(x, "GZIP")`."""
    windows = {"ZLIB": zlib.MAX_WBITS, "GZIP": 16 + zlib.MAX_WBITS}
    if compression_type == "":
        return np.asarray(bytes, object)
    if compression_type not in windows:
        raise invalid(f"Only ZLIB, GZIP or NONE are supported compressions, received {compression_type!r}.")
    return each(lambda text: _decompressed(text, windows[compression_type]), bytes)


def _decompressed(text: bytes_, window: int) -> bytes_:
    stream = zlib.decompressobj(window)
    try:
        found = stream.decompress(text, _MAX_DECOMPRESSED)
    except zlib.error as error:
        raise DataLossError(f"DecodeCompressed: the data is damaged: {error}") from error
    if stream.unconsumed_tail:
        raise invalid(f"DecodeCompressed: a string is over {_MAX_DECOMPRESSED} bytes once it is decompressed.")
    if not stream.eof:
        raise DataLossError("DecodeCompressed: the data ends too early.")
    return found


# Messages


@op("DecodeJSONExample", "string -> binary_examples: string", host=True, no_gradient=True, shape=shapes.unchanged)
def decode_json_example_op(json_examples: Any) -> Any:
    def decoded(text: bytes_) -> bytes_:
        try:
            found: bytes_ = json_format.Parse(text, Example()).SerializeToString(deterministic=True)
        except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(f"Error while parsing JSON: {error}") from error
        return found

    return each(decoded, json_examples)


def decode_json_example(json_examples: TensorLike, name: str | None = None) -> Tensor:
    """`tf.train.Example`s written as JSON, as serialized messages."""
    found: Tensor = decode_json_example_op(json_examples, name=name)
    return found


@op("SerializeTensor", "T -> serialized: string", host=True, no_gradient=True, shape=shapes.scalar)
def serialize_tensor_op(tensor: Any, *, T: DType) -> Any:
    return texts([serialized(np.asarray(tensor), T)], ())


def serialized(array: np.ndarray, dtype: DType) -> bytes_:
    """An array as the bytes of a TensorProto, numbers as their memory."""
    shape = TensorShape.of(array.shape).as_proto()
    message = TensorProto(dtype=dtype.as_datatype_enum, tensor_shape=shape)
    if dtype is dt.string:
        message.string_val.extend(array.reshape(-1).tolist())
    else:
        message.tensor_content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    found: bytes_ = message.SerializeToString()
    return found


def deserialized(text: bytes_, dtype: DType, what: str = "serialized") -> np.ndarray:
    """The array in the bytes of a TensorProto, which must be of this type."""
    try:
        message = TensorProto.FromString(text)
    except DecodeError as error:
        raise invalid(f"Could not parse `{what}` as TensorProto: '{shown(text)}'") from error
    if message.dtype != dtype.as_datatype_enum:
        raise invalid(f"Type mismatch between parsed tensor ({_type_name(message.dtype)}) and dtype ({dtype.name})")
    try:
        return np.array(array_from_proto(message))
    except ValueError as error:
        raise invalid(f"`{what}` is not a valid TensorProto: {error}") from error


def _type_name(number: int) -> str:
    try:
        return DType(number).name
    except TypeError:
        return str(number)


def serialize_tensor(tensor: TensorLike, name: str | None = None) -> Tensor:
    """A tensor as the bytes of a TensorProto: `tf.io.serialize_tensor([1.0])`."""
    found: Tensor = serialize_tensor_op(tensor, name=name)
    return found


@op("ParseTensor", "string -> output: out_type", host=True, no_gradient=True, shape=shapes.unknown)
def parse_tensor(serialized: Any, *, out_type: DType) -> Any:
    """The tensor in the bytes of a TensorProto: `tf.io.parse_tensor(x, tf.float32)`."""
    if np.ndim(serialized):
        raise invalid(f"Expected `serialized` to be a scalar, got shape: {list(np.shape(serialized))}")
    return deserialized(listed(serialized)[0], out_type)
