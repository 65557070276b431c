"""A loop reads the channels of a process. One thread at a time waits for bytes and handles the messages in them.

This is the loop's own thread, or a thread that waits for an answer. A thread that waits more often than all others
together, as one that trains does, reads while it waits. Then its answer wakes no other thread.

It stays awake for a moment as long as messages come quickly, since to be woken takes longer than to handle most.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from penstock.cores import cores

IDLE_SECS = 0.005  # the loop's own thread reads again after nobody has read for so long
_LEAD_TO_READ = 4  # a thread that has waited so many times more than all others reads while it waits
_MAX_LEAD = 8
_CROWDED_SECS = 0.0001  # who looks again after so long has lost its core to another thread meanwhile
_yield = getattr(os, "sched_yield", lambda: None)


def awake_secs() -> float:
    """Returns for how many seconds a thread that reads stays awake (PENSTOCK_AWAKE_SECS); on one core it never does."""
    return float(os.environ.get("PENSTOCK_AWAKE_SECS", "0.005")) if cores() > 1 else 0.0


class Readable(Protocol):
    """Something that a loop reads, such as a channel."""

    def fileno(self) -> int: ...
    def read(self) -> None:
        """Reads the bytes that have arrived, without waiting for more, and handles them."""


class Signal:
    """An event for one waiting thread. It costs a fifth of a threading.Event, and a step needs two.

    >>> signal = Signal(); threading.Timer(1, signal.set).start(); signal.wait(timeout=2)
    True
    """

    __slots__ = ("_lock", "is_set", "loop")

    def __init__(self) -> None:
        self.is_set = False
        self.loop: Loop | None = None  # the waiting thread reads this loop meanwhile
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wakes the thread that waits, now or later. Only one thread at a time may call this."""
        if self.is_set:
            return
        self.is_set = True
        self._lock.release()
        loop = self.loop
        if loop is not None:
            loop.wake()

    def wait(self, timeout: float | None) -> bool:
        """Waits up to `timeout` seconds, and returns True if the signal was set."""
        return self.is_set or self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))


