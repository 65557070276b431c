"""How many threads NumPy uses for products of matrices."""

from __future__ import annotations

import functools
import threading
from types import TracebackType
from typing import Any

from threadpoolctl import ThreadpoolController


class OneThread:
    """While any thread is inside, NumPy multiplies matrices in the thread that asks for it.

    Its library spins while it waits for threads of its own. Where other tasks want the cores, a product of 0.7 ms
    takes ten times as long that way.

    >>> with one_thread:
    ...     product = a @ b
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[int] = []

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = [library.num_threads for library in _libraries()]
                for library in _libraries():
                    library.set_num_threads(1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for library, count in zip(_libraries(), self._before, strict=True):
                    library.set_num_threads(count)


@functools.cache
def _libraries() -> list[Any]:
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


one_thread = OneThread()
