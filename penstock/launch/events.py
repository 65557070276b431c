"""Events of a running job, and the one place where the launcher waits for them.

Descriptors, threads and signals all wake the same wait, so an engine reports in the way that suits it.

>>> with Events() as events:
...     events.post(Notice("hello"))
...     events.next(deadline=None)
[Notice(text='hello')]
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Self

from penstock.launch.cluster import Task

_READ = 1 << 16
NOT_STARTED = 126  # the exit code of a shell for a command that it cannot execute


@dataclass(frozen=True)
class Output:
    """A task printed `data` to its "stdout" or "stderr"; empty data means that the stream has ended."""

    task: Task
    stream: str
    data: bytes


@dataclass(frozen=True)
class UnderWay:
    """A task does its work; one that only `serves` others is not waited for when the chief is done."""

    task: Task
    serves: bool = False


@dataclass(frozen=True)
class Ended:
    """A task has ended, with its exit code or minus the number of the signal that ended it.

    `why` says more, if it did not end by itself: "was lost with node n3" (the code is -SIGKILL then, which leads to a
    restart), or "cannot be started: ..." (a positive code, which does not).
    """

    task: Task
    code: int
    why: str = ""


@dataclass(frozen=True)
class Moved:
    """The engine has given tasks new addresses: `engine.cluster` has changed, and running tasks know the old one.

    An engine posts this before it starts any task with the new cluster. The launcher then restarts all other tasks.
    """

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Notice:
    """The engine has something to tell the user."""

    text: str


@dataclass(frozen=True)
class ScaleWanted:
    """Somebody asks for other numbers of tasks (None: as before). Each call of `answer` tells a line, or the end."""

    ps: int | None
    workers: int | None
    answer: Callable[[str, int | None], None]  # a text, and an exit code with the last one


@dataclass(frozen=True)
class Resized:
    """The first parameter server has changed the membership of the job; a `problem` says why it has not."""

    text: str
    problem: str = ""
    record: str = ""  # the new one


@dataclass(frozen=True)
class Scaled:
    """Tasks have joined or left: `engine.cluster` has changed."""


@dataclass(frozen=True)
class Signal:
    """The launcher got a signal."""

    number: int


Event = Output | UnderWay | Ended | Moved | Notice | ScaleWanted | Resized | Scaled | Signal


class Events:
    """Collects events. Only `post` may be called in other threads than the one that waits."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Event] = deque()
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()  # orders timers of the same time
        self._signals: set[signal.Signals] = set()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ, self._woken)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._reader.close()
        self._writer.close()

    def post(self, event: Event) -> None:
        """Adds an event; any thread may do so."""
        self._posted.append(event)
        try:
            self._writer.send(b"\0")
        except OSError:
            pass  # it is full, so that the wait ends anyway, or it is closed, and nobody waits any more

    def watch(self, file: int | IO[bytes], ready: Callable[[], object]) -> None:
        """Calls `ready` in the waiting thread, during `next`, whenever the file can be read."""
        self._selector.register(file, selectors.EVENT_READ, ready)

    def forget(self, file: int | IO[bytes]) -> None:
        """Stops watching a file."""
        self._selector.unregister(file)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Makes a call in the waiting thread, during `next`, when that time has passed."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._count), call))

    def next(self, deadline: float | None) -> list[Event]:
        """The events that have arrived. Waits for the first until `deadline`, a time of `time.monotonic`."""
        times = [each for each in (deadline, self._timers[0][0] if self._timers else None) if each is not None]
        timeout = max(0.0, min(times) - time.monotonic()) if times else None
        for key, _ in self._selector.select(0 if self._posted else timeout):
            key.data()
        # After the reads: a timer that looks for a sign of life sees what has arrived while this process was stopped.
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()
        found = []
        while self._posted:
            found.append(self._posted.popleft())
        return found

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Makes SIGINT, SIGTERM and SIGHUP events inside the `with`; for the main thread."""
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # An ignored signal stays ignored: `nohup` and background jobs rely on it.
        self._signals = {each for each in wanted if signal.getsignal(each) is not signal.SIG_IGN}
        # Python writes the number of each signal that arrives to this socket.
        wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None) for number in self._signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)

    def _woken(self) -> None:
        self._posted += [Signal(number) for number in self._reader.recv(_READ) if number in self._signals]