class Loop:
    """Reads everything that was added and not removed. Its own thread runs while there is something to read.

    >>> loop = Loop(); loop.add(channel); loop.wait(signal, timeout=1.0)
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._lock = threading.Lock()  # guards the readers and the thread
        self._readers: dict[int, Readable] = {}
        self._selector: Any = None
        self._wakeup: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None
        self._reading = threading.Lock()  # the thread that reads holds this
        self._reading_thread: int | None = None  # its id
        self._is_claimed = False  # the main waiter wants to read
        self._last_wait_ended = 0.0  # when a waiting thread last stopped reading
        self._waiter_reads = False  # the main waiter reads, so the loop's own thread stays away
        self._main_waiter: int | None = None  # the thread that waits most often
        self._lead = 0  # how many times more it has waited than all others
        self._is_empty = threading.Event()  # there is nothing to read any more
        self._awake_secs = awake_secs()
        self._is_brisk = False  # the last wait was shorter than that
        # Gets a function that reads from several readers, so that what their messages ask for can run together.
        self.together: Callable[[Callable[[], None]], None] = lambda read: read()
        self.awake = 0.0  # seconds of processor time in which it waited

    def add(self, reader: Readable) -> None:
        """Starts reading `reader`."""
        with self._lock:
            if self._thread is None:
                self._selector = selectors.DefaultSelector()
                self._wakeup = socket.socketpair()
                self._wakeup[0].setblocking(False)
                self._selector.register(self._wakeup[0], selectors.EVENT_READ)
                self._thread = threading.Thread(target=self._run, name=f"penstock-read{self._name}", daemon=True)
                self._thread.start()
            descriptor = reader.fileno()
            self._readers[descriptor] = reader
            self._is_empty.clear()
            self._selector.register(descriptor, selectors.EVENT_READ)

    def remove(self, reader: Readable) -> None:
        """Stops reading `reader`, whose descriptor must still be open."""
        with self._lock:
            descriptor = reader.fileno()
            del self._readers[descriptor]
            self._selector.unregister(descriptor)
            if not self._readers:
                self._is_empty.set()
                self._interrupt()

    def is_read_here(self) -> bool:
        """Tells if the calling thread is the one that reads."""
        return self._reading_thread == threading.get_ident()

    def wake(self) -> None:
        """Makes the thread that reads check if it may stop."""
        if not self.is_read_here():
            with self._lock:
                self._interrupt()

    def _interrupt(self) -> None:
        if self._wakeup is not None:
            try:
                self._wakeup[1].send(b"!", socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass  # it has enough to read already

    # Reading

    def _poll(self, timeout: float | None) -> None:
        """Waits until something can be read, and lets its reader read it."""
        began = time.perf_counter()
        ready = self._look(began) if self._is_brisk and (timeout is None or timeout > self._awake_secs) else []
        if not ready:
            ready = self._selector.select(timeout)
            self._is_brisk = time.perf_counter() - began < self._awake_secs
        if len(ready) > 1:
            self.together(lambda: self._read(ready))
        else:
            self._read(ready)

    def _read(self, ready: list[Any]) -> None:
        for key, _ in ready:
            reader = self._readers.get(key.fd)
            if reader is not None:
                reader.read()
            elif key.fileobj is self._wakeup[0]:  # type: ignore[index]
                try:
                    self._wakeup[0].recv(4096)  # type: ignore[index]
                except BlockingIOError:
                    pass  # another thread has read it

    def _look(self, began: float) -> list[Any]:
        """Returns what can be read as soon as there is something; nothing after a while, or if others want the core."""
        look, spent = self._selector.select, time.thread_time()
        last = began
        while not (ready := look(0)):
            now = time.perf_counter()
            if now - began > self._awake_secs or now - last > _CROWDED_SECS:
                break
            last = now
            _yield()
        self.awake += time.thread_time() - spent
        return ready  # type: ignore[no-any-return]

    def _run(self) -> None:
        """Runs in the loop's own thread: reads whenever no waiting thread does."""
        while True:
            with self._reading:
                self._reading_thread = threading.get_ident()
                with self._lock:
                    if not self._readers:
                        self._end()
                        return
                self._poll(None)
                self._reading_thread = None
            # The main waiter comes back soon, and reads then, for all others who wait as well.
            while self._waiter_reads and not self._is_empty.wait(IDLE_SECS):
                if not self._reading.locked() and time.monotonic() - self._last_wait_ended > IDLE_SECS:
                    self._waiter_reads = False

    def _end(self) -> None:
        self._selector.close()
        assert self._wakeup is not None
        for end in self._wakeup:
            end.close()
        self._selector = self._wakeup = self._thread = self._reading_thread = None

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        """Waits up to `timeout` seconds for a signal, and tells if it was set.

        It reads meanwhile if it is the main waiter, or if nobody reads and as long as the main waiter does not want to.
        """
        if signal.is_set:
            return True
        if not (self._takes_over() if self._is_main_waiter() else self._reading.acquire(blocking=False)):
            return signal.wait(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        try:
            self._reading_thread = threading.get_ident()
            signal.loop = self
            while self._selector is not None and not signal.is_set and not self._is_claimed:
                remaining = None if end is None else end - time.monotonic()
                if remaining is not None and remaining <= 0:
                    break
                self._poll(remaining)
        finally:
            signal.loop = self._reading_thread = None
            self._last_wait_ended = time.monotonic()
            self._reading.release()
        return signal.wait(None if end is None else end - time.monotonic())

    def _takes_over(self) -> bool:
        """Claims reading for this thread. Returns False if the thread that reads is busy with a message meanwhile."""
        if self._reading.acquire(blocking=False):
            return True
        self._is_claimed = True
        self.wake()
        taken = self._reading.acquire(timeout=IDLE_SECS)
        self._is_claimed = False
        return taken

    def _is_main_waiter(self) -> bool:
        """Counts a wait of this thread, and tells if it waits more often than all others together."""
        me = threading.get_ident()
        if me == self._main_waiter:
            self._lead = min(self._lead + 1, _MAX_LEAD)
        elif self._lead:
            self._lead -= 1
        else:
            self._main_waiter, self._lead = me, 1
        is_main = me == self._main_waiter and self._lead >= _LEAD_TO_READ
        self._waiter_reads = self._waiter_reads or is_main
        return is_main
