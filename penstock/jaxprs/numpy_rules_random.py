"""Random bits: Philox-4x32, bit for bit as in XLA."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.lax import RandomAlgorithm

from penstock.jaxprs.numpy_rules import Kernel, Site, rule

_LOW = 0xFFFFFFFF
_WORD = 0xFFFFFFFFFFFFFFFF
_FACTORS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_FEW = 8  # blocks, up to which Python's own numbers are faster than NumPy's arrays


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int], kind: Callable[[int], Any]) -> tuple[Any, ...]:
    """Ten rounds, on numbers of a kind or on arrays of them. 32-bit words are kept in 64 bits, so products fit."""
    a, b, c, d = counter
    left_factor, right_factor, low, bits = kind(_FACTORS[0]), kind(_FACTORS[1]), kind(_LOW), kind(32)
    first, second = key
    for _ in range(10):
        left, right = a * left_factor, c * right_factor
        a, b = (right >> bits) ^ b ^ kind(first), right & low
        c, d = (left >> bits) ^ d ^ kind(second), left & low
        first, second = (first + _KEY_STEPS[0]) & _LOW, (second + _KEY_STEPS[1]) & _LOW
    return a, b, c, d


def _words(seed: int, start: int, blocks: int) -> np.ndarray:
    """Four words for each block. The state's first word is the key and also the high half of the counter."""
    key = seed & _LOW, seed >> 32
    if blocks <= _FEW:
        words: list[int] = []
        for low in range(start, start + blocks):
            high = (seed + (low >> 64)) & _WORD
            words += philox((low & _LOW, low >> 32 & _LOW, high & _LOW, high >> 32), key, int)
        return np.array(words, np.uint32)
    lows = np.arange(blocks, dtype=np.uint64) + np.uint64(start)
    highs = np.uint64(seed) + (lows < np.uint64(start)).astype(np.uint64)
    return np.stack(philox((lows & _LOW, lows >> 32, highs & _LOW, highs >> 32), key, np.uint64), 1).astype(np.uint32)


@rule("rng_bit_generator")
def rng_bit_generator(site: Site) -> Kernel:
    if site.param("algorithm") != RandomAlgorithm.RNG_PHILOX:
        raise site.no_rule(f"algorithm {site.param('algorithm')}")
    dtype, key_dtype = site.out_dtype(1), site.dtype()
    if dtype not in (np.uint32, np.uint64):
        raise site.no_rule(f"bits of type {dtype}")
    shape = site.out_shape(1)
    size = math.prod(shape)
    per_block = 16 // dtype.itemsize
    blocks = -(-size // per_block)

    def kernel(key: Any) -> tuple[Any, Any]:
        seed, start = np.ascontiguousarray(key).view(np.uint64).tolist()
        # A 64-bit number is two words, the low one first.
        numbers = _words(seed, start, blocks).view(dtype).reshape(-1)[:size].reshape(shape)
        new_key = np.array([seed, (start + blocks) & _WORD], np.uint64).view(key_dtype)
        return new_key, numbers

    return kernel
