"""Products of matrices in NumPy, with control over the number of threads."""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

LARGE = 1 << 22  # multiplications from which on a product is split
PARTS = 2  # number of parts of a large product


class OneThread:
    """While any thread is inside, `product` multiplies matrices in the calling thread only.

    NumPy's library spins while it waits for its own threads. If other tasks need the cores, a product of 0.7 ms takes
    ten times as long. The first product sets the limit, since most steps make no products.

    >>> with one_thread:
    ...     result = product(a, b)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[int] | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._before is not None:
                for library, count in zip(_libraries(), self._before, strict=True):
                    library.set_num_threads(count)
                self._before = None

    def limit(self) -> None:
        """Makes the library use one thread from now on, if any thread is inside."""
        if self._inside and self._before is None:
            with self._lock:
                if self._inside and self._before is None:
                    self._before = [library.num_threads for library in _libraries()]
                    for library in _libraries():
                        library.set_num_threads(1)


@functools.cache
def _libraries() -> list[Any]:
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


one_thread = OneThread()


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The matrix product; for large matrices another thread helps if it is free.

    The caller never waits for a helper that has not started: then it makes all parts itself. So on a busy machine a
    product takes little longer than with one thread.

    >>> product(np.ones((2, 3)), np.ones((3, 4))).shape
    (2, 4)
    """
    one_thread.limit()
    if a.ndim != 2 or b.ndim != 2 or len(a) * b.size < LARGE or cores() < 2:
        result: np.ndarray = np.matmul(a, b)
        return result
    shared = _Shared(a, b)
    _helper().put(shared)
    shared.work()
    return shared.result()


class _Shared:
    """A product of two threads, each of which takes parts that are still free."""

    def __init__(self, a: np.ndarray, b: np.ndarray) -> None:
        self._a, self._b = a, b
        self._out = np.empty((len(a), b.shape[1]), np.result_type(a, b))
        step = -(-len(a) // PARTS)
        self._left = deque(slice(at, at + step) for at in range(0, len(a), step))
        self._undone = len(self._left)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: BaseException | None = None

    def work(self) -> None:
        """Computes parts until none are left."""
        while self._left:
            try:
                rows = self._left.popleft()
            except IndexError:  # the other thread took the last part
                return
            try:
                np.matmul(self._a[rows], self._b, out=self._out[rows])
            except BaseException as error:
                self._error = error
            with self._lock:
                self._undone -= 1
                if not self._undone:
                    self._done.set()

    def result(self) -> np.ndarray:
        """Waits until the other thread has finished its part, and returns the product."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._out


@functools.cache
def _helper() -> SimpleQueue[_Shared]:
    """The queue of a thread that lives as long as the process."""
    products: SimpleQueue[_Shared] = SimpleQueue()

    def help_out() -> None:
        while True:
            products.get().work()

    threading.Thread(target=help_out, name="penstock-products", daemon=True).start()
    return products


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helper.cache_clear)  # a child process does not have this thread


@functools.cache
def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
