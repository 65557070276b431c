"""Variable-length integers: seven bits to a byte, the lowest first."""

from __future__ import annotations


def encode(value: int) -> bytes:
    """`value`, which is not negative, as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The varint at a position, and the position after it; ValueError if there is none."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a varint runs past the end or is longer than 64 bits")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
