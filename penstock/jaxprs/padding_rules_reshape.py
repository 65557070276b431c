"""The rule of reshape: it handles each run of dimensions with the same number of elements separately."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.jaxprs.dims import Dim, is_symbolic
from penstock.jaxprs.padding_frame import Array, Frame, Padded, no_rule, resized, result_shape, rule


def _runs(old: Sequence[Dim], new: Sequence[Dim]) -> Iterator[tuple[list[Dim], list[Dim]]]:
    """The shortest runs of old and new dimensions that hold the same elements."""
    i = j = 0
    while i < len(old) or j < len(new):
        match = next(
            (
                (a, b)
                for a in range(i + 1, len(old) + 1)
                for b in range(j + 1, len(new) + 1)
                if math.prod(old[i:a]) == math.prod(new[j:b])
            ),
            (len(old), len(new)),  # ones at the end
        )
        yield list(old[i : match[0]]), list(new[j : match[1]])
        i, j = match


def _padded_at_end(shape: Sequence[Dim]) -> bool:
    """True if the true elements of a run come first in memory: only its first dimension is padded."""
    dims = [dim for dim in shape if is_symbolic(dim) or dim != 1]
    return not any(map(is_symbolic, dims[1:]))


def _sources(frame: Frame, old: Sequence[Dim], new: Sequence[Dim]) -> Array:
    """The position in the padded old run of each position of the padded new run, both flattened."""
    positions: Any = np.int32(0)
    grid = frame.padded(new)
    for d, dim in enumerate(new):
        positions = positions * frame.size(dim) + lax.broadcasted_iota(np.int32, grid, d)
    positions = positions.reshape(-1)
    source: Any = np.int32(0)
    stride = 1
    for dim in reversed(old):
        size = jnp.maximum(frame.size(dim), 1)
        source = source + positions % size * stride
        positions = positions // size
        stride *= frame.bounds.upper(dim)
    return source


@rule("reshape")
def reshape(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    if equation.params["dimensions"] is not None:
        raise no_rule(equation, "a permutation of dimensions")
    array, shape = value.array, result_shape(equation)
    done: list[int] = []  # the padded sizes of the runs that already have their new form
    zero: set[int] = set()
    used = made = 0
    for old, new in _runs(value.shape, shape):
        wanted = frame.padded(new)
        here, rest = array.shape[len(done) : len(done) + len(old)], array.shape[len(done) + len(old) :]
        array = array.reshape(*done, math.prod(here), *rest)
        if _padded_at_end(old) and _padded_at_end(new):
            array = resized(array, len(done), math.prod(wanted))
        else:
            array = jnp.take(array, _sources(frame, old, new), axis=len(done), mode="clip")
        if len(old) == 1 and len(new) == 1 and used in value.zero:
            zero.add(made)
        array = array.reshape(*done, *wanted, *rest)
        done += wanted
        used, made = used + len(old), made + len(new)
    return Padded(array, shape, frozenset(zero))
