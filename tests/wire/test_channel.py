"""The contract of channels, over every transport: messages arrive in order, and an end is noticed."""

from __future__ import annotations

import array
import fcntl
import logging
import os
import queue
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from leaks import leak_check

from penstock.errors import (
    ABORTED,
    PERMISSION_DENIED,
    AbortedError,
    InternalError,
    OpError,
    UnavailableError,
    UnimplementedError,
)
from penstock.wire import codec, shared_memory
from penstock.wire.channel import _MANY_RELEASED, Channel
from penstock.wire.codec import HEADER, encode
from penstock.wire.credentials import Credentials, create_credentials
from penstock.wire.loop import Loop
from penstock.wire.messages import Cancel, Done, Ping, Region, Released, Tensors
from penstock.wire.shared_memory import LARGE, SMALLEST, YOURS
from penstock.wire.stream import Stream, TlsStream

TRANSPORTS = ["tcp", "unix", "tls"]
DEADLINE = 60.0
MB = 1 << 20

Pair = Callable[[], tuple["Peer", "Peer"]]
Half = Callable[[], tuple["Peer", Stream]]


class Peer:
    """One end of a channel: the messages received, and the reason of its end."""

    def __init__(self, stream: Stream, name: str) -> None:
        self.channel = Channel(stream, name)
        self.received: queue.Queue[Any] = queue.Queue()
        self.ended = threading.Event()
        self.reasons: list[OpError] = []
        self.handle: Callable[[Any], None] = self.received.put

    def start(self) -> Peer:
        self.channel.start(lambda channel, message: self.handle(message), self._on_close, Loop())
        return self

    def _on_close(self, channel: Channel, reason: OpError) -> None:
        self.reasons.append(reason)
        self.ended.set()

    def stop(self) -> None:
        self.channel.close()
        self.channel.join(DEADLINE)
        self.received = queue.Queue()  # arrays hold shared memory
        self.handle = lambda message: None

    def get(self) -> Any:
        return self.received.get(timeout=DEADLINE)

    def end(self) -> OpError:
        """The reason of the end, which is reported once."""
        assert self.ended.wait(DEADLINE)
        assert len(self.reasons) == 1
        return self.reasons[0]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with leak_check():
        yield


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return create_credentials(tmp_path_factory.mktemp("job") / "credentials")


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def streams(transport: str, credentials: Credentials) -> tuple[Stream, Stream]:
    """Two ends of a connection."""
    if transport == "unix":
        one, other = socket.socketpair(socket.AF_UNIX)
        return Stream(one), Stream(other)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    if transport == "tcp":
        return Stream(one), Stream(other)
    found: list[Stream] = []
    server = threading.Thread(target=lambda: found.append(TlsStream(other, credentials.server_context(), True)))
    server.start()
    client = TlsStream(one, credentials.client_context(), False)
    server.join()
    return client, found[0]


@pytest.fixture
def pair(transport: str, credentials: Credentials) -> Iterator[Pair]:
    """Makes two channels that are connected."""
    made: list[Peer] = []

    def make() -> tuple[Peer, Peer]:
        one, other = streams(transport, credentials)
        made.extend((Peer(one, "other").start(), Peer(other, "one").start()))
        return made[-2], made[-1]

    yield make
    while made:
        made.pop().stop()


@pytest.fixture
def half(transport: str, credentials: Credentials) -> Iterator[Half]:
    """Makes a channel, and the bare stream of its peer."""
    made: list[tuple[Peer, Stream]] = []

    def make() -> tuple[Peer, Stream]:
        one, other = streams(transport, credentials)
        made.append((Peer(one, "peer").start(), other))
        return made[-1]

    yield make
    while made:
        peer, stream = made.pop()
        peer.stop()
        stream.close()
        stream.free()


def write(stream: Stream, content: bytes, descriptors: tuple[int, ...] = ()) -> None:
    while content:
        content = content[stream.write([content], descriptors) :]
        descriptors = ()


def frame(message: Any) -> bytes:
    return b"".join(bytes(memoryview(buffer)) for buffer in encode(message))


# Messages arrive


@pytest.mark.parametrize("size", [0, 1, 1000, SMALLEST - 1, SMALLEST, 100_003, 8 * MB])
def test_there_and_back(pair: Pair, size: int) -> None:
    one, other = pair()
    value = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    one.channel.send(Tensors(7, [3], [value]))
    arrived = other.get()
    assert (arrived.step, arrived.keys) == (7, [3])
    np.testing.assert_array_equal(arrived.values[0], value)
    other.channel.send(Done(8, 0, 2, 0, b"trace", [0, 1], [arrived.values[0], np.array([b"text", b""], object)]))
    back = one.get()
    np.testing.assert_array_equal(back.values[0], value)
    assert back.values[1].tolist() == [b"text", b""]


