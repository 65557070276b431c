"""TensorFlow's way of turning the random words of a generator into numbers.

A state is the key of a Philox generator and its counter: uint64[3]. The n-th number does not depend on how many are
made, so the numbers are TensorFlow's whatever the number of its threads.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.jaxprs.random_words import halves, random_blocks, random_words
from penstock.kernel.types import Array

RESERVED = 256  # blocks by which TensorFlow's generators move on for each number that an op makes
MANY = 1 << 24  # numbers: so many are made in pieces
PIECE = 1 << 20


def state_of(key: Array, counter: Array) -> Array:
    """The state of a generator, from a key and a counter as TensorFlow's ops have them: uint64[1] and uint64[2]."""
    return jnp.concatenate([jnp.asarray(key).reshape(1), jnp.asarray(counter)])


def wide_words(state: Array, count: Any) -> Array:
    """`count` random numbers of 64 bits, each of two words, the low one first."""
    words = random_words(state, 2 * count).reshape(count, 2).astype(np.uint64)
    return words[:, 0] | words[:, 1] << np.uint64(32)


def integers(state: Array, dims: tuple[int, ...], dtype: DType) -> Array:
    """Integers from the whole range of a type of 32 or 64 bits, as unsigned numbers."""
    return (wide_words if dtype.size == 8 else random_words)(state, pymath.prod(dims)).reshape(dims)


def integers_between(state: Array, dims: tuple[int, ...], minval: Array, maxval: Array) -> Array:
    """Integers in [minval, maxval)."""
    unsigned: Any = np.uint64 if minval.dtype.itemsize == 8 else np.uint32
    # Differences and sums wrap around, so that they are right even where maxval - minval does not fit.
    low = jnp.asarray(minval).astype(unsigned)
    span = jnp.maximum(jnp.asarray(maxval).astype(unsigned) - low, unsigned(1))
    return (integers(state, dims, dt.as_dtype(minval.dtype)) % span + low).astype(minval.dtype)


def _unit(words: Array) -> Array:
    """float32 in [0, 1) from the low bits of a word."""
    bits = words & np.uint32(0x7FFFFF) | np.uint32(127 << 23)
    return jax.lax.bitcast_convert_type(bits, np.float32) - np.float32(1)


def _unit64(first: Array, second: Array) -> Array:
    bits = (first.astype(np.uint64) & np.uint64(0xFFFFF)) << np.uint64(32) | second.astype(np.uint64)
    return jax.lax.bitcast_convert_type(bits | np.uint64(1023 << 52), np.float64) - 1.0


