"""Ops that sum rows of the same index in compiled code.

Optimizers do this by Unique and UnsortedSegmentSum, whose results have as many rows as there are distinct indices;
`penstock.passes.sparse_updates` replaces these by the ops of this file.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph.opdef import op
from penstock.kernel.types import INDEX, Array
from penstock.ops.state.variable_ops import UPDATABLE
from penstock.row_sums import run_starts, sums_of_runs


@op("SumDuplicateRows", "T, Tindices -> sums: T, rows: Tindices", T=UPDATABLE, Tindices=INDEX, no_gradient=True)
def sum_duplicate_rows(values: Array, indices: Array) -> Any:
    """Sums of the rows of each index, and the indices. There are as many as inputs; the rest are out of range."""
    values, indices = jnp.asarray(values), jnp.asarray(indices)
    count = indices.shape[0]
    order = jnp.argsort(indices)
    ordered = indices[order]
    first = jnp.concatenate([jnp.ones(min(count, 1), bool), ordered[1:] != ordered[:-1]])
    place = jnp.cumsum(first) - 1
    sums = jnp.zeros_like(values).at[place].add(values[order], indices_are_sorted=True)
    nowhere = jnp.full(count, np.iinfo(indices.dtype).max, indices.dtype)
    return sums, nowhere.at[place].set(ordered, indices_are_sorted=True)


@op(
    "SumDuplicateRowsOnHost",
    "T, Tindices -> sums: T, rows: Tindices",
    T=UPDATABLE,
    Tindices=INDEX,
    host=True,
    no_gradient=True,
)
def sum_duplicate_rows_on_host(values: np.ndarray, indices: np.ndarray) -> Any:
    """The same for rows from another task: only distinct rows are left, and a few that are out of range.

    These pad the result to one of few sizes, so that the code that takes it is compiled for few shapes.
    """
    if not indices.size:
        return values, indices
    is_rising = not np.count_nonzero(indices[1:] <= indices[:-1])
    order = None if is_rising else np.argsort(indices)
    ordered = indices if order is None else indices[order]
    is_new = None if is_rising else run_starts(ordered)
    distinct = ordered if is_new is None else ordered[is_new]
    found, count = len(distinct), _padded(len(distinct), (values.shape[1:], values.dtype))
    rows = np.full(count, _LARGEST[indices.dtype], indices.dtype)
    rows[:found] = distinct
    if is_new is None or found == len(ordered):
        sums = np.zeros((count, *values.shape[1:]), values.dtype)
        sums[:found] = values if order is None else values[order]
        return sums, rows
    ends = np.full(count + 1, len(ordered), np.int32)
    ends[:found] = np.flatnonzero(is_new)
    return sums_of_runs(values, ends, order), rows


_LARGEST = {np.dtype(kind): np.iinfo(kind).max for kind in (np.int32, np.int64)}
_sizes: dict[Any, list[int]] = defaultdict(list)  # sizes that were used so far, per kind
_sizes_lock = threading.Lock()


def _padded(count: int, kind: Any) -> int:
    """A size of at least `count`: one that was used before if it is not much larger, else a new one with spare room.

    Batches differ a little from each other. Sizes rounded to fixed steps would differ whenever they are near a step.
    """
    room = max(count // 8, 8 * math.isqrt(count))  # small sizes vary relatively more than large ones
    with _sizes_lock:
        fitting = [size for size in _sizes[kind] if count <= size <= count + 2 * room]
        if not fitting:
            fitting = [count + room]
            _sizes[kind] += fitting
        return min(fitting)
