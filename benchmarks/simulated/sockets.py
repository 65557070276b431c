"""What sockets cost: the time to write and to read a frame, measured over the loopback interface."""

from __future__ import annotations

import selectors
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from penstock.memory import aligned_empty
from penstock.wire.stream import Stream

SMALL, LARGE = 128, 1 << 18  # bytes
ROUNDS = 300


@dataclass(frozen=True)
class SocketCosts:
    """Seconds of processor time: for each frame, and for each byte."""

    per_write: float
    per_byte_written: float
    per_read: float
    per_byte_read: float

    def write(self, size: int) -> float:
        """Returns what writing a frame takes."""
        return self.per_write + size * self.per_byte_written

    def read(self, size: int) -> float:
        """Returns what waiting for a frame and reading it takes."""
        return self.per_read + size * self.per_byte_read


def measure() -> SocketCosts:
    """Measures streams over TCP on the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = Stream(socket.create_connection(listener.getsockname()))
        receiver = Stream(listener.accept()[0])
    selector = selectors.DefaultSelector()
    selector.register(receiver.socket, selectors.EVENT_READ)
    try:
        (write_small, read_small), (write_large, read_large) = (
            _medians(sender, receiver, selector, size) for size in (SMALL, LARGE)
        )
    finally:
        selector.close()
        sender.socket.close()
        receiver.socket.close()
    span = LARGE - SMALL
    return SocketCosts(
        write_small, max(0.0, write_large - write_small) / span, read_small, max(0.0, read_large - read_small) / span
    )


def _medians(sender: Stream, receiver: Stream, selector: selectors.DefaultSelector, size: int) -> tuple[float, float]:
    frame, place = bytes(size), memoryview(aligned_empty((size,)).data).cast("B")
    writes, reads = [], []
    for _ in range(ROUNDS):
        written = writing = reading = got = 0
        while got < size:
            began = time.thread_time()
            if written < size:
                written += sender.write_some([memoryview(frame)[written:]])
            sent = time.thread_time()
            selector.select(1.0)
            got += receiver.read_some(place[got:])
            writing, reading = writing + sent - began, reading + time.thread_time() - sent
        writes.append(writing)
        reads.append(reading)
    return statistics.median(writes), statistics.median(reads)


ECHO = "import os\nwhile data := os.read(0, 65536): os.write(1, data)"


def measure_latency() -> float:
    """Returns half the seconds that a byte takes to another process of this machine and back."""
    here, there = socket.socketpair()
    with here, there, subprocess.Popen([sys.executable, "-c", ECHO], stdin=there, stdout=there) as echo:
        trips = []
        here.settimeout(30.0)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            here.send(b"?")
            here.recv(1)
            trips.append(time.perf_counter() - began)
        echo.kill()
    return statistics.median(trips) / 2
