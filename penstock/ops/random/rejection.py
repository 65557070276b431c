"""Gamma, Poisson and binomial numbers by rejection: candidates are drawn until one is accepted, as in TensorFlow.

All is computed in double precision. Each number has a part of the generator to itself, so that it does not depend on
how often others are rejected. All numbers are drawn at once; those that have been accepted stay as they are.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.jaxprs.random_words import random_blocks
from penstock.kernel.types import Array
from penstock.ops.random.philox import RESERVED, normals, units


class _Stream(NamedTuple):
    """A buffer for each number: the numbers of the last block, of which the last one left is the next."""

    values: Array  # [..., 2]
    left: Array


class _Source:
    """Draws from each number's part of the generator. All buffers of a number take their blocks from that part."""

    def __init__(self, state: Array, steps: Array) -> None:
        self._state, self.steps = state, steps

    def empty(self) -> _Stream:
        return _Stream(jnp.zeros((*self.steps.shape, 2), np.float64), jnp.zeros(self.steps.shape, np.int32))

    def take(self, stream: _Stream, wanted: Array, make: Callable[[Array, Any], Array]) -> tuple[Array, _Stream]:
        """The next number of a buffer where one is `wanted`. An empty buffer takes what `make` makes of a block."""
        refill = wanted & (stream.left == 0)
        values = jnp.where(refill[..., None], make(random_blocks(self._state, self.steps), np.float64), stream.values)
        self.steps = self.steps + refill.astype(np.uint64)
        left = jnp.where(refill, 2, stream.left) - wanted.astype(np.int32)
        return jnp.where(left == 0, values[..., 0], values[..., 1]), _Stream(values, left)


def _starts(dims: tuple[int, ...], parameters: tuple[int, ...]) -> Array:
    """The place of each number among all. TensorFlow makes all numbers of one set of parameters before the next."""
    sets = pymath.prod(parameters)
    samples = pymath.prod(dims[: len(dims) - len(parameters)])
    grid = jnp.arange(samples, dtype=np.uint64)[:, None] + jnp.arange(sets, dtype=np.uint64) * np.uint64(samples)
    return grid.reshape(dims)


def gamma(state: Array, alpha: Array, dims: tuple[int, ...]) -> Array:
    """Gamma numbers in double precision, by Marsaglia and Tsang. `dims` ends in the shape of `alpha`."""
    shape = jnp.broadcast_to(jnp.asarray(alpha).astype(np.float64), dims)
    starts = _starts(dims, alpha.shape) * np.uint64(RESERVED)
    below_one = shape < 1
    d = shape + jnp.where(below_one, 2.0 / 3, -1.0 / 3)
    c = 1.0 / 3 / jnp.sqrt(d)

    def attempt(loop: Any) -> Any:
        steps, of_normals, of_units, done, result = loop
        source = _Source(state, steps)
        x, of_normals = source.take(of_normals, ~done, normals)
        v = 1 + c * x
        positive = ~done & ~(v <= 0)
        v = v * v * v
        u, of_units = source.take(of_units, positive, units)
        within = (u < 1 - 0.0331 * (x * x) * (x * x)) | (jnp.log(u) < 0.5 * x * x + d * (1 - v + jnp.log(v)))
        accepted = positive & (within | jnp.isnan(v))
        b, of_units = source.take(of_units, accepted & below_one, units)
        found = d * v * jnp.where(below_one, b ** (1 / shape), 1)
        return source.steps, of_normals, of_units, done | accepted, jnp.where(accepted, found, result)

    # Exponential numbers need no candidates.
    last, _ = _Source(state, starts).take(_Source(state, starts).empty(), jnp.ones(dims, bool), units)
    source = _Source(state, starts)
    loop = starts, source.empty(), source.empty(), shape == 1, -jnp.log1p(-last)
    return lax.while_loop(lambda loop: ~jnp.all(loop[3]), attempt, loop)[4]


