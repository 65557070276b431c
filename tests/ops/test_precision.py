"""Sums of products are as exact as the device's arithmetic, at jax's default precision and at its highest.

All other tests run only at the highest precision: `conftest.py` explains that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from tolerances import assert_near, factor_roundoff, limit

import penstock.v1 as tf


@pytest.fixture(params=["default", "highest"], autouse=True)
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    with jax.default_matmul_precision(None if request.param == "default" else request.param):
        yield request.param


def normal(*shape: int) -> np.ndarray:
    return np.random.RandomState(len(shape)).standard_normal(shape).astype(np.float32)


Bilinear = Callable[[np.ndarray, np.ndarray], np.ndarray]


def by_einsum(equation: str) -> tuple[Bilinear, Bilinear, Bilinear]:
    """The product, and its gradients by `dy` and the other factor."""
    a, b, y = equation.replace("->", ",").split(",")
    return tuple(functools.partial(np.einsum, e) for e in (equation, f"{y},{b}->{a}", f"{y},{a}->{b}"))


def convolved(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    seen = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], (1, 2))
    return np.einsum("nijchw,hwco->nijo", seen, kernel)


def images_gradient(dy: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    around = [(size - 1, size - 1) for size in kernel.shape[:2]]
    return convolved(np.pad(dy, [(0, 0), *around, (0, 0)]), kernel[::-1, ::-1].swapaxes(2, 3))


def kernel_gradient(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.einsum("nhwcij,nijo->hwco", np.lib.stride_tricks.sliding_window_view(x, dy.shape[1:3], (1, 2)), dy)


# The function, its values and gradients in NumPy, and its arguments.
PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Bilinear, Bilinear, Bilinear], np.ndarray, np.ndarray]] = {
    "matmul": (tf.matmul, by_einsum("ij,jk->ik"), normal(64, 300), normal(300, 48)),
    "batches": (tf.matmul, by_einsum("bij,bjk->bik"), normal(5, 32, 64), normal(5, 64, 16)),
    "einsum": (
        lambda a, b: tf.einsum("bth,hd->btd", a, b),
        by_einsum("bth,hd->btd"),
        normal(8, 16, 64),
        normal(64, 32),
    ),
    "conv2d": (
        lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "VALID"),
        (convolved, images_gradient, kernel_gradient),
        normal(4, 9, 9, 32),
        normal(3, 3, 32, 64),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_their_gradients(name: str) -> None:
    function, (product, a_gradient, b_gradient), a, b = PRODUCTS[name]
    with tf.Graph().as_default(), tf.Session() as session:
        places = [tf.placeholder(tf.float32, x.shape) for x in (a, b)]
        y = function(*places)
        dy = normal(*y.shape.as_list())
        values = session.run([y, *tf.gradients(y, places, dy)], dict(zip(places, (a, b), strict=True)))
    parts = [("product", product, a, b), ("gradient 0", a_gradient, dy, b), ("gradient 1", b_gradient, dy, a)]
    for found, (what, exactly, *factors) in zip(values, parts, strict=True):
        wide = [x.astype(np.float64) for x in factors]
        terms = exactly(*map(np.ones_like, wide)).max()
        assert_near(found, exactly(*wide), terms=terms, magnitude=exactly(*map(np.abs, wide)), what=what)


def test_a_recurrent_network() -> None:
    """Without an activation the last state is a polynomial: each step adds the error of one product."""
    x, kernel, steps = normal(8, 5, 16), normal(32, 16) / 8, 5
    with tf.Graph().as_default(), tf.Session() as session:
        cell = tf.nn.rnn_cell.BasicRNNCell(16, activation=tf.identity)
        _, state = tf.nn.dynamic_rnn(cell, tf.constant(x), dtype=tf.float32)
        session.run(tf.global_variables_initializer())
        cell.variables[0].load(kernel, session)
        found = session.run(state)

    def exactly(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        last = np.zeros((8, 16))
        for t in range(steps):
            last = np.concatenate([x[:, t], last], 1) @ kernel
        return last

    wide = [a.astype(np.float64) for a in (x, kernel)]
    allowed = steps * limit(32, exactly(*map(np.abs, wide)))
    np.testing.assert_allclose(found, exactly(*wide), rtol=0, atol=allowed)


def test_factors_of_less_precision_only_on_a_gpu(precision: str) -> None:
    assert (factor_roundoff() > 0) == (precision == "default" and jax.default_backend() == "gpu")
    assert factor_roundoff(np.float64) == 0
