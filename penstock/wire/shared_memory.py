"""Shared memory: large tensors between processes of one host are copied once, into memory that both sides see.

The sender owns the segments (anonymous memory files) and announces each with its descriptor over a Unix socket. A
tensor is leased to the receiver, which uses it where it lies; once nothing there refers to it, the segment is released
and the sender may write the next tensor to it. Memory is touched for the first time once and then used again and again.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import DataLossError

SMALLEST = 1 << 15  # bytes: smaller tensors travel in the frame itself
LARGE = 1 << 23  # bytes: from here on a copy is worth a second thread
MOST = 1 << 32  # bytes that one side of a connection shares at most; what is more travels in frames
MAX_SEGMENTS = 1 << 12
SUPPORTED = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


def _rounded(size: int) -> int:
    """The size of a segment for `size` bytes: a little more, so that tensors whose sizes vary find one that fits."""
    step = max(mmap.PAGESIZE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


class Arena:
    """The sender's side: segments to write tensors to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: dict[int, np.ndarray] = {}
        self._free: dict[int, list[int]] = {}  # by size
        self._bytes = 0
        self.copied = 0  # bytes so far

    def put(self, array: np.ndarray) -> tuple[int, int, int] | None:
        """Copies a contiguous array: its segment, and the descriptor (or -1) and size of a segment that is new.

        None if the array should travel otherwise.
        """
        nbytes = array.nbytes
        if nbytes < SMALLEST:
            return None
        size = _rounded(nbytes)
        descriptor = -1
        with self._lock:
            free = self._free.get(size)
            if free:
                segment = free.pop()
                memory = self._memory[segment]
            elif self._bytes + size > MOST or len(self._memory) >= MAX_SEGMENTS:
                return None
            else:
                try:
                    descriptor, memory = _new_memory(size)
                except OSError:  # no memory or no descriptor is left
                    return None
                segment = len(self._memory)
                self._memory[segment] = memory
                self._bytes += size
        _copy(memory[:nbytes], array.reshape(-1).view(np.uint8))
        self.copied += nbytes
        return segment, descriptor, size

    def release(self, segments: Sequence[int]) -> None:
        """Takes segments back that the receiver has done with."""
        with self._lock:
            for segment in segments:
                memory = self._memory.get(segment)
                free = None if memory is None else self._free.setdefault(memory.nbytes, [])
                if free is None or segment in free:
                    raise DataLossError(f"The peer released the segment {segment}, which it does not hold.")
                free.append(segment)


def _copy(to: np.ndarray, array: np.ndarray) -> None:
    """Copies bytes; many of them with two threads, since one core alone does not use all of the memory's rate."""
    if array.nbytes < LARGE:
        np.copyto(to, array)
        return
    half = array.nbytes // 2
    other = threading.Thread(target=np.copyto, args=(to[half:], array[half:]), name="penstock-copy")
    other.start()
    np.copyto(to[:half], array[:half])
    other.join()


def _new_memory(size: int) -> tuple[int, np.ndarray]:
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        # The receiver checks this: memory that shrinks under it would kill it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return descriptor, np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
    except BaseException:
        os.close(descriptor)
        raise


class _Lease:
    """A tensor's bytes in a segment. NumPy arrays over it keep it alive; its end releases the segment."""

    __slots__ = ("__array_interface__", "_memory", "_released", "_segment")

    def __init__(
        self, memory: np.ndarray, segment: int, typestr: str, shape: tuple[int, ...], released: deque[int]
    ) -> None:
        self._memory = memory
        self._segment = segment
        self._released = released
        address = memory.__array_interface__["data"][0]
        self.__array_interface__ = {"data": (address, True), "shape": shape, "typestr": typestr, "version": 3}

    def __del__(self) -> None:
        self._released.append(self._segment)  # nothing more: this may run at any moment, in any thread


class Leases:
    """The receiver's side: segments that the peer has announced, and tensors in them."""

    def __init__(self) -> None:
        self._memory: dict[int, np.ndarray] = {}
        self._bytes = 0
        self._leased: set[int] = set()
        self._released: deque[int] = deque()
        self.taken = 0  # bytes so far

    def announced(self, segment: int, size: int, descriptor: int) -> None:
        """Maps a segment that the peer announced; the descriptor is closed in any case."""
        try:
            wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            if segment in self._memory or len(self._memory) >= MAX_SEGMENTS or not 0 < size <= MOST - self._bytes:
                raise DataLossError(f"The peer announced a segment {segment} of {size} bytes.")
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & wanted != wanted or os.fstat(descriptor).st_size != size:
                raise DataLossError(f"The segment {segment} of the peer could change its size.")
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            memory = mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ)
        except OSError as error:
            raise DataLossError(f"The segment {segment} cannot be mapped: {error}.") from error
        finally:
            os.close(descriptor)
        self._memory[segment] = np.frombuffer(memory, np.uint8)
        self._bytes += size

    def take(self, segment: int, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """The first `size` bytes of a segment, as an array that releases it when it is gone."""
        memory = self._memory.get(segment)
        if memory is None or size > memory.nbytes or segment in self._leased:
            raise ValueError(f"{size} bytes in the segment {segment}, which is not there, too small or in use")
        self._leased.add(segment)
        self.taken += size
        if dtype.kind == "V":  # NumPy has no name for bfloat16
            plain = np.asarray(_Lease(memory, segment, "|u1", (size,), self._released))
            return plain.view(dtype).reshape(shape)
        return np.asarray(_Lease(memory, segment, dtype.str, shape, self._released))

    def released(self) -> list[int]:
        """The segments that nothing refers to any more, since this was asked last."""
        if not self._released:
            return []
        gone = [self._released.popleft() for _ in range(len(self._released))]
        self._leased.difference_update(gone)
        return gone
