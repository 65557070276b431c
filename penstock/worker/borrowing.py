"""Borrowing: large fed arrays are read where they lie.

XLA on the CPU takes memory as it is only if it is aligned to 64 bytes, and copies any other with one core: 32 MB fed
and fetched take 7 ms then, and 2 ms without the copy. NumPy aligns to 16. So XLA gets a window that begins at the
aligned address before the array, and the compiled code begins to read a little later.

Arrays of 100 KB and more XLA copies in another thread, where the computation then runs as well. Those that are not
worth a window, and what host ops have made, are copied here before, unless they are aligned already. That keeps the
computation in the thread that waits for it.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from penstock.memory import ALIGNMENT, aligned_empty, is_aligned

MIDDLE = 100 << 10  # bytes: from here on XLA copies in a thread of its own
LARGE = 1 << 20  # bytes: below this the copy costs less than a window
_BLOCK = ALIGNMENT
_PAGE = 4096


class _Window:
    """Memory around an array as NumPy sees it, read only; it keeps the array alive."""

    def __init__(self, array: np.ndarray, start: int, size: int) -> None:
        self.array = array
        self.__array_interface__ = {"data": (start, True), "shape": (size,), "typestr": array.dtype.str, "version": 3}


@jax.tree_util.register_pytree_node_class
class Borrowed:
    """An array as a part of an aligned window: as many elements as its shape says, from `offset` on."""

    def __init__(self, window: Any, offset: Any, shape: tuple[int, ...]) -> None:
        self.window = window
        self.offset = offset
        self.shape = shape

    def value(self) -> Any:
        """The array, inside compiled code."""
        size = int(np.prod(self.shape, dtype=np.int64))
        return jax.lax.dynamic_slice(self.window, (self.offset,), (size,)).reshape(self.shape)

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[int, ...]]:
        return (self.window, self.offset), self.shape

    @classmethod
    def tree_unflatten(cls, shape: tuple[int, ...], children: tuple[Any, Any]) -> Borrowed:
        return cls(*children, shape)


def borrowed(array: np.ndarray) -> np.ndarray | Borrowed:
    """`array` as XLA can read it without a copy, or itself where that is not possible.

    The window is one block of 64 bytes longer than the array, so that one compiled version serves every alignment. Its
    first and last block each hold, or lie in the same page as, a byte of the array: all of it may be read.
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


def aligned(array: np.ndarray) -> np.ndarray:
    """`array`, or a copy of it that XLA reads where it lies."""
    if is_aligned(array):
        return array
    copy = aligned_empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy
