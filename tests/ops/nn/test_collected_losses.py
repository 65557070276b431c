"""tf.losses: the losses that it collects, and their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf


def test_collected_losses() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(tf.losses.get_regularization_loss()) == 0.0
        with tf.variable_scope("a"):
            first = tf.losses.mean_squared_error([1.0, 2.0], [1.0, 4.0])
        tf.losses.absolute_difference([1.0], [4.0], loss_collection=None)
        tf.losses.add_loss(tf.constant(5.0))
        tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, tf.constant(0.5))
        assert tf.losses.get_losses("a") == [first]
        assert session.run(tf.losses.get_total_loss()) == 2.0 + 5.0 + 0.5
        assert session.run(tf.losses.get_total_loss(add_regularization_losses=False)) == 2.0 + 5.0


@pytest.mark.parametrize(
    "weights, fits",
    [
        (np.float32(2), True),
        (np.ones((3, 1)), True),
        (np.ones((3, 2)), True),
        (np.ones((1, 2)), True),
        (np.ones(2), False),
        (np.ones((2, 1)), False),
        (np.ones((3, 2, 1)), False),
        (np.ones((3, 3)), False),
    ],
)
def test_weights_must_fit(weights: Any, fits: bool) -> None:
    weights, values = np.asarray(weights, np.float32), np.ones((3, 2), np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(tf.float32)
        loss = tf.losses.compute_weighted_loss(values, fed, reduction=tf.losses.Reduction.SUM)
        if fits:
            tf.losses.compute_weighted_loss(values, weights)
            assert session.run(loss, {fed: weights}) == (values * weights).sum()
            return
        with pytest.raises(ValueError, match="Weights must be"):
            tf.losses.compute_weighted_loss(values, weights)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Weights must be"):
            session.run(loss, {fed: weights})


def test_what_is_refused() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="'most'"):
        tf.losses.compute_weighted_loss([1.0], reduction="most")
    with tf.Graph().as_default(), pytest.raises(ValueError, match="same shape"):
        tf.losses.mean_squared_error(tf.zeros([2]), tf.zeros([3]))
    with tf.Graph().as_default(), pytest.raises(ValueError, match="axis"):
        tf.losses.cosine_distance([1.0], [1.0])
