"""The padded form of a program: shapes, one compilation, refusals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export, lax
from padding_cases import check, traced

from penstock.jaxprs.dims import Bounds, evaluate
from penstock.jaxprs.errors import NoRule
from penstock.jaxprs.padding import padded, padded_shape, true_shape

F = "float32"


def test_shapes() -> None:
    b, t = export.symbolic_shape("b, t")
    shape = (b + 1, 3, b * t, (b + 1) // 2, b % 3, t - 1)
    assert padded_shape(shape, {"b": 8, "t": 5}) == (9, 3, 40, 4, 2, 4)
    assert true_shape(shape, {"b": 2, "t": 4}) == (3, 3, 8, 1, 2, 3)


def test_bounds_are_exact() -> None:
    """The parts of a difference depend on each other, so the bound is that of the whole."""
    b, t = export.symbolic_shape("b, t")
    assert Bounds({"b": 8}).range(b - b // 2) == (1, 4)
    assert Bounds({"b": 8, "t": 5}).range(t * b - b) == (0, 32)
    assert Bounds({"b": 8, "t": 5}).range(jax.core.max_dim(b, t) - 3) == (-2, 5)


def test_bounds_of_large_sizes_hold() -> None:
    b, t = export.symbolic_shape("b, t")
    bounds = {"b": 3000, "t": 4000}
    for dim in (b * t + 2 * b - 1, (b * t) // 7, (b * t) % 12, jax.core.min_dim(b, t) - b, -((-b * t) // 2)):
        lowest, highest = Bounds(bounds).range(dim)
        values = [evaluate(dim, {"b": i, "t": j}) for i in (1, 2, 1777, 3000) for j in (1, 9, 3999, 4000)]
        assert lowest <= min(values) and max(values) <= highest


def test_a_symbol_without_a_bound() -> None:
    with pytest.raises(ValueError, match="no bound for 't'"):
        padded(traced(jnp.sin, ("b, t", F)), {"b": 3})


def test_arguments_that_are_not_padded() -> None:
    program = padded(traced(jnp.sin, ("b", F)), {"b": 3})
    with pytest.raises(ValueError, match=r"padded to the shapes \[\(3,\)\], received \[\(2,\)\]"):
        program({"b": 2}, [np.zeros(2, np.float32)])


def test_one_compilation_serves_all_sizes() -> None:
    program = jax.jit(padded(traced(lambda x: (x.mean(0), x[::-1]), ("b, 2", F)), {"b": 9}))
    for n in range(1, 10):
        x = np.full((9, 2), np.nan, np.float32)
        x[:n] = np.arange(2 * n).reshape(n, 2)
        mean, flipped = program({"b": np.int32(n)}, [x])
        np.testing.assert_allclose(mean, x[:n].mean(0))
        np.testing.assert_array_equal(flipped[:n], x[:n][::-1])
    assert program._cache_size() == 1


def test_loops_run_to_the_true_length() -> None:
    """The number of iterations depends on the true size, not on the bound."""
    ran = []

    def count(i: Any) -> None:
        ran.append(int(i))

    def body(i: Any, total: Any) -> Any:
        jax.debug.callback(count, i, ordered=True)
        return total + i

    program = jax.jit(padded(traced(lambda x: lax.fori_loop(0, x.shape[0], body, 0), ("b", F)), {"b": 100}))
    program({"b": np.int32(3)}, [np.zeros(100, np.float32)])
    jax.effects_barrier()
    assert ran == [0, 1, 2]


def _rows_of_windows(x: Any) -> Any:
    """Several windows that may overlap; each is shorter than a row and replaces its old values."""
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0, 1))
    places = jnp.stack([jnp.arange(x.shape[0]), jnp.arange(x.shape[0])], 1) % 2
    return lax.scatter(x, places, x[:, 1:], numbers)


@pytest.mark.parametrize(
    ("primitive", "function", "shape"),
    [
        ("cholesky", jnp.linalg.cholesky, "b, b"),
        ("fft", jnp.fft.fft, "3, b"),
        ("scatter", lambda x: _rows_of_windows(x), "b, b"),
        ("approx_top_k", lambda x: lax.approx_max_k(x, 2), "3, b"),
        ("pure_callback", lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, F), x), "b"),
    ],
)
def test_no_rule(primitive: str, function: Any, shape: str) -> None:
    with pytest.raises(NoRule, match=f"^Primitive '{primitive}' "):
        padded(traced(function, (shape, F), constraints=["b >= 4"]), {"b": 7})


def test_the_next_key_is_refused_where_it_is_read() -> None:
    def both(x: Any, key: Any) -> Any:
        return lax.rng_bit_generator(key, x.shape, np.uint32, algorithm=lax.RandomAlgorithm.RNG_PHILOX)

    with pytest.raises(NoRule, match=r"rng_bit_generator.*the next key"):
        padded(traced(both, ("b", F), ("4", "uint32")), {"b": 7})


# Functions from one two-dimensional array to another.
STEPS: dict[str, Any] = {
    "flip rows": lambda x: x[::-1],
    "flip columns": lambda x: x[:, ::-1],
    "transpose": lambda x: x.T,
    "repeat": lambda x: jnp.concatenate([x, x * 2]),
    "join with sums": lambda x: jnp.concatenate([x.sum(0, keepdims=True), x], 0),
    "pad": lambda x: jnp.pad(x, ((1, 0), (0, 2)), constant_values=0.5),
    "drop the first": lambda x: jnp.pad(x, ((1, 0), (0, 0)))[1:],
    "softmax": lambda x: jax.nn.softmax(x, 0),
    "center": lambda x: x - x.mean(0),
    "sort": lambda x: jnp.sort(x, 0),
    "sum from the end": lambda x: lax.cumsum(x, 0, reverse=True) / x.shape[0],
    "product": lambda x: x @ (x.T @ x) / x.size,
    "flatten": lambda x: x.reshape(1, -1),
    "flatten columns": lambda x: x.T.reshape(-1, 1),
    "odd rows": lambda x: jnp.concatenate([x, x])[1::2],
    "gather": lambda x: x[jnp.arange(x.shape[0]) // 2],
    "scatter": lambda x: x.at[jnp.arange(x.shape[0]) // 2].add(x),
    "scan": lambda x: lax.scan(lambda c, row: (c * 0.5 + row, c), jnp.zeros(x.shape[1], F), x)[1],
}


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=4))
def test_chains(names: list[str]) -> None:
    def chain(x: Any) -> Any:
        for name in names:
            x = STEPS[name](x)
        return x, x.sum(), x.max(0)

    with jax.enable_x64(True):
        check(chain, ("b, t", F), bounds={"b": 4, "t": 3}, sizes=[{"b": 4, "t": 3}, {"b": 1, "t": 2}, {"b": 3, "t": 1}])
