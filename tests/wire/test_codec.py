"""Messages arrive unchanged; bytes that are no message are refused, at no more than their own cost."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.errors import DataLossError, InvalidArgumentError, UnimplementedError
from penstock.wire import codec
from penstock.wire.codec import ALIGNMENT, HEADER, decode, decode_header, decode_whole, encode
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
    Ping,
    Pong,
    Region,
    Released,
    RunGraph,
    Tensors,
    Welcome,
)

relaxed = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))

DTYPES = [
    np.dtype(t)
    for t in (
        "f2",
        "f4",
        "f8",
        ml_dtypes.bfloat16,
        "i1",
        "i2",
        "i4",
        "i8",
        "u1",
        "u2",
        "u4",
        "u8",
        "?",
        "c8",
        "c16",
        "O",
    )
]


def frame(message: Any) -> bytes:
    return b"".join(bytes(memoryview(buffer)) for buffer in encode(message))


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """True if two messages are equal bit by bit, including NaNs."""
    if a.dtype == object or b.dtype == object:
        return a.shape == b.shape and a.tolist() == b.tolist()
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    for name in type(a).__slots__:
        x, y = getattr(a, name), getattr(b, name)
        if name == "values":
            if not all(same(np.asarray(i), j) for i, j in zip(x, y, strict=True)):
                return False
        elif name in ("keys", "regions"):
            if list(x) != list(y):
                return False
        elif x != y and not (x != x and y != y):
            return False
    return True


# Messages arrive


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    size = int(np.prod(shape))
    if dtype.kind == "O":
        array = np.empty(shape, object)
        for index in np.ndindex(*shape):
            array[index] = draw(st.binary(max_size=20))
    else:
        content = draw(st.randoms(use_true_random=False)).randbytes(size * dtype.itemsize)
        if dtype.kind == "b":
            content = bytes(b & 1 for b in content)
        array = np.frombuffer(content, dtype).reshape(shape)
    if draw(st.booleans()):
        array = array.T
    if array.ndim and draw(st.booleans()):
        array = array[::-1]
    return array


U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=50)
SOME = st.lists(st.tuples(U64, tensors()), max_size=5)
CARRIED = {
    RunGraph: st.builds(
        dict,
        step=U64,
        handle=U64,
        timeout=st.floats(),
        trace=st.booleans(),
        times=U32,
        writer=U64,
        number=U64,
        settled=U64,
        ahead=st.booleans(),
        begun=U64,
    ),
    Tensors: st.builds(dict, step=U64),
    Done: st.builds(dict, step=U64, ahead=U64, trace=st.binary(max_size=100)),
}
PLAIN = {
    Hello: st.tuples(st.binary(max_size=80), TEXT, U64),
    Welcome: st.tuples(TEXT, U64),
    Goodbye: st.tuples(U32, TEXT),
    Failed: st.tuples(U64, U32, TEXT, TEXT),
    Cancel: st.tuples(U64, U32, TEXT),
    Free: st.tuples(st.lists(TEXT, max_size=10), st.lists(U64, max_size=10)),
    GateClosed: st.tuples(U32),
    GateIdle: st.tuples(U32),
    GateOpen: st.tuples(TEXT),
    Ping: st.just(()),
    Pong: st.just(()),
    Region: st.tuples(U64, U64),
    Released: st.tuples(st.lists(U64, max_size=20)),
}


def carrying(kind: type[Any], fields: dict[str, Any], some: list[tuple[int, np.ndarray]], count: int) -> Any:
    """A message with tensors; the first `count` are fed or fetched, and the others of a Done are for the next step."""
    counts = {RunGraph: ("fed",), Done: ("fetched", "coming"), Tensors: ()}[kind]
    several = dict(zip(counts, (min(count, len(some)), max(0, len(some) - count)), strict=False))
    return kind(**fields, **several, keys=[k for k, _ in some], values=[v for _, v in some])


MESSAGES = st.one_of(
    *(fields.map(lambda values, kind=kind: kind(*values)) for kind, fields in PLAIN.items()),
    *(
        st.tuples(fields, SOME, st.integers(0, 5)).map(lambda x, kind=kind: carrying(kind, *x))
        for kind, fields in CARRIED.items()
    ),
)


def test_all_kinds_are_tried() -> None:
    assert {*PLAIN, *CARRIED} == set(codec._KINDS)


@relaxed
@given(MESSAGES)
def test_round_trip(message: Any) -> None:
    assert equal(message, decode_whole(frame(message)))


@relaxed
@given(SOME)
def test_tensors_are_aligned(some: list[tuple[int, np.ndarray]]) -> None:
    """Each starts at a multiple of 64 in the payload, so that XLA can use it without a copy."""
    sent = frame(Tensors(1, [k for k, _ in some], [v for _, v in some]))
    kind, meta, payload = decode_header(sent)
    memory = np.zeros(payload + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    aligned = memory[start : start + payload]
    aligned[:] = np.frombuffer(sent[HEADER.size + meta :], np.uint8)
    message = decode(kind, sent[HEADER.size : HEADER.size + meta], memoryview(aligned))
    assert isinstance(message, Tensors)
    for value in message.values:
        if value.size and value.dtype != object:
            assert value.ctypes.data % ALIGNMENT == 0
            assert np.shares_memory(value, memory)  # it is not copied


SPECIAL = {
    "big-endian": (np.arange(3, dtype=">f4"), np.arange(3, dtype="f4")),
    "big-endian integers": (np.arange(3, dtype=">i8"), np.arange(3, dtype="i8")),
    "a Python number": (3, np.asarray(3)),
    "text": ("ä", np.asarray("ä".encode(), object)),
    "an array of text": (np.array(["a", "ßß"]), np.array([b"a", "ßß".encode()], object)),
    "an array of bytes": (np.array([b"a", b"bb"]), np.array([b"a", b"bb"], object)),
    "zeros in strings": (np.array([b"\0a\0"], object), np.array([b"\0a\0"], object)),
    "a broadcast array": (np.broadcast_to(np.float32(2), (3, 4)), np.full((3, 4), 2, "f4")),
    "an empty array of strings": (np.empty((0, 3), object), np.empty((0, 3), object)),
    "many dimensions": (np.ones((1,) * 64, "i1"), np.ones((1,) * 64, "i1")),
    "a large empty shape": (np.empty((2**40, 0), "f4"), np.empty((2**40, 0), "f4")),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_values_as_they_arrive(name: str) -> None:
    sent, expected = SPECIAL[name]
    message = decode_whole(frame(Tensors(1, [0], [sent])))
    assert isinstance(message, Tensors)
    assert same(message.values[0], expected)


def test_an_error_with_any_text_gets_home() -> None:
    message = decode_whole(frame(Failed(1, 5, "op", "no such file: \udcff.txt")))
    assert message == Failed(1, 5, "op", "no such file: \\udcff.txt")


UNSENDABLE = {
    "an object": (np.array([object()], object), UnimplementedError),
    "a number among strings": (np.array([b"a", 3], object), UnimplementedError),
    "a date": (np.array(["2020-01-01"], "M8[D]"), UnimplementedError),
    "a record": (np.zeros(2, "i4,f4"), UnimplementedError),
    "text that is no Unicode": (np.array(["\ud800"], object), InvalidArgumentError),
}


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_cannot_travel(name: str) -> None:
    value, error = UNSENDABLE[name]
    with pytest.raises(error):
        encode(Tensors(1, [0], [value]))


def test_too_much_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_PAYLOAD", 1000)
    monkeypatch.setattr(codec, "MAX_META", 1000)
    with pytest.raises(InvalidArgumentError, match="Split the tensors"):
        encode(Tensors(1, [0], [np.zeros(2000, np.uint8)]))
    with pytest.raises(InvalidArgumentError, match="too large"):
        encode(Tensors(1, range(100), [np.zeros(0)] * 100))


# Bytes that are no message are refused


def refused_or_read(content: bytes) -> None:
    """Reads bytes: the result must be a message or a DataLossError, without more memory than their size."""
    tracemalloc.start()
    try:
        decode_whole(content)
    except DataLossError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # As a Python object, a short string or a tensor's entry takes several times its bytes.
    assert peak < 64 * len(content) + 100_000


@relaxed
@given(st.binary(max_size=300), st.integers(0, len(codec._KINDS) - 1))
def test_any_bytes(content: bytes, kind: int) -> None:
    refused_or_read(content)
    refused_or_read(HEADER.pack(codec.MAGIC, codec.VERSION, kind, len(content), 0) + content)


@relaxed
@given(MESSAGES, st.floats(0, 1, exclude_max=True))
def test_truncated(message: Any, part: float) -> None:
    content = frame(message)
    with pytest.raises(DataLossError):
        decode_whole(content[: int(part * len(content))])


@relaxed
@given(MESSAGES, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed(message: Any, changes: list[tuple[float, int]]) -> None:
    content = bytearray(frame(message))
    for where, value in changes:
        content[int(where * len(content))] = value
    refused_or_read(bytes(content))


@relaxed
@given(MESSAGES, st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_duplicated(message: Any, first: float, last: float, honest: bool) -> None:
    content = frame(message)
    start, end = sorted((int(first * len(content)), int(last * len(content))))
    longer = content[:end] + content[start:]
    if honest and len(longer) > HEADER.size:  # with a header that says how long it is
        magic, version, kind, meta, _ = HEADER.unpack_from(longer)
        meta = min(meta, len(longer) - HEADER.size)
        longer = HEADER.pack(magic, version, kind, meta, len(longer) - HEADER.size - meta) + longer[HEADER.size :]
    if end > start and not honest:
        with pytest.raises(DataLossError):
            decode_whole(longer)
    refused_or_read(longer)


def tensor_frame(*entries: bytes, payload: bytes = b"", count: int | None = None) -> bytes:
    meta = struct.pack("<QQ", 1, len(entries) if count is None else count) + b"".join(entries)
    kind = codec._KIND_OF[Tensors]
    return HEADER.pack(codec.MAGIC, codec.VERSION, kind, len(meta), len(payload)) + meta + payload


def entry(place: int, enum: int, shape: tuple[int, ...], where: int, size: int, rank: int | None = None) -> bytes:
    form = place | enum << 8 | (len(shape) if rank is None else rank) << 16
    return struct.pack(f"<{4 + len(shape)}Q", 0, form, where, size, *shape)


F4, STRING, HUGE = 1, 7, 2**64 - 1
INLINE, SHARED, STRINGS = range(3)
FOUR = bytes(range(64))
HOSTILE = {
    "wrong magic": b"HT" + frame(Ping())[2:],
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "wrong version": HEADER.pack(codec.MAGIC, codec.VERSION + 1, 0, 0, 0),
    "unknown kind": HEADER.pack(codec.MAGIC, codec.VERSION, len(codec._KINDS), 0, 0),
    "huge meta": HEADER.pack(codec.MAGIC, codec.VERSION, codec._KIND_OF[Tensors], 2**32 - 1, 0),
    "huge payload": HEADER.pack(codec.MAGIC, codec.VERSION, codec._KIND_OF[Tensors], 12, HUGE) + bytes(12),
    "payload of a Ping": HEADER.pack(codec.MAGIC, codec.VERSION, codec._KIND_OF[Ping], 0, 64) + FOUR,
    "no table of tensors": HEADER.pack(codec.MAGIC, codec.VERSION, codec._KIND_OF[Tensors], 8, 0) + bytes(8),
    "a part of a word": HEADER.pack(codec.MAGIC, codec.VERSION, codec._KIND_OF[Tensors], 17, 0) + bytes(17),
    "many tensors": tensor_frame(count=HUGE),
    "more fed than there is": frame(RunGraph(1, 2, fed=1)),
    "more fetched than there is": frame(Done(1, fetched=2, keys=[0], values=[np.ones(1)])),
    "more for the next step than there is": frame(Done(1, fetched=1, coming=1, keys=[0], values=[np.ones(1)])),
    "rank beyond the bytes": tensor_frame(entry(INLINE, F4, (), 0, 4, rank=254), payload=FOUR),
    "rank 255": tensor_frame(entry(INLINE, F4, (1,) * 255, 0, 4), payload=FOUR),
    "more dimensions than NumPy has": tensor_frame(entry(INLINE, F4, (1,) * 200, 0, 4), payload=FOUR),
    "huge dimension": tensor_frame(entry(INLINE, F4, (HUGE,), 0, 4), payload=FOUR),
    "huge dimensions": tensor_frame(entry(INLINE, F4, (HUGE,) * 200, 0, 4), payload=FOUR),
    "huge and empty": tensor_frame(entry(INLINE, F4, (HUGE, 0), 0, 0)),
    "dimensions that overflow to 4": tensor_frame(entry(INLINE, F4, (2**63, 2, 1), 0, 4), payload=FOUR),
    "past the end": tensor_frame(entry(INLINE, F4, (17,), 0, 68), payload=FOUR),
    "offset past the end": tensor_frame(entry(INLINE, F4, (1,), HUGE, 4), payload=FOUR),
    "size past the end": tensor_frame(entry(INLINE, F4, (1,), 0, HUGE), payload=FOUR),
    "not aligned": tensor_frame(entry(INLINE, F4, (1,), 2, 4), payload=FOUR),
    "wrong size": tensor_frame(entry(INLINE, F4, (2,), 0, 4), payload=FOUR),
    "unknown type": tensor_frame(entry(INLINE, 99, (1,), 0, 4), payload=FOUR),
    "strings inline": tensor_frame(entry(INLINE, STRING, (1,), 0, 8), payload=FOUR),
    "numbers as strings": tensor_frame(entry(STRINGS, F4, (0,), 0, 0)),
    "unknown place": tensor_frame(entry(9, F4, (1,), 0, 4), payload=FOUR),
    "unused payload": tensor_frame(entry(INLINE, F4, (1,), 0, 4), payload=FOUR * 2),
    "no tensors but bytes": tensor_frame(payload=FOUR),
    "shared memory that is not there": tensor_frame(entry(SHARED, F4, (1,), 0, 4)),
    "long strings": tensor_frame(entry(STRINGS, STRING, (1,), 0, 64), payload=struct.pack("<Q", HUGE) + bytes(56)),
    "many strings": tensor_frame(entry(STRINGS, STRING, (HUGE,), 0, 64), payload=FOUR),
    "one payload as many tensors": tensor_frame(
        *[entry(STRINGS, STRING, (1,), 0, 1 << 16)] * 1000, payload=struct.pack("<Q", 65528) + bytes(65528)
    ),
    "a part of a region's number": HEADER.pack(codec.MAGIC, codec.VERSION, codec._KIND_OF[Released], 7, 0) + bytes(7),
    "a list longer than the frame": HEADER.pack(codec.MAGIC, codec.VERSION, codec._KIND_OF[Free], 8, 0)
    + struct.pack("<II", 2**32 - 1, 0),
    "text that is no UTF-8": HEADER.pack(codec.MAGIC, codec.VERSION, codec._KIND_OF[Welcome], 14, 0)
    + struct.pack("<I", 2)
    + b"\xff\xff"
    + bytes(8),
    "text longer than the frame": HEADER.pack(codec.MAGIC, codec.VERSION, codec._KIND_OF[Welcome], 14, 0)
    + struct.pack("<I", 2**32 - 1)
    + bytes(10),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str) -> None:
    with pytest.raises(DataLossError):
        decode_whole(HOSTILE[name])
    refused_or_read(HOSTILE[name])
