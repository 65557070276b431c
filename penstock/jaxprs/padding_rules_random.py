"""Rules of random bits, for generators whose n-th number does not depend on how many are made."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.jaxprs.dims import is_symbolic
from penstock.jaxprs.padding_frame import Frame, Padded, bind, no_rule, rule


@rule("random_bits", "random_split")
def random_bits(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (keys,) = operands
    shape = equation.params["shape"]
    if not any(map(is_symbolic, shape)):
        return bind(equation, keys.array)  # a batch of keys
    if "fry" not in str(keys.array.dtype) or not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        raise no_rule(equation, "each number depends on how many are made")
    if keys.shape:
        raise no_rule(equation, "several keys")
    if not any(map(is_symbolic, shape[1:])):
        return bind(equation, keys.array, shape=frame.padded(shape))
    grid = frame.padded(shape)
    flat = bind(equation, keys.array, shape=(math.prod(grid),))
    position: Any = np.int32(0)
    for d, dim in enumerate(shape):
        position = position * frame.size(dim) + lax.broadcasted_iota(np.int32, grid, d)
    return jnp.take(flat, position, axis=0, mode="clip")


@rule("philox_words")
def philox_words(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (state,) = operands
    return bind(equation, state.array, count=frame.padded((equation.params["count"],))[0])


@rule("philox_blocks")
def philox_blocks(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    state, steps = operands
    return bind(equation, state.array, steps.array)


@rule("rng_bit_generator")
def rng_bit_generator(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (key,) = operands
    shape = equation.params["shape"]
    if equation.params["algorithm"] != lax.RandomAlgorithm.RNG_PHILOX or any(map(is_symbolic, shape[1:])):
        raise no_rule(equation, "each number depends on how many are made")
    _, bits = bind(equation, key.array, shape=frame.padded(shape))
    return [no_rule(equation, "the next key depends on how many numbers are made"), bits]
