"""The codec turns messages of the step channel into frames of bytes and back. It reads and writes no socket.

A frame is a header of 16 bytes (magic, version, kind, sizes), the fields of the message with a table of its tensors,
and the tensors' bytes, each aligned to 64. Large tensors may stay outside, in memory that both sides share.

>>> buffers = encode(Tensors(step=7, keys=[0], values=[np.ones(3)]))
>>> decode_whole(b"".join(buffers)).values[0]
array([1., 1., 1.])
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import DataLossError, InvalidArgumentError, UnimplementedError
from penstock.graph import dtype as dt
from penstock.memory import ALIGNMENT, JoinedArrays
from penstock.wire.messages import (
    Cancel,
    Done,
    Failed,
    Free,
    GateClosed,
    GateIdle,
    GateOpen,
    Goodbye,
    Hello,
    Message,
    Ping,
    Pong,
    Region,
    Released,
    RunGraph,
    Tensors,
    Welcome,
)

MAGIC = b"PS"
VERSION = 9
MAX_META = 1 << 24  # bytes: fields and tensor table of one frame
MAX_PAYLOAD = 1 << 33  # bytes: tensors of one frame
MAX_RANK = 254
HEADER = struct.Struct("<2sBBIQ")  # magic, version, kind, bytes of meta, bytes of payload
# The table of tensors has words of 8 bytes: their number, then for each its key, its form (place, type and rank, as
# numbers of 8, 8 and more bits), its offset or region, its bytes, and its dimensions.
_WORD = 8
_INLINE, _SHARED, _STRINGS = range(3)
_ZEROS = bytes(ALIGNMENT)
_SMALL = 4096  # bytes: up to this size, copying an array costs less than one more buffer to write


# Fields with their struct codes. 's' and 'b' are a string and bytes, each after its length; '[s' and '[Q' are lists of
# strings and of numbers, each after its length. Tensors, and the regions of Released, follow the fields.
_LAYOUT: dict[type[Any], tuple[tuple[str, str], ...]] = {
    Hello: (("token", "b"), ("task", "s"), ("incarnation", "Q")),
    Welcome: (("task", "s"), ("incarnation", "Q")),
    Goodbye: (("code", "I"), ("message", "s")),
    RunGraph: (
        ("step", "Q"),
        ("handle", "Q"),
        ("timeout", "d"),
        ("trace", "?"),
        ("times", "I"),
        ("writer", "Q"),
        ("number", "Q"),
        ("settled", "Q"),
        ("ahead", "?"),
        ("begun", "Q"),
        ("fed", "I"),
    ),
    Tensors: (("step", "Q"),),
    Done: (("step", "Q"), ("ahead", "Q"), ("fetched", "I"), ("coming", "I"), ("trace", "b")),
    Failed: (("step", "Q"), ("code", "I"), ("op", "s"), ("message", "s")),
    Cancel: (("step", "Q"), ("code", "I"), ("message", "s")),
    Free: (("resources", "[s"), ("graphs", "[Q")),
    Ping: (),
    Pong: (),
    Region: (("region", "Q"), ("size", "Q")),
    Released: (),
    GateClosed: (("round", "I"),),
    GateIdle: (("round", "I"),),
    GateOpen: (("membership", "s"),),
}
_KINDS: tuple[type[Any], ...] = tuple(_LAYOUT)
_KIND_OF = {kind: i for i, kind in enumerate(_KINDS)}
_CARRIES_TENSORS = frozenset((RunGraph, Tensors, Done))
_U32 = struct.Struct("<I")


def _fixed(kind: type[Any]) -> list[tuple[str, str]]:
    """Returns the fields of a kind before the first that has a length of its own."""
    return list(itertools.takewhile(lambda field: field[1] not in ("s", "b", "[s", "[Q"), _LAYOUT[kind]))


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function that returns these attributes of a message."""
    return operator.attrgetter(*names) if len(names) > 1 else lambda message: tuple(getattr(message, n) for n in names)


_STRUCTS = {kind: struct.Struct("<" + "".join(code for _, code in _fixed(kind))) for kind in _KINDS}
_GETTERS = {kind: _getter([name for name, _ in _fixed(kind)]) for kind in _KINDS}
_OTHERS = {kind: _LAYOUT[kind][len(_fixed(kind)) :] for kind in _KINDS}
_COUNT = ("fed", "fetched", "coming")  # fields that say how many of the values are of a kind
_COUNTS = {kind: [i for i, (name, _) in enumerate(_LAYOUT[kind]) if name in _COUNT] for kind in _KINDS}

