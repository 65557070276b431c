"""A gradient that does not exist is an error that names the op, never None."""

from __future__ import annotations

import numpy as np
import pytest

import penstock.v1 as tf


def _updated(x: tf.Tensor) -> tf.Tensor:
    variable = tf.Variable([1.0, 2.0], use_resource=False)
    return tf.raw_ops.ApplyGradientDescent(var=variable._ref(), alpha=0.1, delta=x)


REFUSED = {
    "ApplyGradientDescent": _updated,
    "Bitcast": lambda x: tf.bitcast(x, tf.float32),
    "ParallelConcat": lambda x: tf.parallel_stack([x, x]),
    "DenseBincount": lambda x: tf.raw_ops.DenseBincount(input=[0, 1], size=2, weights=x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_op_is_named(name: str) -> None:
    x = tf.placeholder(tf.float32, [2])
    y = REFUSED[name](x)
    with pytest.raises(LookupError, match=name):
        tf.gradients(y, x)


@pytest.mark.parametrize("name", ["Bitcast", "DenseBincount"])
def test_the_op_is_named_in_a_loop(name: str) -> None:
    x = tf.placeholder(tf.float32, [2])

    def body(i: tf.Tensor, a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        b = REFUSED[name](a)
        b.set_shape([2])
        return i + 1, b

    _, y = tf.while_loop(lambda i, _: i < 2, body, (0, x))
    with pytest.raises(LookupError, match=name):
        tf.gradients(y, x)


def test_a_draw_moves_with_the_shape_of_its_distribution() -> None:
    """The mean of gamma draws is the shape parameter, so its derivative is 1."""
    shape = tf.placeholder(tf.float64, [3])
    draws = tf.random_gamma([4000], shape, dtype=tf.float64, seed=1)
    (slope,) = tf.gradients(tf.reduce_mean(draws, 0), shape)
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(slope, {shape: [0.5, 1.0, 4.0]}), 1.0, atol=0.1)
