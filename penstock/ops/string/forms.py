"""Ops on single strings: numbers to text and back, letter case, length, parts, Base64, hash buckets."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import COMPLEX, FLOATS, INDEX, INTS
from penstock.ops.string import hashing

_PRINTABLE = Types(*FLOATS, *INTS, *COMPLEX, dt.bool, dt.variant, dt.string)
_PARSED = Types(dt.float32, dt.float64, dt.int32, dt.int64, dt.uint32, dt.uint64, default=dt.float32)


def invalid(message: str) -> InvalidArgumentError:
    """The error that a kernel raises for a bad value; the worker adds the node."""
    return InvalidArgumentError(message)


def texts(values: Sequence[bytes], shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Strings as the value of a tensor: an array of objects."""
    array = np.empty(len(values), object)
    array[:] = values
    return array if shape is None else array.reshape(shape)


def listed(array: Any) -> list[bytes]:
    """The strings of a tensor, in order."""
    flat: list[bytes] = np.asarray(array, object).reshape(-1).tolist()
    return flat


def each(function: Callable[[bytes], bytes], array: Any) -> np.ndarray:
    """Applies `function` to every string."""
    return texts([function(text) for text in listed(array)], np.shape(array))


def one_of(attr: str, *allowed: str) -> Callable[[Operation], list[TensorShape]]:
    """A shape rule for ops that keep the shape: the string attr must be one of `allowed`."""

    def rule(op: Operation) -> list[TensorShape]:
        require_one_of(op, attr, allowed)
        return shapes.unchanged(op)

    return rule


def require_one_of(op: Operation, attr: str, allowed: Sequence[str]) -> None:
    """Raises ValueError unless a string attr is one of `allowed`."""
    if op.attrs[attr] not in allowed:
        names = ", ".join(f'"{a}"' for a in allowed)
        raise ValueError(f"Attr '{attr}' of '{op.type}' Op passed string '{op.attrs[attr]}' not in: {names}")


def shown(text: bytes) -> str:
    """A string, shortened, for an error message."""
    return text[:100].decode("utf-8", "backslashreplace")


# Numbers and text


@op("AsString", "T -> output: string", host=True, no_gradient=True, shape=shapes.unchanged, T=_PRINTABLE)
def as_string(
    input: Any,
    *,
    T: DType,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
) -> Any:
    real = T.is_floating or T.is_complex
    if len(fill) > 1 or fill not in "0+- #":
        raise invalid(f"AsString: fill must be one of '0', '+', '-', ' ' and '#', received {fill!r}.")
    if scientific and shortest:
        raise invalid("AsString: scientific and shortest exclude each other.")
    if not real and (scientific or shortest):
        raise invalid(f"AsString: scientific and shortest are for floating-point numbers, received {T.name}.")
    if not real and precision > -1:
        raise invalid(f"AsString: precision is for floating-point numbers, received {T.name}.")
    form = "%" + (f"{fill}{width}" if width > -1 else "") + (f".{precision}" if precision > -1 else "")
    flat = np.asarray(input).reshape(-1)
    found: list[bytes]
    if T is dt.bool:
        found = [b"true" if v else b"false" for v in flat.tolist()]
    elif T is dt.string:
        found = [(form + "s").encode() % v for v in flat.tolist()]
    elif real:
        form += "e" if scientific else "g" if shortest else "f"
        if T.is_complex:
            found = [f"({form % v.real},{form % v.imag})".encode() for v in flat.tolist()]
        else:
            found = [(form % v).encode() for v in flat.astype(np.float64).tolist()]
    else:
        found = [(form + "d").encode() % v for v in flat.tolist()]
    return texts(found, np.shape(input))


_FLOAT = re.compile(rb"\s*[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|inf(inity)?|nan)\s*", re.IGNORECASE)
_HEX = re.compile(rb"\s*[-+]?0x([0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(p[-+]?\d+)?\s*", re.IGNORECASE)
_INT = re.compile(rb"\s*[-+]?\d+\s*")


