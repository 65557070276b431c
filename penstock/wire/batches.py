"""A batch is a list of buffers that are written together, and the descriptors that travel with them."""

from __future__ import annotations

import os
from typing import Any


def join_neighbours(batches: list[tuple[list[Any], list[int]]]) -> list[tuple[list[Any], list[int]]]:
    """Joins neighbouring batches, unless a descriptor has to stay with its frame."""
    joined = [batches[0]]
    for buffers, descriptors in batches[1:]:
        if descriptors or joined[-1][1]:
            joined.append((buffers, descriptors))
        else:
            joined[-1] = ([*joined[-1][0], *buffers], [])
    return joined


def rest_of(buffers: list[Any], sent: int) -> list[Any]:
    """Returns the buffers that remain after `sent` bytes; `buffers` itself if nothing was sent."""
    if sent == 0:
        return buffers
    for i, buffer in enumerate(buffers):
        size = len(buffer)
        if sent < size:
            return [memoryview(buffer)[sent:], *buffers[i + 1 :]]
        sent -= size
    return []


def size_of(buffers: list[Any]) -> int:
    """Returns how many bytes they are together: each is bytes, or a vector of bytes."""
    return sum(map(len, buffers))


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
