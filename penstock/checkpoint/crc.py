"""CRC32C as in TensorFlow's files: masked, because the CRC of data that contains CRCs is otherwise weak."""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np

_DELTA = 0xA282EAD8


def extend(crc: int, data: Any) -> int:
    """Extends the checksum `crc` by `data`: bytes or a contiguous array."""
    if isinstance(data, np.ndarray):
        data = data.reshape(-1).view(np.uint8)
        data.flags.writeable = False  # only this view
    return int(google_crc32c.extend(crc, data))


class Sum:
    """A checksum of data that arrives in pieces: `total.add(b"ab"); total.add(b"c"); total.value`."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, piece: memoryview) -> None:
        """Adds the next piece."""
        self.value = extend(self.value, np.frombuffer(piece, np.uint8))


def mask(crc: int) -> int:
    """The masked form of a checksum, which files hold."""
    return (((crc >> 15) | (crc << 17)) + _DELTA) & 0xFFFFFFFF


def masked(data: Any) -> int:
    """The masked checksum of `data`."""
    return mask(extend(0, data))
