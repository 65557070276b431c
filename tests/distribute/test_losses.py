"""Losses of examples as that of a batch of all replicas."""

from __future__ import annotations

import pytest

import penstock as tf


def test_the_batch_is_that_of_all_replicas() -> None:
    each = tf.constant([1.0, 3.0])
    assert float(tf.nn.compute_average_loss(each)) == 2.0
    assert float(tf.nn.compute_average_loss(each, global_batch_size=8)) == 0.5
    assert float(tf.nn.compute_average_loss(each, sample_weight=[1.0, 0.0], global_batch_size=2)) == 0.5
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    parts = mirrored.run(lambda: tf.nn.compute_average_loss(each))
    assert [float(p) for p in mirrored.experimental_local_results(parts)] == [1.0] * mirrored.num_replicas_in_sync


def test_a_loss_that_is_no_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="at least rank 1"):
        tf.nn.compute_average_loss(tf.constant(1.0))
    with pytest.raises(ValueError, match="must be scalar"):
        tf.nn.compute_average_loss(tf.constant([1.0]), global_batch_size=[1])
    with pytest.raises(TypeError, match="must be an int"):
        tf.nn.compute_average_loss(tf.constant([1.0]), global_batch_size=1.5)


def test_regularization_is_shared_by_replicas() -> None:
    assert float(tf.nn.scale_regularization_loss([1.0, 2.0])) == 3.0
