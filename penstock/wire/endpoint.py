"""Endpoints make channels: a listener accepts them, `connect` opens them. Both sides first say who they are."""

from __future__ import annotations

import math
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock import logging
from penstock.errors import PERMISSION_DENIED, DataLossError, UnavailableError, error_from_code
from penstock.wire.channel import Channel
from penstock.wire.credentials import Credentials, RefusalLog
from penstock.wire.messages import Goodbye, Hello, Welcome
from penstock.wire.stream import Stream, TlsStream

HANDSHAKE_SECS = 10.0  # in which a peer must say who it is
MAX_SILENT = 1024  # connections that have sent nothing yet; the oldest is closed when there are more
MAX_HANDSHAKES = 128  # threads at most, each for one peer
MAX_HELLO = 1 << 16  # bytes: more than a peer needs to say who it is
MAX_NAME = 1024  # characters of a task's name


class Listener:
    """Accepts channels over TCP, and over an abstract Unix socket where the system has them and TLS is not asked for.

    A connection that sends nothing costs a descriptor and no thread. All are closed that do not complete the handshake
    within HANDSHAKE_SECS.
    """

    def __init__(
        self,
        host: str,
        welcome: Welcome,
        on_channel: Callable[[Channel, Hello], None],
        credentials: Credentials | None = None,
    ) -> None:
        self._welcome = welcome
        self._on_channel = on_channel
        self._credentials = credentials
        self._context = credentials.server_context() if credentials else None
        self._refusals = RefusalLog()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sockets = [socket.create_server((host, 0), family=family, backlog=128)]
        self.port: int = self._sockets[0].getsockname()[1]
        self.unix_name = ""
        if credentials is None:
            self._listen_on_unix()
        self._wake, self._waker = socket.socketpair()
        self._closing = False
        self._lock = threading.Lock()
        self._shaking_hands: dict[socket.socket, float] = {}  # sockets in a handshake: deadline
        self._handshakes = ThreadPoolExecutor(MAX_HANDSHAKES, "penstock-handshake")
        self._thread = threading.Thread(target=self._accept_all, name="penstock-accept", daemon=True)
        self._thread.start()

    def _listen_on_unix(self) -> None:
        try:
            unix = socket.socket(socket.AF_UNIX)
            name = f"penstock-{secrets.token_hex(12)}"
            unix.bind(f"\0{name}")  # an abstract name leaves no file to clean up
            unix.listen(128)
        except (OSError, AttributeError) as error:
            logging.info("No Unix socket here, tensors go over TCP: %s", error)
            return
        self._sockets.append(unix)
        self.unix_name = name

    def _accept_all(self) -> None:
        silent: dict[socket.socket, float] = {}  # sockets that have sent nothing: deadline, the oldest first
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            for sock in self._sockets:
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_READ)
            while not self._closing:
                for key, _ in selector.select(self._seconds_until_overdue(silent)):
                    ready: Any = key.fileobj
                    if ready in self._sockets:
                        accepted = self._accept(ready)
                        if accepted is not None:
                            silent[accepted] = time.monotonic() + HANDSHAKE_SECS
                            selector.register(accepted, selectors.EVENT_READ)
                    elif ready in silent:
                        selector.unregister(ready)
                        del silent[ready]
                        with self._lock:
                            self._shaking_hands[ready] = math.inf
                        self._handshakes.submit(self._shake_hands, ready)
                now = time.monotonic()
                for sock in _overdue(silent, now, len(silent) - MAX_SILENT):
                    self._refusals.refused(_name(sock), "it sent nothing")
                    selector.unregister(sock)
                    del silent[sock]
                    sock.close()
                with self._lock:
                    for sock in _overdue(self._shaking_hands, now):
                        self._interrupt(sock)
        for sock in silent:
            sock.close()

    def _seconds_until_overdue(self, silent: dict[socket.socket, float]) -> float | None:
        """Returns how many seconds to wait for events, at most until the next deadline."""
        with self._lock:
            ends = [*silent.values(), *self._shaking_hands.values()]
        if not ends:
            return None
        # Sockets that wait for a thread get a deadline only when they have one.
        return min(max(0.0, min(ends) - time.monotonic()), HANDSHAKE_SECS / 4)

    def _interrupt(self, sock: socket.socket) -> None:
        """Wakes the thread in this handshake. It finds the socket removed, and closes it."""
        del self._shaking_hands[sock]
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer has gone

    def _accept(self, listening: socket.socket) -> socket.socket | None:
        try:
            sock, _ = listening.accept()
        except OSError as error:  # the peer has gone, or no descriptors are left
            self._refusals.refused("an unknown address", f"it could not be accepted: {error}")
            time.sleep(0.01)  # the same error may follow at once: do not spin
            return None
        return sock

    def _shake_hands(self, sock: socket.socket) -> None:
        """Reads the Hello of a peer, and hands the channel over if the peer may connect."""
        name = _name(sock)
        channel: Channel | None = None
        in_time = False
        with self._lock:
            if sock in self._shaking_hands:  # else the listener is closing
                self._shaking_hands[sock] = time.monotonic() + HANDSHAKE_SECS
        try:
            channel = Channel(_stream(sock, self._context, True), name)
            hello = channel.receive(MAX_HELLO)
            with self._lock:
                in_time = self._shaking_hands.pop(sock, None) is not None
            if not in_time:
                raise EOFError  # `_interrupt` has shut the socket down
            if not isinstance(hello, Hello):
                raise DataLossError(f"it began with a {type(hello).__name__}")
            if self._credentials is not None and not self._credentials.token_matches(hello.token):
                channel.close(PERMISSION_DENIED, "the token is not that of this job")
                self._refusals.refused(name, "its token is wrong")
                return
            if len(hello.task) > MAX_NAME or not hello.task.isprintable():
                raise DataLossError("it has a name that no task has")
            channel.peer = hello.task or name
            channel.send(self._welcome)
            self._on_channel(channel, hello)
        except Exception as error:  # an error with one peer must not end the listener
            with self._lock:
                in_time = in_time or self._shaking_hands.pop(sock, None) is not None
            why = f"{type(error).__name__}: {error}" if in_time else "it took too long to say who it is"
            self._refusals.refused(name, why)
            if channel is None:
                sock.close()
            else:
                channel.close(getattr(error, "error_code", PERMISSION_DENIED), str(error))

    def close(self) -> None:
        """Stops listening. Channels that were accepted stay open."""
        self._closing = True
        self._waker.send(b"x")
        self._thread.join()
        with self._lock:
            for sock in list(self._shaking_hands):
                self._interrupt(sock)
        self._handshakes.shutdown()
        for sock in (*self._sockets, self._wake, self._waker):
            sock.close()