def parse_number(text: bytes, dtype: DType) -> int | float | None:
    """The number in `text`, or None if it has no number of this type."""
    if dtype.is_floating:
        if _FLOAT.fullmatch(text):
            return float(text)
        return float.fromhex(text.decode().strip()) if _HEX.fullmatch(text) else None
    if len(text) > 64 or not _INT.fullmatch(text):
        return None
    value = int(text)
    return value if dtype.min <= value <= dtype.max else None


@op(
    "StringToNumber",
    "string -> output: out_type",
    host=True,
    no_gradient=True,
    shape=shapes.unchanged,
    out_type=_PARSED,
)
def string_to_number_op(string_tensor: Any, *, out_type: DType = dt.float32) -> Any:
    flat = listed(string_tensor)
    values = [parse_number(text, out_type) for text in flat]
    if None in values:
        text = shown(flat[values.index(None)])
        raise invalid(f"StringToNumberOp could not correctly convert string: {text}")
    with np.errstate(over="ignore"):  # a number that is too large for the type becomes infinite
        return (
            np.array(values, np.float64 if out_type.is_floating else out_type.as_numpy_dtype)
            .astype(out_type.as_numpy_dtype)
            .reshape(np.shape(string_tensor))
        )


def string_to_number(
    string_tensor: TensorLike = None,
    out_type: DTypeLike = dt.float32,
    name: str | None = None,
    input: TensorLike = None,
) -> Tensor:
    """Strings as numbers: `tf.string_to_number(["1.5", "-2"])`."""
    strings = string_tensor if input is None else input
    tensor: Tensor = string_to_number_op(strings, out_type=out_type, name=name)
    return tensor


# Letters


def _cased(array: Any, encoding: str, of_bytes: Callable[[bytes], bytes], of_text: Callable[[str], str]) -> np.ndarray:
    if encoding == "":
        return each(of_bytes, array)
    if encoding.lower() not in ("utf-8", "utf8"):
        raise invalid(f"Only the encodings '' (bytes) and 'utf-8' are known, received {encoding!r}.")
    return each(lambda text: of_text(text.decode("utf-8", "replace")).encode(), array)


@op("StringLower", "string -> output: string", host=True, no_gradient=True, shape=shapes.unchanged)
def lower(input: Any, *, encoding: str = "") -> Any:
    """Letters A to Z in lower case, or all letters with `encoding="utf-8"`: `tf.strings.lower(["Ab"])`."""
    return _cased(input, encoding, bytes.lower, str.lower)


@op("StringUpper", "string -> output: string", host=True, no_gradient=True, shape=shapes.unchanged)
def upper(input: Any, *, encoding: str = "") -> Any:
    """Letters a to z in upper case, or all letters with `encoding="utf-8"`: `tf.strings.upper(["Ab"])`."""
    return _cased(input, encoding, bytes.upper, str.upper)


@op("StringStrip", "string -> output: string", host=True, no_gradient=True, shape=shapes.unchanged)
def string_strip(input: Any) -> Any:
    """Strings without the white space at both ends: `tf.string_strip([" a "])`."""
    return each(bytes.strip, input)


# Length and parts

_UNITS = ("BYTE", "UTF8_CHAR")


def char_starts(text: bytes) -> list[int]:
    """The starts of the UTF-8 characters of `text`: all bytes except those that continue a character."""
    return [i for i, byte in enumerate(text) if byte & 0xC0 != 0x80]


@op("StringLength", "string -> output: int32", host=True, no_gradient=True, shape=one_of("unit", *_UNITS))
def string_length_op(input: Any, *, unit: str = "BYTE") -> Any:
    size = len if unit == "BYTE" else lambda text: len(char_starts(text))
    return np.array([size(text) for text in listed(input)], np.int32).reshape(np.shape(input))


