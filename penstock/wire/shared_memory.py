"""Large tensors between processes of one host are copied once, into memory that both sides share.

The sender owns the regions (anonymous memory files) and announces each with its descriptor over a Unix socket. The
receiver gets a lease of a tensor and uses it in place. Once nothing there refers to the tensor, the region is released,
and the sender may write the next tensor to it. Regions are used again, since the first touch of memory is slow.

A region goes to and fro: the receiver may write a tensor of its own to it and send it back with that. So a worker that
pulls a variable and pushes its gradient needs no regions of its own, and no messages that release those of the server.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.cores import in_parts
from penstock.errors import DataLossError
from penstock.memory import JoinedArrays

SMALLEST = 1 << 15  # bytes: smaller tensors travel in the frame itself
LARGE = 1 << 23  # bytes: from this size on, a copy uses two threads, and memory that nobody uses is given back
YOURS = 1 << 32  # is added to the number of a region that belongs to the receiver of the message
MOST = 1 << 32  # bytes that each side of a connection may share; further tensors travel in frames
MAX_REGIONS = 1 << 12
SUPPORTED = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


def _rounded(size: int) -> int:
    """Returns the size of a region for `size` bytes, rounded up so that tensors of similar sizes can use it again."""
    step = max(mmap.PAGESIZE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


class Arena:
    """Holds the regions of the sender, who writes tensors to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: dict[int, memoryview] = {}
        self._free: dict[int, list[int]] = {}  # by size
        self._leased: dict[int, _Lease] = {}  # came back with a tensor that is used here
        self._released: deque[_Lease] = deque()  # those of them whose tensor is used no more
        self._idle: set[int] = set()  # large ones that were free at the last `trim`, and are since
        self._bytes = 0

    def put(self, array: np.ndarray | JoinedArrays, size: int) -> tuple[int, int] | None:
        """Copies a contiguous array to a region of `size` bytes. Returns the region and its descriptor, -1 unless new.

        Returns None if no more memory may be shared, or can be, so that the array should travel in the frame.
        """
        descriptor = -1
        with self._lock:
            self._collect()
            free = self._free.get(size)
            if free:
                region = free.pop()
                self._idle.discard(region)
                memory = self._memory[region]
            elif self._bytes + size > MOST or len(self._memory) >= MAX_REGIONS:
                return None
            else:
                try:
                    descriptor, memory = _new_memory(size)
                except OSError:  # out of memory or descriptors
                    return None
                region = len(self._memory)
                self._memory[region] = memory
                self._bytes += size
        _copy(memory, array)
        return region, descriptor

    def release(self, regions: Sequence[int]) -> None:
        """Takes back regions that the receiver no longer uses."""
        with self._lock:
            for region in regions:
                if not self._is_lent(region):
                    raise DataLossError(f"The peer released the region {region}, which it does not hold.")
                self._free_again(region)

    def take(self, region: int, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Returns the tensor that the peer has written to a region which it held. The region is free when it dies."""
        with self._lock:
            if not self._is_lent(region) or size > self._memory[region].nbytes:
                raise ValueError(f"{size} bytes in the region {region}, which the peer does not hold or is too small")
            tensor, self._leased[region] = _leased(self._memory[region], region, dtype, shape, self._released)
        return tensor

    def trim(self) -> None:
        """Gives the memory of large regions back to the system that nobody has used since the last call."""
        with self._lock:
            self._collect()
            free = {region for size, some in self._free.items() if size >= LARGE for region in some}
            for region in free & self._idle:
                try:
                    self._memory[region].obj.madvise(mmap.MADV_REMOVE)  # type: ignore[attr-defined]
                except OSError:
                    break  # this system cannot; the memory stays with the region
            self._idle = free

    def _collect(self) -> None:
        while self._released:
            self._free_again(self._released.popleft().region)

    def _is_lent(self, region: int) -> bool:
        memory = self._memory.get(region)
        return memory is not None and region not in self._free.get(memory.nbytes, ()) and region not in self._leased

    def _free_again(self, region: int) -> None:
        self._leased.pop(region, None)
        self._free.setdefault(self._memory[region].nbytes, []).append(region)


def _copy(memory: memoryview, array: np.ndarray | JoinedArrays) -> None:
    """Copies a contiguous array to a region, by two threads if it is large: one core does not use the full rate."""
    if isinstance(array, JoinedArrays):
        array.copy_to(memory)
        return
    to: np.ndarray = np.ndarray(array.shape, array.dtype, memory)
    if array.nbytes < LARGE:
        np.copyto(to, array)
        return
    to, array = to.reshape(-1), array.reshape(-1)
    in_parts(lambda begin, end: np.copyto(to[begin:end], array[begin:end]), array.size, 2)


def _new_memory(size: int) -> tuple[int, memoryview]:
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        # The receiver checks the seals: it would crash if the memory shrank.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return descriptor, memoryview(mmap.mmap(descriptor, size))
    except BaseException:
        os.close(descriptor)
        raise


class _Lease(weakref.ref[np.ndarray]):
    """Dies with the tensor in a region, and all views of it."""

    __slots__ = ("region",)
    region: int


def _leased(
    memory: memoryview, region: int, dtype: np.dtype[Any], shape: tuple[int, ...], released: deque[_Lease]
) -> tuple[np.ndarray, _Lease]:
    """Returns the tensor at the beginning of a region, and its lease. The end of the tensor adds that to `released`.

    Adding is all that happens then, since it may be at any moment and in any thread. Views of the tensor keep it alive,
    as its memory belongs to no other array.
    """
    tensor: np.ndarray = np.ndarray(shape, dtype, memory.toreadonly())
    lease = _Lease(tensor, released.append)
    lease.region = region
    return tensor, lease


class Leases:
    """Holds the regions that the peer has announced, and hands out the tensors in them."""

    def __init__(self) -> None:
        self._memory: dict[int, memoryview] = {}
        self._bytes = 0
        self._leased: dict[int, _Lease] = {}
        self._released: deque[_Lease] = deque()
        self._lock = threading.Lock()  # for those who take from `_released`

    def announced(self, region: int, size: int, descriptor: int) -> None:
        """Maps a region that the peer announced, and closes the descriptor in any case."""
        try:
            wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            if region in self._memory or len(self._memory) >= MAX_REGIONS or not 0 < size <= MOST - self._bytes:
                raise DataLossError(f"The peer announced a region {region} of {size} bytes.")
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & wanted != wanted or os.fstat(descriptor).st_size != size:
                raise DataLossError(f"The region {region} of the peer could change its size.")
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            memory = mmap.mmap(descriptor, size, flags=flags)
        except OSError as error:
            raise DataLossError(f"The region {region} cannot be mapped: {error}.") from error
        finally:
            os.close(descriptor)
        self._memory[region] = memoryview(memory)
        self._bytes += size

    def take(self, region: int, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Returns the first `size` bytes of a region as an array that releases the region when it dies."""
        memory = self._memory.get(region)
        if memory is None or size > memory.nbytes or region in self._leased:
            raise ValueError(f"{size} bytes in the region {region}, which is not there, too small or in use")
        tensor, self._leased[region] = _leased(memory, region, dtype, shape, self._released)
        return tensor

    def put(self, array: np.ndarray | JoinedArrays, size: int) -> int | None:
        """Copies a contiguous array to a region of `size` bytes that became unused here. None if there is no such."""
        region = self._unused(size)
        if region is not None:
            _copy(self._memory[region], array)
        return region

    def _unused(self, size: int) -> int | None:
        with self._lock:
            for _ in range(len(self._released)):
                lease = self._released.popleft()
                if self._memory[lease.region].nbytes == size:
                    del self._leased[lease.region]
                    return lease.region
                self._released.append(lease)
        return None

    def give_back(self, region: int) -> None:
        """Notes that a region which `put` returned is not sent after all."""
        _, self._leased[region] = _leased(self._memory[region], region, np.dtype(np.uint8), (0,), self._released)

    def released(self) -> list[int]:
        """Returns the regions that became unused since the last call."""
        if not self._released:
            return []
        with self._lock:
            gone = [self._released.popleft().region for _ in range(len(self._released))]
            for region in gone:
                del self._leased[region]
        return gone


class Sharer:
    """Puts the tensors of one message into shared memory, and announces new regions: number, size and descriptor."""

    def __init__(self, arena: Arena, leases: Leases, announce: Callable[[int, int, int], None]) -> None:
        self._arena, self._leases, self._announce = arena, leases, announce
        self.placed: list[int] = []
        self.copied = 0  # bytes

    def __call__(self, array: np.ndarray | JoinedArrays) -> int | None:
        """Returns the region of a tensor, or None if it should travel in the frame."""
        if array.nbytes < SMALLEST:
            return None
        size = _rounded(array.nbytes)
        region = self._leases.put(array, size)
        if region is not None:
            region += YOURS
        else:
            found = self._arena.put(array, size)
            if found is None:
                return None
            region, descriptor = found
            if descriptor >= 0:  # the region is new
                self._announce(region, size, descriptor)
        self.placed.append(region)
        self.copied += array.nbytes
        return region

    def take_back(self) -> None:
        """Frees the regions of a message that is not sent."""
        for region in self.placed:
            if region >= YOURS:
                self._leases.give_back(region - YOURS)
            else:
                self._arena.release([region])
