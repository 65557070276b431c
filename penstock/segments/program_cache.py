"""A ProgramCache keeps compiled programs on disk, for the next start and for the other tasks of a host.

jax uses a key that covers what the compiled code depends on, but for the processor and the number of XLA's threads, for
which XLA divides the work of a program when it compiles it. Its own file cache is not used: that writes in place, so
that a killed process leaves a file that fails at every later start, and it limits its size only with a package that
penstock does not need otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pathlib
import platform
import threading
import time
import zlib

import jax
from jax._src import compilation_cache

from penstock import logging
from penstock.cores import every_core
from penstock.errors import InvalidArgumentError
from penstock.segments.compilation import in_background
from penstock.written_aside import write_aside

MAX_BYTES = 1 << 30  # the default of PENSTOCK_CACHE_BYTES
_SUFFIX, _UNFINISHED = "-cache", "-unfinished"
_UNFINISHED_SECS = 3600.0  # an unfinished file that is older was left by a process that was killed
_CHECKSUM = 4  # bytes of CRC-32 at the end of a file


class ProgramCache:
    """Keeps files in a folder, one per program. Any number of processes may use it at once.

    >>> cache = ProgramCache("/tmp/programs", 1 << 20)
    >>> cache.put("jit_segment-1f", b"code")
    >>> cache.get("jit_segment-1f")
    b'code'
    """

    def __init__(self, folder: str, max_bytes: int = MAX_BYTES) -> None:
        self._path = pathlib.Path(folder)
        self._path.mkdir(0o700, parents=True, exist_ok=True)  # it holds code, so nobody else may write to it
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._written = 0  # bytes since the last trim
        self._failed = False

    def get(self, key: str) -> bytes | None:
        """Returns the program that was stored under a key; None if there is none, or it is damaged."""
        path = self._file(key)
        try:
            data = path.read_bytes()
            os.utime(path)  # marks it as used, for `trim`
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell(error)
            return None
        value, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
        if _checksum(value) != checksum:
            logging.warning("The compiled program in %s is damaged; it is compiled anew.", path)
            path.unlink(missing_ok=True)
            return None
        return value

    def put(self, key: str, value: bytes) -> None:
        """Stores a program under a key. A concurrent reader finds nothing or all of it."""
        path = self._file(key)
        try:
            write_aside(path, value + _checksum(value), _UNFINISHED)
        except OSError as error:
            self._tell(error)
            return
        with self._lock:
            self._written += len(value)
            enough = self._written > self._max_bytes // 8
            if enough:
                self._written = 0
        if enough:
            self.trim_later()

    def names(self, start: str) -> list[str]:
        """Returns the keys that begin with `start`."""
        end = f"-{_machine()}{_SUFFIX}"
        try:
            with os.scandir(self._path) as entries:
                found = [e.name.removesuffix(end) for e in entries if e.name.startswith(start) and e.name.endswith(end)]
        except OSError as error:
            self._tell(error)
            return []
        return found

    def _file(self, key: str) -> pathlib.Path:
        return self._path / f"{key}-{_machine()}{_SUFFIX}"

    def trim_later(self) -> None:
        """Trims the folder in the background."""
        in_background(self.trim, f"trimming {self._path}")

    def trim(self) -> None:
        """Removes the files that were used least recently, until the rest is within the limit."""
        files: list[tuple[float, int, str]] = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process trims, too
                    about = entry.stat()
                    if entry.name.endswith(_UNFINISHED) and about.st_mtime < time.time() - _UNFINISHED_SECS:
                        os.unlink(entry.path)
                    elif entry.name.endswith(_SUFFIX):
                        files.append((about.st_mtime, about.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._max_bytes:
                break
            pathlib.Path(path).unlink(missing_ok=True)
            total -= size

    def _tell(self, error: OSError) -> None:
        """Warns once that the folder cannot be used. Programs are then compiled without it."""
        if not self._failed:
            self._failed = True
            logging.warning("Compiled programs are not kept in %s (PENSTOCK_CACHE_DIR): %s", self._path, error)


def _checksum(value: bytes) -> bytes:
    return zlib.crc32(value).to_bytes(_CHECKSUM, "big")


@functools.cache
def _machine() -> str:
    """Returns a text that differs between tasks that run different code, since they may share a folder."""
    about = f"{platform.machine()} {os.environ.get('NPROC') or len(every_core())} threads"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        about += next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return hashlib.sha256(about.encode()).hexdigest()[:8]


@functools.cache
def kept() -> ProgramCache | None:
    """Returns the cache at PENSTOCK_CACHE_DIR; None if it is empty, or the user has set up jax's own cache.

    From the first call on, jax keeps compiled programs there.
    """
    folder = os.environ.get("PENSTOCK_CACHE_DIR", os.path.expanduser("~/.cache/penstock"))
    if not folder or jax.config.values["jax_compilation_cache_dir"]:
        return None
    try:
        cache = ProgramCache(folder, _max_bytes())
    except OSError as error:
        logging.warning("Compiled programs are not kept in %s (PENSTOCK_CACHE_DIR): %s", folder, error)
        return None
    # jax has no public way to replace its cache, and would use its own in the same folder.
    compilation_cache.get_file_cache = lambda path: (cache, path)  # type: ignore[assignment, return-value]
    jax.config.update("jax_compilation_cache_dir", folder)
    # The smallest programs take 10 to 90 ms to compile, 1.5 ms to write and 4 ms to read.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    cache.trim_later()
    return cache


def _max_bytes() -> int:
    text = os.environ.get("PENSTOCK_CACHE_BYTES", str(MAX_BYTES))
    if not text.isdecimal():
        raise InvalidArgumentError(
            f"PENSTOCK_CACHE_BYTES must be a number of bytes, such as {MAX_BYTES}, received '{text}'."
        )
    return int(text)
