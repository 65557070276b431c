"""Products of matrices in NumPy, with control over the number of threads."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from penstock.cores import in_parts

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

    >>> product(np.ones((2, 3)), np.ones((3, 4))).shape
    (2, 4)
    """
    one_thread.limit()
    if a.ndim != 2 or b.ndim != 2 or len(a) * b.size < LARGE:
        result: np.ndarray = np.matmul(a, b)
        return result
    out = np.empty((len(a), b.shape[1]), np.result_type(a, b))
    in_parts(lambda begin, end: np.matmul(a[begin:end], b, out=out[begin:end]), len(a), PARTS)
    return out
