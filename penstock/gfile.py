"""`tf.gfile` and `tf.io.gfile` on local files: paths are text, bytes or path objects, `file://` included.

The names of 1.x (`Exists`, `MakeDirs`, ...) and those of 2.x (`exists`, `makedirs`, ...) are the same functions,
except where the parameters differ. Failures are penstock's errors: a missing file is `NotFoundError`.

>>> exists("/no/such/file")
False
"""

from __future__ import annotations

import dataclasses
import errno
import glob as std_glob
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, BinaryIO, TypeAlias, cast

from penstock import errors
from penstock.text import as_bytes, as_str_any, as_text

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Walked: TypeAlias = tuple[str, list[str], list[str]]

_ERROR_OF_ERRNO: dict[int, type[errors.OpError]] = {
    errno.ENOENT: errors.NotFoundError,
    errno.EEXIST: errors.AlreadyExistsError,
    errno.EISDIR: errors.FailedPreconditionError,
    errno.ENOTDIR: errors.FailedPreconditionError,
    errno.ENOTEMPTY: errors.FailedPreconditionError,
    errno.EACCES: errors.PermissionDeniedError,
    errno.EPERM: errors.PermissionDeniedError,
    errno.EROFS: errors.PermissionDeniedError,
    errno.EINVAL: errors.InvalidArgumentError,
    errno.ENOSPC: errors.ResourceExhaustedError,
    errno.EMFILE: errors.ResourceExhaustedError,
}
_MODES = ("r", "w", "a", "r+", "w+", "a+")


@dataclasses.dataclass(frozen=True)
class FileStatistics:
    """The result of `Stat`: size in bytes, time of change in nanoseconds, and if it is a directory."""

    length: int
    mtime_nsec: int
    is_directory: bool


def _local(path: Path) -> str:
    text = as_text(os.fspath(path))
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    if scheme != "file":
        raise errors.UnimplementedError(
            f"'{text}': files of scheme '{scheme}' are not supported. Use a path on a mounted file system."
        )
    return rest


