"""Random bits: Philox-4x32 as XLA has it, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax.lax import RandomAlgorithm

from penstock.jaxprs.numpy_rules import Kernel, Site, rule

_LOW = np.uint64(0xFFFFFFFF)
_BITS = np.uint64(32)
_FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Ten rounds. Words of 32 bits lie in uint64, so that products need no conversion."""
    a, b, c, d = counter
    first, second = key
    for _ in range(10):
        left, right = a * _FACTORS[0], c * _FACTORS[1]
        a, b = (right >> _BITS) ^ b ^ np.uint64(first), right & _LOW
        c, d = (left >> _BITS) ^ d ^ np.uint64(second), left & _LOW
        first, second = (first + _KEY_STEPS[0]) & 0xFFFFFFFF, (second + _KEY_STEPS[1]) & 0xFFFFFFFF
    return a, b, c, d


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
        low = np.arange(blocks, dtype=np.uint64) + np.uint64(start)
        # The state's first word is the key and, once more, the high half of the counter.
        high = np.uint64(seed) + (low < np.uint64(start)).astype(np.uint64)
        words = philox((low & _LOW, low >> _BITS, high & _LOW, high >> _BITS), (seed & 0xFFFFFFFF, seed >> 32))
        # A number of 64 bits is two words, the low one first.
        numbers = np.stack(words, 1).astype(np.uint32).view(dtype).reshape(-1)[:size].reshape(shape)
        new_key = np.array([seed, (start + blocks) & 0xFFFFFFFFFFFFFFFF], np.uint64).view(key_dtype)
        return new_key, numbers

    return kernel
