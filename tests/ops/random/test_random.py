"""Random ops: the distributions, the numbers of a key, and the nodes that are built."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.graph import Graph
from penstock.graph.scopes import set_random_seed
from penstock.ops.math import operators  # noqa: F401
from penstock.ops.random import gamma_poisson, philox
from penstock.ops.random import stateful as random
from penstock.session import Session

KEY = np.array([1, 2, 3], np.uint64)  # the state of a generator
COUNT = 200_001  # odd: the bits come in pairs
TRUNCATED_STD = 0.8796  # standard deviation of a normal distribution cut at two standard deviations
DISTRIBUTIONS = [random.random_uniform_op, random.random_standard_normal, random.truncated_normal_op]


def draw(op: object, shape: object = (COUNT,), key: np.ndarray = KEY, **attrs: object) -> np.ndarray:
    kernel = jax.jit(lambda key: op.kernel(np.array(shape, np.int32), key=key, **attrs))  # type: ignore[attr-defined]
    return np.asarray(kernel(key))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("op", "mean", "std", "low", "high"),
    [
        (random.random_uniform_op, 0.5, 12**-0.5, 0.0, 1.0),
        (random.random_standard_normal, 0.0, 1.0, -6.0, 6.0),
        (random.truncated_normal_op, 0.0, TRUNCATED_STD, -2.0, 2.0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_moments(op: object, mean: float, std: float, low: float, high: float, dtype: str) -> None:
    kind = dt.as_dtype(dtype)
    values = draw(op, dtype=kind)
    assert values.shape == (COUNT,)
    assert values.dtype == kind.as_numpy_dtype
    exact = values.astype(np.float64)
    coarse = 0.005 if dtype == "bfloat16" else 0.0
    assert abs(exact.mean() - mean) < 0.01 + coarse
    assert abs(exact.std() - std) < 0.01 + coarse
    assert low <= exact.min()
    assert exact.max() <= high
    if op is random.random_uniform_op:
        assert exact.max() < 1.0
    # Neighbours are independent, and so are the halves that came from the same words.
    assert abs(np.corrcoef(exact[:-1], exact[1:])[0, 1]) < 0.01
    half = COUNT // 2
    assert abs(np.corrcoef(exact[:half], exact[half : 2 * half])[0, 1]) < 0.01


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", DISTRIBUTIONS, ids=lambda op: op.name)
def test_many_numbers_are_the_same_in_pieces(op: object, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = np.array([1, 2**64 - 100, 3], np.uint64)  # the low half of its counter overflows in the first piece
    at_once = draw(op, (3, 701), key, dtype=dt.as_dtype(dtype))
    monkeypatch.setattr(philox, "MANY", 1000)
    monkeypatch.setattr(philox, "PIECE", 512)
    in_pieces = draw(op, (3, 701), key, dtype=dt.as_dtype(dtype))
    np.testing.assert_allclose(in_pieces.astype(np.float64), at_once.astype(np.float64), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", DISTRIBUTIONS, ids=lambda op: op.name)
def test_many_numbers_need_little_more_memory_than_they_take(op: object) -> None:
    shape = np.array([philox.MANY], np.int32)
    kernel = jax.jit(lambda key: 2 * op.kernel(shape, key=key, dtype=dt.float32))  # type: ignore[attr-defined]
    memory = kernel.lower(KEY).compile().memory_analysis()
    assert memory.output_size_in_bytes + memory.temp_size_in_bytes < 2.3 * 4 * philox.MANY


def test_the_key_decides_the_numbers() -> None:
    first, again = (draw(random.random_standard_normal, dtype=dt.float32) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    for position in (0, 2):
        other = KEY.copy()
        other[position] += 1
        assert (draw(random.random_standard_normal, key=other, dtype=dt.float32) != first).mean() > 0.99
    later = draw(random.random_standard_normal, key=KEY + np.array([0, 1, 0], np.uint64), dtype=dt.float32)
    np.testing.assert_array_equal(later[:-4], first[4:])


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(np.int32, -5, 7), (np.int64, 0, 3), (np.int32, -(2**31), 2**31 - 1)]
)
def test_integers_are_spread_evenly(dtype: type, low: int, high: int) -> None:
    values = np.asarray(random.random_uniform_int.kernel(np.array([COUNT]), dtype(low), dtype(high), key=KEY))
    assert values.dtype == dtype
    assert values.min() >= low
    assert values.max() < high
    counts, _ = np.histogram(values.astype(np.float64), bins=min(high - low, 12), range=(low, high))
    assert counts.min() > 0.9 * counts.mean()


def test_shuffle_keeps_rows_together() -> None:
    rows = np.stack([np.arange(100), np.arange(100) * 10], axis=1)
    shuffled = np.asarray(random.random_shuffle_op.kernel(rows, key=KEY))
    assert (shuffled != rows).any()
    np.testing.assert_array_equal(shuffled[:, 1], shuffled[:, 0] * 10)
    np.testing.assert_array_equal(np.sort(shuffled[:, 0]), np.arange(100))


def test_multinomial_follows_the_probabilities() -> None:
    chances = np.array([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]])
    with np.errstate(divide="ignore"):
        logits = np.log(chances).astype(np.float32) + 5
    drawn = np.asarray(random.multinomial_op.kernel(logits, np.int32(20_000), key=KEY))
    found = [np.bincount(row, minlength=3) / 20_000 for row in drawn]
    np.testing.assert_allclose(found, chances, atol=0.02)


@pytest.mark.parametrize(
    ("op", "parameters", "means"),
    [
        (gamma_poisson.random_gamma_op, [0.5, 3.0], [0.5, 3.0]),
        (gamma_poisson.random_poisson_v2, [0.5, 30.0], [0.5, 30.0]),
    ],
    ids=["gamma", "poisson"],
)
def test_gamma_and_poisson_means(op: object, parameters: list[float], means: list[float]) -> None:
    drawn = np.asarray(op.kernel(np.array([20_000]), np.array(parameters, np.float32), key=KEY))  # type: ignore[attr-defined]
    np.testing.assert_allclose(drawn.mean(axis=0), means, rtol=0.05)


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: random.random_uniform([2]), ["random_uniform/shape", "random_uniform/RandomUniform"]),
        (
            lambda: random.random_uniform([2], -1.0, 1.0, name="u"),
            ["u/shape", "u/min", "u/max", "u/RandomUniform", "u/sub", "u/mul", "u"],
        ),
        (
            lambda: random.random_uniform([2], maxval=5),
            [f"random_uniform/{n}" for n in ("shape", "min", "max", "RandomUniform", "Mul")],
        ),
        (
            lambda: random.truncated_normal([2], stddev=0.1, name="t"),
            ["t/shape", "t/mean", "t/stddev", "t/TruncatedNormal", "t/mul", "t"],
        ),
    ],
)
def test_names(build: object, names: list[str]) -> None:
    with Graph().as_default() as graph:
        build()  # type: ignore[operator]
    assert [op.name for op in graph.get_operations()] == names


def test_seeds_reach_the_nodes() -> None:
    with Graph().as_default():
        free = random.random_normal([2]).op.graph.get_operation_by_name("random_normal/RandomStandardNormal")
        own = random.random_shuffle([1, 2], seed=3).op
        set_random_seed(7)
        both = random.random_shuffle([1, 2], seed=3).op
    assert [(op.get_attr("seed"), op.get_attr("seed2")) for op in (free, own, both)] == [(0, 0), (87654321, 3), (7, 3)]


def test_runs_differ_and_one_run_agrees_with_itself() -> None:
    with Graph().as_default(), Session() as session:
        x = random.random_uniform([4, 3], minval=10, maxval=20, dtype=dt.int32)
        (a, b), c = session.run([x, x + 0]), session.run(x)
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()
    assert a.shape == (4, 3)
    assert a.min() >= 10
    assert a.max() < 20


def test_empty_integer_range_is_refused() -> None:
    with Graph().as_default(), Session() as session, pytest.raises(InvalidArgumentError, match="minval < maxval"):
        session.run(random.random_uniform([2], 5, 5, dtype=dt.int32))
