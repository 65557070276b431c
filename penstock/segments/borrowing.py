"""Compiled code reads large fed arrays in place, without a copy.

XLA on the CPU reads memory in place only if it is aligned to 64 bytes, and copies any other with one core: 32 MB fed
and fetched take 7 ms with the copy and 2 ms without. NumPy aligns to 16. So XLA gets a window that begins at the
aligned address before the array, and the compiled code begins to read a little later.

XLA copies arrays of 100 KB and more in another thread, and then computes there as well. So arrays that are not worth a
window, and results of host ops, are copied here unless they are aligned. That keeps the computation in the thread that
waits for it.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import numpy as np

from penstock.memory import ALIGNMENT, aligned_copy, is_aligned

MIDDLE = 100 << 10  # bytes: XLA copies larger arrays in a thread of its own
LARGE = 1 << 20  # bytes: below this size a copy costs less than a window
_BLOCK = ALIGNMENT
_PAGE = 4096


class _Window:
    """Gives NumPy read-only memory around an array, and keeps the array alive."""

    def __init__(self, array: np.ndarray, start: int, size: int) -> None:
        self.array = array
        self.__array_interface__ = {"data": (start, True), "shape": (size,), "typestr": array.dtype.str, "version": 3}


@jax.tree_util.register_pytree_node_class
class Borrowed:
    """Represents an array as a part of an aligned window: the elements of its shape, from `offset` on."""

    def __init__(self, window: Any, offset: Any, shape: tuple[int, ...]) -> None:
        self.window = window
        self.offset = offset
        self.shape = shape

    def value(self) -> Any:
        """Returns the array, inside compiled code."""
        size = int(np.prod(self.shape, dtype=np.int64))
        return jax.lax.dynamic_slice(self.window, (self.offset,), (size,)).reshape(self.shape)

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[int, ...]]:
        return (self.window, self.offset), self.shape

    @classmethod
    def tree_unflatten(cls, shape: tuple[int, ...], children: tuple[Any, Any]) -> Borrowed:
        return cls(*children, shape)


def borrowed(array: np.ndarray) -> np.ndarray | Borrowed:
    """Returns `array` in a form that XLA reads without a copy, or itself if that is not possible.

    The window is one block of 64 bytes longer than the array, so that one compiled version serves every alignment. Its
    first and last blocks hold a byte of the array, or lie in the same page as one, so that all of it may be read.
    """
    address, item = array.ctypes.data, array.itemsize
    into = address % _BLOCK or _BLOCK
    if (
        not array.flags.c_contiguous
        or array.dtype.kind not in "biufc"
        or array.nbytes % _BLOCK
        or into % item
        or (into == _BLOCK and address % _PAGE == 0)
    ):
        return array
    window = np.asarray(_Window(array, address - into, (array.nbytes + _BLOCK) // item))
    return Borrowed(window, np.int32(into // item), array.shape)


def watched(array: np.ndarray) -> tuple[np.ndarray, weakref.ref[Any]]:
    """Returns a contiguous array in the same memory, and a reference that dies when nothing uses that or its views.

    A reference to a view would die too soon: views of a view keep the array alive and not the view.
    """
    window = _Window(array, array.ctypes.data, array.size)
    return np.asarray(window).view(array.dtype).reshape(array.shape), weakref.ref(window)


def aligned(array: np.ndarray) -> np.ndarray:
    """Returns `array`, or a copy of it that is aligned."""
    if is_aligned(array):
        return array
    return aligned_copy(array)
