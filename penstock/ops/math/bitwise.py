"""Ops on the bits of integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from penstock.graph.opdef import op
from penstock.kernel import shapes
from penstock.kernel.types import INTS, Array


@op("BitwiseAnd", "T, T -> z: T", shape=shapes.broadcast, no_gradient=True, numpy=True, T=INTS)
def bitwise_and(x: Array, y: Array) -> Array:
    return x & y


@op("BitwiseOr", "T, T -> z: T", shape=shapes.broadcast, no_gradient=True, numpy=True, T=INTS)
def bitwise_or(x: Array, y: Array) -> Array:
    return x | y


@op("BitwiseXor", "T, T -> z: T", shape=shapes.broadcast, no_gradient=True, numpy=True, T=INTS)
def bitwise_xor(x: Array, y: Array) -> Array:
    return x ^ y


@op("Invert", "T -> y: T", shape=shapes.unchanged, no_gradient=True, numpy=True, T=INTS)
def invert(x: Array) -> Array:
    return ~x


@op("LeftShift", "T, T -> z: T", shape=shapes.broadcast, no_gradient=True, T=INTS)
def left_shift(x: Array, y: Array) -> Array:
    return jnp.left_shift(x, _in_width(y))


@op("RightShift", "T, T -> z: T", shape=shapes.broadcast, no_gradient=True, T=INTS)
def right_shift(x: Array, y: Array) -> Array:
    return jnp.right_shift(x, _in_width(y))


def _in_width(shift: Array) -> Array:
    """Clips a shift to the width of the type, as TensorFlow does: larger ones are not defined."""
    return jnp.clip(shift, 0, 8 * shift.dtype.itemsize - 1)


@op("PopulationCount", "T -> y: uint8", shape=shapes.unchanged, no_gradient=True, T=INTS)
def population_count(x: Array) -> Array:
    return jax.lax.population_count(x).astype(jnp.uint8)
