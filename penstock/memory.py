"""Aligned memory for XLA, which reads arrays in place if they start at a multiple of 64 bytes, and copies all others.

Also pauses Python's garbage collection while many objects are made.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes


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


def is_aligned(array: np.ndarray) -> bool:
    """Tells if XLA reads an array in place."""
    address: int = array.__array_interface__["data"][0]
    return address % ALIGNMENT == 0 and array.flags.c_contiguous


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
