"""Loop: reads the channels of a process. One thread at a time waits for bytes, and handles the messages that they make.

That is a thread of the loop, or a thread that waits for an answer: if one does so more often than all others together,
as one that trains does, it reads meanwhile. Then nobody has to be woken when the answer comes.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from typing import Any, Protocol

IDLE_SECS = 0.01  # without anybody reading, after which the loop's own thread does it again
_SURE = 4  # waits more than all other threads together: then a thread reads itself
_MOST = 8


class Readable(Protocol):
    """What a loop reads."""

    def fileno(self) -> int: ...
    def read(self) -> None:
        """Reads what is there, without waiting for more, and handles it."""


class Signal:
    """An event that one thread waits for: a fifth of the cost of a threading.Event, of which a step needs two.

    >>> signal = Signal(); threading.Timer(1, signal.set).start(); signal.wait(timeout=2)
    True
    """

    __slots__ = ("_lock", "is_set", "loop")

    def __init__(self) -> None:
        self.is_set = False
        self.loop: Loop | None = None  # that the thread which waits reads
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wakes who waits, now or later. One thread at a time may set it."""
        if self.is_set:
            return
        self.is_set = True
        self._lock.release()
        loop = self.loop
        if loop is not None:
            loop.wake()

    def wait(self, timeout: float | None) -> bool:
        """Whether it was set within `timeout` seconds."""
        return self.is_set or self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))


class Loop:
    """Reads what is added to it, until that is removed. Its thread is there while there is something to read.

    >>> loop = Loop(); loop.add(channel); loop.wait(signal, timeout=1.0)
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._lock = threading.Lock()  # of what is read, and of the thread
        self._readers: dict[int, Readable] = {}
        self._selector: Any = None
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None
        self._reading = threading.Lock()  # held by the thread that reads
        self._reads: int | None = None  # that thread
        self._left = 0.0  # when a thread that waited has left off reading
        self._wanted = False  # one has waited, and would rather read itself
        self._usual: int | None = None  # the thread that waits most often,
        self._lead = 0  # and by how much

    def add(self, reader: Readable) -> None:
        """Begins to read something."""
        with self._lock:
            if self._thread is None:
                self._selector = selectors.DefaultSelector()
                self._bell = socket.socketpair()
                self._bell[0].setblocking(False)
                self._selector.register(self._bell[0], selectors.EVENT_READ)
                self._thread = threading.Thread(target=self._stand_by, name=f"penstock-read{self._name}", daemon=True)
                self._thread.start()
            descriptor = reader.fileno()
            self._readers[descriptor] = reader
            self._selector.register(descriptor, selectors.EVENT_READ)

    def remove(self, reader: Readable) -> None:
        """Stops reading something; its descriptor is still open."""
        with self._lock:
            descriptor = reader.fileno()
            del self._readers[descriptor]
            self._selector.unregister(descriptor)
            if not self._readers:
                self._ring()

    def is_read_here(self) -> bool:
        """Whether it is this thread that reads."""
        return self._reads == threading.get_ident()

    def wake(self) -> None:
        """Has the thread that reads look whether it still has to."""
        if not self.is_read_here():
            with self._lock:
                self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            try:
                self._bell[1].send(b"!", socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass  # it has been rung often enough

    # Reading

    def _turn(self, timeout: float | None) -> None:
        """Waits until there is something to read, and has it read."""
        for key, _ in self._selector.select(timeout):
            reader = self._readers.get(key.fd)
            if reader is not None:
                reader.read()
            elif key.fileobj is self._bell[0]:  # type: ignore[index]
                try:
                    self._bell[0].recv(4096)  # type: ignore[index]
                except BlockingIOError:
                    pass  # another thread was faster

    def _stand_by(self) -> None:
        """Reads whenever nobody else does."""
        while True:
            with self._reading:
                self._reads = threading.get_ident()
                with self._lock:
                    if not self._readers:
                        self._end()
                        return
                self._turn(None)
                self._reads = None
            while self._wanted and self._readers:
                time.sleep(IDLE_SECS)  # who usually waits comes back soon, and then reads itself
                if not self._reading.locked() and time.monotonic() - self._left > IDLE_SECS:
                    self._wanted = False

    def _end(self) -> None:
        self._selector.close()
        assert self._bell is not None
        for end in self._bell:
            end.close()
        self._selector = self._bell = self._thread = self._reads = None

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        """Whether a signal was set within `timeout` seconds; reads meanwhile, if this thread usually waits."""
        if signal.is_set:
            return True
        if not (self._usually_waits() and self._reading.acquire(blocking=False)):
            return signal.wait(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        try:
            self._reads = threading.get_ident()
            signal.loop = self
            while self._selector is not None and not signal.is_set:
                remaining = None if end is None else end - time.monotonic()
                if remaining is not None and remaining <= 0:
                    break
                self._turn(remaining)
        finally:
            signal.loop = self._reads = None
            self._left = time.monotonic()
            self._reading.release()
        return signal.wait(None if end is None else end - time.monotonic())

    def _usually_waits(self) -> bool:
        """Whether this thread, which waits now, does so more often than all others together."""
        me = threading.get_ident()
        if me == self._usual:
            self._lead = min(self._lead + 1, _MOST)
        elif self._lead:
            self._lead -= 1
        else:
            self._usual, self._lead = me, 1
        usually = me == self._usual and self._lead >= _SURE
        self._wanted = self._wanted or usually
        return usually