@contextmanager
def _as_op_error(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _op_error(path, error) from error


def _op_error(path: str, error: OSError) -> errors.OpError:
    cls = _ERROR_OF_ERRNO.get(error.errno or 0, errors.UnknownError)
    return cls(f"{path}; {error.strerror or error}")


class GFile:
    """A file that opens when it is first used; text unless the mode has a `b`.

    >>> import tempfile
    >>> name = join(tempfile.mkdtemp(), "notes.txt")
    >>> with GFile(name, "w") as f:
    ...     f.write("one\\ntwo\\n")
    >>> GFile(name).readlines()
    ['one\\n', 'two\\n']
    """

    def __init__(self, name: Path, mode: str = "r") -> None:
        if mode.replace("b", "", 1) not in _MODES:
            raise errors.InvalidArgumentError(
                f"Cannot open '{as_str_any(name)}': mode must be one of {', '.join(_MODES)}, with or without 'b', "
                f"received {mode!r}."
            )
        self._name = name
        self._path = _local(name)
        self._mode = mode
        self._file: BinaryIO | None = None

    @property
    def name(self) -> Path:
        """The name as it was given."""
        return self._name

    @property
    def mode(self) -> str:
        """The mode as it was given."""
        return self._mode

    def read(self, n: int = -1) -> Any:
        """The next `n` bytes (all by default), decoded in text mode."""
        return self._decoded(self._reading().read(n))

    def readline(self) -> Any:
        """The next line with its newline; empty at the end."""
        # Windows line ends become plain newlines.
        return self._decoded(self._reading().readline().replace(b"\r", b""))

    def readlines(self) -> list[Any]:
        """The remaining lines."""
        return list(self)

    def write(self, file_content: str | bytes) -> None:
        """Write text (as UTF-8) or bytes."""
        content = as_bytes(file_content)
        if self._mode[0] == "r" and "+" not in self._mode:
            raise errors.PermissionDeniedError(f"{self._path}; not open for writing (mode {self._mode!r})")
        with _as_op_error(self._path):
            self._opened().write(content)

    def seek(self, offset: int | None = None, whence: int = 0, position: int | None = None) -> None:
        """Move to `offset` bytes from the start (`whence=0`), from here (1) or from the end (2)."""
        if offset is None:
            # Old programs use position=.
            offset = position
        if offset is None:
            raise TypeError("seek() needs an offset.")
        if whence not in (0, 1, 2):
            raise errors.InvalidArgumentError(f"seek(): whence must be 0, 1 or 2, received {whence}.")
        file = self._reading()
        size = self.size()
        target = offset + (0, file.tell(), size)[whence]
        if target < 0:
            raise errors.InvalidArgumentError(f"{self._path}; seek to negative position {target}")
        if target > size:
            raise errors.OutOfRangeError(f"{self._path}; seek to {target}, past the end at {size}")
        file.seek(target)

    def seekable(self) -> bool:
        """Always True."""
        return True

    def tell(self) -> int:
        """The position in bytes."""
        return self._opened().tell()

    def size(self) -> int:
        """Bytes in the file now."""
        if self._file is not None:
            self.flush()
        return stat(self._path).length

    def flush(self) -> None:
        """Passes written data to the operating system."""
        if self._file is not None:
            with _as_op_error(self._path):
                self._file.flush()

    def close(self) -> None:
        """Close the file; using it again opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            with _as_op_error(self._path):
                file.close()

    def __enter__(self) -> GFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> GFile:
        return self

    def __next__(self) -> Any:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def next(self) -> Any:
        """The next line, as `next(file)` gives it."""
        return self.__next__()

    def __del__(self) -> None:
        # Programs write `GFile(name).read()`; a warning about the open file would not help.
        if getattr(self, "_file", None) is not None:
            self.close()

    def _opened(self) -> BinaryIO:
        if self._file is None:
            with _as_op_error(self._path):
                # The file stays open across calls, hence no `with`.
                self._file = cast(BinaryIO, open(self._path, self._mode.replace("b", "") + "b"))  # noqa: SIM115
        return self._file

    def _reading(self) -> BinaryIO:
        if self._mode[0] != "r" and "+" not in self._mode:
            raise errors.PermissionDeniedError(f"{self._path}; not open for reading (mode {self._mode!r})")
        return self._opened()

    def _decoded(self, data: bytes) -> Any:
        return data if "b" in self._mode else data.decode("utf-8")


FastGFile = Open = GFile


def exists(path: Path) -> bool:
    """Tells if there is a file or directory at `path`."""
    return os.path.exists(_local(path))


def isdir(path: Path) -> bool:
    """Tells if `path` is a directory."""
    return os.path.isdir(_local(path))


def makedirs(path: Path) -> None:
    """Make a directory and its parents; no error if it already exists."""
    local = _local(path)
    with _as_op_error(local):
        try:
            os.makedirs(local, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def mkdir(path: Path) -> None:
    """Make one directory, whose parent must exist; no error if it already exists."""
    local = _local(path)
    with _as_op_error(local):
        try:
            os.mkdir(local)
        except FileExistsError:
            if not os.path.isdir(local):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def remove(path: Path) -> None:
    """Remove a file."""
    local = _local(path)
    with _as_op_error(local):
        os.remove(local)


def rmtree(path: Path) -> None:
    """Remove a directory and all in it, or a file."""
    local = _local(path)
    with _as_op_error(local):
        if os.path.isdir(local) and not os.path.islink(local):
            shutil.rmtree(local)
        else:
            os.remove(local)


def listdir(path: Path) -> list[str]:
    """Names in a directory, in no particular order."""
    local = _local(path)
    if not os.path.isdir(local):
        raise errors.NotFoundError(f"{local}; no such directory")
    with _as_op_error(local):
        return os.listdir(local)


def stat(path: Path) -> FileStatistics:
    """Size, time of change and kind of a file: `stat("model.index").length`."""
    local = _local(path)
    with _as_op_error(local):
        found = os.stat(local)
    return FileStatistics(found.st_size, found.st_mtime_ns, os.path.isdir(local))


def copy(src: Path, dst: Path, overwrite: bool = False) -> None:
    """Copy the content of a file."""
    source, target = _local(src), _local(dst)
    _refuse_existing(target, overwrite)
    with _as_op_error(target if exists(source) else source):
        shutil.copyfile(source, target)


def rename(src: Path, dst: Path, overwrite: bool = False) -> None:
    """Rename or move a file or directory."""
    source, target = _local(src), _local(dst)
    _refuse_existing(target, overwrite)
    with _as_op_error(target if exists(source) else source):
        # Atomic on one file system: a reader sees the old file or the new one.
        os.replace(source, target)


def _refuse_existing(target: str, overwrite: bool) -> None:
    if not overwrite and os.path.exists(target):
        raise errors.AlreadyExistsError(f"{target}; already exists. Pass overwrite=True to replace it.")


def glob(pattern: Path | Sequence[Path]) -> list[str]:
    """Paths that match a pattern, or any of several: `glob("run/events.*")`. Hidden files match too."""
    patterns = [pattern] if isinstance(pattern, (str, bytes, os.PathLike)) else pattern
    return [path for each in patterns for path in std_glob.glob(_local(each), include_hidden=True)]


def join(path: Path, *paths: Path) -> str:
    """Join parts of a path: `join("run", "model")`."""
    return os.path.join(as_text(os.fspath(path)), *(as_text(os.fspath(part)) for part in paths))


def walk(
    top: Path, topdown: bool = True, onerror: Callable[[errors.OpError], object] | None = None
) -> Iterator[Walked]:
    """(directory, subdirectories, files) for `top` and all directories in it; nothing if `top` is not a directory."""
    local = _local(top)

    def failed(error: OSError) -> None:
        if onerror is not None:
            onerror(_op_error(str(error.filename), error))

    return os.walk(local, topdown=topdown, onerror=failed)


def get_registered_schemes() -> list[str]:
    """Schemes of the paths that can be used: `''` and `'file'`."""
    return ["", "file"]


# The names of 1.x, with its parameter names, which programs pass by keyword.


def Exists(filename: Path) -> bool:
    """See `exists`."""
    return exists(filename)


def IsDirectory(dirname: Path) -> bool:
    """See `isdir`."""
    return isdir(dirname)


def MakeDirs(dirname: Path) -> None:
    """See `makedirs`."""
    makedirs(dirname)


def MkDir(dirname: Path) -> None:
    """See `mkdir`."""
    mkdir(dirname)


def Remove(filename: Path) -> None:
    """See `remove`."""
    remove(filename)


def DeleteRecursively(dirname: Path) -> None:
    """See `rmtree`."""
    rmtree(dirname)


def ListDirectory(dirname: Path) -> list[str]:
    """See `listdir`."""
    return listdir(dirname)


def Stat(filename: Path) -> FileStatistics:
    """See `stat`."""
    return stat(filename)


def Copy(oldpath: Path, newpath: Path, overwrite: bool = False) -> None:
    """See `copy`."""
    copy(oldpath, newpath, overwrite)


def Rename(oldname: Path, newname: Path, overwrite: bool = False) -> None:
    """See `rename`."""
    rename(oldname, newname, overwrite)


def Glob(filename: Path | Sequence[Path]) -> list[str]:
    """See `glob`."""
    return glob(filename)


def Walk(top: Path, in_order: bool = True) -> Iterator[Walked]:
    """See `walk`; `in_order` means parents first."""
    return walk(top, topdown=in_order)
