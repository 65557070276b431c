"""A sorted table of keys and values in one file: the LevelDB format, which TensorFlow uses for checkpoint indexes.

It has blocks of entries (each key without the prefix that it shares with the one before), an index of the blocks, and a
footer with the position of the index. Each block is followed by its compression and a checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from penstock.checkpoint import crc, varint
from penstock.errors import DataLossError, UnimplementedError

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes: two handles, padded, and the magic number
_TRAILER = 5  # bytes after a block: compression and checksum
_BLOCK = 262144  # bytes after which TensorFlow begins a new block
_RESTART = 16  # entries after which a key is written in full
_UNCOMPRESSED = 0


class _BlockBuilder:
    def __init__(self, restart_interval: int) -> None:
        self._interval = restart_interval
        self.clear()

    def clear(self) -> None:
        self.data = bytearray()
        self._restarts = [0]
        self._since_restart = 0
        self._last = b""

    @property
    def size(self) -> int:
        return len(self.data) + 4 * (len(self._restarts) + 1)

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._since_restart < self._interval:
            limit = min(len(key), len(self._last))
            while shared < limit and key[shared] == self._last[shared]:
                shared += 1
        else:
            self._restarts.append(len(self.data))
            self._since_restart = 0
        self.data += varint.encode(shared) + varint.encode(len(key) - shared) + varint.encode(len(value))
        self.data += key[shared:] + value
        self._last = key
        self._since_restart += 1

    def finish(self) -> bytes:
        return bytes(self.data) + struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))


def _between(low: bytes, high: bytes) -> bytes:
    """A short key that is at least `low` and less than `high`."""
    for i, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return low[:i] + bytes([a + 1]) if a < 0xFF and a + 1 < b else low
    return low


def _after(key: bytes) -> bytes:
    """A short key that is at least `key`."""
    for i, byte in enumerate(key):
        if byte != 0xFF:
            return key[:i] + bytes([byte + 1])
    return key


def encode(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The table of `entries`, whose keys must be sorted and unique.

    >>> decode(encode([(b"", b"header"), (b"w", b"entry")]), "x.index")
    {b'': b'header', b'w': b'entry'}
    """
    out = bytearray()
    blocks = _BlockBuilder(_RESTART)
    index = _BlockBuilder(1)
    last: bytes | None = None
    pending: bytes | None = None  # handle of a block that ended at `last`; its key depends on the next one

    def write(block: bytes) -> bytes:
        handle = varint.encode(len(out)) + varint.encode(len(block))
        checksum = crc.mask(crc.extend(crc.extend(0, block), bytes([_UNCOMPRESSED])))
        out.extend(block + struct.pack("<BI", _UNCOMPRESSED, checksum))
        return handle

    for key, value in entries:
        if last is not None and key <= last:
            raise ValueError(f"the keys of a table must be sorted: {key!r} comes after {last!r}")
        if pending is not None:
            assert last is not None
            index.add(_between(last, key), pending)
            pending = None
        blocks.add(key, value)
        last = key
        if blocks.size >= _BLOCK:
            pending = write(blocks.finish())
            blocks.clear()
    if last is not None and blocks.data:
        pending = write(blocks.finish())
    meta = write(_BlockBuilder(_RESTART).finish())
    if pending is not None:
        assert last is not None
        index.add(_after(last), pending)
    handles = meta + write(index.finish())
    return bytes(out) + handles.ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC)


def decode(data: bytes, where: str) -> dict[bytes, bytes]:
    """All entries of a table; DataLossError, naming the file, where it is damaged."""
    try:
        return _decode(data, where)
    except (ValueError, struct.error, IndexError) as error:
        raise DataLossError(f"'{where}' is damaged: {error}.") from error


def _decode(data: bytes, where: str) -> dict[bytes, bytes]:
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("it does not end like an index")
    _, at = _handle(data, len(data) - _FOOTER)
    index, _ = _handle(data, at)
    entries: dict[bytes, bytes] = {}
    last: bytes | None = None
    for _, handle in _entries(_block(data, index, where)):
        for key, value in _entries(_block(data, _handle(handle, 0)[0], where)):
            if last is not None and key <= last:
                raise ValueError(f"key {key!r} is not in its place")
            entries[key] = value
            last = key
    return entries


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = varint.decode(data, at)
    size, at = varint.decode(data, at)
    return (offset, size), at


def _block(data: bytes, handle: tuple[int, int], where: str) -> bytes:
    offset, size = handle
    if offset + size + _TRAILER > len(data) - _FOOTER:
        raise ValueError(f"a block of {size} bytes at {offset} runs past the end")
    kind, checksum = struct.unpack_from("<BI", data, offset + size)
    if crc.masked(data[offset : offset + size + 1]) != checksum:
        raise ValueError(f"the checksum of the block at {offset} is wrong")
    if kind != _UNCOMPRESSED:
        raise UnimplementedError(f"'{where}' is compressed (type {kind}), which checkpoints of TensorFlow are not.")
    return data[offset : offset + size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise ValueError("a block has more restart points than bytes")
    at, key = 0, b""
    while at < end:
        shared, at = varint.decode(block, at)
        own, at = varint.decode(block, at)
        size, at = varint.decode(block, at)
        if shared > len(key) or at + own + size > end:
            raise ValueError("an entry runs past the end of its block")
        key = key[:shared] + block[at : at + own]
        at += own
        yield key, block[at : at + size]
        at += size
