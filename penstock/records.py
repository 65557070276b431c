"""Records: byte strings one after the other in a file, with lengths and checksums, as in TFRecord and event files.

A record is its length (8 bytes, little endian), the masked CRC32C of that, the data, and the masked CRC32C of the data.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from penstock.checkpoint import crc, files
from penstock.errors import DataLossError, InvalidArgumentError

_HEADER = struct.Struct("<QI")
_CHUNK = 1 << 20
COMPRESSIONS = ("", "GZIP", "ZLIB")


def encode(data: bytes) -> bytes:
    """`data` as a record."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", crc.masked(length)), data, struct.pack("<I", crc.masked(data))))


class RecordWriter:
    """Writes records to a file, which is closed by `close` or the end of a `with`.

    >>> with RecordWriter("/tmp/data.tfrecord", "GZIP") as writer:
    ...     writer.write(example.SerializeToString())
    """

    def __init__(self, path: Any, compression: str = "") -> None:
        _require_known(compression)
        self._path = os.fspath(path)
        self._file: BinaryIO | None = files.create(self._path)
        bits = {"GZIP": 31, "ZLIB": 15}.get(compression)
        self._compressor = zlib.compressobj(wbits=bits) if bits else None

    def write(self, record: bytes | str) -> None:
        """Appends a record."""
        if self._file is None:
            raise InvalidArgumentError(f"'{self._path}' is closed.")
        data = encode(record.encode() if isinstance(record, str) else bytes(record))
        files.write(self._file, self._compressor.compress(data) if self._compressor else data)

    def flush(self) -> None:
        """Writes all buffered data to the file."""
        if self._file is not None:
            if self._compressor:
                files.write(self._file, self._compressor.flush(zlib.Z_SYNC_FLUSH))
            with files.named(self._path):
                self._file.flush()

    def close(self) -> None:
        """Completes and closes the file."""
        if self._file is not None:
            if self._compressor:
                files.write(self._file, self._compressor.flush())
            file, self._file = self._file, None
            with files.named(self._path):
                file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def read(path: Any, compression: str = "") -> Iterator[bytes]:
    """The records of a file; DataLossError, naming the file and the position, if it is damaged.

    >>> for record in read("/tmp/data.tfrecord"):
    ...     example = tf.train.Example.FromString(record)
    """
    _require_known(compression)
    name = os.fspath(path)
    with files.named(name), open(name, "rb") as raw, contextlib.ExitStack() as stack:
        file: Any = raw
        if compression == "GZIP":
            file = stack.enter_context(gzip.open(raw))
        elif compression == "ZLIB":
            file = _Inflated(raw)
        at = 0
        try:
            while len(header := file.read(12)) == 12:  # a header that is cut off is the end, as in TensorFlow
                length, checksum = _HEADER.unpack(header)
                if crc.masked(header[:8]) != checksum:
                    raise ValueError("the checksum of a length is wrong")
                data = _read_exactly(file, length)
                footer = file.read(4)
                if len(data) < length or len(footer) < 4:
                    raise ValueError("a record is cut off")
                if crc.masked(data) != struct.unpack("<I", footer)[0]:
                    raise ValueError("the checksum of a record is wrong")
                yield data
                at += 16 + length
        except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataLossError(f"'{name}' is damaged at {at}: {error}.") from error


def _read_exactly(file: Any, length: int) -> bytes:
    """Reads up to `length` bytes, in pieces: a damaged length may be larger than the file."""
    pieces = []
    while length > 0:
        piece = file.read(min(length, _CHUNK))
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


class _Inflated:
    """A file decompressed by zlib."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._inflate = zlib.decompressobj()
        self._ready = b""

    def read(self, count: int) -> bytes:
        while len(self._ready) < count:
            piece = self._inflate.unconsumed_tail or self._raw.read(_CHUNK)
            if not piece:
                break
            self._ready += self._inflate.decompress(piece, max(_CHUNK, count))
        data, self._ready = self._ready[:count], self._ready[count:]
        return data


def _require_known(compression: str) -> None:
    if compression not in COMPRESSIONS:
        raise InvalidArgumentError(f"Compression must be one of {COMPRESSIONS}, received {compression!r}.")
