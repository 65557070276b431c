"""Channel: a connection between two processes that carries messages both ways.

Sending never waits: what the socket does not take at once goes out from a thread. One thread reads and hands each
message to the handler. A peer that gives no sign of life for a while is given up.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import INTERNAL, UNAVAILABLE, DataLossError, OpError, UnavailableError, error_from_code
from penstock.face import logging
from penstock.wire import codec
from penstock.wire.codec import Goodbye, Message, Ping, Pong, Released, Segment
from penstock.wire.shared_memory import SUPPORTED, Arena, Leases
from penstock.wire.stream import Stream

_STAGING = 1 << 16  # bytes: frames up to this size are read in one go
_MANY_RELEASED = 8  # segments: as many are given back even if there is nothing else to send
_BEATS = 4  # without a sign of life of the peer: then it is given up
_SMALL = 4096  # bytes
_LONGEST_REASON = 1 << 12  # characters of why a channel is closed


def keepalive_secs() -> float:
    """After how many seconds without a sign of life a peer is given up (PENSTOCK_KEEPALIVE_SECS)."""
    return float(os.environ.get("PENSTOCK_KEEPALIVE_SECS", "30"))


def aligned_buffer(size: int) -> np.ndarray:
    """Memory for `size` bytes, aligned so that XLA can use it where it is."""
    memory = np.empty(size + codec.ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % codec.ALIGNMENT
    return memory[start : start + size]


class Channel:
    """Messages over a stream. `start` begins to read; `on_close` is called once, with the reason.

    >>> channel = Channel(stream, "worker:0"); channel.start(handle, lambda channel, reason: print(reason))
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
        share = stream.is_unix and SUPPORTED
        self._arena = Arena() if share else None
        self._leases = Leases() if share else None
        self._lock = threading.Lock()
        self._kept: list[tuple[list[Any], list[int]]] = []  # to go out with the next message
        self._waiting: deque[tuple[list[Any], list[int]]] = deque()
        self._work = threading.Condition(self._lock)
        self._writer: threading.Thread | None = None
        self._reader: threading.Thread | None = None
        self._reason: OpError | None = None
        self._on_close: Callable[[Channel, OpError], None] | None = None

    # Sending

    def send(self, message: Message, more: bool = False) -> None:
        """Sends a message, after those sent before. Its tensors must not change until it is received.

        With `more` it waits for the next one, which must follow at once, and goes out together with it.
        """
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
        self._sent += sum(map(_size, buffers))
        batches.append((buffers, []))
        self._send(batches, more)

    def _send(self, batches: list[tuple[list[Any], list[int]]], more: bool = False) -> None:
        with self._lock:
            if self._kept:
                batches = self._kept + batches
                self._kept = []
            if self._reason is not None:
                for _, descriptors in batches:
                    _close_all(descriptors)
                raise self.closed_error()
            if more:
                self._kept = batches
                return
            if self._leases is not None:
                released = self._leases.released()
                if released:
                    batches.insert(0, (codec.encode(Released(released)), []))
            if len(batches) > 1:
                batches = _joined(batches)
            for buffers, descriptors in batches:
                if not self._waiting:
                    try:
                        rest = _rest(buffers, self._stream.write_some(buffers, descriptors))
                    except OSError:
                        rest = buffers  # the writer meets the error again, and closes
                    if rest is not buffers:
                        _close_all(descriptors)
                        descriptors = []
                    if not rest:
                        continue
                    buffers = rest
                self._waiting.append((buffers, descriptors))
            if self._waiting and self._writer is None:
                self._writer = self._thread(self._write_all, "write")
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
                        rest = _rest(buffers, self._stream.write(buffers, descriptors))
                        _close_all(descriptors)
                        descriptors = []
                        buffers = rest
                finally:
                    _close_all(descriptors)
                with self._lock:
                    if self._reason is None:
                        self._waiting.popleft()
                del buffers, rest  # a variable's buffer must not be held longer than it takes
        except (OSError, ValueError) as error:
            self.close(UNAVAILABLE, f"cannot write to {self.peer}: {error}", say=False)

    # Receiving

    def start(
        self, on_message: Callable[[Channel, Message], None], on_close: Callable[[Channel, OpError], None]
    ) -> None:
        """Begins to hand over messages, in a thread of its own."""
        self._on_close = on_close
        with self._lock:  # whoever closes the channel meanwhile must see that somebody reads
            self._reader = self._thread(lambda: self._read_all(on_message), "read")
        _pulse.watch(self)

    def _thread(self, target: Callable[[], None], what: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"penstock-{what}-{self.peer}", daemon=True)
        thread.start()
        return thread

    def _read_all(self, on_message: Callable[[Channel, Message], None]) -> None:
        try:
            while self._reason is None:
                message = self.receive()
                kind = message.__class__
                if kind is Ping:
                    self.send(Pong())
                elif kind is Goodbye:
                    self.close(message.code, message.message, say=False)  # type: ignore[union-attr]
                elif kind is not Pong:
                    on_message(self, message)
                del message  # it may hold a lease
                leases = self._leases
                if leases is not None and len(leases._released) > _MANY_RELEASED:
                    self._send([])
        except DataLossError as error:
            logging.warning("%s sent what is no message, and was disconnected: %s", self.peer, error.message)
            self.close(error.error_code, error.message)
        except OpError as error:
            self.close(error.error_code, error.message, say=False)
        except (OSError, EOFError, ValueError) as error:
            self.close(UNAVAILABLE, f"the connection to {self.peer} was lost: {error}", say=False)
        except Exception as error:
            logging.error("penstock: while handling a message of %s", self.peer, exc_info=error)
            self.close(INTERNAL, f"while handling a message of {self.peer}: {error!r}")
        finally:
            self._finish()

    def receive(self, most: int | None = None) -> Message:
        """Waits for the next message, of at most `most` bytes. EOFError when the peer has closed."""
        while True:
            self._fill(codec.HEADER.size)
            kind, meta_size, payload_size = codec.decode_header(self._buffer[self._start : self._end])
            if most is not None and meta_size + payload_size > most:
                raise DataLossError(None, None, f"A frame announces {meta_size} + {payload_size} bytes, not {most}.")
            self._start += codec.HEADER.size
            meta = self._taken(meta_size)
            payload: Any = b""
            if payload_size:
                # XLA copies small arrays in any case.
                small = payload_size <= _SMALL
                payload = memoryview(bytearray(payload_size) if small else aligned_buffer(payload_size).data)
                self._read_into(payload)
            self._received += codec.HEADER.size + meta_size + payload_size
            message = codec.decode(kind, meta, payload, None if self._leases is None else self._leases.take)
            if message.__class__ is Segment:
                self._announced(message)
            elif message.__class__ is Released:
                if self._arena is None:
                    raise DataLossError(None, None, "Segments were released, but none are shared here.")
                self._arena.release(message.segments)  # type: ignore[arg-type]
            else:
                return message

    def _announced(self, message: Any) -> None:
        if self._leases is None or not self._stream.descriptors:
            raise DataLossError(None, None, "A segment was announced without its descriptor.")
        self._leases.announced(message.segment, message.size, self._stream.descriptors.pop(0))

    def _fill(self, size: int) -> None:
        """Reads until `size` bytes are in the buffer."""
        if self._end - self._start >= size:
            return
        rest = self._end - self._start
        self._buffer[:rest] = self._buffer[self._start : self._end]
        self._start, self._end = 0, rest
        while self._end < size:
            self._end += self._count(self._stream.read_some(self._buffer[self._end :]))

    def _taken(self, size: int) -> Any:
        """The next `size` bytes, valid until more are read."""
        if size > len(self._buffer):
            large = memoryview(bytearray(size))
            self._read_into(large)
            return large
        self._fill(size)
        self._start += size
        return self._buffer[self._start - size : self._start]

    def _read_into(self, view: Any) -> None:
        there = min(len(view), self._end - self._start)
        view[:there] = self._buffer[self._start : self._start + there]
        self._start += there
        while there < len(view):
            there += self._count(self._stream.read_bulk(view[there:]))

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
        return UnavailableError(None, None, f"No connection to {self.peer}: {reason.message}")

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
            for _, descriptors in (*self._waiting, *self._kept):
                _close_all(descriptors)
            self._waiting.clear()
            self._kept = []
            self._work.notify_all()
        self._stream.close()
        if self._reader is None:
            self._finish()

    def _finish(self) -> None:
        _pulse.forget(self)
        if self._writer is not None and self._writer is not threading.current_thread():
            self._writer.join()
        self._stream.free()
        self._arena = self._leases = None
        if self._on_close is not None:
            reason = self._reason
            assert reason is not None
            self._on_close(self, reason)

    def join(self, timeout: float) -> None:
        """Waits until the threads of a closed channel have ended."""
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(timeout)


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


def _joined(batches: list[tuple[list[Any], list[int]]]) -> list[tuple[list[Any], list[int]]]:
    """Batches with neighbours joined, where no descriptor has to stay with its frame."""
    joined = [batches[0]]
    for buffers, descriptors in batches[1:]:
        if descriptors or joined[-1][1]:
            joined.append((buffers, descriptors))
        else:
            joined[-1] = ([*joined[-1][0], *buffers], [])
    return joined


def _rest(buffers: list[Any], sent: int) -> list[Any]:
    """What is left of `buffers` after `sent` bytes; `buffers` itself if nothing was sent."""
    if sent == 0:
        return buffers
    for i, buffer in enumerate(buffers):
        size = _size(buffer)
        if sent < size:
            return [memoryview(buffer)[sent:], *buffers[i + 1 :]]
        sent -= size
    return []


def _size(buffer: Any) -> int:
    size: int = buffer.nbytes if isinstance(buffer, (np.ndarray, memoryview)) else len(buffer)
    return size


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


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
