"""The file operations of a save. Each is one call here, so that a test can fail each of them in turn."""

from __future__ import annotations

import contextlib
import os
from typing import Any, BinaryIO

from penstock.errors import (
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnknownError,
)

_CHUNK = 1 << 24  # bytes: written and read so many at a time


def create(path: str) -> BinaryIO:
    """A new file, with its directory."""
    with named(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        return open(path, "wb", buffering=1 << 20)


def write(file: BinaryIO, data: Any) -> None:
    """Appends bytes, or an array of them."""
    with named(file.name):
        view = memoryview(data)
        for start in range(0, len(view), _CHUNK):
            file.write(view[start : start + _CHUNK])


def finish(file: BinaryIO) -> None:
    """Closes a file, once it is on disk."""
    with named(file.name), file:
        file.flush()
        os.fsync(file.fileno())


def rename(source: str, target: str) -> None:
    """Gives a finished file its name, in place of what had it; on disk when this returns."""
    with named(target):
        os.replace(source, target)
        sync_directory(os.path.dirname(target) or ".")


def sync_directory(path: str) -> None:
    """Has the names in a directory on disk."""
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
    with contextlib.suppress(OSError):  # not empty: somebody else saves there too
        os.rmdir(path)


def read(path: str) -> bytes:
    """All of a file."""
    with named(path), open(path, "rb") as file:
        return file.read()


def write_whole(path: str, data: bytes) -> None:
    """Replaces a file by one with these contents: written aside, then renamed."""
    aside = f"{path}.tmp{os.getpid()}"
    file = create(aside)
    try:
        write(file, data)
        finish(file)
        rename(aside, path)
    except BaseException:
        file.close()
        remove(aside)
        raise


class named:
    """A context in which an error of the system becomes the exception of its status code, with the path."""

    def __init__(self, path: Any) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, OSError) and not isinstance(error, OpError):
            raise _error(error, str(self._path)) from error


def _error(error: OSError, path: str) -> OpError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NotFoundError(None, None, f"{path}: {error.strerror}.")
    if isinstance(error, PermissionError):
        return PermissionDeniedError(None, None, f"{path}: {error.strerror}. Check who may write there.")
    if error.errno in (28, 122):  # no space, over quota
        return ResourceExhaustedError(None, None, f"{path}: {error.strerror}. Free some space and save again.")
    return UnknownError(None, None, f"{path}: {error.strerror or error}.")