def test_many_tensors(pair: Pair) -> None:
    one, other = pair()
    values = [np.full(i % 50, i, np.int32) for i in range(5000)]
    one.channel.send(Tensors(1, range(5000), values))
    arrived = other.get()
    assert list(arrived.keys) == list(range(5000))
    assert all(np.array_equal(a, b) for a, b in zip(arrived.values, values, strict=True))


def test_large_messages_cross(pair: Pair) -> None:
    """Both sides keep reading while they write much."""
    one, other = pair()
    texts = np.array([bytes([i]) * MB for i in range(24)], object)  # strings never go through shared memory
    for _ in range(2):
        one.channel.send(Tensors(1, [0], [texts]))
        other.channel.send(Tensors(2, [0], [texts]))
    for peer in (one, other):
        for _ in range(2):
            assert peer.get().values[0].tolist() == texts.tolist()


def test_order_of_many_senders(pair: Pair) -> None:
    one, other = pair()
    senders, messages = 8, 60
    sizes = [0, 10, SMALLEST, 3 * SMALLEST]
    begin = threading.Barrier(senders)

    def send(sender: int) -> None:
        begin.wait(DEADLINE)
        for i in range(messages):
            one.channel.send(Tensors(sender, [i], [np.full(sizes[(i + sender) % 4], i, np.uint8)]))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(senders)]
    for thread in threads:
        thread.start()
    seen = [0] * senders
    for _ in range(senders * messages):
        message = other.get()
        i = seen[message.step]
        assert message.keys == [i]
        assert message.values[0].nbytes == sizes[(i + message.step) % 4]
        assert (message.values[0] == i).all()
        seen[message.step] += 1
    for thread in threads:
        thread.join(DEADLINE)


def test_bytes_are_counted(pair: Pair) -> None:
    one, other = pair()
    one.channel.send(Tensors(1, [0], [np.zeros(MB, np.uint8)]))
    other.get()
    assert one.channel.traffic()[0] >= MB
    assert one.channel.traffic()[0] <= other.channel.traffic()[1] + 100  # that of the region's announcement


# An end is noticed


def test_the_reason_reaches_the_other_side(pair: Pair) -> None:
    one, other = pair()
    one.channel.close(ABORTED, "it is late")
    assert isinstance(other.end(), AbortedError)
    assert other.end().message == "it is late"
    assert isinstance(one.end(), AbortedError)


def test_nothing_is_sent_after_the_end(pair: Pair) -> None:
    one, other = pair()
    one.channel.close(PERMISSION_DENIED, "not you")
    for peer in (one, other):
        peer.end()
        assert not peer.channel.is_open
        for size in (1, MB):
            with pytest.raises(UnavailableError, match=rf"No connection to {peer.channel.peer}: not you"):
                peer.channel.send(Tensors(1, [0], [np.zeros(size, np.uint8)]))
        peer.channel.close()  # a second call does nothing


