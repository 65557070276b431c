"""A stream is a connected socket as the channel uses it, plain or under TLS.

Reading blocks unless `read_flags` say otherwise; `write_some` never blocks. One thread at a time reads, and one at a
time writes.
"""

from __future__ import annotations

import array
import os
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Any

from penstock.errors import DataLossError

_BUFFER = 4 << 20  # bytes that the operating system may hold for each direction
_MAX_BUFFERS = 512  # in one call; the operating system takes 1024
_MAX_DESCRIPTORS = 16
_ANCILLARY = socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS)
_CHUNK = 1 << 18  # bytes that are encrypted at a time


class Stream:
    """A plain socket. Over a Unix socket descriptors can travel along with bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.is_unix = sock.family == getattr(socket, "AF_UNIX", None)
        self.descriptors: list[int] = []  # received, and not used yet
        self.read_flags = 0  # with MSG_DONTWAIT, reading raises BlockingIOError where there is nothing to read
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        if not self.is_unix:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read_some(self, view: Any) -> int:
        """Reads bytes and descriptors into `view`. Returns how many bytes; 0 means that the stream has ended."""
        if not self.is_unix:
            return self.socket.recv_into(view, 0, self.read_flags)
        size, ancillary, _, _ = self.socket.recvmsg_into([view], _ANCILLARY, self.read_flags)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                self.descriptors += received
        if len(self.descriptors) > _MAX_DESCRIPTORS:
            raise DataLossError(f"{len(self.descriptors)} descriptors came without frames that announce their regions.")
        return size

    def read_bulk(self, view: Any) -> int:
        """Reads like `read_some`, where no descriptors can come."""
        return self.socket.recv_into(view, 0, self.read_flags)

    def has_more(self) -> bool:
        """Tells if bytes are left to read that the socket has already handed out."""
        return False

    def write_some(self, buffers: Sequence[Any], descriptors: Sequence[int] = ()) -> int:
        """Writes as much as it can without blocking, and returns how many bytes that was."""
        try:
            return self._send(buffers, descriptors, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def write(self, buffers: Sequence[Any], descriptors: Sequence[int] = ()) -> int:
        """Blocks until it can write at least one byte, and returns how many it wrote."""
        return self._send(buffers, descriptors, 0)

    def write_last(self, buffers: Sequence[Any]) -> None:
        """Writes as much as it can without blocking. Nothing is written after this, and nobody else writes now."""
        self.write_some(buffers)

    def _send(self, buffers: Sequence[Any], descriptors: Sequence[int], flags: int) -> int:
        if descriptors:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            return self.socket.sendmsg(buffers, rights, flags)
        return self.socket.sendmsg(buffers[:_MAX_BUFFERS], (), flags)

    def close(self) -> None:
        """Ends both directions, which wakes the threads that read or write."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer has closed it already

    def free(self) -> None:
        """Closes the socket, once nobody uses it any more."""
        self.socket.close()
        while self.descriptors:
            os.close(self.descriptors.pop())


class TlsStream(Stream):
    """A socket under TLS. The cipher's state is kept in memory, under a lock that is never held while waiting."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_side: bool) -> None:
        super().__init__(sock)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if server_side else "penstock"
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=name)
        self._lock = threading.Lock()
        self._shake_hands()

    def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
            finally:
                self._flush()

    def _flush(self) -> None:
        self.socket.sendall(self._outgoing.read())

    def _receive(self) -> None:
        data = self.socket.recv(1 << 18, self.read_flags)
        with self._lock:
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    def read_some(self, view: Any) -> int:
        while True:
            try:
                with self._lock:
                    return int(self._tls.read(len(view), view))  # reads into `view`
            except ssl.SSLWantReadError:
                self._receive()
            except ssl.SSLEOFError:
                return 0

    read_bulk = read_some

    def has_more(self) -> bool:
        return bool(self._tls.pending() or self._incoming.pending)

    def write_some(self, buffers: Sequence[Any], descriptors: Sequence[int] = ()) -> int:
        return 0  # the writer thread encrypts

    def write_last(self, buffers: Sequence[Any]) -> None:
        with self._lock:
            for buffer in buffers:
                self._tls.write(buffer)
            data = self._outgoing.read()
        self.socket.send(data, socket.MSG_DONTWAIT)

    def write(self, buffers: Sequence[Any], descriptors: Sequence[int] = ()) -> int:
        with self._lock:
            sent = self._tls.write(_first(buffers))
            data = self._outgoing.read()
        self.socket.sendall(data)
        return sent


def _first(buffers: Sequence[Any]) -> Any:
    """Returns the first bytes of `buffers`, up to a limit: a part of a large one, or small ones joined."""
    size = count = 0
    for buffer in buffers:
        size += memoryview(buffer).nbytes
        if size > _CHUNK:
            break
        count += 1
    return b"".join(buffers[:count]) if count else memoryview(buffers[0])[:_CHUNK]
