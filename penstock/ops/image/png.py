"""Writes PNG files, and reads those with 16 bits per channel (Pillow cuts colours to 8).

Bad files raise ValueError; sizes are checked before anything of that size is allocated.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PIXELS = 2**27  # limit for one file, all frames together

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # channels by colour type: gray, RGB, palette, gray and alpha, RGBA
_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
# The passes of an interlaced file: first column and row, and the steps to the next ones.
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def write(image: np.ndarray, compression: int = -1) -> bytes:
    """An image, [height, width, channels] of uint8 or uint16, as a PNG file.

    >>> write(np.zeros((2, 2, 3), np.uint8))[:4]
    b'\\x89PNG'
    """
    height, width, channels = image.shape
    pixel = channels * image.dtype.itemsize
    lines = np.ascontiguousarray(image.astype(image.dtype.newbyteorder(">"))).view(np.uint8).reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, image.dtype.itemsize * 8, _COLOR_TYPES[channels], 0, 0, 0)
    body = zlib.compress(_filtered(lines, pixel).tobytes(), compression)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _filtered(lines: np.ndarray, pixel: int) -> np.ndarray:
    """Each line filtered with the smallest differences, preceded by the number of its filter."""
    size = len(lines), lines.shape[1] + 1
    best = np.zeros(size, np.uint8)
    best[:, 1:] = lines
    cost = _cost(lines)
    left, up, corner = (np.zeros(lines.shape, np.int16) for _ in range(3))
    left[:, pixel:] = lines[:, :-pixel]
    up[1:] = lines[:-1]
    corner[1:, pixel:] = lines[:-1, :-pixel]
    for kind, predicted in enumerate((left, up, (left + up) >> 1, _paeth(left, up, corner)), 1):
        tried = (lines - predicted).astype(np.uint8)
        smaller = _cost(tried) < cost
        cost = np.minimum(cost, _cost(tried))
        best[smaller, 0] = kind
        best[smaller, 1:] = tried[smaller]
    return best


def _cost(lines: np.ndarray) -> np.ndarray:
    cost: np.ndarray = np.abs(lines.view(np.int8).astype(np.int16)).sum(1, dtype=np.int64)
    return cost


def _paeth(left: np.ndarray, up: np.ndarray, corner: np.ndarray) -> np.ndarray:
    guess = left + up - corner
    to_left, to_up, to_corner = np.abs(guess - left), np.abs(guess - up), np.abs(guess - corner)
    return np.where((to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner))


def header_of(data: bytes) -> tuple[int, int, int]:
    """Width, height and bits per channel. Raises ValueError if the file is far too small for them."""
    if len(data) < 33 or not data.startswith(SIGNATURE) or data[12:16] != b"IHDR":
        raise ValueError("the header is missing")
    width, height, depth, color = struct.unpack(">IIBB", data[16:26])
    if not width or not height or color not in _CHANNELS or depth not in (1, 2, 4, 8, 16):
        raise ValueError("the header is malformed")
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width} x {height} pixels are more than the {MAX_PIXELS} allowed")
    # A deflated byte stands for at most 1,032 bytes.
    if width * height * depth * _CHANNELS[color] // 8 > 1032 * len(data):
        raise ValueError(f"{len(data)} bytes cannot hold {width} x {height} pixels")
    return width, height, depth


def read_16_bit(data: bytes) -> tuple[np.ndarray, tuple[int, ...] | None]:
    """The pixels of a file with 16 bits per channel, as they are, and the colour that is transparent, if any."""
    width, height, depth = header_of(data)
    chunks: dict[bytes, list[bytes]] = {}
    for kind, body in _chunks(data):
        chunks.setdefault(kind, []).append(body)
    *_, color, compression, filtering, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"][0])
    if depth != 16 or color not in (0, 2, 4, 6) or compression or filtering or interlaced > 1:
        raise ValueError("the header is malformed")
    channels = _CHANNELS[color]
    passes = [(y, x, dy, dx) for x, y, dx, dy in _ADAM7] if interlaced else [(0, 0, 1, 1)]
    sizes = [(-((y - height) // dy), -((x - width) // dx)) for y, x, dy, dx in passes]
    sizes = [(rows, columns) if rows > 0 and columns > 0 else (0, 0) for rows, columns in sizes]
    expected = sum(rows * (1 + columns * channels * 2) for rows, columns in sizes)
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(b"".join(chunks.get(b"IDAT", [])), expected)
    except zlib.error as error:
        raise ValueError(f"the pixels cannot be inflated: {error}") from error
    if len(raw) != expected:
        raise ValueError(f"{len(raw)} bytes of pixels, must be {expected}")
    image = np.zeros((height, width, channels), np.uint16)
    start = 0
    for (y, x, dy, dx), (rows, columns) in zip(passes, sizes, strict=True):
        if rows:
            line = 1 + columns * channels * 2
            part = np.frombuffer(raw, np.uint8, rows * line, start).reshape(rows, line)
            start += rows * line
            lines = _unfiltered(part[:, 0], part[:, 1:].reshape(rows, columns, channels * 2))
            image[y::dy, x::dx] = lines.reshape(rows, -1).view(">u2").reshape(rows, columns, channels)
    key = b"".join(chunks.get(b"tRNS", []))
    return image, struct.unpack(f">{channels}H", key) if color in (0, 2) and len(key) == 2 * channels else None


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at + 12 <= len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body, check = data[at + 4 : at + 8], data[at + 8 : at + 8 + size], data[at + 8 + size : at + 12 + size]
        if len(check) != 4 or struct.unpack(">I", check)[0] != zlib.crc32(kind + body):
            raise ValueError(f"the chunk at byte {at} is damaged")
        yield kind, body
        if kind == b"IEND":
            return
        at += 12 + size
    raise ValueError("the file is truncated")


def _unfiltered(kinds: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Lines [rows, columns, bytes of a pixel] with the filters undone.

    A pixel depends on those to the left, above, and above left, so the pixels of a diagonal are computed at once.
    """
    if kinds.max() > 4:
        raise ValueError(f"filter {kinds.max()} does not exist")
    rows, columns, pixel = lines.shape
    done = np.zeros((rows + 1, columns + 1, pixel), np.int16)
    for diagonal in range(rows + columns - 1):
        y = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        x = diagonal - y
        left, up, corner = done[y + 1, x], done[y, x + 1], done[y, x]
        kind: Any = kinds[y][:, None]
        choices = [np.zeros_like(left), left, up, (left + up) >> 1, _paeth(left, up, corner)]
        done[y + 1, x + 1] = lines[y, x] + np.choose(kind, choices) & 255
    return np.ascontiguousarray(done[1:, 1:].astype(np.uint8))
