"""Sums over segments of picked rows: values, gradients of any order, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf

DATA = np.random.RandomState(0).rand(4, 2)
INDICES, SEGMENTS = np.array([3, 0, 3, 1, 2]), np.array([0, 0, 2, 2, 2])
DIVISORS = {"sum": [1, 1, 1], "mean": [2, 1, 3], "sqrt_n": [2**0.5, 1, 3**0.5]}


def function(kind: str) -> Any:
    return getattr(tf, f"sparse_segment_{kind}")


@pytest.mark.parametrize("kind", DIVISORS)
@pytest.mark.parametrize("count", [None, 4])
def test_values_and_gradients(kind: str, count: int | None) -> None:
    weights = np.zeros((count or 3, 4))
    np.add.at(weights, (SEGMENTS, INDICES), 1)
    weights /= np.array([*DIVISORS[kind], 1])[: len(weights), None]
    data = tf.placeholder(tf.float64, [None, 2])
    y = function(kind)(data, INDICES, SEGMENTS, num_segments=count)
    (grad,) = tf.gradients(tf.reduce_sum(y**3), data)
    (second,) = tf.gradients(tf.reduce_sum(grad**2), data)
    with tf.Session() as session:
        found = session.run([y, grad, second], {data: DATA})
    result = weights @ DATA
    first = weights.T @ (3 * result**2)
    np.testing.assert_allclose(found[0], result, rtol=1e-12)
    np.testing.assert_allclose(found[1], first, rtol=1e-12)
    np.testing.assert_allclose(found[2], weights.T @ (6 * result * (weights @ (2 * first))), rtol=1e-12)


@pytest.mark.parametrize(
    ("indices", "segments", "message"),
    [
        ([0, 4], [0, 0], r"indices\[1\] = 4 is not in \[0, 4\)"),
        ([0, -1], [0, 0], r"indices\[1\] = -1 is not in"),
        ([0, 1], [1, 0], "not increasing"),
        ([0, 1, 2], [0, 0], "one size"),
        ([0], [0, 0], "one size"),
    ],
)
def test_refused(indices: Any, segments: Any, message: str) -> None:
    fed = [tf.placeholder(tf.int32, [None]) for _ in range(2)]
    data = tf.placeholder(tf.float64, [None, 2])
    y = tf.sparse_segment_mean(data, *fed)
    gradient = tf.raw_ops.SparseSegmentMeanGrad(grad=tf.ones([1, 2]), indices=fed[0], segment_ids=fed[1], output_dim0=4)
    with tf.Session() as session:
        for result in (y, gradient):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(result, {data: DATA, fed[0]: indices, fed[1]: segments})


def test_a_segment_without_a_row_of_the_gradient_is_refused() -> None:
    y = tf.raw_ops.SparseSegmentSumGrad(grad=tf.ones([2, 2]), indices=[0, 1], segment_ids=[0, 2], output_dim0=4)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="Segment id 2 out of range"):
        session.run(y)
