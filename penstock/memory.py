"""Memory as XLA wants it: what begins at a multiple of 64 bytes is read where it lies, all else is copied.

And when Python is not to look for garbage in it.
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
    """An array in aligned memory, with nothing in it yet.

    >>> np.copyto(aligned_empty((2, 3), np.float32), 1.0)
    """
    template = np.dtype(dtype)
    size = math.prod(shape) * template.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    array: np.ndarray = memory[start : start + size].view(template).reshape(shape)
    return array


def is_aligned(array: np.ndarray) -> bool:
    """Whether XLA reads an array where it lies."""
    address: int = array.__array_interface__["data"][0]
    return address % ALIGNMENT == 0 and array.flags.c_contiguous


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Where very many objects are made that stay: Python would look through all of them for garbage again and again.

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
