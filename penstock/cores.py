"""The cores that this process may use, and work on large arrays that two of them share."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # of the container, where control groups have version 2


@functools.cache
def every_core() -> set[int]:
    """The cores that this process may use. A parameter server binds its threads to some of them later."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


@functools.cache
def cores() -> int:
    """The number of cores that this process may use, or the time of so many where its container has a limit."""
    every = len(every_core())
    try:
        limit, period = _LIMIT.read_text().split()  # microseconds in each period; "max" if there is no limit
        return max(1, min(every, int(limit) // int(period)))
    except (OSError, ValueError):
        return every


def in_parts(work: Callable[[int, int], object], length: int, parts: int) -> None:
    """Calls `work(begin, end)` for so many parts of `length` items. Another thread helps if it is free.

    That pays where `work` spends its time in NumPy, on large arrays, so that both threads run at once. The caller never
    waits for a helper that has not started: then it does all parts itself. So on a busy machine they take little longer
    than with one thread. If parts fail, all others are done, and one error is raised.

    >>> in_parts(lambda begin, end: np.sqrt(a[begin:end], out=a[begin:end]), len(a), parts=2)
    """
    if min(parts, length, cores()) < 2:
        work(0, length)
        return
    shared = _Shared(work, length, -(-length // parts))
    _helper().put(shared)
    shared.work()
    shared.wait()


class _Shared:
    """Work of two threads, each of which takes parts that are still free."""

    def __init__(self, work: Callable[[int, int], object], length: int, step: int) -> None:
        self._work = work
        self._left = deque((at, min(at + step, length)) for at in range(0, length, step))
        self._undone = len(self._left)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: BaseException | None = None

    def work(self) -> None:
        """Does parts until none are left."""
        while True:
            try:
                part = self._left.popleft()
            except IndexError:
                return
            try:
                self._work(*part)
            except BaseException as error:
                self._error = error
            with self._lock:
                self._undone -= 1
                if not self._undone:
                    self._done.set()

    def wait(self) -> None:
        """Waits until the other thread has done its part."""
        self._done.wait()
        self._work = _nothing  # a helper that comes too late must not keep arrays: others may wait to write into them
        error, self._error = self._error, None  # its traceback refers to arrays, too
        if error is not None:
            raise error


def _nothing(begin: int, end: int) -> None:
    """Stands in for work that is done."""


@functools.cache
def _helper() -> SimpleQueue[_Shared]:
    """The queue of a thread that lives as long as the process."""
    every: SimpleQueue[_Shared] = SimpleQueue()

    def help_out() -> None:
        while True:
            shared = every.get()
            if hasattr(os, "sched_setaffinity"):
                # Where a parameter server is bound to one core, its helper would wait for just that one.
                with contextlib.suppress(OSError):  # a container may not allow it
                    os.sched_setaffinity(0, every_core())
            shared.work()

    threading.Thread(target=help_out, name="penstock-helper", daemon=True).start()
    return every


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helper.cache_clear)  # a child process does not have this thread
