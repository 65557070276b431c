"""Sums of rows of an array, using SciPy's sparse matrix code, which is several times as fast as `np.add.at`.

It calls SciPy's inner functions, since making a matrix object for each product takes longer than the product.
A run is a range of consecutive positions. `ends` gives the runs: run i has the positions from ends[i] to ends[i + 1].
Indices must be in range: nothing here checks them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np

LARGEST_TABLE = 1 << 22  # of numbers, 16 MB: beyond that, ids are sorted with their duplicates


def run_ends(ids: np.ndarray, count: int) -> np.ndarray:
    """The ends of the runs of equal numbers in ascending `ids` from 0 to count - 1.

    >>> run_ends(np.array([0, 0, 2]), 3)
    array([0, 2, 2, 3], dtype=int32)
    """
    return ids.searchsorted(np.arange(count + 1, dtype=ids.dtype)).astype(np.int32)


def run_starts(ordered: np.ndarray) -> np.ndarray:
    """Tells for each position of a sorted vector if a run of equal values begins there.

    >>> run_starts(np.array([3, 3, 7]))
    array([ True, False,  True])
    """
    starts = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=starts[1:])
    return starts


def ranked(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The position where each distinct value comes first, sorted by value, and the rank of each element's value.

    >>> ranked(np.array([7, 3, 7]))
    (array([1, 0]), array([1, 0, 1], dtype=int32))
    """
    order = values.argsort(kind="stable")
    is_new = run_starts(values[order])
    return order[is_new], _ranks(order, is_new)


def distinct_and_ranks(values: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values, sorted, and the rank of each element's value. All are from 0 to limit - 1.

    >>> distinct_and_ranks(np.array([7, 3, 7]), 10)
    (array([3, 7]), array([1, 0, 1], dtype=int32))
    """
    if limit <= LARGEST_TABLE:
        return _distinct_by_table(values, limit)
    bits = len(values).bit_length()
    if limit.bit_length() + bits < 64:  # value and position fit into one number: sorting takes half the time
        ordered = (values.astype(np.int64) << bits) | np.arange(len(values))
        ordered.sort()
        order = ordered & ((1 << bits) - 1)
        ordered >>= bits
    else:
        order = values.argsort()
        ordered = values[order]
    is_new = run_starts(ordered)
    return ordered[is_new], _ranks(order, is_new)


def _distinct_by_table(values: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The same, by a table of all numbers. It sorts only the distinct values, often a fourth of the ids of a batch."""
    table, positions = np.empty(limit, np.int32), np.arange(len(values), dtype=np.int32)
    table[values] = positions  # of equal values one position stays; nothing is read that was not written before
    distinct = values.compress(table.take(values, mode="clip") == positions)
    distinct.sort()
    table[distinct] = positions[: len(distinct)]
    return distinct, table.take(values, mode="clip")


def _ranks(order: np.ndarray, is_new: np.ndarray) -> np.ndarray:
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.cumsum(is_new, dtype=np.int32) - 1
    return ranks


def sums_of_runs(values: np.ndarray, ends: np.ndarray, picked: np.ndarray | None = None) -> np.ndarray:
    """Row i of the result is the sum of the rows of `values` at the positions of run i, or at `picked[positions]`.

    >>> sums_of_runs(np.array([[1.0], [2.0], [5.0]]), np.array([0, 2, 2, 3]))
    array([[3.], [0.], [5.]])
    """
    if picked is None:
        picked = np.arange(len(values), dtype=np.int32)
    return _product(_sparsetools().csr_matvecs, len(ends) - 1, values, ends, picked)


def spread_by_runs(values: np.ndarray, ends: np.ndarray, picked: np.ndarray, count: int) -> np.ndarray:
    """The inverse: adds row i of `values` to the rows `picked[positions of run i]` of the `count` rows of the result.

    >>> spread_by_runs(np.array([[1.0], [2.0]]), np.array([0, 1, 3]), np.array([2, 2, 0]), 3)
    array([[2.], [0.], [3.]])
    """
    return _product(_sparsetools().csc_matvecs, count, values, ends, picked)


def _product(multiply: Callable[..., Any], count: int, values: np.ndarray, ends: np.ndarray, picked: Any) -> np.ndarray:
    kind = values.dtype
    wide = np.dtype(np.float32) if kind.itemsize == 2 and kind.kind not in "iu" else kind  # SciPy has no 16-bit floats
    sums = np.zeros((count, *values.shape[1:]), wide)
    if sums.size and values.size:
        width = values.size // len(values)
        ends, picked = (np.ascontiguousarray(x, np.int32) for x in (ends, picked))
        ones = np.ones(len(picked), wide)
        flat = np.ascontiguousarray(values, wide).reshape(-1)
        multiply(count, len(values), width, ends, picked, ones, flat, sums.reshape(-1))
    return sums.astype(kind, copy=False)


@functools.cache
def _sparsetools() -> Any:
    """Imports only SciPy's extension module: all of scipy.sparse would add 0.17 s to the first step that sums rows."""
    scipy = importlib.util.find_spec("scipy")
    for folder in scipy.submodule_search_locations or () if scipy is not None else ():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = os.path.join(folder, "sparse", f"_sparsetools{suffix}")
            if os.path.exists(path):
                spec = importlib.util.spec_from_file_location("scipy.sparse._sparsetools", path)
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    return importlib.import_module("scipy.sparse._sparsetools")
