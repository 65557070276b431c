"""Primitives of jax for random words of Philox. Its counter has 128 bits, as in TensorFlow; that of jax's own has 64.

A state is three numbers of 64 bits: the key, and the low and the high half of the counter.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir as lowering

Array = Any

_MASK = np.uint64(0xFFFFFFFF)
_MANY = 1 << 16  # words: XLA's own op compiles in half the time of a loop, which makes many in half the time of that op
_words = Primitive("philox_words")
_blocks = Primitive("philox_blocks")


def random_words(state: Array, count: Any) -> Array:
    """The first `count` words: uint32[count].

    >>> random_words(np.zeros(3, np.uint64), 2).tolist()
    [1713891541, 3781805453]
    """
    state = jnp.asarray(state)
    if isinstance(count, int) and count > _MANY:
        return random_blocks(state, jnp.arange(-(-count // 4), dtype=np.uint64)).reshape(-1)[:count]
    found: Array = _words.bind(state, count=count)
    return found


def random_blocks(state: Array, steps: Array) -> Array:
    """The four words at each of `steps`, which are added to the counter: uint32[..., 4]."""
    found: Array = _blocks.bind(jnp.asarray(state), steps)
    return found


def halves(value: Array) -> tuple[Array, Array]:
    """The low and the high 32 bits."""
    return (value & _MASK).astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32)


def philox(key: Array, counters: list[Array]) -> list[Array]:
    """Philox4x32-10: four random words for each of four-word `counters`; `key` is one uint64."""

    def one(_: Any, state: Any) -> Any:
        c0, c1, c2, c3, k0, k1 = state
        low0, high0 = halves(c0.astype(np.uint64) * np.uint64(0xD2511F53))
        low1, high1 = halves(c2.astype(np.uint64) * np.uint64(0xCD9E8D57))
        keys = k0 + np.uint32(0x9E3779B9), k1 + np.uint32(0xBB67AE85)
        return high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0, *keys

    # A loop compiles in a third of the time of ten rounds, and XLA does not compute it again for each of its users.
    found: tuple[Array, ...] = lax.fori_loop(0, 10, one, (*counters, *halves(key)))
    return list(found[:4])


def _blocks_by_rounds(state: Array, steps: Array) -> Array:
    low = state[1] + steps
    high = state[2] + (low < state[1]).astype(np.uint64)
    return jnp.stack(philox(state[0], [*halves(low), *halves(high)]), axis=-1)


def _lower_words(context: Any, state: Any, *, count: int) -> Any:
    """XLA makes 64-bit words faster than the same bits in 32-bit words."""
    wide, narrow = (ir.IntegerType.get_unsigned(bits) for bits in (64, 32))
    size = -(-count // 2)
    philox = stablehlo.RngAlgorithmAttr.get("PHILOX")
    made = stablehlo.RngBitGeneratorOp(state.type, ir.RankedTensorType.get([size], wide), philox, state)
    pairs = stablehlo.bitcast_convert(ir.RankedTensorType.get([size, 2], narrow), made.results[1])
    flat = stablehlo.reshape(ir.RankedTensorType.get([2 * size], narrow), pairs)
    first, last, stride = (ir.DenseI64ArrayAttr.get([n]) for n in (0, count, 1))
    return [stablehlo.slice(flat, first, last, stride)]


def _words_form(state: Any, *, count: Any) -> Any:
    return jax.core.ShapedArray((count,), np.dtype(np.uint32))


def _blocks_form(state: Any, steps: Any) -> Any:
    return jax.core.ShapedArray((*steps.shape, 4), np.dtype(np.uint32))


_words.def_abstract_eval(_words_form)
_blocks.def_abstract_eval(_blocks_form)
lowering.register_lowering(_words, _lower_words)
lowering.register_lowering(_blocks, lowering.lower_fun(_blocks_by_rounds, multiple_results=False))
_words.def_impl(jax.jit(_words.bind, static_argnames="count"))
_blocks.def_impl(jax.jit(_blocks.bind))
