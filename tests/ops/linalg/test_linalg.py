"""Linear algebra: values against NumPy, gradients against differences, names and errors of TensorFlow."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from tolerances import assert_near

import penstock.v1 as tf
from penstock.kernel.types import on_platform
from penstock.ops.linalg.matmul import mat_mul

RNG = np.random.RandomState(0)
M = RNG.randn(2, 3, 3)
S = M @ M.swapaxes(-1, -2) + 2 * np.eye(3)
TALL, WIDE, RIGHT = RNG.randn(4, 3), RNG.randn(3, 4), RNG.randn(2, 3, 2)
BAND = RNG.randn(3, 5) + np.array([[0], [5], [0]])


def run(fetch: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetch, feed)


def tridiagonal(band: np.ndarray) -> np.ndarray:
    return np.diag(band[1]) + np.diag(band[0][:-1], 1) + np.diag(band[2][1:], -1)


VALUES = {
    "cholesky": (lambda x: tf.linalg.cholesky(x), [S], np.linalg.cholesky(S)),
    "inv": (lambda x: tf.linalg.inv(x), [M], np.linalg.inv(M)),
    "inv of adjoint": (lambda x: tf.linalg.inv(x, adjoint=True), [M], np.linalg.inv(M).swapaxes(-1, -2)),
    "det": (lambda x: tf.linalg.det(x), [M], np.linalg.det(M)),
    "slogdet": (lambda x: tf.stack(list(tf.linalg.slogdet(x))), [M], np.stack(np.linalg.slogdet(M))),
    "logdet": (lambda x: tf.linalg.logdet(x), [S], np.log(np.linalg.det(S))),
    "solve": (lambda x, y: tf.linalg.solve(x, y), [M, RIGHT], np.linalg.solve(M, RIGHT)),
    "triangular": (lambda x, y: tf.linalg.triangular_solve(x, y), [M, RIGHT], np.linalg.solve(np.tril(M), RIGHT)),
    "upper": (
        lambda x, y: tf.linalg.triangular_solve(x, y, lower=False, adjoint=True),
        [M[0], RIGHT],
        np.linalg.solve(np.triu(M[0]).T, RIGHT),
    ),
    "lstsq": (lambda x, y: tf.linalg.lstsq(x, y), [TALL, TALL[:, :2]], np.linalg.lstsq(TALL, TALL[:, :2])[0]),
    "lstsq of few": (lambda x, y: tf.linalg.lstsq(x, y), [WIDE, WIDE[:, :2]], np.linalg.pinv(WIDE) @ WIDE[:, :2]),
    "lstsq of any": (
        lambda x, y: tf.linalg.lstsq(x, y, fast=False),
        [np.ones((3, 2)), np.ones((3, 1))],
        np.full((2, 1), 0.5),
    ),
    "eigvalsh": (lambda x: tf.linalg.eigvalsh(x), [S], np.linalg.eigvalsh(S)),
    "eigh": (lambda x: tf.abs(tf.linalg.eigh(x)[1]), [S], np.abs(np.linalg.eigh(S)[1])),
    "svd": (lambda x: tf.linalg.svd(x, compute_uv=False), [TALL], np.linalg.svd(TALL)[1]),
    "u": (lambda x: tf.abs(tf.linalg.svd(x)[1]), [WIDE], np.abs(np.linalg.svd(WIDE)[0])),
    "qr": (lambda x: tf.concat(list(tf.linalg.qr(x)), 1), [WIDE], np.concatenate(np.linalg.qr(WIDE), 1)),
    "pinv": (lambda x: tf.linalg.pinv(x), [TALL], np.linalg.pinv(TALL)),
    "lu": (lambda x: tf.linalg.lu_reconstruct(*tf.linalg.lu(x)), [M], M),
    "lu_solve": (lambda x, y: tf.linalg.lu_solve(*tf.linalg.lu(x), y), [M, RIGHT], np.linalg.solve(M, RIGHT)),
    "sqrtm": (lambda x: tf.matmul(tf.linalg.sqrtm(x), tf.linalg.sqrtm(x)), [S], S),
    "expm": (lambda x: tf.linalg.expm(x), [np.diag([0.5, -1.0, 30.0])], np.diag(np.exp([0.5, -1.0, 30.0]))),
    "logm": (lambda x: tf.linalg.logm(tf.cast(x, tf.complex128)), [np.diag([1.0, 2.0])], np.diag(np.log([1.0, 2.0]))),
    "tridiagonal": (
        lambda x, y: tf.linalg.tridiagonal_solve(x, y),
        [BAND, np.ones((5, 1))],
        np.linalg.solve(tridiagonal(BAND), np.ones((5, 1))),
    ),
    "tridiagonal matrix": (
        lambda x, y: tf.linalg.tridiagonal_solve(x, y, diagonals_format="matrix"),
        [tridiagonal(BAND), np.ones((5, 2))],
        np.linalg.solve(tridiagonal(BAND), np.ones((5, 2))),
    ),
    "trace": (lambda x: tf.linalg.trace(x), [M], np.trace(M, axis1=1, axis2=2)),
    **{
        f"norm {o} {axes}": (lambda x, o=o, axes=axes: tf.norm(x, o, axes), [M], np.linalg.norm(M, f, axes))
        for o, f, axes in [
            ("fro", "fro", (0, 1)),
            (2, 2, (2, 0)),
            (1, 1, (-2, -1)),
            (np.inf, np.inf, (1, 2)),
            (3, 3, 1),
            (np.inf, np.inf, 0),
            ("euclidean", None, -1),
        ]
    },
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_values(name: str, known: bool) -> None:
    function, inputs, wanted = VALUES[name]
    with tf.Graph().as_default():
        places = [tf.placeholder(tf.float64, x.shape if known else None) for x in inputs]
        found = run(function(*places), dict(zip(places, inputs, strict=True)))
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8)


GRADIENTS = ("cholesky", "inv of adjoint", "slogdet", "upper", "lstsq", "eigh", "u", "qr", "sqrtm", "tridiagonal")


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    """Compared with differences along one direction, which is symmetric if an op reads one triangle only."""
    function, inputs, _ = VALUES[name]
    direction = np.random.RandomState(1).randn(*inputs[0].shape)
    if name in ("cholesky", "eigh", "sqrtm"):
        direction = direction + direction.swapaxes(-1, -2)
    with tf.Graph().as_default():
        places = [tf.placeholder(tf.float64, x.shape) for x in inputs]
        y = tf.reduce_sum(tf.sin(function(*places)))
        gradient = tf.gradients(y, places[0])[0]
        step = 1e-6
        with tf.Session() as session:
            low, high = (
                session.run(y, dict(zip(places, [inputs[0] + s * step * direction, *inputs[1:]], strict=True)))
                for s in (-1, 1)
            )
            found = session.run(gradient, dict(zip(places, inputs, strict=True)))
    assert np.sum(found * direction) == pytest.approx((high - low) / (2 * step), rel=1e-5, abs=1e-6)


def _times_transposed(rows: int, columns: int, narrow: int, dtype: str = "f") -> str:
    """The program of a transposed matrix times another."""
    shapes = [jax.ShapeDtypeStruct((rows, n), np.dtype(dtype)) for n in (columns, narrow)]
    return str(jax.make_jaxpr(functools.partial(mat_mul.kernel, transpose_a=True, transpose_b=False))(*shapes))


@pytest.mark.parametrize("rows, columns, narrow", [(16, 24, 2), (8, 8, 1), (64, 40, 5)])
def test_a_transposed_matrix_times_a_narrow_one_is_computed_the_other_way_round(
    rows: int, columns: int, narrow: int
) -> None:
    assert "optimization_barrier" in _times_transposed(rows, columns, narrow)
    x, y = (RNG.randn(rows, n) for n in (columns, narrow))
    with tf.Graph().as_default():
        a, b = tf.constant(x), tf.placeholder(tf.float64, [None, narrow])
        product = tf.matmul(a, b, transpose_a=True)
        of_b, twice = tf.gradients(product, b), tf.matmul(product, product, transpose_a=True)
        found, gradient, square = run([product, of_b[0], twice], {b: y})
    np.testing.assert_allclose(found, x.T @ y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradient, x @ np.ones((columns, narrow)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(square, found.T @ found, rtol=1e-12, atol=1e-12)


def test_other_products_are_computed_as_they_are_written() -> None:
    for rows, columns, narrow, dtype in ((64, 40, 6, "f"), (8, 64, 2, "f"), (64, 40, 5, "i")):
        assert "optimization_barrier" not in _times_transposed(rows, columns, narrow, dtype)
    with on_platform("gpu"):
        assert "optimization_barrier" not in _times_transposed(64, 40, 5)


EQUATIONS = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "abc,cd": [(2, 3, 4), (4, 2)],
    "...ij,...jk->...ik": [(2, 1, 2, 3), (5, 3, 2)],
    "iij->ji": [(2, 2, 3)],
    "ij,jk,kl,lm->im": [(2, 3), (3, 4), (4, 2), (2, 5)],
    "...i,...i,...i->...": [(2, 3), (2, 3), (1, 3)],
    "i j, jk -> i k": [(0, 3), (3, 4)],
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str) -> None:
    arrays = [np.random.RandomState(i).randn(*s).astype(np.float32) for i, s in enumerate(EQUATIONS[equation])]
    with tf.Graph().as_default():
        result = tf.einsum(equation, *arrays)
        exactly = functools.partial(np.einsum, equation.replace(" ", ""))
        wide = [a.astype(np.float64) for a in arrays]
        wanted, terms = exactly(*wide), exactly(*map(np.ones_like, wide)).max(initial=0)
        assert result.shape.as_list() == list(wanted.shape)
        # A term of several factors is rounded once for each of them.
        assert_near(run(result), wanted, terms=terms + len(wide), magnitude=exactly(*map(np.abs, wide)))


ONES = np.ones((2, 2), np.float32)
ERRORS = {
    "singular": (lambda u: tf.linalg.inv(u), tf.errors.InvalidArgumentError, "not invertible"),
    "singular system": (lambda u: tf.linalg.solve(u, u), tf.errors.InvalidArgumentError, "not invertible"),
    "not square": (lambda u: tf.linalg.det(u[:1]), tf.errors.InvalidArgumentError, "square"),
    "static": (lambda u: tf.linalg.cholesky(tf.ones([2, 3])), ValueError, "Dimensions must be equal, but are 2 and 3"),
    "vector": (lambda u: tf.linalg.svd(tf.ones([2])), ValueError, "at least rank 2"),
    "sizes": (lambda u: tf.einsum("ij,jk", tf.ones([2, 3]), tf.ones([4, 2])), ValueError, "are 3 and 4"),
    "labels": (lambda u: tf.einsum("ij->ik", tf.ones([2, 3])), ValueError, "label k"),
    "count": (lambda u: tf.einsum("ij,jk->ik", u), ValueError, "expecting 2"),
    "norm": (lambda u: tf.norm(u, "nuc"), ValueError, "supported vector norm"),
    "no gradient": (lambda u: tf.gradients(tf.linalg.lu(u)[0], u), LookupError, "Lu"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    function, error, message = ERRORS[name]
    with tf.Graph().as_default(), pytest.raises(error, match=message):
        u = tf.placeholder(tf.float32)
        run(function(u), {u: ONES})


@pytest.mark.parametrize("function", ["cholesky", "inv", "det", "eigvalsh", "qr", "svd", "slogdet", "sqrtm"])
@pytest.mark.parametrize("shape", [(0, 2, 2), (0, 0)])
def test_nothing_in_nothing_out(function: str, shape: tuple[int, ...]) -> None:
    with tf.Graph().as_default():
        u = tf.placeholder(tf.float32)
        found = run(getattr(tf.linalg, function)(u), {u: np.zeros(shape, np.float32)})
    for value in found if isinstance(found, (list, tuple)) else [found]:
        assert np.all(value == (0 if function == "slogdet" and value is found[1] else 1)) or value.size == 0


@pytest.mark.parametrize("shape", [(5, 3), (2, 3), (2, 2, 3)])
def test_orthogonal_initializer(shape: tuple[int, ...]) -> None:
    with tf.Graph().as_default():
        value = run(tf.get_variable("w", shape, initializer=tf.orthogonal_initializer(gain=2.0, seed=3)))
    matrix = value.reshape(-1, shape[-1])
    square = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(square, 4 * np.eye(len(square)), atol=1e-5)