def connect(
    host: str,
    port: int,
    unix_name: str,
    hello: Hello,
    credentials: Credentials | None = None,
    timeout: float = HANDSHAKE_SECS,
) -> tuple[Channel, Welcome]:
    """Opens a channel: over the Unix socket on the same host, else over TCP. Credentials add TLS."""
    where = f"{host}:{port}"
    sock: socket.socket | None = None
    channel: Channel | None = None
    try:
        sock = _connected_socket(host, port, unix_name, timeout)
        sock.settimeout(timeout)
        context = credentials.client_context() if credentials else None
        channel = Channel(_stream(sock, context, False), where)
        channel.send(hello)
        answer = channel.receive(MAX_HELLO)
        if isinstance(answer, Goodbye):
            raise error_from_code(answer.code, f"{where} refused the channel: {answer.message}")
        if not isinstance(answer, Welcome):
            raise DataLossError(f"{where} answered with a {type(answer).__name__}.")
        sock.settimeout(None)
    except BaseException as error:
        if channel is not None:
            channel.close(tell_peer=False)
        elif sock is not None:
            sock.close()
        if isinstance(error, (OSError, EOFError)):
            raise UnavailableError(f"No channel to {where}: {error}") from error
        raise
    channel.peer = answer.task
    return channel, answer


def _connected_socket(host: str, port: int, unix_name: str, timeout: float) -> socket.socket:
    if unix_name:
        unix = socket.socket(socket.AF_UNIX)
        try:
            unix.connect(f"\0{unix_name}")
            return unix
        except OSError:  # the task is on another host, or in another container
            unix.close()
    return socket.create_connection((host, port), timeout)


def _overdue(waiting: dict[socket.socket, float], now: float, surplus: int = 0) -> list[socket.socket]:
    """Returns the sockets that are past their deadline, and the oldest `surplus`."""
    return [sock for i, (sock, end) in enumerate(waiting.items()) if end <= now or i < surplus]


def _stream(sock: socket.socket, context: object, server_side: bool) -> Stream:
    if context is None:
        return Stream(sock)
    return TlsStream(sock, context, server_side)  # type: ignore[arg-type]


def _name(sock: socket.socket) -> str:
    try:
        peer = sock.getpeername()
    except OSError:
        return "a peer that has gone"
    return "a process of this host" if isinstance(peer, (str, bytes)) else f"{peer[0]}:{peer[1]}"
