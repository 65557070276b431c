"""contrib.layers and slim: names of variables and ops, collections, values."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf

slim = tf.contrib.slim
layers = tf.contrib.layers
IMAGES = np.random.RandomState(1).rand(2, 6, 6, 3).astype(np.float32)
HALF = tf.constant_initializer(0.5)


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as made:
        yield made


def images() -> Any:
    return tf.constant(IMAGES)


def run(fetches: Any, feed: Any = None) -> Any:
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return sess.run(fetches, feed)


# The call, the variables it makes, the name of its result.
CALLS = {
    "fully_connected": (lambda: layers.fully_connected(tf.ones([2, 4]), 3), ["weights", "biases"], "Relu"),
    "linear": (lambda: layers.linear(tf.ones([2, 4]), 3, scope="linear"), ["weights", "biases"], "BiasAdd"),
    "Conv": (lambda: layers.conv2d(images(), 4, [3, 3]), ["weights", "biases"], "Relu"),
    "conv1": (
        lambda: slim.conv2d(images(), 4, 3, normalizer_fn=slim.batch_norm, scope="conv1"),
        ["weights", "BatchNorm/beta", "BatchNorm/moving_mean", "BatchNorm/moving_variance"],
        "Relu",
    ),
    "Conv2d_transpose": (
        lambda: layers.conv2d_transpose(images(), 4, 3, stride=2, activation_fn=None),
        ["weights", "biases"],
        "BiasAdd",
    ),
    "SeparableConv2d": (
        lambda: layers.separable_conv2d(images(), 4, 3),
        ["depthwise_weights", "pointwise_weights", "biases"],
        "Relu",
    ),
    "sep": (
        lambda: slim.separable_conv2d(images(), None, 3, depth_multiplier=2, scope="sep", activation_fn=None),
        ["depthwise_weights", "biases"],
        "BiasAdd",
    ),
    "MaxPool2D": (lambda: layers.max_pool2d(images(), 2), [], "MaxPool"),
    "pool": (lambda: slim.avg_pool2d(images(), [2, 2], scope="pool"), [], "AvgPool"),
    "Flatten": (lambda: layers.flatten(images()), [], "flatten/Reshape"),
    "Dropout": (lambda: layers.dropout(images(), is_training=False), [], "Identity"),
    "LayerNorm": (lambda: layers.layer_norm(images()), ["beta", "gamma"], "batchnorm/add_1"),
    "InstanceNorm": (lambda: layers.instance_norm(images()), ["beta", "gamma"], "instancenorm/add_1"),
    "EmbedSequence": (lambda: layers.embed_sequence([[1, 2]], 10, 4), ["embeddings"], "embedding_lookup/Identity"),
    "BiasAdd": (lambda: layers.bias_add(images()), ["biases"], "BiasAdd"),
}


@pytest.mark.parametrize("name", CALLS)
def test_names(name: str) -> None:
    call, variables, result = CALLS[name]
    made = call()
    assert [v.op.name for v in tf.global_variables()] == [f"{name}/{v}" for v in variables]
    assert slim.get_model_variables() == tf.global_variables()
    assert made.op.name == f"{name}/{result}"
    assert np.isfinite(run(made)).all()


def test_values() -> None:
    kernel = {"weights_initializer": HALF, "activation_fn": None}
    dense = layers.fully_connected(tf.ones([2, 4]), 3, **kernel)
    conv = slim.conv2d(images(), 1, 3, padding="VALID", **kernel)
    depthwise = slim.separable_conv2d(images(), None, 1, **kernel)
    normed = layers.layer_norm(images())
    instance = layers.instance_norm(images())
    unit = layers.unit_norm(tf.constant([[3.0, 4.0]]), dim=1)
    hot = layers.one_hot_encoding([1, 0], 3)
    d, c, w, n, i, u, h = run([dense, conv, depthwise, normed, instance, unit, hot])
    np.testing.assert_allclose(d, np.full((2, 3), 2.0))
    np.testing.assert_allclose(c[0, 0, 0, 0], 0.5 * IMAGES[0, :3, :3].sum(), rtol=1e-5)
    np.testing.assert_allclose(w, 0.5 * IMAGES, rtol=1e-5)
    np.testing.assert_allclose([n[0].mean(), n[0].std()], [0, 1], atol=1e-4)
    np.testing.assert_allclose(i[1].mean((0, 1)), np.zeros(3), atol=1e-4)
    np.testing.assert_allclose(u, [[0.6, 0.8]], rtol=1e-5)
    np.testing.assert_array_equal(h, [[0, 1, 0], [1, 0, 0]])


def test_a_network_with_scopes_collections_and_reuse() -> None:
    def net(x: Any, reuse: Any = None) -> Any:
        settings = {"weights_regularizer": slim.l2_regularizer(0.1), "outputs_collections": "ends"}
        with (
            tf.variable_scope("net", reuse=reuse),
            slim.arg_scope([slim.conv2d, slim.fully_connected], **settings),
            slim.arg_scope([slim.conv2d], variables_collections=["kept"]),
        ):
            x = slim.repeat(x, 2, slim.conv2d, 4, [3, 3], scope="conv")
            x = slim.max_pool2d(x, 2, scope="pool")
            return slim.stack(slim.flatten(x), slim.fully_connected, [5, 2], scope="fc")

    first = net(images())
    assert [v.op.name for v in tf.trainable_variables()] == [
        f"net/{layer}/{v}"
        for layer in ("conv/conv_1", "conv/conv_2", "fc/fc_1", "fc/fc_2")
        for v in ("weights", "biases")
    ]
    penalties = [t.op.name for t in tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)]
    assert penalties[0] == "net/conv/conv_1/kernel/Regularizer/l2_regularizer"
    ends = slim.utils.convert_collection_to_dict("ends")
    assert list(ends) == ["net/conv/conv_1", "net/conv/conv_2", "net/fc/fc_1", "net/fc/fc_2"]
    assert len(tf.get_collection("kept")) == 4
    second = net(images(), reuse=True)
    assert len(tf.trainable_variables()) == 8 and len(tf.losses.get_regularization_losses()) == 4
    a, b = run([first, second])
    np.testing.assert_array_equal(a, b)
    biases = [v.op.name for v in slim.get_variables("net/fc", suffix="biases")]
    assert biases == ["net/fc/fc_1/biases", "net/fc/fc_2/biases"]
    assert len(slim.get_variables_by_name("weights")) == 4
    assert len(slim.get_variables_to_restore(exclude=["net/fc"])) == 4
    assert slim.get_unique_variable("net/fc/fc_1/biases") is tf.trainable_variables()[5]
    with pytest.raises(ValueError, match="already exists"):
        net(images())


@pytest.mark.parametrize("collection", [tf.GraphKeys.UPDATE_OPS, "mine", None])
def test_where_updates_of_batch_norm_go(collection: str | None) -> None:
    x = tf.constant(IMAGES.reshape(-1, 3))
    y = slim.batch_norm(x, decay=0.5, updates_collections=collection, scale=True)
    updates = tf.get_collection(collection) if collection else []
    assert len(updates) == (2 if collection else 0)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        got, _ = sess.run([y, updates])
        moving = {v.op.name: sess.run(v) for v in tf.global_variables()}
    flat = IMAGES.reshape(-1, 3)
    np.testing.assert_allclose(got, (flat - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-3), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(moving["BatchNorm/moving_mean"], 0.5 * flat.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moving["BatchNorm/moving_variance"], 0.5 + 0.5 * flat.var(0, ddof=1), rtol=1e-4)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Momentum", tf.train.GradientDescentOptimizer, None])
def test_optimize_loss(optimizer: Any) -> None:
    w = tf.get_variable("w", [2], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(tf.square(w))
    step = tf.train.get_or_create_global_step()
    rule = optimizer or (lambda rate: tf.train.GradientDescentOptimizer(rate))
    train = layers.optimize_loss(loss, step, 0.1, rule, clip_gradients=1.0, summaries=layers.OPTIMIZER_SUMMARIES)
    assert "OptimizeLoss/learning_rate" in [v.op.name for v in tf.global_variables()]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses = [sess.run(train) for _ in range(5)]
        assert losses[0] == 2.0 and losses[-1] < losses[0] and sess.run(step) == 5
        if optimizer == "SGD":
            np.testing.assert_allclose(sess.run(w), np.full(2, 1 - 5 * 0.1 / np.sqrt(2)), rtol=1e-4)
        assert sess.run(tf.summary.merge_all())


def small_net() -> Any:
    net = slim.batch_norm(slim.flatten(slim.conv2d(images(), 2, 3)), is_training=True)
    return slim.fully_connected(net, 2, activation_fn=None)


def test_train_in_step_with_other_replicas() -> None:
    """The chief alone: it puts out the tokens, and only other replicas would wait before their first step."""
    w = tf.Variable(3.0)
    rule = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.1), 1)
    train = slim.learning.create_train_op(w * w, rule)
    assert slim.learning.train(train, None, number_of_steps=3, sync_optimizer=rule) < 9.0


def test_the_chief_does_not_wait_for_itself_to_begin() -> None:
    train = slim.learning.create_train_op(tf.square(tf.Variable(3.0)), tf.train.GradientDescentOptimizer(0.1))
    assert slim.learning.train(train, None, number_of_steps=3, startup_delay_steps=2) < 9.0


def test_create_train_op_and_train(tmp_path: Path) -> None:
    slim.losses.softmax_cross_entropy(small_net(), tf.constant([[1, 0], [0, 1]]))
    total = slim.losses.get_total_loss()
    train = slim.learning.create_train_op(total, tf.train.GradientDescentOptimizer(0.1), clip_gradient_norm=1.0)
    tf.summary.scalar("total", total)
    last = slim.learning.train(train, str(tmp_path), number_of_steps=4, log_every_n_steps=0)
    assert np.isfinite(last)
    saved = tf.train.latest_checkpoint(str(tmp_path))
    assert saved.endswith("model.ckpt-4")
    with tf.Graph().as_default():
        values, updates = slim.metrics.aggregate_metric_map({"mean": slim.metrics.streaming_mean(small_net())})
        got = slim.evaluation.evaluate_once(
            "", saved, str(tmp_path / "eval"), num_evals=2, eval_op=list(updates.values()), final_op=values
        )
        assert np.isfinite(got["mean"])
    with tf.Graph().as_default():
        small_net()
        restore = slim.assign_from_checkpoint_fn(saved, slim.get_model_variables())
        init, feed = slim.assign_from_checkpoint(saved, tf.trainable_variables())
        missing = tf.get_variable("missing", [1])
        with pytest.raises(ValueError, match="missing"):
            slim.assign_from_checkpoint_fn(saved, [missing])
        assert slim.assign_from_checkpoint_fn(saved, [missing], ignore_missing_vars=True) is None
        sess = tf.Session()
    with sess:
        start = tf.global_variables_initializer()
        sess.run(start)
        restore(sess)
        restored = sess.run(tf.trainable_variables()[:-1])
        sess.run(start)
        sess.run(init, feed)
        for a, b in zip(restored, sess.run(tf.trainable_variables()[:-1]), strict=True):
            np.testing.assert_array_equal(a, b)


def test_initializers_and_assignment() -> None:
    values = {
        "xavier": layers.xavier_initializer()([100, 300]),
        "xavier_normal": layers.xavier_initializer(uniform=False)([100, 300]),
        "he": layers.variance_scaling_initializer()([5, 5, 4, 300]),
    }
    got = run(values)
    np.testing.assert_allclose([v.std() for v in got.values()], [0.0707, 0.0707, 0.1414], rtol=0.05)
    assert abs(got["xavier"]).max() <= np.sqrt(6 / 400)
    w = slim.model_variable("w", shape=[2, 2], initializer=tf.zeros_initializer())
    init, feed = slim.assign_from_values({"w": [[1, 2], [3, 4]]})
    with tf.Session() as sess:
        sess.run(init, feed)
        np.testing.assert_array_equal(sess.run(w), [[1, 2], [3, 4]])


def test_each_kind_of_layer_tells_its_own_arguments() -> None:
    expected = {
        "conv1d": ("convolution1d", None),
        "conv2d": ("convolution2d", None),
        "conv3d": ("convolution3d", None),
        "conv2d_transpose": ("convolution2d_transpose", "NHWC"),
        "conv3d_transpose": ("convolution3d_transpose", "NDHWC"),
        "max_pool2d": ("max_pool2d", "NHWC"),
        "avg_pool3d": ("avg_pool3d", "NDHWC"),
    }
    for name, (full_name, data_format) in expected.items():
        layer = getattr(layers, name)
        parameters = inspect.signature(layer).parameters
        assert layer.__name__ == full_name and layer.__doc__
        assert list(parameters)[:1] == ["inputs"] and list(parameters)[-1] == "scope"
        assert parameters["data_format"].default == data_format
        with pytest.raises(TypeError, match=f"{full_name}.*'inputs'"):
            layer()


def test_scope_of_one_layer_is_not_that_of_its_kinds() -> None:
    with slim.arg_scope([layers.convolution], activation_fn=None):
        assert layers.conv2d(images(), 4, 3).op.type == "Relu"
        assert layers.convolution(images(), 4, 3).op.type == "BiasAdd"


def test_errors() -> None:
    for call, kind in (
        (lambda: layers.fully_connected(tf.ones([2, 3]), "ten"), ValueError),
        (lambda: layers.conv2d(tf.ones([2, 3]), 3, 3), ValueError),
        (lambda: layers.conv2d(images(), 3, 3, data_format="CHWN"), ValueError),
        (lambda: layers.flatten(tf.ones([3])), ValueError),
        (lambda: layers.layer_norm(tf.placeholder(tf.float32)), ValueError),
        (lambda: layers.l2_regularizer(-1.0), ValueError),
        (lambda: layers.optimize_loss(tf.constant(1.0), None, 0.1, "Nothing"), ValueError),
    ):
        with pytest.raises(kind):
            call()
