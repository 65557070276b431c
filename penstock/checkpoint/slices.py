"""Slices: rectangular parts of tensors, as checkpoints name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.checkpoint.messages import TensorSliceProto


@dataclass(frozen=True)
class Slice:
    """The start and length of a part in each dimension."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def parse(cls, spec: str) -> tuple[tuple[int, ...], Slice]:
        """Parses "13 2 0,3:0,2" into the full shape and the slice; ValueError if it is malformed.

        >>> Slice.parse("13 2 0,3:-")
        ((13, 2), Slice(starts=(0, 0), lengths=(3, 2)))
        """
        *dims, extents = spec.split()
        shape = tuple(int(d) for d in dims)
        parts = extents.split(":") if extents else []
        if len(parts) != len(shape):
            raise ValueError(f"'{spec}' has {len(shape)} dimensions and {len(parts)} extents")
        whole = [(0, size) for size in shape]
        bounds = [w if p == "-" else tuple(map(int, p.split(","))) for p, w in zip(parts, whole, strict=True)]
        if any(len(b) != 2 or b[0] < 0 or b[1] < 0 or b[0] + b[1] > n for b, n in zip(bounds, shape, strict=True)):
            raise ValueError(f"'{spec}' is not a part of its shape")
        return shape, cls(tuple(b[0] for b in bounds), tuple(b[1] for b in bounds))

    @classmethod
    def from_proto(cls, proto: Any, shape: tuple[int, ...]) -> Slice:
        """The slice of a message; an absent length is the whole dimension."""
        extents = list(proto.extent)
        if len(extents) != len(shape):
            raise ValueError(f"a slice has {len(extents)} dimensions, its tensor {len(shape)}")
        lengths = [e.length if e.WhichOneof("has_length") else n for e, n in zip(extents, shape, strict=True)]
        return cls(tuple(e.start for e in extents), tuple(lengths))

    def to_proto(self) -> Any:
        """This slice as a message."""
        proto = TensorSliceProto()
        for start, length in zip(self.starts, self.lengths, strict=True):
            proto.extent.add(start=start, length=length)
        return proto

    def overlap(self, other: Slice) -> Slice | None:
        """The overlap of two slices of one tensor, or None."""
        starts = tuple(map(max, self.starts, other.starts))
        ends = [
            min(a + n, b + m) for a, n, b, m in zip(self.starts, self.lengths, other.starts, other.lengths, strict=True)
        ]
        if any(start >= end for start, end in zip(starts, ends, strict=True)):
            return None
        return Slice(starts, tuple(end - start for start, end in zip(starts, ends, strict=True)))

    def within(self, outer: Slice) -> tuple[slice, ...]:
        """The index of this slice in an array that holds `outer`."""
        return tuple(
            slice(start - first, start - first + length)
            for start, length, first in zip(self.starts, self.lengths, outer.starts, strict=True)
        )

    def key(self, name: str) -> bytes:
        """The key of this part of the tensor `name` in an index: ordered by name, then by position."""
        escaped = name.encode().replace(b"\xff", b"\xff\x00").replace(b"\x00", b"\x00\xff")
        parts = [_unsigned(0), escaped + b"\x00\x01", _unsigned(len(self.starts))]
        for start, length in zip(self.starts, self.lengths, strict=True):
            parts += [_signed(start), _signed(length)]
        return b"".join(parts)


def _unsigned(value: int) -> bytes:
    """Encodes a length, then the bytes, highest first, so that bytes sort like the numbers."""
    body = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(body)]) + body


def _signed(value: int) -> bytes:
    """Encodes like UTF-8: the first bits give the number of bytes, so that bytes sort like the numbers."""
    magnitude = ~value if value < 0 else value
    size = max(1, (magnitude.bit_length() + 7) // 7)
    header = ((1 << size) - 1) << (8 * size - size)  # as many ones as there are bytes
    return ((value & ((1 << 8 * size) - 1)) ^ header).to_bytes(size, "big")
