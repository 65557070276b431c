"""Channel: a connection between two processes that carries messages both ways.

Sending never waits: what the socket does not take at once goes out from a thread. A loop reads, and each message is
handed to the handler in the thread that does so. A peer that gives no sign of life for a while is given up.
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
from penstock.wire.codec import Goodbye, Message, Ping, Pong, Released, Segment
from penstock.wire.loop import Loop
from penstock.wire.shared_memory import SUPPORTED, Arena, Leases
from penstock.wire.stream import Stream

_STAGING = 1 << 16  # bytes: frames up to this size are read in one go
_MANY_RELEASED = 8  # segments: as many are given back even if there is nothing else to send
_BEATS = 4  # without a sign of life of the peer: then it is given up
_SMALL = 1 << 14  # bytes: XLA copies arrays up to this size sooner than they are aligned
_LONGEST_REASON = 1 << 12  # characters of why a channel is closed


def keepalive_secs() -> float:
    """After how many seconds without a sign of life a peer is given up (PENSTOCK_KEEPALIVE_SECS)."""
    return float(os.environ.get("PENSTOCK_KEEPALIVE_SECS", "30"))


class Channel:
    """Messages over a stream. `start` has a loop read; `on_close` is called once, with the reason.

    >>> channel = Channel(stream, "worker:0"); channel.start(handle, lambda channel, reason: print(reason), Loop())
    >>> channel.send(Ping())
    """

    def __init__(self, stream: Stream, peer: str) -> None:
        self.peer = peer
        self._sent = self._received = 0  # bytes in frames
        self.last_heard = time.monotonic()
        self._heard_before = 0.0  # as of the last beat
        self._missed = 0  # beats since the peer was heard
        self._stream = stream
        self._buffer = memoryview(bytearray(_STAGING))
        self._start = self._end = 0  # of what is read and not used yet
        self._frame: tuple[int, Any] | None = None  # kind and fields of a frame whose tensors are not all there yet,
        self._payload: Any = b""  # the memory for them,
        self._missing = 0  # and how many bytes are still to come
        share = stream.is_unix and SUPPORTED
        self._arena = Arena() if share else None
        self._leases = Leases() if share else None
        self._lock = threading.Lock()
        self._waiting: deque[tuple[list[Any], list[int]]] = deque()
        self._work = threading.Condition(self._lock)
        self._writer: threading.Thread | None = None
        self._loop: Loop | None = None
        self._is_read = False  # by the loop
        self._reason: OpError | None = None
        self._on_message: Callable[[Channel, Message], None] = _ignore
        self._on_close: Callable[[Channel, OpError], None] = _ignore
        self._finished = threading.Event()

    # Sending

    def send(self, message: Message) -> None:
        """Sends a message, after those sent before. Its tensors must not change until it is received."""
        batches: list[tuple[list[Any], list[int]]] = []
        arena = self._arena  # once: it goes when the channel closes
        placed: list[int] = []
        try:
            buffers = codec.encode(message, None if arena is None else _sharer(arena, batches, placed))
        except BaseException:
            if arena is not None and placed:
                self._send(batches)  # the segments are there, whether the message is or not
                arena.release(placed)
            raise
        self._sent += sum(map(size_of, buffers))
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
                        rest = rest_of(buffers, self._stream.write_some(buffers, descriptors))
                    except OSError:
                        rest = buffers  # the writer meets the error again, and closes
                    if rest is not buffers:
                        close_all(descriptors)
                        descriptors = []
                    if not rest:
                        continue
                    buffers = rest
                self._waiting.append((buffers, descriptors))
            if self._waiting and self._writer is None:
                name = f"penstock-write-{self.peer}"
                self._writer = threading.Thread(target=self._write_all, name=name, daemon=True)
                self._writer.start()
            if self._waiting:
                self._work.notify_all()

    def _write_all(self) -> None:
        """Writes what did not go out at once, in a thread of its own."""
        try:
            while True:
                with self._work:
                    while not self._waiting and self._reason is None:
                        self._work.wait()
                    if self._reason is not None:
                        return
                    buffers, descriptors = self._waiting[0]
                    self._waiting[0] = (buffers, [])  # whoever closes the channel leaves our descriptors to us
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
                del buffers, rest  # a variable's buffer must not be held longer than it takes
        except (OSError, ValueError) as error:
            self.close(UNAVAILABLE, f"cannot write to {self.peer}: {error}", say=False)

    # Receiving

    def start(
        self, on_message: Callable[[Channel, Message], None], on_close: Callable[[Channel, OpError], None], loop: Loop
    ) -> None:
        """Begins to hand over messages, in the thread that reads the loop."""
        self._on_message, self._on_close = on_message, on_close
        self._stream.read_flags = socket.MSG_DONTWAIT
        with self._lock:  # whoever closes the channel meanwhile must see that somebody reads
            self._loop = loop
        self.read(came=True)  # more than the first message may have come by now
        if not self._finished.is_set():
            _pulse.watch(self)
            self._is_read = True
            loop.add(self)

    def fileno(self) -> int:
        """The descriptor of its socket."""
        return self._stream.socket.fileno()

    def read(self, came: bool = False) -> None:
        """Reads what is there unless it came before, and hands over the messages that are complete."""
        try:
            came = came or self._read_more()
            while came and self._reason is None:
                message = self._next()
                if message is None:
                    came = self._stream.has_more() and self._read_more()
                    continue
                kind = message.__class__
                if kind is Ping:
                    self.send(Pong())
                elif kind is Goodbye:
                    self.close(message.code, message.message, say=False)  # type: ignore[union-attr]
                elif kind is not Pong:
                    self._on_message(self, message)
                del message  # it may hold a lease
            leases = self._leases
            if leases is not None and len(leases._released) > _MANY_RELEASED:
                self._send([])
        except Exception as error:
            self._close_for(error)
        if self._reason is not None:
            self._finish()

    def _close_for(self, error: Exception) -> None:
        if isinstance(error, DataLossError):
            logging.warning("%s sent what is no message, and was disconnected: %s", self.peer, error.message)
            self.close(error.error_code, error.message)
        elif isinstance(error, OpError):
            self.close(error.error_code, error.message, say=False)
        elif isinstance(error, (OSError, EOFError, ValueError)):
            self.close(UNAVAILABLE, f"the connection to {self.peer} was lost: {error}", say=False)
        else:
            logging.error("penstock: while handling a message of %s", self.peer, exc_info=error)
            self.close(INTERNAL, f"while handling a message of {self.peer}: {error!r}")

    def receive(self, most: int | None = None) -> Message:
        """Waits for the first message, of at most `most` bytes; before `start`. EOFError when the peer has closed."""
        while True:
            message = self._next(most)
            if message is not None:
                return message
            self._read_more()

    def _next(self, most: int | None = None) -> Message | None:
        """The next message of what was read, if it is complete."""
        while (self._frame is not None or self._begin_frame(most)) and not self._missing:
            assert self._frame is not None
            (kind, meta), payload = self._frame, self._payload
            self._frame, self._payload = None, b""
            message = codec.decode(kind, meta, payload, None if self._leases is None else self._leases.take)
            if message.__class__ is Segment:
                self._announced(message)
            elif message.__class__ is Released:
                if self._arena is None:
                    raise DataLossError("Segments were released, but none are shared here.")
                self._arena.release(message.segments)
            else:
                return message
        return None

    def _begin_frame(self, most: int | None) -> bool:
        """Whether the fields of the next frame are all there; its tensors may not be."""
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
        """Sees to it that the next `size` bytes fit in the buffer."""
        buffer, rest = self._buffer, self._end - self._start
        if not self._start and size <= len(buffer):
            return
        if size > len(buffer) or max(size, rest) <= _STAGING < len(buffer):
            self._buffer = memoryview(bytearray(max(size, _STAGING)))
        self._buffer[:rest] = buffer[self._start : self._end]
        self._start, self._end = 0, rest

    def _read_more(self) -> bool:
        """Whether there was something to read."""
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
            raise DataLossError("A segment was announced without its descriptor.")
        self._leases.announced(message.segment, message.size, self._stream.descriptors.pop(0))

    def _count(self, size: int) -> int:
        if size == 0:
            raise EOFError("it was closed by the other side")
        self.last_heard = time.monotonic()
        return size

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far, those in shared memory included."""
        arena, leases = self._arena, self._leases
        return self._sent + (arena.copied if arena else 0), self._received + (leases.taken if leases else 0)

    # Ending

    def beat(self) -> None:
        """Asks a peer that was not heard since the last beat for a sign of life; after some beats it is given up.

        Beats are counted, not seconds: if this process did not run for a while, that is not the peer's fault.
        """
        heard = self.last_heard
        self._missed = self._missed + 1 if heard == self._heard_before else 0
        self._heard_before = heard
        if self._missed >= _BEATS:
            silent = time.monotonic() - heard
            self.close(UNAVAILABLE, f"{self.peer} has given no sign of life for {silent:.0f} s")
        elif self._missed:
            try:
                self.send(Ping())
            except UnavailableError:
                pass  # it closed meanwhile, and said why

    @property
    def is_open(self) -> bool:
        return self._reason is None

    def closed_error(self) -> OpError:
        """Why the channel is closed, as an error of its own for each who asks."""
        reason = self._reason
        assert reason is not None
        return UnavailableError(f"No connection to {self.peer}: {reason.message}")

    def close(self, code: int = UNAVAILABLE, message: str = "it was closed", say: bool = True) -> None:
        """Closes the channel; `say` tells the peer why, if it listens."""
        with self._work:
            if self._reason is not None:
                return
            if say and not self._waiting:
                try:
                    self._stream.write_last(codec.encode(Goodbye(code, message[:_LONGEST_REASON])))
                except OSError:
                    pass  # nobody is there to be told
            self._reason = error_from_code(code, message)
            for _, descriptors in self._waiting:
                close_all(descriptors)
            self._waiting.clear()
            self._work.notify_all()
        self._stream.close()
        if self._loop is None:
            self._finish()

    def _finish(self) -> None:
        """The end, in the thread that reads if there is one."""
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
        """Waits until all that a closed channel has to do is done."""
        if self._loop is None or not self._loop.is_read_here():
            self._finished.wait(timeout)


def _ignore(*_: object) -> None:
    """Nobody is there to be told."""


def _sharer(arena: Arena, batches: list[tuple[list[Any], list[int]]], placed: list[int]) -> codec.Share:
    """What puts tensors into an arena. New segments are announced in `batches`, all are noted in `placed`."""

    def share(array: np.ndarray) -> int | None:
        found = arena.put(array)
        if found is None:
            return None
        segment, descriptor, size = found
        placed.append(segment)
        if descriptor >= 0:  # the segment is new
            batches.append((codec.encode(Segment(segment, size)), [descriptor]))
        return segment

    return share


class _Pulse:
    """Asks silent peers for a sign of life, and closes the channels of those who give none."""

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
            while channels:  # none is held while this waits
                channels.pop().beat()


_pulse = _Pulse()
