"""Batch normalization: values, moving averages, and the collection of updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf

IMAGES = np.random.RandomState(0).randn(4, 3, 3, 2).astype(np.float32) * 2 + 1
CASES = [  # shape, axis, fused
    ((4, 3, 3, 2), -1, None),
    ((4, 3, 3, 2), -1, False),
    ((4, 2, 9), 1, None),
    ((36, 2), -1, None),
]


def arranged(shape: tuple[int, ...], axis: int) -> tuple[np.ndarray, tuple[int, ...], list[int]]:
    """The values, the axes that are averaged over, and the shape in which statistics fit the values."""
    values = IMAGES.reshape(-1, 2)
    if axis == 1:
        values = np.moveaxis(IMAGES.reshape(4, 9, 2), 2, 1)
    else:
        values = values.reshape(shape)
    others = tuple(i for i in range(len(shape)) if i != axis % len(shape))
    return values, others, [2 if i == axis % len(shape) else 1 for i in range(len(shape))]


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("known", [True, False], ids=["static", "fed"])
@pytest.mark.parametrize(("shape", "axis", "fused"), CASES)
def test_training_and_inference(
    shape: tuple[int, ...], axis: int, fused: bool | None, known: bool, resource: bool
) -> None:
    values, others, spread = arranged(shape, axis)
    mean, variance = values.mean(others), values.var(others)
    by_batch = (values - mean.reshape(spread)) / np.sqrt(variance.reshape(spread) + 1e-3)
    is_fused = fused is not False and len(shape) == 4
    kept_variance = variance * 36 / 35 if is_fused else variance  # the fused op keeps the unbiased one
    with tf.Graph().as_default(), tf.variable_scope("", use_resource=resource):
        x = tf.placeholder(tf.float32, [None, *shape[1:]])
        training: Any = True if known else tf.placeholder(tf.bool, [])
        layer = tf.layers.BatchNormalization(axis=axis, momentum=0.9, fused=fused)
        y = layer(x, training=training)
        z = layer(x, training=False)
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        assert len(updates) == 2 and y.shape.as_list() == [None, *shape[1:]]
        assert [v.name for v in layer.trainable_variables] == [f"batch_normalization/{n}:0" for n in ("gamma", "beta")]
        feed = {x: values} if known else {x: values, training: True}
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            got, _ = sess.run([y, updates], feed)
            np.testing.assert_allclose(got, by_batch, rtol=1e-4, atol=1e-4)
            kept = sess.run([layer.moving_mean, layer.moving_variance])
            np.testing.assert_allclose(kept[0], 0.1 * mean, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(kept[1], 0.9 + 0.1 * kept_variance, rtol=1e-4)
            expected = (values - kept[0].reshape(spread)) / np.sqrt(kept[1].reshape(spread) + 1e-3)
            np.testing.assert_allclose(sess.run(z, {x: values}), expected, rtol=1e-4, atol=1e-4)
            if not known:
                off = {x: values, training: False}
                np.testing.assert_allclose(sess.run(y, off), expected, rtol=1e-4, atol=1e-4)
                sess.run(updates, off)
                np.testing.assert_array_equal(sess.run(layer.moving_mean), kept[0])


def test_names() -> None:
    with tf.Graph().as_default() as graph:
        y = tf.layers.batch_normalization(tf.ones([2, 3, 3, 4]), training=True)
        plain = tf.layers.batch_normalization(tf.ones([2, 4]), training=True, name="bn")
        assert y.op.name == "batch_normalization/FusedBatchNormV3"
        assert plain.op.name == "bn/batchnorm/add_1"
        assert [op.name for op in tf.get_collection(tf.GraphKeys.UPDATE_OPS)] == [
            "batch_normalization/AssignMovingAvg",
            "batch_normalization/AssignMovingAvg_1",
            "bn/AssignMovingAvg",
            "bn/AssignMovingAvg_1",
        ]
        names = {op.name for op in graph.get_operations()}
        assert {"bn/moments/mean", "bn/moments/Squeeze", "bn/AssignMovingAvg/decay", "bn/batchnorm/Rsqrt"} <= names
        assert [v.name for v in tf.global_variables()][:4] == [
            f"batch_normalization/{n}:0" for n in ("gamma", "beta", "moving_mean", "moving_variance")
        ]


@pytest.mark.parametrize("fused", [True, False])
def test_gradients_flow_through_the_statistics(fused: bool) -> None:
    with tf.Graph().as_default():
        x = tf.constant(IMAGES)
        y = tf.layers.batch_normalization(x, training=True, fused=fused)
        weights = np.cos(np.arange(IMAGES.size)).reshape(IMAGES.shape).astype(np.float32)
        (gradient,) = tf.gradients(tf.reduce_sum(y * weights), [x])
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            got = sess.run(gradient)
    variance = IMAGES.var((0, 1, 2))
    normal = (IMAGES - IMAGES.mean((0, 1, 2))) / np.sqrt(variance + 1e-3)
    centred = weights - weights.mean((0, 1, 2)) - normal * (weights * normal).mean((0, 1, 2))
    np.testing.assert_allclose(got, centred / np.sqrt(variance + 1e-3), rtol=1e-3, atol=1e-4)


def test_errors() -> None:
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="undefined `axis` dimension"):
            tf.layers.batch_normalization(tf.placeholder(tf.float32, [2, None]))
        with pytest.raises(ValueError, match="undefined rank"):
            tf.layers.batch_normalization(tf.placeholder(tf.float32))
        with pytest.raises(NotImplementedError, match="renorm"):
            tf.layers.batch_normalization(tf.ones([2, 2]), renorm=True)