def _in_pieces(numbers: Callable[[Array, Any], Array], state: Array, dims: tuple[int, ...], blocks: float) -> Array:
    """Returns `numbers(state, count)` in the shape `dims`, where each number takes so many `blocks` of the generator.

    Many are made piece by piece, so that intermediate results take little memory. Those of 256 MB of truncated normal
    numbers took 704 MB. This costs up to a third of the time for the other distributions.
    """
    count = pymath.prod(dims)
    if not isinstance(count, int) or count < MANY:
        return numbers(state, count).reshape(dims)

    def piece(start: Array) -> Array:
        low = state[1] + start
        return numbers(jnp.stack([state[0], low, state[2] + (low < state[1]).astype(np.uint64)]), PIECE)

    state = jnp.asarray(state)
    starts = jnp.arange(-(-count // PIECE), dtype=np.uint64) * np.uint64(blocks * PIECE)
    return jax.lax.map(piece, starts).reshape(-1)[:count].reshape(dims)


def uniform(state: Array, dims: tuple[int, ...], dtype: DType) -> Array:
    """Numbers in [0, 1)."""
    if dtype is dt.float64:
        return _in_pieces(_uniform64, state, dims, blocks=1 / 2)
    return _in_pieces(lambda state, count: _uniform(state, count, dtype), state, dims, blocks=1 / 4)


def _uniform64(state: Array, count: Any) -> Array:
    pairs = random_words(state, 2 * count).reshape(count, 2)
    return _unit64(pairs[:, 0], pairs[:, 1])


def _uniform(state: Array, count: Any, dtype: DType) -> Array:
    words = random_words(state, count)
    if dtype is dt.float32:
        return _unit(words)
    mantissa, one = (0x3FF, 15 << 10) if dtype is dt.float16 else (0x7F, 127 << 7)
    bits = (words & np.uint32(mantissa) | np.uint32(one)).astype(np.uint16)
    kind = dtype.as_numpy_dtype
    return jax.lax.bitcast_convert_type(bits, kind) - np.ones((), kind)


def _pairs(radius: Array, angle: Array) -> Array:
    """Two normal numbers from two uniform ones, by Box and Muller: [..., 2]."""
    size = jnp.sqrt(-2 * jnp.log(jnp.maximum(radius, radius.dtype.type(1e-7))))
    turn = (2 * np.pi * angle.astype(np.float64)).astype(angle.dtype)
    return jnp.stack([jnp.sin(turn) * size, jnp.cos(turn) * size], axis=-1)


def _of_words(words: Array, wide: bool) -> Array:
    """Normal numbers from pairs of words, two per pair, or from blocks of four, two per block in double precision."""
    if wide:
        return _pairs(_unit64(words[..., 0], words[..., 1]), _unit64(words[..., 2], words[..., 3]))
    return _pairs(_unit(words[..., 0]), _unit(words[..., 1]))


def normal(state: Array, dims: tuple[int, ...], dtype: DType) -> Array:
    """Normal numbers."""
    wide = dtype is dt.float64

    def numbers(state: Array, count: Any) -> Array:
        pairs = -(-count // 2)
        words = random_words(state, (4 if wide else 2) * pairs).reshape(pairs, 4 if wide else 2)
        return _of_words(words, wide).reshape(2 * pairs)[:count].astype(dtype.as_numpy_dtype)

    return _in_pieces(numbers, state, dims, blocks=1 / 2 if wide else 1 / 4)


def truncated_normal(state: Array, dims: tuple[int, ...], dtype: DType) -> Array:
    """Normal numbers within two standard deviations. Each group takes them from its own part of the generator."""
    wide = dtype is dt.float64
    per_group = 2 if wide else 4

    def numbers(state: Array, count: Any) -> Array:
        groups = -(-count // per_group)
        starts = jnp.arange(groups, dtype=np.uint64) * np.uint64(per_group * RESERVED // 4)
        kept = jnp.stack(_within_two(state, starts, wide), axis=1)
        return kept.reshape(groups * per_group)[:count].astype(dtype.as_numpy_dtype)

    return _in_pieces(numbers, state, dims, blocks=RESERVED / 4)


def _within_two(state: Array, starts: Array, wide: bool) -> tuple[Array, ...]:
    """For each of `starts` the first normal numbers within 2 of the blocks from there: two or four arrays."""

    def more(loop: Any) -> Array:
        return jnp.any(loop[1] < len(loop[2]))

    def one_block(loop: Any) -> Any:
        steps, found, kept = loop
        for number in _block(state, steps, wide):
            fits = jnp.abs(number) < 2
            kept = tuple(jnp.where(fits & (found == i), number, old) for i, old in enumerate(kept))
            found = found + fits
        return steps + np.uint64(1), found, kept

    zeros = jnp.zeros(starts.shape, np.float64 if wide else np.float32)
    loop = starts, jnp.zeros(starts.shape, np.int32), (zeros,) * (2 if wide else 4)
    kept: tuple[Array, ...] = jax.lax.while_loop(more, one_block, loop)[2]
    return kept


def _block(state: Array, steps: Array, wide: bool) -> list[Array]:
    """The normal numbers of the blocks at `steps`: four arrays, or two in double precision."""
    found = normals(random_blocks(state, steps), np.float64 if wide else np.float32)
    return [found[..., i] for i in range(found.shape[-1])]


def normals(words: Array, kind: Any) -> Array:
    """The normal numbers of blocks of four words: [..., 4], or [..., 2] in double precision."""
    if kind == np.float64:
        return _of_words(words, True)
    return jnp.concatenate([_of_words(words[..., :2], False), _of_words(words[..., 2:], False)], axis=-1)


def units(words: Array, kind: Any) -> Array:
    """The numbers in [0, 1) of blocks of four words: [..., 4], or [..., 2] in double precision."""
    return _unit64(words[..., 0::2], words[..., 1::2]) if kind == np.float64 else _unit(words)


def jax_key(state: Array, impl: str = "threefry2x32") -> Array:
    """A key for jax's own distributions."""
    mixed = jnp.asarray(state)[0] + jnp.asarray(state)[2] * np.uint64(0x9E3779B97F4A7C15)
    words = jnp.stack([*halves(mixed), *halves(jnp.asarray(state)[1])])
    return jax.random.wrap_key_data(words if impl == "rbg" else words[:2] ^ words[2:], impl=impl)


def key_and_counter(seed: Array) -> tuple[Array, Array]:
    """The generator's key and first counter for a seed of two numbers, mixed so that similar seeds are unrelated."""
    if tuple(seed.shape) != (2,):
        raise ValueError(f"seed must have shape [2], not {list(seed.shape)}")
    wide = jnp.asarray(seed).astype(np.int64).astype(np.uint64)
    mixing = jnp.concatenate([jnp.full(1, 0x02461E293EC8F720, np.uint64), wide])
    key, high = wide_words(mixing, 2)
    return key.reshape(1), jnp.stack([jnp.uint64(0), high])
