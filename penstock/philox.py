"""Philox4x32-10: random words as a function of a key and a counter. The same in plain Python and on NumPy arrays.

A generator is a key of 64 bits and a counter of 128 bits, which grows by one for each block of four 32-bit words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

LOW = 0xFFFFFFFF
WORD = 0xFFFFFFFFFFFFFFFF
_FACTORS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_FEW = 8  # blocks, up to which Python's own numbers are faster than NumPy's arrays
_CHUNK = 256  # blocks that a stream makes at once


def block(counter: tuple[Any, Any, Any, Any], key: tuple[int, int], kind: Callable[[int], Any]) -> tuple[Any, ...]:
    """Ten rounds, on numbers of a kind or on arrays of them. 32-bit words are kept in 64 bits, so products fit."""
    a, b, c, d = counter
    left_factor, right_factor, low, bits = kind(_FACTORS[0]), kind(_FACTORS[1]), kind(LOW), kind(32)
    first, second = key
    for _ in range(10):
        left, right = a * left_factor, c * right_factor
        a, b = (right >> bits) ^ b ^ kind(first), right & low
        c, d = (left >> bits) ^ d ^ kind(second), left & low
        first, second = (first + _KEY_STEPS[0]) & LOW, (second + _KEY_STEPS[1]) & LOW
    return a, b, c, d


def words(key: int, start: int, high: int, blocks: int) -> np.ndarray:
    """The words of `blocks` blocks, four of each. The counter begins at `start` (low) and `high`, 64 bits each.

    >>> words(0, 0, 0, 1).tolist()
    [1713891541, 3781805453, 3159862348, 2600524760]
    """
    if blocks <= _FEW:
        found: list[int] = []
        for low in range(start, start + blocks):
            top = (high + (low >> 64)) & WORD
            found += block((low & LOW, low >> 32 & LOW, top & LOW, top >> 32), (key & LOW, key >> 32), int)
        return np.array(found, np.uint32)
    return words_at(key, start, high, np.arange(blocks, dtype=np.uint64)).reshape(-1)


def words_at(key: int, start: int, high: int, steps: np.ndarray) -> np.ndarray:
    """The four words of the blocks at `steps` after the start: [..., 4]."""
    lows = steps + np.uint64(start)
    tops = np.uint64(high) + (lows < np.uint64(start)).astype(np.uint64)
    found = block((lows & LOW, lows >> 32, tops & LOW, tops >> 32), (key & LOW, key >> 32), np.uint64)
    return np.stack(found, -1).astype(np.uint32)


def stream(seed: int, seed2: int) -> Iterator[int]:
    """All words of the generator that TensorFlow starts from two seeds, one after the other.

    >>> next(stream(0, 0))
    1713891541
    """
    start, size = 0, 1
    while True:
        yield from words(seed & WORD, start, seed2 & WORD, size).tolist()
        start, size = start + size, min(2 * size, _CHUNK)