def test_closed_while_much_is_sent(pair: Pair) -> None:
    """A thread that writes at that moment ends without an error of its own."""
    value = np.zeros(6 * MB, np.uint8)
    texts = np.array([b"x" * MB] * 6, object)
    for i in range(8):
        one, other = pair()
        if i % 2:
            other.handle = lambda message: None
        one.channel.send(Tensors(1, [0, 1], [value, texts]))
        one.channel.send(Tensors(1, [0, 1], [value, texts]))
        if i % 4 < 2:
            time.sleep(0.002 * i)
        (one, other)[i // 4].channel.close()
        assert isinstance(one.end(), UnavailableError)
        other.end()


def test_closed_just_after_something_was_written(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair()
    stream = one.channel._stream
    write_one = stream.write

    def write_and_close(buffers: Any, descriptors: Any = ()) -> int:
        sent = write_one(buffers, descriptors)
        one.channel.close(ABORTED, "now", tell_peer=False)
        return sent

    monkeypatch.setattr(stream, "write_some", lambda *_: 0)  # a thread writes
    monkeypatch.setattr(stream, "write", write_and_close)
    one.channel.send(Tensors(1, [0], [np.zeros(SMALLEST)]))
    assert one.end().message == "now"
    other.end()


CUTS = {"header": 7, "meta": HEADER.size + 10, "payload": -1000}


@pytest.mark.parametrize("cut", CUTS)
def test_the_peer_goes_in_the_middle_of_a_frame(half: Half, cut: str) -> None:
    peer, stream = half()
    content = frame(Tensors(1, [0], [np.zeros(100_000)]))
    write(stream, frame(Cancel(1, 2, "first")) + content[: CUTS[cut]])
    assert peer.get() == Cancel(1, 2, "first")
    stream.close()
    reason = peer.end()
    assert isinstance(reason, UnavailableError)
    assert "the connection to peer was lost" in reason.message
    assert peer.received.empty()


@pytest.mark.parametrize("content", [b"HTTP" * 9, frame(Ping())[:3] + b"\xff" * 30, bytes(100)], ids=range(3))
def test_what_is_no_message(half: Half, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    peer, stream = half()
    write(stream, content)
    assert "frame" in peer.end().message
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "Disconnected peer, which sent bytes that are no message" in caplog.text


def test_a_handler_that_fails(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    one, other = pair()

    def fail(message: Any) -> None:
        raise RuntimeError("ouch")

    other.handle = fail
    one.channel.send(Cancel(1, 2, ""))
    assert isinstance(one.end(), InternalError)
    assert "ouch" in one.end().message
    assert len(caplog.records) == 1


# Signs of life


def test_a_peer_that_does_not_read_is_given_up(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEEPALIVE_SECS", "1")
    peer, _ = half()
    peer.channel.send(Tensors(1, [0], [np.array([b"x" * (32 * MB)], object)]))  # more than any buffer holds
    reason = peer.end()
    assert isinstance(reason, UnavailableError)
    assert "peer has given no sign of life" in reason.message
    with pytest.raises(UnavailableError, match="no sign of life"):
        peer.channel.send(Ping())


def test_a_peer_that_does_not_answer_is_given_up(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEEPALIVE_SECS", "1")
    peer, stream = half()
    assert "peer has given no sign of life" in peer.end().message
    view = memoryview(bytearray(1000))
    assert bytes(view[: stream.read_some(view)]).startswith(frame(Ping()))  # it was asked


def test_a_peer_that_has_nothing_to_say_stays(credentials: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all transports at once, for longer than a peer may be silent: that is so long that a pause is no end."""
    monkeypatch.setenv("PENSTOCK_KEEPALIVE_SECS", "3")
    peers = [Peer(stream, transport).start() for transport in TRANSPORTS for stream in streams(transport, credentials)]
    began = time.monotonic()
    while min(peer.channel.last_heard for peer in peers) < began + 3.5:
        assert time.monotonic() < began + DEADLINE
        time.sleep(0.05)
    assert all(peer.channel.is_open for peer in peers)
    for peer in peers:
        peer.stop()


# Shared memory


@pytest.fixture
def on_unix(credentials: Credentials) -> Iterator[tuple[Peer, Peer]]:
    one, other = (Peer(stream, "peer").start() for stream in streams("unix", credentials))
    yield one, other
    for peer in (one, other):
        peer.stop()


def regions(peer: Peer) -> int:
    arena = peer.channel._arena
    assert arena is not None
    return len(arena._memory)


def send_one(one: Peer, other: Peer, value: np.ndarray) -> np.ndarray:
    one.channel.send(Tensors(1, [0], [value]))
    arrived: np.ndarray = other.get().values[0]
    return arrived


def until_given_back(sender: Peer, in_use: int = 0) -> None:
    """Waits until the sender knows which regions are free again: all but a few, which are given back together."""
    arena, end = sender.channel._arena, time.monotonic() + DEADLINE
    assert arena is not None
    while len(arena._memory) - sum(map(len, arena._free.values())) > in_use + _MANY_RELEASED + 4:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_regions_are_used_again(on_unix: tuple[Peer, Peer]) -> None:
    one, other = on_unix
    for i in range(200):
        value = np.full(MB // 8 + i, i, np.float64)  # of sizes that differ a little
        np.testing.assert_array_equal(send_one(one, other, value), value)
        until_given_back(one)
    assert regions(one) < 40


def test_regions_in_use_are_not_written(on_unix: tuple[Peer, Peer]) -> None:
    one, other = on_unix
    choose = random.Random(1)
    kept: dict[int, np.ndarray] = {}
    for i in range(300):
        arrived = send_one(one, other, np.full(SMALLEST // 4 * choose.randint(1, 3), i, np.int32))
        if choose.random() < 0.3:
            kept[i] = arrived[::2] if choose.random() < 0.5 else arrived  # a view of it keeps it as well
        if len(kept) > 30:
            del kept[choose.choice(list(kept))]
        del arrived
        until_given_back(one, len(kept))
        assert all((value == number).all() for number, value in kept.items())
    assert 30 <= regions(one) < 90


def test_arrays_outlive_the_channel(on_unix: tuple[Peer, Peer]) -> None:
    one, other = on_unix
    arrived = send_one(one, other, np.arange(SMALLEST))
    one.channel.close()
    other.end()
    np.testing.assert_array_equal(arrived, np.arange(SMALLEST))
    assert not arrived.flags.writeable


def test_regions_of_a_message_that_cannot_be_sent(on_unix: tuple[Peer, Peer]) -> None:
    one, other = on_unix
    value = np.arange(SMALLEST)
    for _ in range(3):
        with pytest.raises(UnimplementedError):
            one.channel.send(Tensors(1, [0, 1], [value, np.array([object()], object)]))
    np.testing.assert_array_equal(send_one(one, other, value), value)
    assert regions(one) == 1


def test_a_large_region_goes_to_and_fro(on_unix: tuple[Peer, Peer]) -> None:
    one, other = on_unix
    for i in range(5):
        value = np.full(LARGE // 8, i, np.float64)
        arrived = send_one(one, other, value)
        np.testing.assert_array_equal(arrived, value)
        del arrived
        answer = np.full(LARGE // 4, -i, np.float32)
        np.testing.assert_array_equal(send_one(other, one, answer), answer)
    assert (regions(one), regions(other)) == (1, 0)


def test_a_region_in_use_does_not_go_back(on_unix: tuple[Peer, Peer]) -> None:
    one, other = on_unix
    kept = send_one(one, other, np.zeros(LARGE, np.uint8))
    answer = send_one(other, one, np.ones(LARGE, np.uint8))
    assert not kept.any()
    more = send_one(one, other, np.full(LARGE, 2, np.uint8))  # its answer is in use
    assert (answer == 1).all()
    assert (more == 2).all()
    assert (regions(one), regions(other)) == (2, 1)


def test_a_large_region_of_a_message_that_cannot_be_sent(on_unix: tuple[Peer, Peer]) -> None:
    one, other = on_unix
    value = np.arange(LARGE // 8)
    send_one(one, other, value)
    with pytest.raises(UnimplementedError):
        other.channel.send(Tensors(1, [0, 1], [value, np.array([object()], object)]))
    np.testing.assert_array_equal(send_one(other, one, value), value)
    assert (regions(one), regions(other)) == (1, 0)


def test_idle_regions_give_their_memory_back(on_unix: tuple[Peer, Peer]) -> None:
    one, other = on_unix
    value = np.ones(LARGE, np.uint8)
    kept = send_one(one, other, value)
    send_one(one, other, value)
    other.channel.send(Ping())  # the second region is free
    send_one(other, one, np.zeros(1))
    arena = one.channel._arena
    assert arena is not None
    arena.trim()
    assert [np.asarray(memory).all() for memory in arena._memory.values()] == [True, True]
    arena.trim()
    assert [np.asarray(memory).any() for memory in arena._memory.values()] == [True, False]
    assert kept.all()
    assert send_one(one, other, value).all()
    assert regions(one) == 2


def test_without_memory_to_share(on_unix: tuple[Peer, Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = on_unix

    def fail(*_: Any) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr(shared_memory.os, "memfd_create", fail)
    np.testing.assert_array_equal(send_one(one, other, np.arange(SMALLEST)), np.arange(SMALLEST))
    assert regions(one) == 0


def test_no_more_than_is_allowed(on_unix: tuple[Peer, Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = on_unix
    monkeypatch.setattr(shared_memory, "MAX_REGIONS", 3)
    kept = [send_one(one, other, np.full(SMALLEST, i)) for i in range(6)]
    assert regions(one) == 3
    assert all((value == i).all() for i, value in enumerate(kept))


def sealed(size: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def tensor_in(region: int, size: int) -> bytes:
    """A message with a tensor of `size` bytes in a region."""
    meta = struct.pack("<7Q", 1, 1, 0, codec._SHARED | 4 << 8 | 1 << 16, region, size, size)
    return HEADER.pack(codec.MAGIC, codec.VERSION, codec._KIND_OF[Tensors], len(meta), 0) + meta


PAGE = 1 << 16
# Messages, each with the descriptors that come with it.
HOSTILE: dict[str, Callable[[], list[tuple[bytes, tuple[int, ...]]]]] = {
    "no descriptor": lambda: [(frame(Region(0, PAGE)), ())],
    "more than there is": lambda: [(frame(Region(0, 2 * PAGE)), (sealed(PAGE),))],
    "less than there is": lambda: [(frame(Region(0, PAGE)), (sealed(2 * PAGE),))],
    "nothing": lambda: [(frame(Region(0, 0)), (sealed(0),))],
    "too much": lambda: [(frame(Region(0, 2**63)), (sealed(PAGE),))],
    "memory that can shrink": lambda: [(frame(Region(0, PAGE)), (sealed(PAGE, fcntl.F_SEAL_GROW),))],
    "no memory": lambda: [(frame(Region(0, PAGE)), (os.open("/dev/null", os.O_RDWR),))],
    "a region twice": lambda: [(frame(Region(0, PAGE)), (sealed(PAGE),)) for _ in range(2)],
    "many descriptors": lambda: [(frame(Ping()), (sealed(PAGE),)) for _ in range(40)],
    "a tensor nowhere": lambda: [(tensor_in(5, 100), ())],
    "a tensor in a region that was not lent": lambda: [(tensor_in(YOURS, 100), ())],
    "a tensor too large": lambda: [(frame(Region(0, PAGE)), (sealed(PAGE),)), (tensor_in(0, PAGE + 1), ())],
    "two tensors in one": lambda: [(frame(Region(0, PAGE)), (sealed(PAGE),)), (tensor_in(0, 10) * 2, ())],
    "a release of nothing": lambda: [(frame(Released([0])), ())],
    "a release of what is foreign": lambda: [(frame(Released([2**64 - 1])), ())],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_memory(name: str, credentials: Credentials, caplog: pytest.LogCaptureFixture) -> None:
    mine, stream = streams("unix", credentials)
    peer = Peer(mine, "peer").start()
    try:
        for content, descriptors in HOSTILE[name]():
            try:
                write(stream, content, descriptors)
            except OSError:
                pass  # the channel has ended already
            for descriptor in descriptors:
                os.close(descriptor)
        assert peer.end().message
        assert [r.levelno for r in caplog.records] == [logging.WARNING]
        assert "Disconnected peer, which sent bytes that are no message" in caplog.text
    finally:
        peer.stop()
        stream.close()
        stream.free()


def test_a_region_released_twice(credentials: Credentials, caplog: pytest.LogCaptureFixture) -> None:
    mine, stream = streams("unix", credentials)
    peer = Peer(mine, "peer").start()
    peer.channel.send(Tensors(1, [0], [np.zeros(SMALLEST, np.uint8)]))
    write(stream, frame(Released([0])))
    write(stream, frame(Released([0])))
    assert "released the region 0" in peer.end().message
    assert len(caplog.records) == 1
    peer.stop()
    view = memoryview(bytearray(1 << 16))
    stream.read_some(view)  # the descriptor of the region is closed with the stream
    stream.close()
    stream.free()


def test_a_region_that_comes_back_twice(credentials: Credentials, caplog: pytest.LogCaptureFixture) -> None:
    mine, stream = streams("unix", credentials)
    peer = Peer(mine, "peer").start()
    peer.channel.send(Tensors(1, [0], [np.zeros(PAGE, np.uint8)]))
    write(stream, tensor_in(YOURS, PAGE))
    kept = peer.get().values[0]
    write(stream, tensor_in(YOURS, PAGE))
    assert "does not hold" in peer.end().message
    assert not kept.any()
    assert len(caplog.records) == 1
    peer.stop()
    stream.read_some(memoryview(bytearray(1 << 16)))  # the descriptor of the region is closed with the stream
    stream.close()
    stream.free()


@pytest.mark.parametrize("kind", ["region", "release", "tensor"])
@pytest.mark.parametrize("transport", ["tcp", "tls"], indirect=True)
def test_nothing_is_shared_over_a_network(half: Half, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    peer, stream = half()
    content = {"region": frame(Region(0, PAGE)), "release": frame(Released([0])), "tensor": tensor_in(0, 10)}
    write(stream, content[kind])
    assert peer.end().message
    assert len(caplog.records) == 1


def test_descriptors_nobody_asked_for_are_closed(credentials: Credentials) -> None:
    """Descriptors that come with the bytes of a tensor are not used."""
    mine, stream = streams("unix", credentials)
    peer = Peer(mine, "peer").start()
    content = frame(Tensors(1, [0], [np.zeros(200_000, np.uint8)]))
    write(stream, content[:1000])
    descriptor = sealed(PAGE)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    sent = stream.socket.sendmsg([content[1000:]], rights)
    os.close(descriptor)
    write(stream, content[1000 + sent :])
    assert peer.get().values[0].nbytes == 200_000
    peer.stop()
    stream.close()
    stream.free()
