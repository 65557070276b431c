"""Gather and scatter, in all modes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jaxpr_agreement import BFLOAT16, by_jax, check, check_same, program

from penstock.jaxprs.numpy_rules_index import combine_rows

MODES = ["clip", "fill", "promise_in_bounds"]
INDICES = np.array([[0, 3, 2], [-1, 9, 3]], np.int32)


def numbered(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (1 + np.arange(np.prod(shape, dtype=int)).reshape(shape)).astype(dtype)


def inside(indices: Any, mode: str) -> Any:
    """Clips indices: out of bounds, the result is undefined if bounds are promised."""
    return jnp.clip(indices, 0, 2) if mode == "promise_in_bounds" else indices


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint16, bool, BFLOAT16, np.complex64])
def test_taking(mode: str, dtype: Any) -> None:
    def function(x: Any, i: Any) -> Any:
        i = inside(i, mode)
        results = [x.at[i].get(mode=mode, wrap_negative_indices=False)]
        results += [x.at[:, i].get(mode=mode), x.at[..., i].get(mode=mode), x.at[i, :, i].get(mode=mode)]
        results += [x.at[i, i].get(mode=mode), x.at[1, i].get(mode=mode), x.at[i[0, 1]].get(mode=mode)]
        return [*results, jnp.take_along_axis(x[:, 0], i, 1, mode=None if mode == "promise_in_bounds" else mode)]

    check(function, numbered(2, 4, 5, dtype=dtype), INDICES)


def test_taking_with_a_fill_value_and_of_nothing() -> None:
    def function(x: Any, i: Any) -> Any:
        empty = x[:, :0]
        return x.at[i].get(mode="fill", fill_value=7), x[i[:, :0]], empty[i], jnp.take(x, i.astype(np.uint8), axis=1)

    check(function, numbered(4, 5), INDICES)


GATHERS = [
    # operand, indices, (offset_dims, collapsed, index map, batching, index batching), sizes
    ((5, 6), (3, 2), ((1, 2), (), (0, 1), (), ()), (2, 3)),
    ((5, 6), (3, 2), ((0, 1), (), (1, 0), (), ()), (2, 3)),
    ((5, 6), (3, 2), ((0,), (0,), (0, 1), (), ()), (1, 3)),
    ((5, 6), (3, 1), ((1,), (1,), (1,), (), ()), (5, 1)),
    ((5, 6), (3, 1), ((0,), (1,), (1,), (), ()), (4, 1)),
    ((5, 6), (3, 1), ((0, 2), (), (1,), (), ()), (3, 2)),
    ((3, 5, 6), (3, 2, 1), ((2,), (1,), (1,), (0,), (0,)), (1, 1, 6)),
    ((2, 5, 3), (3, 2, 1), ((0,), (), (1,), (0, 2), (1, 0)), (1, 2, 1)),
    ((5, 6), (2,), ((0, 1), (), (0, 1), (), ()), (2, 2)),
    ((5, 1, 6), (3, 1), ((1,), (0, 1), (0,), (), ()), (1, 1, 6)),
]


@pytest.mark.parametrize("mode", MODES[:2])
def test_gathering_windows(mode: str) -> None:
    arrays = []
    for operand, indices, _, _ in GATHERS:
        arrays += [numbered(*operand), np.random.RandomState(0).randint(-1, 5, indices).astype(np.int64)]

    def function(*arrays: Any) -> Any:
        results = []
        for x, i, (_, _, numbers, sizes) in zip(arrays[::2], arrays[1::2], GATHERS, strict=True):
            results.append(lax.gather(x, i, lax.GatherDimensionNumbers(*numbers), sizes, mode=mode))
        return results

    check(function, *arrays)


WAYS = ["set", "add", "multiply", "min", "max", "subtract"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_putting(mode: str, way: str) -> None:
    def function(x: Any, i: Any, small: Any, rows: Any) -> Any:
        i = inside(i, mode)
        if way == "set" and mode != "fill":
            i = i[:1]  # it is undefined which of several updates of one element wins
            small, rows = small[:1], rows[:1]

        def at(*index: Any) -> Any:
            return getattr(x.at[index], way)

        results = [at(i)(rows, mode=mode), at(i, 1)(rows[..., 0, :], mode=mode), at(slice(None), i)(2.0, mode=mode)]
        results += [at(slice(None), slice(None), i)(3.0, mode=mode), at(i, i[:, ::-1], i)(small, mode=mode)]
        return [*results, at(i[0, 1])(rows[0, 0], mode=mode), at(i[:, :0])(0.5, mode=mode)]

    check(function, numbered(4, 3, 5), INDICES, numbered(2, 3), numbered(2, 3, 3, 5) / 7, tolerance=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool, BFLOAT16, np.float64])
def test_putting_other_types(dtype: Any) -> None:
    def function(x: Any, i: Any, y: Any) -> Any:
        results = [x.at[i[0]].set(y), x.at[i[0]].max(y), x.at[i[0]].min(y)]
        return results if x.dtype == bool else [*results, x.at[i].add(y), x.at[:, i[0]].add(y[0, 0])]

    check(function, numbered(4, 5, dtype=dtype), INDICES, numbered(3, 5, dtype=dtype))


SCATTERS = [
    # operand, indices, updates, (window dims, inserted, index map, batching, index batching)
    ((5, 6), (3, 2), (3, 2, 3), ((1, 2), (), (0, 1), (), ())),
    ((5, 6), (3, 2), (2, 3, 3), ((0, 1), (), (1, 0), (), ())),
    ((5, 6), (3, 1), (4, 3), ((0,), (1,), (1,), (), ())),
    ((3, 5, 6), (3, 2, 1), (3, 2, 6), ((2,), (1,), (1,), (0,), (0,))),
    ((2, 5, 3), (3, 2, 1), (2, 3, 2), ((0,), (), (1,), (0, 2), (1, 0))),
    ((5, 6), (2,), (2, 2), ((0, 1), (), (0, 1), (), ())),
]


@pytest.mark.parametrize("mode", MODES[:2])
def test_scattering_windows(mode: str) -> None:
    arrays = []
    for operand, indices, updates, _ in SCATTERS:
        places = np.random.RandomState(0).randint(-1, 5, indices).astype(np.int32)
        arrays += [numbered(*operand), places, numbered(*updates)]

    def function(*arrays: Any) -> Any:
        results = []
        for x, i, u, case in zip(arrays[::3], arrays[1::3], arrays[2::3], SCATTERS, strict=True):
            results.append(lax.scatter_add(x, i, u, lax.ScatterDimensionNumbers(*case[3]), mode=mode))
        return results

    check(function, *arrays)


def test_gradients_of_lookups_of_any_number_of_rows() -> None:
    (n,) = jax.export.symbolic_shape("n")

    def function(table: Any, rows: Any) -> Any:
        return jnp.sum(jnp.take(table, rows, axis=0) ** 2)

    table = numbered(6, 3)
    made = program(
        jax.value_and_grad(function), jax.ShapeDtypeStruct((6, 3), np.float32), jax.ShapeDtypeStruct((n,), np.int32)
    )
    for size in (0, 1, 9):
        rows = (np.arange(size, dtype=np.int32) * 7) % 6
        check_same(made([table, rows]), by_jax(jax.value_and_grad(function), table, rows))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30), st.sampled_from([1, 3]), st.sampled_from(["add", "subtract"]))
def test_rows_combined_one_after_the_other(rows: list[int], width: int, name: str) -> None:
    ufunc = getattr(np, name)
    table, values = np.zeros((6, width), np.int64), np.random.RandomState(0).randint(-9, 9, (len(rows), width))
    wanted = table.copy()
    for row, value in zip(rows, values, strict=True):
        wanted[row] = ufunc(wanted[row], value)
    combine_rows(ufunc, table, np.array(rows, np.int64), values)
    np.testing.assert_array_equal(table, wanted)
