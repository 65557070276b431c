"""Compares a padded program with jax at the exact size, for any contents of the padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from penstock.jaxprs.padding import padded, padded_shape, true_shape

BOUNDS = {"b": 7, "t": 5}
# The ends of both ranges, and numbers next to them.
SIZES = [{"b": 7, "t": 4}, {"b": 1, "t": 5}, {"b": 2, "t": 1}, {"b": 6, "t": 2}]


def traced(function: Callable[..., Any], *arguments: tuple[str, str], constraints: Sequence[str] = ()) -> Any:
    """The jaxpr of a function of arguments that are given as shape and type, such as ("b, 3", "float32")."""
    scope = export.SymbolicScope(constraints)
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), np.dtype(kind)) for shape, kind in arguments
    ]
    return jax.jit(function).trace(*specs).jaxpr


def poisons(dtype: Any) -> list[Any]:
    """Numbers that are visible in a result if they reach it."""
    if dtype == np.bool_:
        return [True, False, True]
    if np.issubdtype(dtype, np.inexact):
        return [np.nan, np.inf, -np.inf]
    return [np.iinfo(dtype).max, np.iinfo(dtype).min, 1]


def sample(shape: tuple[int, ...], dtype: Any, random: np.random.Generator) -> np.ndarray:
    """Numbers for an argument; integers are small, so that they may be indices."""
    dtype = np.dtype(dtype)
    if np.issubdtype(dtype, np.inexact):
        return random.normal(size=shape).astype(dtype)
    return random.integers(0, 2 if dtype == np.bool_ else 4, size=shape).astype(dtype)


def filled(value: np.ndarray, shape: tuple[int, ...], fill: Any) -> np.ndarray:
    """`value` padded with `fill`."""
    array = np.full(shape, fill, value.dtype)
    array[tuple(slice(0, n) for n in value.shape)] = value
    return array


def check(
    function: Callable[..., Any],
    *arguments: tuple[str, str],
    sizes: Sequence[dict[str, int]] = SIZES,
    bounds: dict[str, int] = BOUNDS,
    constraints: Sequence[str] = (),
    rtol: float = 2e-5,
    prepare: Callable[[list[np.ndarray], dict[str, int]], list[np.ndarray]] = lambda values, sizes: values,
) -> None:
    """Runs a function padded and at the exact size, for several sizes and paddings, with one compilation."""
    jaxpr = traced(function, *arguments, constraints=constraints)
    program = jax.jit(padded(jaxpr, bounds))
    exact = jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})  # compiled for each size
    random = np.random.default_rng(3)
    for case in sizes:
        shapes = [true_shape(aval.shape, case) for aval in jaxpr.in_avals]
        values = [sample(s, aval.dtype, random) for s, aval in zip(shapes, jaxpr.in_avals, strict=True)]
        values = prepare(values, case)
        expected = jax.tree.leaves(exact(*values))
        for i in range(3):
            inputs = [
                filled(v, padded_shape(aval.shape, bounds), poisons(v.dtype)[i])
                for v, aval in zip(values, jaxpr.in_avals, strict=True)
            ]
            results = program({name: np.int32(n) for name, n in case.items()}, inputs)
            for number, (result, right, aval) in enumerate(zip(results, expected, jaxpr.out_avals, strict=True)):
                assert result.shape == padded_shape(aval.shape, bounds), f"result {number} at {case}"
                assert result.dtype == right.dtype, f"result {number} at {case}"
                true = np.asarray(result)[tuple(slice(0, n) for n in true_shape(aval.shape, case))]
                np.testing.assert_allclose(
                    true, np.asarray(right), rtol, rtol, err_msg=f"result {number} at {case}, padding {i}"
                )
    assert program._cache_size() == 1  # type: ignore[attr-defined]
