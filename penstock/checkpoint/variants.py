"""Variants in data files: each as its length, a VariantTensorDataProto, and a checksum."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.tensor_pb2 import VariantTensorDataProto

from penstock.checkpoint import crc, varint


def holds(array: np.ndarray) -> bool:
    """Tells if an array holds variants."""
    return array.dtype == object and array.size > 0 and isinstance(array.flat[0], VariantTensorDataProto)


def encode(items: Sequence[VariantTensorDataProto]) -> tuple[bytes, int]:
    """The bytes of variants, and their checksum, in which lengths are plain numbers of 64 bits."""
    pieces, checksum = [], 0
    for item in items:
        body = item.SerializeToString(deterministic=True)
        checksum = crc.extend(crc.extend(checksum, struct.pack("<Q", len(body))), body)
        end = struct.pack("<I", crc.mask(checksum))
        checksum = crc.extend(checksum, end)
        pieces += [varint.encode(len(body)), body, end]
    return b"".join(pieces), checksum


def decode(data: bytes, count: int, expected: int) -> np.ndarray:
    """The variants that `encode` wrote, as a vector; ValueError if `data` is something else."""
    if count > len(data):
        raise ValueError("it is too short for its variants")
    found = np.empty(count, object)
    at = checksum = 0
    for i in range(count):
        size, at = varint.decode(data, at)
        body, end = data[at : at + size], data[at + size : at + size + 4]
        checksum = crc.extend(crc.extend(checksum, struct.pack("<Q", size)), body)
        if len(end) < 4 or struct.unpack("<I", end) != (crc.mask(checksum),):
            raise ValueError("the checksum of a variant is wrong")
        checksum = crc.extend(checksum, end)
        try:
            found[i] = VariantTensorDataProto.FromString(body)
        except DecodeError as error:
            raise ValueError("a variant cannot be read") from error
        at += size + 4
    if at != len(data) or crc.mask(checksum) != expected:
        raise ValueError("the checksum is wrong")
    return found