def string_length(input: TensorLike, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """The lengths of strings, in bytes or UTF-8 characters: `tf.strings.length(["ab"], unit="UTF8_CHAR")`."""
    length: Tensor = string_length_op(input, unit=unit, name=name)
    return length


def _substr_shape(op: Operation) -> list[TensorShape]:
    require_one_of(op, "unit", _UNITS)
    strings, pos, size = (t.shape for t in op.input_list)
    if pos.rank is not None and size.rank is not None and pos.rank != size.rank:
        raise ValueError(f"Shape must be rank {size.rank} but is rank {pos.rank}")
    if strings.rank is None or pos.rank is None:
        return [TensorShape.of(None)]
    return [shapes.broadcast_pair(strings, shapes.merge(pos, size))]


@op("Substr", "string, T, T -> output: string", host=True, no_gradient=True, shape=_substr_shape, T=INDEX)
def substr_op(input: Any, pos: Any, len: Any, *, unit: str = "BYTE") -> Any:
    if np.shape(pos) != np.shape(len):
        raise invalid(f"Substr: pos and len must have one shape, received {np.shape(pos)} and {np.shape(len)}.")
    try:
        strings, starts, sizes = np.broadcast_arrays(np.asarray(input, object), pos, len)
    except ValueError as error:
        raise invalid(
            f"Substr: strings of shape {np.shape(input)} and pos of shape {np.shape(pos)} do not broadcast."
        ) from error
    cut = _part_of_bytes if unit == "BYTE" else _part_of_chars
    parts = zip(listed(strings), starts.reshape(-1).tolist(), sizes.reshape(-1).tolist(), strict=True)
    return texts([cut(text, start, size) for text, start, size in parts], strings.shape)


def _part_of_bytes(text: bytes, start: int, size: int) -> bytes:
    begin, end = _part(text, len(text), start, size)
    return text[begin:end]


def _part_of_chars(text: bytes, start: int, size: int) -> bytes:
    starts = char_starts(text)
    begin, end = _part(text, len(starts), start, size)
    starts.append(len(text))
    return text[starts[begin] : starts[end]]


def _part(text: bytes, length: int, start: int, size: int) -> tuple[int, int]:
    if not -length <= start <= length:
        raise invalid(f"pos {start} out of range for string '{shown(text)}' of length {length}")
    begin = start + length if start < 0 else start
    return begin, length if size < 0 else min(begin + size, length)


def substr(input: TensorLike, pos: TensorLike, len: TensorLike, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """`len` bytes or characters from `pos` on, from the end if `pos` is negative: `tf.substr(["hello"], 1, 3)`."""
    part: Tensor = substr_op(input, pos, len, unit=unit, name=name)
    return part


# Base64


@op("EncodeBase64", "string -> output: string", host=True, no_gradient=True, shape=shapes.unchanged)
def encode_base64(input: Any, *, pad: bool = False) -> Any:
    """Bytes as web-safe Base64: `tf.encode_base64(["hello"], pad=True)`."""
    return each(
        lambda text: base64.urlsafe_b64encode(text) if pad else base64.urlsafe_b64encode(text).rstrip(b"="), input
    )


_BASE64 = re.compile(rb"([-_0-9A-Za-z]{4})*([-_0-9A-Za-z]{2}(==)?|[-_0-9A-Za-z]{3}=?)?")


@op("DecodeBase64", "string -> output: string", host=True, no_gradient=True, shape=shapes.unchanged)
def decode_base64(input: Any) -> Any:
    """The bytes that web-safe Base64 stands for: `tf.decode_base64(["aGVsbG8"])`."""
    return each(_from_base64, input)


def _from_base64(text: bytes) -> bytes:
    if not _BASE64.fullmatch(text):
        raise invalid(f"DecodeBase64: '{shown(text)}' is not web-safe Base64.")
    bare = text.rstrip(b"=")
    return base64.urlsafe_b64decode(bare + b"=" * (-len(bare) % 4))


# Hash buckets


def _buckets_shape(op: Operation) -> list[TensorShape]:
    if op.attrs["num_buckets"] < 1:
        raise ValueError(f"Attr 'num_buckets' of '{op.type}' Op passed {op.attrs['num_buckets']} less than minimum 1")
    return shapes.unchanged(op)


def _buckets(hashes: np.ndarray, count: int, like: Any) -> np.ndarray:
    return (hashes % np.uint64(count)).astype(np.int64).reshape(np.shape(like))


@op("StringToHashBucketFast", "string -> output: int64", host=True, no_gradient=True, shape=_buckets_shape)
def string_to_hash_bucket_fast(input: Any, *, num_buckets: int) -> Any:
    """A number below `num_buckets` for each string: `tf.string_to_hash_bucket_fast(["a", "b"], 100)`."""
    return _buckets(hashing.fingerprint64(listed(input)), num_buckets, input)


@op("StringToHashBucketStrong", "string -> output: int64", host=True, no_gradient=True, shape=_buckets_shape)
def string_to_hash_bucket_strong(input: Any, *, num_buckets: int, key: list[int]) -> Any:
    """As `string_to_hash_bucket_fast`, but strings for a chosen bucket cannot be found without the secret key.

    >>> tf.string_to_hash_bucket_strong(["a", "b"], 100, [17, 42])
    """
    if len(key) != 2:
        raise invalid(f"StringToHashBucketStrong: key must have two numbers, received {len(key)}.")
    return _buckets(hashing.siphash(listed(input), key), num_buckets, input)


@op("StringToHashBucket", "string -> output: int64", host=True, no_gradient=True, shape=_buckets_shape)
def string_to_hash_bucket_op(string_tensor: Any, *, num_buckets: int) -> Any:
    return _buckets(hashing.murmur64(listed(string_tensor)), num_buckets, string_tensor)


def string_to_hash_bucket(
    string_tensor: TensorLike = None, num_buckets: int | None = None, name: str | None = None, input: TensorLike = None
) -> Tensor:
    """As `string_to_hash_bucket_fast`, by an older and slower hash."""
    strings = string_tensor if input is None else input
    buckets: Tensor = string_to_hash_bucket_op(strings, num_buckets=num_buckets, name=name)
    return buckets


def _fingerprint_shape(op: Operation) -> list[TensorShape]:
    shape = op.input_list[0].shape
    if shape.rank == 0:
        raise ValueError("Shape must be at least rank 1 but is rank 0")
    return [TensorShape.of((None if shape.rank is None else shape.as_list()[0], 8))]


@op("Fingerprint", "T, string -> fingerprint: uint8", host=True, no_gradient=True, shape=_fingerprint_shape)
def fingerprint_op(data: Any, method: Any) -> Any:
    if listed(method) != [b"farmhash64"]:
        raise invalid(f"Fingerprint: the only method is 'farmhash64', received {listed(method)}.")
    array = np.asarray(data)
    if array.ndim == 0:
        raise invalid("Fingerprint: data must have at least one dimension, received a scalar.")
    rows = array.reshape(len(array), -1)
    if array.dtype != object:
        hashes = hashing.fingerprint64([row.tobytes() for row in rows])
    elif array.ndim == 1:
        hashes = hashing.fingerprint64(listed(array))
    else:  # the fingerprints of a row's strings are hashed again
        single = hashing.fingerprint64(listed(array)).astype("<u8").reshape(rows.shape)
        hashes = hashing.fingerprint64([row.tobytes() for row in single])
    return hashes.astype("<u8").view(np.uint8).reshape(len(array), 8)


def fingerprint(data: TensorLike, method: str = "farmhash64", name: str | None = None) -> Tensor:
    """Eight bytes that tell each row of `data` from others: `tf.fingerprint([b"a", b"b"])`."""
    found: Tensor = fingerprint_op(data, method, name=name)
    return found
