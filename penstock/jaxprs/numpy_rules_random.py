"""Random bits: Philox-4x32, bit for bit as in XLA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax.lax import RandomAlgorithm

from penstock import philox
from penstock.jaxprs.numpy_rules import Kernel, Site, rule


@rule("philox_words")
def philox_words(site: Site) -> Kernel:
    (count,) = site.out_shape(0)

    def kernel(state: Any) -> Any:
        key, start, high = state.tolist()
        return philox.words(key, start, high, -(-count // 4))[:count]

    return kernel


@rule("philox_blocks")
def philox_blocks(site: Site) -> Kernel:
    def kernel(state: Any, steps: Any) -> Any:
        key, start, high = state.tolist()
        return philox.words_at(key, start, high, steps)

    return kernel


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
        # The state's first word is the key and also the high half of the counter. A 64-bit number is two words, the low
        # one first.
        numbers = philox.words(seed, start, seed, blocks).view(dtype)[:size].reshape(shape)
        new_key = np.array([seed, (start + blocks) & philox.WORD], np.uint64).view(key_dtype)
        return new_key, numbers

    return kernel
