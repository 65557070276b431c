"""Sums of rows equal those of np.add.at, for all types and sizes, and distinct values those of np.unique."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.row_sums import LARGEST_TABLE, distinct_and_ranks, run_ends, spread_by_runs, sums_of_runs

TYPES = [np.float32, np.float64, np.int32, np.int64, np.uint8, np.complex64]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 6)), st.integers(0, 3), st.integers(0, 3), st.sampled_from(TYPES))
def test_as_one_by_one(ids: list[int], more: int, width: int, dtype: Any) -> None:
    segments = np.array(sorted(ids), np.int64)
    count = (int(segments[-1]) + 1 if ids else 0) + more
    random = np.random.RandomState(len(ids))
    values = random.randint(0, 9, (5, width)).astype(dtype)
    picked = random.randint(0, 5, len(ids))
    ends = run_ends(segments, count)
    wanted = np.zeros((count, width), dtype)
    np.add.at(wanted, segments, values[picked])
    np.testing.assert_array_equal(sums_of_runs(values, ends, picked), wanted)

    of_runs = random.randint(0, 9, (count, width)).astype(dtype)
    wanted = np.zeros((5, width), dtype)
    np.add.at(wanted, picked, of_runs[segments])
    spread = spread_by_runs(of_runs, ends, picked, 5)
    np.testing.assert_array_equal(spread, wanted)
    assert spread.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_short_floats_are_summed_as_longer_ones(dtype: Any) -> None:
    values = np.full((1000, 1, 2), 0.1).astype(dtype)
    sums = sums_of_runs(values, np.array([0, 1000, 1000]))
    assert (sums.shape, sums.dtype) == ((2, 1, 2), dtype)
    np.testing.assert_allclose(sums.astype(np.float64)[0], 1000 * float(values[0, 0, 0]), rtol=1e-2)


@pytest.mark.parametrize("limit", [7, LARGEST_TABLE, LARGEST_TABLE + 1, 1 << 60], ids=["table", "large", "sort", "far"])
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans())))
def test_distinct_values(limit: int, numbers: list[tuple[int, bool]]) -> None:
    values = np.array([limit - 1 - n if from_end else n for n, from_end in numbers], np.int64)
    distinct, ranks = distinct_and_ranks(values, limit)
    wanted, places = np.unique(values, return_inverse=True)
    np.testing.assert_array_equal(distinct, wanted)
    np.testing.assert_array_equal(ranks, places)
    assert ranks.dtype == np.int32
