"""CRC32C as TensorFlow's files have it: masked, so that a checksum of data that holds checksums is worth something."""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np

_DELTA = 0xA282EAD8


def extend(crc: int, data: Any) -> int:
    """The checksum of what `crc` is that of, followed by `data`: bytes or a contiguous array."""
    if isinstance(data, np.ndarray):
        data = data.reshape(-1).view(np.uint8)
        data.flags.writeable = False  # of this view
    return int(google_crc32c.extend(crc, data))


class Sum:
    """A checksum of data that comes in pieces: `total.add(b"ab"); total.add(b"c"); total.value`."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, piece: memoryview) -> None:
        """Goes on with the next piece."""
        self.value = extend(self.value, np.frombuffer(piece, np.uint8))


def mask(crc: int) -> int:
    """A checksum as it is written."""
    return (((crc >> 15) | (crc << 17)) + _DELTA) & 0xFFFFFFFF


def masked(data: Any) -> int:
    """The masked checksum of `data`."""
    return mask(extend(0, data))
