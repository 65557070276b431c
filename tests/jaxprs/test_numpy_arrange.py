"""Rules that arrange: reshaping, slicing, joining, padding; reductions, sorting, products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jaxpr_agreement import BFLOAT16, by_jax, check, check_same, program, spec


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.asarray(3 * np.random.RandomState(seed).randn(*shape)).astype(dtype)


def test_arranging() -> None:
    def function(x: Any, y: Any, s: Any) -> Any:
        results = [x.reshape(4, 6), x.reshape(-1), x.T, x.transpose(1, 2, 0), jnp.squeeze(y), x[1:, ::2, -1:]]
        results += [lax.broadcast_in_dim(y, (4, 3, 2), (1, 2)), lax.broadcast_in_dim(s, (2, 3), ()), lax.rev(x, (0, 2))]
        results += [jnp.concatenate([x, x[:1]], 0), jnp.stack([x, x], 1), *jnp.split(x, 3, axis=1)]
        results += [jnp.tile(x, (2, 1, 2))]
        results += [jnp.broadcast_to(y, (2, 4, 3, 2)), lax.expand_dims(x, (0, 3)), *jnp.unstack(x, axis=2)]
        results += [lax.broadcasted_iota(np.int32, (2, 3), 1), lax.broadcasted_iota(BFLOAT16, (2, 3), 0), jnp.arange(0)]
        return [*results, lax.slice(x, (0, 1, 1), (2, 3, 4), (1, 2, 2)), jnp.eye(3), x + y[None]]

    check(function, normal(2, 3, 4), normal(3, 1), normal())
    check(lambda x: lax.reshape(x, (4, 6), dimensions=(2, 0, 1)), normal(2, 3, 4))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 2)), max_size=2))
def test_padding(axes: list[tuple[int, int, int, int]]) -> None:
    shape = tuple(size for size, *_ in axes)
    config = [tuple(item) for _, *item in axes]
    if any(low + high + max(0, size + (size - 1) * between) < 0 for size, low, high, between in axes):
        return
    x, fill = normal(*shape), np.float32(7)
    made = program(lambda x, fill: lax.pad(x, fill, config), spec(x), spec(fill))
    with jax.default_device(jax.devices("cpu")[0]):
        check_same(made([x, fill]), [lax.pad(x, fill, config)])


def test_dynamic_slices_are_clamped() -> None:
    def function(x: Any, u: Any, starts: Any) -> Any:
        results = []
        for row in range(starts.shape[0]):
            i, j = starts[row, 0], starts[row, 1]
            results += [lax.dynamic_slice(x, (i, j), (2, 3)), lax.dynamic_update_slice(x * 2, u, (i, j))]
        return [*results, lax.dynamic_update_slice(x, u, (1, 1))]

    starts = np.array([[0, 0], [1, 2], [-1, 1], [5, 5], [3, -7]], np.int32)
    check(function, normal(4, 5), normal(2, 2), starts)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BFLOAT16, np.int32, np.uint8, np.int64])
def test_reductions(dtype: Any) -> None:
    def function(x: Any) -> Any:
        results = []
        for axes in [(), (0,), (1,), (0, 2), (0, 1, 2)]:
            parts = [lax.reduce_sum, lax.reduce_max, lax.reduce_min, lax.reduce_prod]
            results += [part(x, axes) for part in parts]
        for axis in (0, 2):
            results += [lax.argmax(x, axis, np.int32), lax.argmin(x, axis, np.int64)]
            for reverse in (False, True):
                results += [f(x, axis, reverse) for f in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)]
        return [*results, jnp.mean(x), jnp.sum(x)]

    values = np.random.RandomState(0).randint(0, 4, (3, 2, 5)).astype(dtype)
    check(function, values.copy())
    if np.dtype(dtype).kind == "f":
        values[1, 0, 2], values[2, 1, 0] = np.nan, np.inf
        check(function, values)


def test_reductions_of_nothing() -> None:
    def function(x: Any, y: Any) -> Any:
        results = [f(x, (0,)) for f in (lax.reduce_sum, lax.reduce_max, lax.reduce_min, lax.reduce_prod)]
        results += [f(y, (0,)) for f in (lax.reduce_sum, lax.reduce_max, lax.reduce_min)]
        return [*results, lax.cumsum(x, 0), jnp.all(x > 0), jnp.any(x > 0)]

    check(function, normal(0, 3), np.zeros((0, 2), np.int16))


def test_logical_reductions_and_any_others() -> None:
    def function(x: Any, i: Any) -> Any:
        results = [jnp.all(x > 0, 1), jnp.any(x > 0, 0), lax.reduce_and(i, (0,)), lax.reduce_or(i, (1,))]
        results += [lax.reduce_xor(i, (0, 1)), lax.cumlogsumexp(x, 1), lax.cumlogsumexp(x, 0, True)]
        results += [lax.reduce(x, np.float32(1), lambda a, b: a * b + 0, (0,))]
        results += lax.reduce(
            (x, i),
            (np.float32(-np.inf), np.int32(-1)),
            lambda a, b: (jnp.maximum(a[0], b[0]), jnp.where(a[0] >= b[0], a[1], b[1])),
            (1,),
        )
        return results

    check(function, normal(4, 5), np.random.RandomState(0).randint(0, 64, (4, 5)).astype(np.int32))


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16, np.int32, bool, np.float16])
def test_sorting(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        results = [lax.sort(x, dimension=d) for d in (0, 1)]
        results += [*lax.sort((x, y), dimension=1, num_keys=1), *lax.sort((y, x, y * 2), dimension=0, num_keys=2)]
        return [*results, *([] if x.dtype == bool else lax.top_k(x, 2)), jnp.argsort(x, 1, descending=True)]

    x = np.random.RandomState(0).randint(0, 5, (4, 6)).astype(dtype)
    if np.dtype(dtype).kind == "f" or dtype == BFLOAT16:
        x[0, 2], x[1, 3], x[2, 2], x[3, 0] = np.nan, np.inf, -np.inf, -0.0
    check(function, x, np.random.RandomState(1).randint(0, 3, (4, 6)).astype(np.int32))


PRODUCTS = [
    ((3, 4), (4, 5), (([1], [0]), ([], []))),
    ((4, 3), (4, 5), (([0], [0]), ([], []))),
    ((4, 3), (5, 4), (([0], [1]), ([], []))),
    ((3, 4), (5, 4), (([1], [1]), ([], []))),
    ((4,), (4,), (([0], [0]), ([], []))),
    ((4,), (4, 2), (([0], [0]), ([], []))),
    ((2, 3, 4), (2, 4, 5), (([2], [1]), ([0], [0]))),
    ((3, 2, 4), (4, 5, 2), (([2], [0]), ([1], [2]))),
    ((2, 3, 4), (3, 4, 5), (([1, 2], [0, 1]), ([], []))),
    ((2, 3), (4, 5), (([], []), ([], []))),
    ((0, 4), (4, 5), (([1], [0]), ([], []))),
    ((3, 0), (0, 5), (([1], [0]), ([], []))),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, BFLOAT16, np.int32, np.complex64])
def test_products(dtype: Any) -> None:
    arrays = [normal(*shape, dtype=dtype) for left, right, _ in PRODUCTS for shape in (left, right)]

    def function(*arrays: Any) -> Any:
        pairs = zip(arrays[::2], arrays[1::2], PRODUCTS, strict=True)
        return [lax.dot_general(x, y, numbers) for x, y, (_, _, numbers) in pairs]

    check(function, *arrays, tolerance=0.1 if dtype == BFLOAT16 else 1e-5)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_products_over_any_dimensions(data: Any) -> None:
    """Dimensions by letters: each operand has some, those in both are batches or summed over."""
    letters = "abcde"
    left = data.draw(st.permutations(letters))[: data.draw(st.integers(0, 4))]
    right = data.draw(st.permutations(letters))[: data.draw(st.integers(0, 4))]
    both = [letter for letter in left if letter in right]
    batch = [letter for letter in both if data.draw(st.booleans())]
    summed = [letter for letter in both if letter not in batch]
    sizes = {letter: data.draw(st.integers(0, 3)) for letter in letters}
    numbers = tuple(tuple(tuple(side.index(x) for x in some) for side in (left, right)) for some in (summed, batch))
    free = [[letter for letter in side if letter not in both] for side in (left, right)]
    x = normal(*(sizes[letter] for letter in left), dtype=np.float64)
    y = normal(*(sizes[letter] for letter in right), dtype=np.float64, seed=1)
    made = program(lambda x, y: lax.dot_general(x, y, numbers), spec(x), spec(y))
    out = "".join([*batch, *free[0], *free[1]])
    check_same(made([x, y]), [np.einsum(f"{''.join(left)},{''.join(right)}->{out}", x, y)])


def test_products_of_another_type() -> None:
    def function(x: Any, y: Any) -> Any:
        return lax.dot(x, y, preferred_element_type=np.int32), lax.dot(
            x.astype(BFLOAT16), y.astype(BFLOAT16), preferred_element_type=np.float32
        )

    check(function, np.full((3, 4), 100, np.int8), np.full((4, 2), 100, np.int8))


def test_symbolic_shapes_at_several_sizes() -> None:
    b, c = jax.export.symbolic_shape("b, c")

    def function(x: Any, y: Any) -> Any:
        n, m = x.shape
        results = [x.reshape(-1), jnp.concatenate([x, x], 0), x + jnp.arange(m), x.mean(), x[:, 1:], x[::2]]
        results += [jnp.broadcast_to(y, (n, m, 2)), jnp.zeros((n, 3)), x.reshape(n, 1, m) * x[:, :, None, None].sum()]
        results += [jnp.pad(x, ((1, 2), (0, n))), jnp.einsum("ij,kj->ik", x, x), jnp.einsum("ij,ik->ijk", x, x)]
        results += [lax.fori_loop(0, n, lambda i, s: s + x[i], jnp.zeros(m)), jnp.sort(x, 0), x[jnp.int32(n // 2)]]
        results += [lax.cond(x.sum() > 0, lambda: jnp.ones(n), lambda: jnp.zeros(n)), jnp.cumsum(x, 1), n * 2 + m]
        return results

    made = program(function, *(jax.ShapeDtypeStruct(shape, np.float32) for shape in ((b, c), (2,))))
    for size in ((1, 1), (3, 2), (2, 5)):
        x, y = normal(*size), normal(2)
        check_same(made([x, y]), by_jax(function, x, y))
