"""Aligned memory for XLA, which reads arrays in place if they start at a multiple of 64 bytes, and copies all others.

Also gives memory back to the system, and pauses Python's garbage collection while many objects are made.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes
TABLE = 1 << 23  # bytes: of an array of this size rows are read here and there
_HUGE_PAGE = 1 << 21  # bytes
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


def table_copy(array: np.ndarray) -> np.ndarray:
    """A copy of an array, whose rows are found sooner if it is large: Linux keeps it in pages of 2 MB where it can.

    To look up the small page of a row here and there takes a fifth of the time of reading or writing the row.
    """
    copy: np.ndarray = np.empty(array.shape, array.dtype)
    if copy.nbytes >= TABLE and hasattr(mmap, "MADV_HUGEPAGE"):
        address = copy.__array_interface__["data"][0]
        begin, end = -(-address // _HUGE_PAGE) * _HUGE_PAGE, (address + copy.nbytes) // _HUGE_PAGE * _HUGE_PAGE
        madvise = ctypes.CDLL(None).madvise
        for advice in (mmap.MADV_DONTNEED, mmap.MADV_HUGEPAGE):  # drop the pages that it has, and get others
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
    np.copyto(copy, array)
    return copy


def is_aligned(array: np.ndarray) -> bool:
    """Tells if XLA reads an array in place."""
    address: int = array.__array_interface__["data"][0]
    return address % ALIGNMENT == 0 and array.flags.c_contiguous


class JoinedArrays:
    """Arrays of one type as one vector, that is only made where it is written: each array is copied once.

    >>> np.asarray(JoinedArrays([np.ones((2, 3)), np.zeros(4)])).shape
    (10,)
    """

    __slots__ = ("_arrays", "dtype", "nbytes", "shape")

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays
        self.dtype = arrays[0].dtype
        self.shape = (sum([array.size for array in arrays]),)
        self.nbytes = self.shape[0] * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self._arrays, axis=None, dtype=dtype)

    def copy_to(self, memory: memoryview) -> None:
        """Writes the vector to the beginning of `memory`."""
        end = 0
        for array in self._arrays:
            start, end = end, end + array.nbytes
            np.copyto(np.ndarray(array.shape, array.dtype, memory, start), array)


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
