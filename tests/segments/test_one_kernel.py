"""Small updates become one kernel, which computes the same; all else is compiled as ever."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock.segments.one_kernel import MOST_BYTES, as_one_kernel

CPU = jax.local_devices(backend="cpu")[0]


def adam(state: Any, gradients: Any) -> Any:
    """The new state, and a result that is no array."""
    weights, first, second, power = state
    rate = 0.01 * jnp.sqrt(1 - power * power) / (1 - power)
    first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients, strict=True)]
    second = [0.999 * v + 0.001 * jnp.square(g) for v, g in zip(second, gradients, strict=True)]
    steps = [rate * m / (jnp.sqrt(v) + 1e-8) for m, v in zip(first, second, strict=True)]
    return ([w - s for w, s in zip(weights, steps, strict=True)], first, second, power * 0.9), None


def arguments(size: int = 30) -> Any:
    rng = np.random.default_rng(0)
    shapes = [(size, 20), (20,), ()]
    arrays = [[rng.normal(size=s).astype(np.float32) ** 2 for s in shapes] for _ in range(4)]
    return (*arrays[:3], np.float32(0.9)), arrays[3]


def entry(function: Callable[..., Any], *given: Any) -> str:
    """The computation that XLA begins with."""
    with jax.default_device(CPU):
        text = str(jax.jit(function).lower(*given).compile().as_text()).rpartition("\nENTRY ")[2]
    return re.sub(r"metadata={[^}]*}", "", text)  # it says which lines of Python made it


def test_a_small_update_is_one_kernel() -> None:
    found = entry(as_one_kernel(adam), *arguments())
    assert " call(" in found and "fusion(" not in found
    assert entry(adam, *arguments()).count("fusion(") > 8


def test_it_computes_the_same_in_place() -> None:
    with jax.default_device(CPU):
        state, gradients = jax.tree.map(jnp.asarray, arguments(400))
        expected = jax.jit(adam)(state, gradients)
        places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state) if leaf.size > 1]
        result = jax.jit(as_one_kernel(adam), donate_argnums=0)(state, gradients)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-6)
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(result) if leaf.size > 1] == places


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda w, g: w - g @ g.T, (np.ones((4, 4), np.float32), np.ones((4, 5), np.float32))),
        (lambda w, g: w - g.sum(0), (np.ones(4, np.float32), np.ones((5, 4), np.float32))),
        (lambda w, g: w - g, (np.ones(MOST_BYTES // 8, np.float32), np.ones(MOST_BYTES // 8, np.float32))),
    ],
)
def test_other_work_is_compiled_as_ever(function: Callable[..., Any], given: Any) -> None:
    assert entry(as_one_kernel(function), *given) == entry(function, *given)
    with jax.default_device(CPU):
        np.testing.assert_allclose(jax.jit(as_one_kernel(function))(*given), function(*given))


def random_update(seed: int) -> tuple[Callable[..., Any], Any]:
    """An update of some arrays by random arithmetic, with constants that XLA might simplify, and its arguments."""
    rng = np.random.default_rng(seed)
    shapes = [[(), (1,), (7,), (300, 7)][i] for i in rng.integers(0, 4, rng.integers(1, 6))]
    given = [rng.normal(size=shape).astype([np.float32, np.float64][rng.integers(0, 2)]) for shape in shapes]
    choices = rng.integers(0, 1 << 16, 100).tolist()
    binary = [jnp.add, jnp.subtract, jnp.multiply, jnp.divide]
    constants = [0.0, -0.0, 1.0, -1.0, 2.0, np.inf, np.nan]

    def update(state: list[Any], count: Any) -> Any:
        chosen = iter(choices)

        def one_of(options: list[Any]) -> Any:
            return options[next(chosen) % len(options)]

        def combined(value: Any) -> Any:
            other = one_of([*constants, *[x for x in state if x.shape in ((), value.shape)]])
            result = one_of(binary)(*one_of([(value, other), (other, value)]))
            return one_of([lambda x: x, jnp.negative, jnp.sqrt, jnp.square, jax.lax.rsqrt])(result).astype(value.dtype)

        new = [combined(one_of([combined, lambda x: x])(value)) for value in state]
        return new, state[0], count + 1, jnp.full([2], count + 1)  # as tokens for two replicas

    return update, (given, np.int32(3))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_values_are_combined(seed: int) -> None:
    """XLA must not find that an operand is needed no more, since it would end the process."""
    update, given = random_update(seed)
    with jax.default_device(CPU):
        marked = jax.jit(as_one_kernel(update), donate_argnums=0).lower(*given)
        assert "xla_cpu_small_call" in marked.as_text()
        expected = jax.tree.leaves(jax.jit(update)(*given))
        for ours, theirs in zip(jax.tree.leaves(marked.compile()(*given)), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-5)
