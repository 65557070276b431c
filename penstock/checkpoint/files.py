"""The file operations of a save. Each is one function, so that a test can make each of them fail."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

from penstock.errors import NotFoundError, OpError, PermissionDeniedError, ResourceExhaustedError, UnknownError

_CHUNK = 1 << 22  # bytes that are written or read at a time
_BUFFER = 1 << 20  # bytes: smaller pieces are buffered
_FLUSH_BYTES = 1 << 24  # bytes after which the system is told to start writing to disk


def create(path: str) -> BinaryIO:
    """Creates a file, and its directory if needed."""
    with named(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        return open(path, "wb", buffering=_BUFFER)


def write(file: BinaryIO, data: Any, meanwhile: Callable[[memoryview], None] | None = None) -> None:
    """Appends bytes, or an array of them; calls `meanwhile` with each piece while it is being written."""
    view = memoryview(data)
    pieces = [view[start : start + _CHUNK] for start in range(0, len(view), _CHUNK)]
    with named(file.name):
        _overlapped(lambda piece: _write_piece(file, piece), pieces, meanwhile, lag=0)


def _write_piece(file: BinaryIO, piece: memoryview) -> None:
    if len(piece) < _BUFFER:
        file.write(piece)
        return
    file.flush()  # the following writes bypass the buffer
    written = 0
    while written < len(piece):
        written += os.write(file.fileno(), piece[written:])
    if hasattr(os, "posix_fadvise"):
        at = os.lseek(file.fileno(), 0, os.SEEK_CUR)
        end = at // _FLUSH_BYTES * _FLUSH_BYTES
        if at - end < len(piece):
            # DONTNEED makes Linux start writing the pages out, so that little is left for the final fsync.
            os.posix_fadvise(file.fileno(), max(0, end - _FLUSH_BYTES), _FLUSH_BYTES, os.POSIX_FADV_DONTNEED)


def read_into(file: BinaryIO, target: Any, meanwhile: Callable[[memoryview], None]) -> bool:
    """Fills an array of bytes; calls `meanwhile` with each piece while the next is read. False if the file is short."""
    view = memoryview(target)
    pieces = [view[start : start + _CHUNK] for start in range(0, len(view), _CHUNK)]
    counts: list[int] = []
    with named(file.name):
        _overlapped(lambda piece: counts.append(file.readinto(piece)), pieces, meanwhile, lag=1)  # type: ignore[attr-defined]
    return sum(counts) == len(view)


def _overlapped(
    transfer: Callable[[memoryview], None],
    pieces: list[memoryview],
    meanwhile: Callable[[memoryview], None] | None,
    lag: int,
) -> None:
    """Transfers the pieces one by one, and meanwhile calls `meanwhile` with the piece `lag` places before."""
    if meanwhile is None or len(pieces) < 2:
        for piece in pieces:
            transfer(piece)
            if meanwhile is not None:
                meanwhile(piece)
        return
    with ThreadPoolExecutor(1, "penstock-checkpoint", initializer=_lower_priority) as pool:
        running: list[Future[None]] = []
        for i, piece in enumerate(pieces):
            running.append(pool.submit(transfer, piece))
            if i >= lag:
                if lag:
                    running[i - lag].result()
                meanwhile(pieces[i - lag])
            if i > 0:
                running[i - 1].result()
        running[-1].result()
        for piece in pieces[len(pieces) - lag :]:
            meanwhile(piece)


def finish(file: BinaryIO) -> None:
    """Syncs a file to disk and closes it."""
    with named(file.name), file:
        file.flush()
        os.fsync(file.fileno())


def rename(source: str, target: str) -> None:
    """Renames a finished file, replacing any other of that name; returns when this is on disk."""
    with named(target):
        os.replace(source, target)
        sync_directory(os.path.dirname(target) or ".")


def sync_directory(path: str) -> None:
    """Syncs the entries of a directory to disk."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def remove(path: str) -> None:
    """Removes a file that may be gone already."""
    with named(path), contextlib.suppress(FileNotFoundError):
        os.remove(path)


def remove_directory(path: str) -> None:
    """Removes an empty directory that may be gone already."""
    with contextlib.suppress(OSError):  # not empty: another save uses it too
        os.rmdir(path)


def read(path: str) -> bytes:
    """Reads a whole file."""
    with named(path), open(path, "rb") as file:
        return file.read()


def write_whole(path: str, data: bytes) -> None:
    """Replaces a file by one with these contents: writes a temporary file, then renames it."""
    aside = f"{path}.tmp{secrets.token_hex(8)}"  # two threads or hosts may write the same file at once
    file = create(aside)
    try:
        write(file, data)
        finish(file)
        rename(aside, path)
    except BaseException:
        file.close()
        remove(aside)
        raise


def _lower_priority() -> None:
    """Lowers the priority of this thread, so that a save does not slow down the training."""
    with contextlib.suppress(OSError, AttributeError):  # not on every system
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


class named:
    """A context in which an OSError becomes the exception of its status code, with the path."""

    def __init__(self, path: Any) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, OSError) and not isinstance(error, OpError):
            raise _error(error, str(self._path)) from error


def _error(error: OSError, path: str) -> OpError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NotFoundError(f"{path}: {error.strerror}.")
    if isinstance(error, PermissionError):
        return PermissionDeniedError(f"{path}: {error.strerror}. Check who may write there.")
    if error.errno in (28, 122):  # no space, over quota
        return ResourceExhaustedError(f"{path}: {error.strerror}. Free some space and save again.")
    return UnknownError(f"{path}: {error.strerror or error}.")