# Only these types travel. The keys are TensorFlow's numbers for them.
_NUMPY_OF = {
    t.as_datatype_enum: np.dtype(t.as_numpy_dtype)
    for t in (
        dt.float16,
        dt.float32,
        dt.float64,
        dt.bfloat16,
        dt.int8,
        dt.int16,
        dt.int32,
        dt.int64,
        dt.uint8,
        dt.uint16,
        dt.uint32,
        dt.uint64,
        dt.bool,
        dt.complex64,
        dt.complex128,
    )
}
_FORM_OF = {numpy: enum << 8 for enum, numpy in _NUMPY_OF.items()}  # of a tensor in the frame, without its rank
_STRING = dt.string.as_datatype_enum

_AS_THEY_ARE = (np.ndarray, JoinedArrays)  # all other values are made arrays

Share = Callable[[np.ndarray | JoinedArrays], int | None]
Shared = Callable[[int, int, np.dtype[Any], tuple[int, ...]], np.ndarray]


# Encoding


def encode(message: Message, share: Share | None = None) -> list[Any]:
    """Returns the buffers of a frame, in order. Tensors are not copied: they are read when the buffers are written.

    `share` may put a tensor into a region of shared memory; it returns the region, or None to leave it in the frame.
    """
    kind = message.__class__
    if kind is Released:  # all that follows the header are its regions
        regions = struct.pack(f"<{len(message.regions)}Q", *message.regions)  # type: ignore[union-attr]
        return [HEADER.pack(MAGIC, VERSION, _KIND_OF[kind], len(regions), 0) + regions]
    meta = bytearray(_STRUCTS[kind].pack(*_GETTERS[kind](message)))
    for name, code in _OTHERS[kind]:
        value = getattr(message, name)
        if code[0] == "[":
            meta += _U32.pack(len(value))
        for item in value if code[0] == "[" else (value,):
            _encode_field(item, code[-1], meta)
    payload: list[Any] = []
    size = 0
    if kind in _CARRIES_TENSORS:
        size = _encode_tensors(message, meta, payload, share)
    if len(meta) > MAX_META or size > MAX_PAYLOAD:
        raise InvalidArgumentError(
            f"A message of {len(meta)} + {size} bytes is too large to send: at most {MAX_META} + {MAX_PAYLOAD} bytes "
            "fit. Split the tensors, for instance with a partitioner."
        )
    head = HEADER.pack(MAGIC, VERSION, _KIND_OF[kind], len(meta), size)
    return [b"".join((head, meta, *payload))] if size <= 4 * _SMALL else [head + meta, *payload]


def _encode_field(value: Any, code: str, meta: bytearray) -> None:
    if code in "sb":
        # An error message must arrive even if parts of it are no UTF-8.
        text = value.encode(errors="backslashreplace") if code == "s" else value
        meta += _U32.pack(len(text)) + text
    else:
        meta += struct.pack("<" + code, value)


def _encode_tensors(message: Any, meta: bytearray, payload: list[Any], share: Share | None) -> int:
    offset = 0
    words = [len(message.values)]
    for key, value in zip(message.keys, message.values, strict=True):
        data = value if value.__class__ in _AS_THEY_ARE else np.asarray(value)
        shape, form = data.shape, _FORM_OF.get(data.dtype)
        if form is None:
            data, form = _converted(np.asarray(data))
        elif data.__class__ is np.ndarray and not data.flags.c_contiguous:
            data = np.ascontiguousarray(data)
        form |= len(shape) << 16
        nbytes = data.nbytes
        padding = -nbytes % ALIGNMENT
        if nbytes <= _SMALL:
            payload += (np.asarray(data).tobytes(), _ZEROS[:padding])
        else:
            region = share(data) if share is not None and not form & _STRINGS else None
            if region is not None:
                words += (key, form | _SHARED, region, nbytes, *shape)
                continue
            payload += (np.asarray(data).reshape(-1).view(np.uint8), _ZEROS[:padding])
        words += (key, form, offset, nbytes, *shape)
        offset += nbytes + padding
    meta += struct.pack(f"<{len(words)}Q", *words)
    return offset


