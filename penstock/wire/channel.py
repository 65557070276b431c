"""A channel is a connection between two processes that carries messages both ways.

Sending never blocks: a writer thread sends what the socket does not take at once. A loop reads, and the thread that
reads hands each message to the handler. A channel closes when its peer gives no sign of life for a while.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import logging
from penstock.errors import INTERNAL, UNAVAILABLE, DataLossError, OpError, UnavailableError, error_from_code
from penstock.memory import aligned_empty
from penstock.wire import codec
from penstock.wire.batches import close_all, join_neighbours, rest_of, size_of
from penstock.wire.loop import Loop
from penstock.wire.messages import Goodbye, Message, Ping, Pong, Region, Released
from penstock.wire.shared_memory import SUPPORTED, YOURS, Arena, Leases, Sharer
from penstock.wire.stream import Stream

_STAGING = 1 << 16  # bytes: frames up to this size are read with one call
_MANY_RELEASED = 8  # regions: more than this are given back even if there is nothing else to send
_BEATS = 4  # a peer that is silent for so many beats counts as lost
_SMALL = 1 << 14  # bytes: up to this size XLA's copy costs less than aligned memory
_LONGEST_REASON = 1 << 12  # characters that the peer is told about why a channel closes


def keepalive_secs() -> float:
    """Returns how many seconds a peer may be silent before it counts as lost (PENSTOCK_KEEPALIVE_SECS)."""
    return float(os.environ.get("PENSTOCK_KEEPALIVE_SECS", "30"))


class Channel:
    """Sends and receives messages over a stream. After `start` a loop reads it; `on_close` gets the reason, once.

    >>> channel = Channel(stream, "worker:0"); channel.start(handle, lambda channel, reason: print(reason), Loop())
    >>> channel.send(Ping())
    """

    def __init__(self, stream: Stream, peer: str) -> None:
        self.peer = peer
        self._sent = self._received = 0  # bytes, those in shared memory included
        self.last_heard = time.monotonic()
        self._heard_before = 0.0  # `last_heard` at the last beat
        self._missed = 0  # beats since the peer was heard
        self._stream = stream
        self._buffer = memoryview(bytearray(_STAGING))
        self._start = self._end = 0  # of the bytes in the buffer that are not used yet
        self._frame: tuple[int, Any] | None = None  # kind and fields of a frame whose tensors are still arriving
        self._payload: Any = b""  # the memory for these tensors
        self._missing = 0  # how many of their bytes are still to come
        share = stream.is_unix and SUPPORTED
        self._arena = Arena() if share else None
        self._leases = Leases() if share else None
        self._lock = threading.Lock()
        self._waiting: deque[tuple[list[Any], list[int]]] = deque()
        self._work = threading.Condition(self._lock)
        self._writer: threading.Thread | None = None
        self._loop: Loop | None = None
        self._is_read = False  # the loop reads it
        self._reason: OpError | None = None
        self._on_message: Callable[[Channel, Message], None] = _ignore
        self._on_close: Callable[[Channel, OpError], None] = _ignore
        self._finished = threading.Event()

    # Sending

    def send(self, message: Message) -> None:
        """Sends a message after those sent before. Its tensors must not change until it is received."""
        batches: list[tuple[list[Any], list[int]]] = []

        def announce(region: int, size: int, descriptor: int) -> None:
            batches.append((codec.encode(Region(region, size)), [descriptor]))

        arena, leases = self._arena, self._leases  # read once, since closing the channel sets them to None
        sharer = None if arena is None or leases is None else Sharer(arena, leases, announce)
        try:
            buffers = codec.encode(message, sharer)
        except BaseException:
            if sharer is not None and sharer.placed:
                self._send(batches)  # the peer must learn of the new regions even though the message is not sent
                sharer.take_back()
            raise
        self._sent += size_of(buffers) + (0 if sharer is None else sharer.copied)
        batches.append((buffers, []))
        self._send(batches)

    def _send(self, batches: list[tuple[list[Any], list[int]]]) -> None:
        with self._lock:
            if self._reason is not None:
                for _, descriptors in batches:
                    close_all(descriptors)
                raise self.closed_error()
            released = self._leases.released() if self._leases is not None else None
            if released:
                batches.insert(0, (codec.encode(Released(released)), []))
            if len(batches) > 1:
                batches = join_neighbours(batches)
            for buffers, descriptors in batches:
                if not self._waiting:
                    try:
                        sent = self._stream.write_some(buffers, descriptors)
                    except OSError:
                        sent = 0  # the writer thread meets the error again, and closes
                    if sent == size_of(buffers) and not descriptors:
                        continue
                    if sent:
                        close_all(descriptors)
                        buffers, descriptors = rest_of(buffers, sent), []
                    if not buffers:
                        continue
                self._waiting.append((buffers, descriptors))
            if self._waiting:
                if self._writer is None:
                    name = f"penstock-write-{self.peer}"
                    self._writer = threading.Thread(target=self._write_all, name=name, daemon=True)
                    self._writer.start()
                self._work.notify_all()

    def _write_all(self) -> None:
        """Runs in the writer thread: writes what the socket did not take at once."""
        try:
            while True:
                with self._work:
                    while not self._waiting and self._reason is None:
                        self._work.wait()
                    if self._reason is not None:
                        return
                    buffers, descriptors = self._waiting[0]
                    self._waiting[0] = (buffers, [])  # `close` leaves the descriptors to this thread
                try:
                    while buffers:
                        rest = rest_of(buffers, self._stream.write(buffers, descriptors))
                        close_all(descriptors)
                        descriptors = []
                        buffers = rest
                finally:
                    close_all(descriptors)
                with self._lock:
                    if self._reason is None:
                        self._waiting.popleft()
                del buffers, rest  # a variable's buffer must not be held while this waits
        except (OSError, ValueError) as error:
            self.close(UNAVAILABLE, f"cannot write to {self.peer}: {error}", tell_peer=False)

    # Receiving

    def start(
        self, on_message: Callable[[Channel, Message], None], on_close: Callable[[Channel, OpError], None], loop: Loop
    ) -> None:
        """Starts reading in `loop`, whose reading thread calls `on_message` and `on_close`."""
        self._on_message, self._on_close = on_message, on_close
        self._stream.read_flags = socket.MSG_DONTWAIT
        with self._lock:  # `close` in another thread must see that the loop reads
            self._loop = loop
        self.read(has_bytes=True)  # more than the first message may have been read already
        if not self._finished.is_set():
            _pulse.watch(self)
            self._is_read = True
            loop.add(self)

    def fileno(self) -> int:
        """Returns the descriptor of its socket."""
        return self._stream.socket.fileno()

    def read(self, has_bytes: bool = False) -> None:
        """Reads the bytes that have arrived, unless it `has_bytes` already, and handles each complete message."""
        try:
            has_bytes = has_bytes or self._read_more()
            while has_bytes and self._reason is None:
                message = self._next()
                if message is None:
                    has_bytes = self._stream.has_more() and self._read_more()
                    continue
                kind = message.__class__
                if kind is Ping:
                    self.send(Pong())
                elif kind is Goodbye:
                    self.close(message.code, message.message, tell_peer=False)  # type: ignore[union-attr]
                elif kind is not Pong:
                    self._on_message(self, message)
                del message  # it may hold a lease of a region
            leases = self._leases
            if leases is not None and len(leases._released) > _MANY_RELEASED:
                self._send([])
        except Exception as error:
            self._close_for(error)
        if self._reason is not None:
            self._finish()

    def _close_for(self, error: Exception) -> None:
        if isinstance(error, DataLossError):
            logging.warning("Disconnected %s, which sent bytes that are no message: %s", self.peer, error.message)
            self.close(error.error_code, error.message)
        elif isinstance(error, OpError):
            self.close(error.error_code, error.message, tell_peer=False)
        elif isinstance(error, (OSError, EOFError, ValueError)):
            self.close(UNAVAILABLE, f"the connection to {self.peer} was lost: {error}", tell_peer=False)
        else:
            logging.error("penstock: while handling a message of %s", self.peer, exc_info=error)
            self.close(INTERNAL, f"while handling a message of {self.peer}: {error!r}")

    def receive(self, most: int | None = None) -> Message:
        """Blocks until the first message, of up to `most` bytes, is there. EOFError if the peer has closed."""
        while True:
            message = self._next(most)
            if message is not None:
                return message
            self._read_more()

    def _next(self, most: int | None = None) -> Message | None:
        """Returns the next message in the buffer, or None if it is not complete."""
        while (self._frame is not None or self._begin_frame(most)) and not self._missing:
            assert self._frame is not None
            (kind, meta), payload = self._frame, self._payload
            self._frame, self._payload = None, b""
            message = codec.decode(kind, meta, payload, None if self._leases is None else self._taken)
            if message.__class__ is Region:
                self._announced(message)
            elif message.__class__ is Released:
                if self._arena is None:
                    raise DataLossError("Regions were released, but none are shared here.")
                self._arena.release(message.regions)
            else:
                return message
        return None

    def _taken(self, region: int, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Returns a tensor in shared memory, in a region of the peer or in one that comes back."""
        assert self._arena is not None and self._leases is not None
        self._received += size
        if region >= YOURS:
            return self._arena.take(region - YOURS, size, dtype, shape)
        return self._leases.take(region, size, dtype, shape)

    def _begin_frame(self, most: int | None) -> bool:
        """Takes the fields of the next frame from the buffer, and tells if they were complete."""
        there = self._end - self._start
        if there < codec.HEADER.size:
            return False
        kind, meta_size, payload_size = codec.decode_header(self._buffer, self._start)
        if most is not None and meta_size + payload_size > most:
            raise DataLossError(f"A frame announces {meta_size} + {payload_size} bytes, not {most}.")
        begin = self._start + codec.HEADER.size
        if begin + meta_size > self._end:
            self._make_room(codec.HEADER.size + meta_size)
            return False
        self._start = begin + meta_size
        self._frame = kind, self._buffer[begin : self._start]  # valid until more is read into the buffer
        self._received += codec.HEADER.size + meta_size + payload_size
        if payload_size:
            memory = bytearray(payload_size) if payload_size <= _SMALL else aligned_empty((payload_size,)).data
            self._payload = payload = memoryview(memory)
            there = min(payload_size, self._end - self._start)
            payload[:there] = self._buffer[self._start : self._start + there]
            self._start += there
            self._missing = payload_size - there
        return True

    def _make_room(self, size: int) -> None:
        """Makes room in the buffer for the next `size` bytes."""
        buffer, rest = self._buffer, self._end - self._start
        if not self._start and size <= len(buffer):
            return
        if size > len(buffer) or max(size, rest) <= _STAGING < len(buffer):
            self._buffer = memoryview(bytearray(max(size, _STAGING)))
        self._buffer[:rest] = buffer[self._start : self._end]
        self._start, self._end = 0, rest

    def _read_more(self) -> bool:
        """Reads from the stream, and tells if there was something to read."""
        try:
            if self._missing:
                self._missing -= self._count(self._stream.read_bulk(self._payload[-self._missing :]))
            else:
                self._make_room(1)
                self._end += self._count(self._stream.read_some(self._buffer[self._end :]))
        except BlockingIOError:
            return False
        return True

    def _announced(self, message: Any) -> None:
        if self._leases is None or not self._stream.descriptors:
            raise DataLossError("A region was announced without its descriptor.")
        self._leases.announced(message.region, message.size, self._stream.descriptors.pop(0))

    def _count(self, size: int) -> int:
        if size == 0:
            raise EOFError("it was closed by the other side")
        self.last_heard = time.monotonic()
        return size

    def traffic(self) -> tuple[int, int]:
        """Returns how many bytes were sent and received so far, those in shared memory included."""
        return self._sent, self._received

    # Closing

    def beat(self) -> None:
        """Pings a peer that was silent since the last beat, and closes the channel after several silent beats.

        It counts beats and not seconds, so that a pause of this process is not taken for silence of the peer. It also
        gives idle shared memory back.
        """
        arena, heard = self._arena, self.last_heard
        if arena is not None:
            arena.trim()
        self._missed = self._missed + 1 if heard == self._heard_before else 0
        self._heard_before = heard
        if self._missed >= _BEATS:
            silent = time.monotonic() - heard
            self.close(UNAVAILABLE, f"{self.peer} has given no sign of life for {silent:.0f} s")
        elif self._missed:
            try:
                self.send(Ping())
            except UnavailableError:
                pass  # the channel was closed meanwhile

    @property
    def is_open(self) -> bool:
        return self._reason is None

    def closed_error(self) -> OpError:
        """Returns a new error that says why the channel is closed."""
        reason = self._reason
        assert reason is not None
        return UnavailableError(f"No connection to {self.peer}: {reason.message}")

    def close(self, code: int = UNAVAILABLE, message: str = "it was closed", tell_peer: bool = True) -> None:
        """Closes the channel. With `tell_peer` it sends the reason first, if that needs no waiting."""
        with self._work:
            if self._reason is not None:
                return
            if tell_peer and not self._waiting:
                try:
                    self._stream.write_last(codec.encode(Goodbye(code, message[:_LONGEST_REASON])))
                except OSError:
                    pass  # the peer has gone
            self._reason = error_from_code(code, message)
            for _, descriptors in self._waiting:
                close_all(descriptors)
            self._waiting.clear()
            self._work.notify_all()
        self._stream.close()
        if self._loop is None:
            self._finish()

    def _finish(self) -> None:
        """Frees what the channel holds and calls `on_close`. Runs in the reading thread if there is one."""
        _pulse.forget(self)
        if self._loop is not None and self._is_read:
            self._loop.remove(self)
        if self._writer is not None and self._writer is not threading.current_thread():
            self._writer.join()
        self._stream.free()
        self._arena = self._leases = None
        reason = self._reason
        assert reason is not None
        try:
            self._on_close(self, reason)
        finally:
            self._on_message, self._on_close = _ignore, _ignore
            self._finished.set()

    def join(self, timeout: float) -> None:
        """Waits until a closed channel has freed what it held and `on_close` has returned."""
        if self._loop is None or not self._loop.is_read_here():
            self._finished.wait(timeout)


def _ignore(*_: object) -> None:
    """Serves as the handler before `start` and after the end."""


class _Pulse:
    """Calls `beat` of all open channels at regular intervals, in one thread."""

    def __init__(self) -> None:
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def watch(self, channel: Channel) -> None:
        with self._changed:
            self._channels.add(channel)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="penstock-pulse", daemon=True)
                self._thread.start()

    def forget(self, channel: Channel) -> None:
        with self._changed:
            self._channels.discard(channel)
            self._changed.notify_all()

    def _beat(self) -> None:
        every = keepalive_secs() / _BEATS
        while True:
            end = time.monotonic() + every
            with self._changed:
                while self._channels and (left := end - time.monotonic()) > 0:
                    self._changed.wait(left)
                if not self._channels:
                    self._thread = None
                    return
                channels = list(self._channels)
            while channels:  # so that no channel is kept alive while this waits
                channels.pop().beat()


_pulse = _Pulse()
