"""Philox, the generator of random bits from a key and a counter, and TensorFlow's way of turning bits into numbers."""

from __future__ import annotations

import math as pymath

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.kernel.types import Array

_MASK = np.uint64(0xFFFFFFFF)


def halves(value: Array) -> tuple[Array, Array]:
    """The low and the high 32 bits."""
    return (value & _MASK).astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32)


def philox(key: Array, counters: list[Array]) -> list[Array]:
    """Philox4x32-10: four random words for each of four-word `counters`; `key` is one uint64."""
    k0, k1 = halves(key)
    c0, c1, c2, c3 = counters
    for _ in range(10):
        p0 = c0.astype(np.uint64) * np.uint64(0xD2511F53)
        p1 = c2.astype(np.uint64) * np.uint64(0xCD9E8D57)
        (low0, high0), (low1, high1) = halves(p0), halves(p1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + np.uint32(0x9E3779B9), k1 + np.uint32(0xBB67AE85)
    return [c0, c1, c2, c3]


def _blocks(key: Array, counter: Array, steps: Array) -> Array:
    """The words that the generator returns at each of `steps`: [steps..., 4]."""
    first = jnp.asarray(counter)[0]
    low = first + steps
    high = jnp.asarray(counter)[1] + (low < first).astype(np.uint64)
    return jnp.stack(philox(jnp.asarray(key)[0], [*halves(low), *halves(high)]), axis=-1)


def random_bits(key: Array, counter: Array, count: int) -> Array:
    """`count` random words."""
    return _blocks(key, counter, jnp.arange(-(-count // 4), dtype=np.uint64)).reshape(-1)[:count]


def random_wide_bits(key: Array, counter: Array, count: int) -> Array:
    words = random_bits(key, counter, 2 * count).reshape(count, 2).astype(np.uint64)
    return words[:, 0] | words[:, 1] << np.uint64(32)


def _unit(words: Array) -> Array:
    """float32 in [0, 1) from the low bits of a word."""
    bits = words & np.uint32(0x7FFFFF) | np.uint32(127 << 23)
    return jax.lax.bitcast_convert_type(bits, np.float32) - np.float32(1)


def _unit64(first: Array, second: Array) -> Array:
    bits = (first.astype(np.uint64) & np.uint64(0xFFFFF)) << np.uint64(32) | second.astype(np.uint64)
    return jax.lax.bitcast_convert_type(bits | np.uint64(1023 << 52), np.float64) - 1.0


def uniform(key: Array, counter: Array, dims: tuple[int, ...], dtype: DType) -> Array:
    count = pymath.prod(dims)
    if dtype is dt.float64:
        pairs = random_bits(key, counter, 2 * count).reshape(count, 2)
        return _unit64(pairs[:, 0], pairs[:, 1]).reshape(dims)
    words = random_bits(key, counter, count)
    if dtype is dt.float32:
        return _unit(words).reshape(dims)
    mantissa, one = (0x3FF, 15 << 10) if dtype is dt.float16 else (0x7F, 127 << 7)
    bits = (words & np.uint32(mantissa) | np.uint32(one)).astype(np.uint16)
    kind = dtype.as_numpy_dtype
    return (jax.lax.bitcast_convert_type(bits, kind) - np.ones((), kind)).reshape(dims)


def _pairs(radius: Array, angle: Array) -> Array:
    """Two normal numbers from two uniform ones, by Box and Muller: [..., 2]."""
    size = jnp.sqrt(-2 * jnp.log(jnp.maximum(radius, radius.dtype.type(1e-7))))
    turn = radius.dtype.type(2 * np.pi) * angle
    return jnp.stack([jnp.sin(turn) * size, jnp.cos(turn) * size], axis=-1)


def _of_words(words: Array, wide: bool) -> Array:
    """Normal numbers from blocks of four words: four per block, or two in double precision."""
    if wide:
        return _pairs(_unit64(words[..., 0], words[..., 1]), _unit64(words[..., 2], words[..., 3]))
    found = _pairs(_unit(words[..., 0::2]), _unit(words[..., 1::2]))
    return found.reshape(*words.shape)


def normal(key: Array, counter: Array, dims: tuple[int, ...], dtype: DType) -> Array:
    count, wide = pymath.prod(dims), dtype is dt.float64
    groups = -(-count // (2 if wide else 4))
    words = _blocks(key, counter, jnp.arange(groups, dtype=np.uint64))
    return _of_words(words, wide).reshape(-1)[:count].reshape(dims).astype(dtype.as_numpy_dtype)


_TRIED = 6  # blocks of four words: the probability that fewer than four of 24 numbers are in range is 1e-27


def truncated_normal(key: Array, counter: Array, dims: tuple[int, ...], dtype: DType) -> Array:
    """Truncated normal numbers. Each group takes the first numbers within 2 from its own part of the generator."""
    count, wide = pymath.prod(dims), dtype is dt.float64
    per_group = 2 if wide else 4
    groups = -(-count // per_group)
    stretch = per_group * 256 // 4
    steps = jnp.arange(groups, dtype=np.uint64)[:, None] * np.uint64(stretch) + jnp.arange(
        _TRIED * (2 if wide else 1), dtype=np.uint64
    )
    tried = _of_words(_blocks(key, counter, steps), wide).reshape(groups, _TRIED * 4)
    order = jnp.argsort(jnp.abs(tried) >= 2, axis=1, stable=True)[:, :per_group]
    kept = jnp.take_along_axis(tried, order, axis=1)
    return kept.reshape(-1)[:count].reshape(dims).astype(dtype.as_numpy_dtype)


def key_and_counter(seed: Array) -> tuple[Array, Array]:
    """The generator's key and first counter for a seed of two numbers, mixed so that similar seeds are unrelated."""
    if tuple(seed.shape) != (2,):
        raise ValueError(f"seed must have shape [2], not {list(seed.shape)}")
    wide = jnp.asarray(seed).astype(np.int64).astype(np.uint64)
    mixed = philox(jnp.uint64(0x02461E293EC8F720), [*halves(wide[0]), *halves(wide[1])])
    low, high, third, fourth = (word.astype(np.uint64) for word in mixed)
    key = (low | high << np.uint64(32)).reshape(1)
    return key, jnp.stack([jnp.uint64(0), third | fourth << np.uint64(32)])