def _converted(array: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns numbers in this machine's byte order, or strings as bytes, and their form."""
    form = _FORM_OF.get(array.dtype.newbyteorder("="))
    if form is None:
        return _strings(array), _STRINGS | _STRING << 8
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")), form


def _strings(array: np.ndarray) -> np.ndarray:
    """Returns strings as bytes: first all lengths, then all contents."""
    if array.dtype.kind not in "OSU":
        raise UnimplementedError(f"A tensor of type {array.dtype} cannot be sent to another task.")
    try:
        texts = [x.encode() if isinstance(x, str) else x for x in array.reshape(-1).tolist()]
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"A string cannot be sent to another task as UTF-8: {error}.") from error
    if not all(isinstance(x, bytes) for x in texts):
        kind = next(type(x).__name__ for x in texts if not isinstance(x, bytes))
        raise UnimplementedError(
            f"A tensor that holds a {kind} cannot be sent to another task: only numbers and strings can."
        )
    lengths = np.array([len(x) for x in texts], "<u8").tobytes()
    return np.frombuffer(lengths + b"".join(texts), np.uint8)


# Decoding


def decode_header(buffer: Any, at: int = 0) -> tuple[int, int, int]:
    """Returns kind, meta size and payload size from a frame's header. Raises DataLossError if it is no header."""
    magic, version, kind, meta, payload = HEADER.unpack_from(buffer, at)
    if magic != MAGIC:
        raise DataLossError(f"A frame begins with {magic!r}, not with {MAGIC!r}: the peer is no penstock.")
    if version != VERSION:
        raise DataLossError(f"A frame has version {version}; this penstock speaks {VERSION}.")
    if kind >= len(_KINDS):
        raise DataLossError(f"A frame has the unknown kind {kind}.")
    if meta > MAX_META or payload > MAX_PAYLOAD:
        raise DataLossError(f"A frame announces {meta} + {payload} bytes, more than is allowed.")
    if payload and _KINDS[kind] not in _CARRIES_TENSORS:
        raise DataLossError(f"A {_KINDS[kind].__name__} frame announces {payload} bytes of tensors.")
    return kind, meta, payload


def decode(kind: int, meta: Any, payload: Any = b"", shared: Shared | None = None) -> Message:
    """Returns the message of a frame whose header said `kind`. Raises DataLossError if its bytes are no such message.

    Tensors are views of `payload`, or the arrays that `shared(region, bytes, dtype, shape)` returns.
    """
    cls = _KINDS[kind]
    try:
        if cls is Released:
            return Released(struct.unpack(f"<{len(meta) // 8}Q", meta))
        fixed = _STRUCTS[cls]
        values, at = list(fixed.unpack_from(meta)), fixed.size
        if _OTHERS[cls]:
            others, at = _fields(_OTHERS[cls], meta, at)
            values += others
        if cls in _CARRIES_TENSORS:
            keys, tensors = _decode_tensors(meta[at:], payload, shared)
            at = len(meta)
            counted = sum([values[i] for i in _COUNTS[cls]])
            if counted > len(tensors):
                raise ValueError(f"it speaks of {counted} values, and has {len(tensors)}")
            values += [keys, tensors]
    except (struct.error, ValueError, OverflowError, UnicodeDecodeError) as error:
        raise DataLossError(f"A {cls.__name__} frame is malformed: {error}.") from error
    if at != len(meta):
        raise DataLossError(f"A {cls.__name__} frame has {len(meta) - at} bytes too many.")
    message: Message = cls(*values)
    return message


