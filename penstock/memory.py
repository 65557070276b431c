"""Aligned memory for XLA, which reads arrays in place if they start at a multiple of 64 bytes, and copies all others.

Also gives memory back to the system, and pauses Python's garbage collection while many objects are made.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes
HUGE = 1 << 26  # bytes: of a variable of this size no copy is made or kept if that can be avoided


def aligned_empty(shape: tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    """An uninitialized array in aligned memory.

    >>> np.copyto(aligned_empty((2, 3), np.float32), 1.0)
    """
    template = np.dtype(dtype)
    size = math.prod(shape) * template.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    array: np.ndarray = memory[start : start + size].view(template).reshape(shape)
    return array


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy of an array in aligned memory."""
    copy = aligned_empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def is_aligned(array: np.ndarray) -> bool:
    """Tells if XLA reads an array in place."""
    address: int = array.__array_interface__["data"][0]
    return address % ALIGNMENT == 0 and array.flags.c_contiguous


def give_back_freed() -> None:
    """Gives freed memory back to the system, which the process would keep otherwise (glibc; elsewhere, nothing)."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Pauses garbage collection while very many lasting objects are made: Python would scan all of them repeatedly.

    >>> @without_collecting()
    ... def prepare(nodes): ...
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