def poisson(state: Array, rate: Array, dims: tuple[int, ...]) -> Array:
    """Poisson numbers: by Knuth for rates below 10, by Hörmann for others. `dims` ends in the shape of `rate`."""
    rates = jnp.broadcast_to(jnp.asarray(rate).astype(np.float64), dims)
    starts = _starts(dims, rate.shape) * np.uint64(RESERVED)
    small = rates < 10
    enough = jnp.exp(-rates)
    b = 0.931 + 2.53 * jnp.sqrt(rates)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)

    def attempt(loop: Any) -> Any:
        steps, stream, done, result, product = loop
        source = _Source(state, steps)
        u, stream = source.take(stream, ~done, units)
        v, stream = source.take(stream, ~done & ~small, units)
        product = product * u
        passed = product <= enough
        u = u - 0.5
        inside = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / inside + b) * u + rates + 0.43)
        quick = (inside >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
        refused = (k < 0) | ((inside < 0.013) & (v > inside))
        ratio = jnp.log(v * inverse / (a / (inside * inside) + b))
        slow = ~refused & (ratio <= -rates + k * jnp.log(rates) - lax.lgamma(k + 1))
        accepted = jnp.where(small, passed, quick | slow | ~jnp.isfinite(rates))
        counted = jnp.where(small & ~passed, result + 1, result)
        result = jnp.where(done, result, jnp.where(small, counted, k))
        return source.steps, stream, done | accepted, result, product

    zeros, ones = jnp.zeros(dims, np.float64), jnp.ones(dims, np.float64)
    loop = starts, _Source(state, starts).empty(), jnp.zeros(dims, bool), zeros, ones
    return lax.while_loop(lambda loop: ~jnp.all(loop[2]), attempt, loop)[3]


_FEW_RESERVED = 42  # blocks for a binomial number of a mean below 10
# The error of Stirling's formula for the logarithm of a factorial, for 0 to 9.
_TAIL = (
    0.0810614667953272,
    0.0413406959554092,
    0.0276779256849983,
    0.02079067210376509,
    0.0166446911898211,
    0.0138761288230707,
    0.0118967099458917,
    0.0104112652619720,
    0.00925546218271273,
    0.00833056343336287,
)


def _tail(k: Array) -> Array:
    square = (k + 1) * (k + 1)
    large = (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / square) / square) / (k + 1)
    return jnp.where(k <= 9, jnp.asarray(_TAIL)[jnp.clip(k, 0, 9).astype(np.int32)], large)


def binomial(state: Array, counts: Array, probs: Array, dims: tuple[int, ...]) -> Array:
    """Binomial numbers: sums of geometric ones where few are expected, else by Hörmann."""
    parameters = jnp.broadcast_shapes(counts.shape, probs.shape)
    count, chance = (jnp.broadcast_to(jnp.asarray(p).astype(np.float64), dims) for p in (counts, probs))
    p = jnp.where(chance > 0.5, 1 - chance, chance)
    many = count * p >= 10
    starts = _starts(dims, parameters) * jnp.where(many, np.uint64(RESERVED), np.uint64(_FEW_RESERVED))
    deviation = jnp.sqrt(count * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    c = count * p + 0.5
    ratio = p / (1 - p)
    alpha = (2.83 + 5.1 / b) * deviation
    m = jnp.floor((count + 1) * p)

    def attempt(loop: Any) -> Any:
        steps, stream, done, result, total = loop
        source = _Source(state, steps)
        u, stream = source.take(stream, ~done, units)
        v, stream = source.take(stream, ~done & many, units)
        total = total + jnp.ceil(jnp.log(u) / jnp.log1p(-p))
        passed = total > count
        u = u - 0.5
        inside = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / inside + b) * u + c)
        quick = (inside >= 0.07) & (v <= 0.92 - 4.2 / b)
        possible = (k >= 0) & (k <= count)
        bound = (
            (m + 0.5) * jnp.log((m + 1) / (ratio * (count - m + 1)))
            + (count + 1) * jnp.log((count - m + 1) / (count - k + 1))
            + (k + 0.5) * jnp.log(ratio * (count - k + 1) / (k + 1))
            + (_tail(m) + _tail(count - m) - _tail(k) - _tail(count - k))
        )
        slow = possible & (jnp.log(v * alpha / (a / (inside * inside) + b)) <= bound)
        accepted = jnp.where(many, quick | slow, passed)
        counted = jnp.where(~many & ~passed, result + 1, result)
        result = jnp.where(done, result, jnp.where(many, k, counted))
        return source.steps, stream, done | accepted, result, total

    nothing = ~((count > 0) & (p > 0))  # also where the chance is no number
    zeros = jnp.zeros(dims, np.float64)
    loop = starts, _Source(state, starts).empty(), nothing, zeros, zeros
    drawn = lax.while_loop(lambda loop: ~jnp.all(loop[2]), attempt, loop)[3]
    found = jnp.where(chance > 0.5, count - drawn, drawn)
    found = jnp.where(chance >= 1, count, jnp.where(jnp.isnan(chance), jnp.nan, found))
    return jnp.where((count <= 0) | (chance <= 0), 0, found)