def _fields(fields: Sequence[tuple[str, str]], meta: Any, at: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    for _, code in fields:
        if code[0] == "[":
            (count,) = _U32.unpack_from(meta, at)
            at += _U32.size
            if count > len(meta) - at:  # each item takes some bytes
                raise ValueError(f"a list of {count} items where {len(meta) - at} bytes are left")
            items = []
            for _ in range(count):
                item, at = _field(code[1], meta, at)
                items.append(item)
            values.append(items)
        else:
            value, at = _field(code, meta, at)
            values.append(value)
    return values, at


def _field(code: str, meta: Any, at: int) -> tuple[Any, int]:
    """Returns a field, and where the next one begins."""
    if code not in "sb":
        return struct.unpack_from("<" + code, meta, at)[0], at + struct.calcsize("<" + code)
    (length,) = _U32.unpack_from(meta, at)
    at += _U32.size
    if length > len(meta) - at:
        raise ValueError(f"a string of {length} bytes where {len(meta) - at} are left")
    text = bytes(meta[at : at + length])
    return text.decode() if code == "s" else text, at + length


def _decode_tensors(table: Any, payload: Any, shared: Shared | None) -> tuple[list[int], list[Any]]:
    read = _read_table if len(table) <= _SMALL else _read_table.__wrapped__
    keys, entries, end = read(bytes(table))
    if end != len(payload):
        raise ValueError(f"{len(payload)} bytes of tensors, of which {end} are used")
    tensors: list[Any] = []
    for place, dtype, shape, elements, where, size in entries:
        if place == _INLINE:
            tensors.append(np.ndarray(shape, dtype, payload, where))
        elif place == _SHARED:
            if shared is None:
                raise ValueError("a tensor in shared memory, which this connection does not have")
            tensors.append(shared(where, size, dtype, shape))
        else:
            tensors.append(_decode_strings(payload[where : where + size], elements).reshape(shape))
    return list(keys), tensors


_Entry = tuple[int, Any, tuple[int, ...], int, int, int]  # place, type, shape, elements, offset or region, bytes


# Cached, since a step mostly sends the same tables as the one before.
@functools.lru_cache(1024)
def _read_table(table: bytes) -> tuple[tuple[int, ...], tuple[_Entry, ...], int]:
    """Returns the keys and entries of a table of tensors, and how many bytes of payload they take."""
    words = struct.unpack(f"<{len(table) // _WORD}Q", table)
    if not words:
        raise ValueError("no table of tensors")
    at = 1
    keys: list[int] = []
    entries: list[_Entry] = []
    end = 0  # of the last tensor in the payload. Tensors may not overlap, else a small frame could make large arrays
    for _ in range(words[0]):
        key, form, where, size = words[at : at + 4]
        place, enum, rank = form & 0xFF, form >> 8 & 0xFF, form >> 16
        at += 4 + rank
        shape = words[at - rank : at]
        if rank > MAX_RANK or len(shape) != rank:
            raise ValueError(f"a tensor of rank {rank}, with {len(shape)} dimensions")
        elements = math.prod(shape)
        if place != _SHARED:
            if where != end:
                raise ValueError(f"a tensor of {size} bytes at {where}, after {end}")
            end += size + -size % ALIGNMENT
        dtype = _NUMPY_OF.get(enum)
        if (place, enum) == (_STRINGS, _STRING):
            dtype = np.dtype(object)
        elif place not in (_INLINE, _SHARED) or dtype is None or elements * dtype.itemsize != size:
            raise ValueError(f"a tensor of type {enum} and shape {list(shape)[:8]} in {size} bytes, in place {place}")
        keys.append(key)
        entries.append((place, dtype, shape, elements, where, size))
    if at != len(words):
        raise ValueError(f"{len(words) - at} words too many")
    return tuple(keys), tuple(entries), end


def _decode_strings(data: Any, count: int) -> np.ndarray:
    if count * 8 > len(data):
        raise ValueError(f"{count} strings in {len(data)} bytes")
    lengths = np.frombuffer(data, "<u8", count).tolist()
    if count * 8 + sum(lengths) != len(data):
        raise ValueError(f"{count} strings of {sum(lengths)} bytes in {len(data)}")
    strings = np.empty(count, object)
    at = 8 * count
    for i, length in enumerate(lengths):
        strings[i] = bytes(data[at : at + length])
        at += length
    return strings


def decode_whole(frame: bytes) -> Message:
    """Decodes one whole frame."""
    if len(frame) < HEADER.size:
        raise DataLossError(f"A frame has at least {HEADER.size} bytes, received {len(frame)}.")
    kind, meta, payload = decode_header(frame)
    if len(frame) != HEADER.size + meta + payload:
        raise DataLossError(f"A frame of {HEADER.size} + {meta} + {payload} bytes has {len(frame)} bytes.")
    body = memoryview(frame)[HEADER.size :]
    return decode(kind, body[:meta], body[meta:])
