"""K-FAC beside NumPy: factors and steps as the papers write them, workers that share them, and the digits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cluster.kfac_reference import DAMPING, Network, Reference, agree, batch

import penstock.v1 as tf
from penstock.optim.kfac_search import find_layers

opt = tf.contrib.opt


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


@pytest.mark.parametrize("workers, use_resource", [(1, False), (2, True), (3, False)])
@pytest.mark.parametrize(
    "settings", [{}, {"cov_every": 2, "invert_every": 3, "constraint": 0.01}], ids=["each step", "at times"]
)
def test_against_numpy(settings: dict[str, Any], workers: int, use_resource: bool) -> None:
    """In each round all workers compute gradients at the same weights, then apply them one after the other."""
    reference = Reference(**settings)
    network = Network(reference, use_resource, registered=use_resource)
    pairs = network.rule.compute_gradients(network.loss)
    fed = [(tf.placeholder(grad.dtype, grad.shape), var) for grad, var in pairs]
    apply = network.rule.apply_gradients(fed, global_step=network.step)
    theta, factors = network.theta(), [network.slots("A"), network.slots("G")]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for t in range(4):
            found, expected = [], []
            for worker in range(workers):
                x, y = batch(worker, t)
                found.append(session.run([grad for grad, _ in pairs], {network.x: x, network.y: y}))
                expected.append(reference.gradients(x, y))
            for grads, by_hand in zip(found, expected, strict=True):
                session.run(apply, {fed_one: grad for (fed_one, _), grad in zip(fed, grads, strict=True)})
                reference.apply(by_hand)
                agree(session.run(theta), reference.theta, f"weights in round {t}")
            for i, name in enumerate("AG"):
                agree(session.run(factors[i]), [f[i] for f in reference.factors], f"{name} in round {t}")
        assert session.run(network.step) == 4 * workers


# Convolutions


def _windows(
    images: np.ndarray, size: tuple[int, int], strides: tuple[int, int], rates: tuple[int, int], padding: str
) -> np.ndarray:
    """[batch, places, size of a window]: what each place of a convolution's output sees."""
    counts, before = [], []
    for length, k, s, r in zip(images.shape[1:3], size, strides, rates, strict=True):
        extent = (k - 1) * r + 1
        counts.append(-(-length // s) if padding == "SAME" else (length - extent) // s + 1)
        before.append(max(0, (counts[-1] - 1) * s + extent - length) // 2 if padding == "SAME" else 0)
    found = np.zeros((len(images), *counts, *size, images.shape[3]))
    for i, j, p, q in np.ndindex(*counts, *size):
        y, x = i * strides[0] + p * rates[0] - before[0], j * strides[1] + q * rates[1] - before[1]
        if 0 <= y < images.shape[1] and 0 <= x < images.shape[2]:
            found[:, i, j, p, q] = images[:, y, x]
    return found.reshape(len(images), counts[0] * counts[1], -1)


@pytest.mark.parametrize(
    "strides, rates, padding, has_bias",
    [((1, 1), (1, 1), "SAME", True), ((2, 1), (1, 1), "SAME", False), ((1, 1), (2, 1), "VALID", True)],
)
@pytest.mark.parametrize("registered", [False, True])
def test_convolution(strides: Any, rates: Any, padding: str, has_bias: bool, registered: bool) -> None:
    random = np.random.RandomState(0)
    images, start = random.randn(3, 6, 5, 2), random.randn(3, 2, 2, 4)
    rows = _windows(images, (3, 2), strides, rates, padding)
    slopes = random.randn(3, rows.shape[1], 4)  # of each example's loss by its outputs
    fed = tf.placeholder(tf.float64, [None, 6, 5, 2])
    w, b = tf.Variable(start), tf.Variable(np.zeros(4)) if has_bias else None
    outputs = tf.nn.conv2d(fed, w, [1, *strides, 1], padding, dilations=[1, *rates, 1])
    outputs = outputs if b is None else tf.nn.bias_add(outputs, b)
    loss = tf.reduce_mean(tf.reduce_sum(tf.reshape(outputs, [-1, rows.shape[1], 4]) * slopes, [1, 2]))
    layers = opt.LayerCollection() if registered else None
    if layers is not None:
        params = w if b is None else (w, b)
        layers.register_conv2d(params, [1, *strides, 1], padding, fed, outputs, dilations=[1, *rates, 1])
    rule = opt.KFACOptimizer(1.0, 0.9, DAMPING, layers, momentum=0.0)
    train = rule.minimize(loss)
    if has_bias:
        rows = np.concatenate([rows, np.ones((*rows.shape[:2], 1))], 2)
    a = np.einsum("nti,ntj->ij", rows, rows) / 3
    g = np.einsum("nti,ntj->ij", slopes, slopes) / 3 / rows.shape[1]
    pi = np.sqrt((np.trace(a) / len(a)) / (np.trace(g) / 4))
    left = np.linalg.inv(a + pi * np.sqrt(DAMPING) * np.eye(len(a)))
    right = np.linalg.inv(g + np.sqrt(DAMPING) / pi * np.eye(4))
    natural = left @ (np.einsum("nti,ntj->ij", rows, slopes) / 3) @ right
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {fed: images})
        agree(session.run([rule.get_slot(w, "A"), rule.get_slot(w, "G")]), [a, g], "factors")
        agree([session.run(w)], [start - natural[:12].reshape(start.shape)], "weights")
        if b is not None:
            agree([session.run(b)], [-natural[12]], "bias")


# Layers


def test_layers_are_found_in_the_graph() -> None:
    tf.set_random_seed(1)  # one in which the convolution gives positive numbers: others have no gradient
    images = tf.placeholder(tf.float32, [None, 8, 8, 1])
    table = tf.get_variable("table", [10, 4])
    hidden = tf.layers.conv2d(images, 4, 3, padding="same", activation=tf.nn.relu, name="conv")
    hidden = tf.layers.dense(tf.layers.flatten(hidden), 4, name="dense") + tf.gather(table, [3])
    shared = tf.get_variable("shared", [4, 4], use_resource=True)
    for _ in range(2):
        hidden = tf.tanh(tf.matmul(hidden, shared))
    unlike = tf.matmul(hidden, tf.get_variable("turned", [5, 4]), transpose_b=True)
    logits = tf.matmul(unlike, tf.get_variable("out", [5, 3])) + tf.get_variable("out_bias", [3])
    beside = tf.matmul(tf.stop_gradient(hidden), tf.get_variable("beside", [4, 3]))
    loss = tf.reduce_mean(tf.square(logits)) + tf.stop_gradient(tf.reduce_mean(beside))
    found = [
        (layer.weights.op.name, layer.bias and layer.bias.op.name, layer.window is not None, len(layer.uses))
        for layer in find_layers(loss, tf.trainable_variables())
    ]
    assert found == [
        ("conv/kernel", "conv/bias", True, 1),
        ("dense/kernel", "dense/bias", False, 1),
        ("shared", None, False, 2),
        ("out", "out_bias", False, 1),
        ("beside", None, False, 1),  # has no gradient
    ]
    rule = opt.KFACOptimizer(0.01, norm_constraint=0.001)
    train = rule.minimize(loss, global_step=tf.train.get_or_create_global_step())
    variables = {v.op.name: v for v in tf.trainable_variables()}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before, grads = session.run(
            [variables, tf.gradients(loss, [variables["table"], variables["turned"]])], {images: np.ones((2, 8, 8, 1))}
        )
        session.run(train, {images: np.ones((2, 8, 8, 1))})
        after = session.run(variables)
    assert np.array_equal(before.pop("beside"), after["beside"])
    for name, value in before.items():
        assert not np.array_equal(value, after[name]), name
    # Variables of no layer take plain gradients.
    np.testing.assert_allclose(after["table"][3], before["table"][3] - 0.01 * grads[0].values.sum(0), rtol=1e-5)
    np.testing.assert_allclose(after["turned"], before["turned"] - 0.01 * grads[1], rtol=1e-5)


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_uses_of_one_weight_are_places_of_one_layer(use_resource: bool) -> None:
    random = np.random.RandomState(0)
    inputs, slopes = random.randn(2, 6, 3), random.randn(2, 6, 2)
    w = tf.Variable(np.zeros((3, 2)), use_resource=use_resource)
    outputs = [tf.matmul(tf.constant(x), w) for x in inputs]
    loss = tf.reduce_mean(tf.reduce_sum(tf.add_n([o * s for o, s in zip(outputs, slopes, strict=True)]), 1))
    rule = opt.KFACOptimizer(1.0)
    train = rule.minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        a, g = session.run([rule.get_slot(w, "A"), rule.get_slot(w, "G")])
    np.testing.assert_allclose(a, np.einsum("uni,unj->ij", inputs, inputs) / 6)
    np.testing.assert_allclose(g, np.einsum("uni,unj->ij", slopes, slopes) / 6 / 2)


def test_targets_drawn_from_the_model_give_the_true_fisher_matrix() -> None:
    random = np.random.RandomState(0)
    x = random.randn(4000, 3)
    w, v = tf.Variable(random.randn(3, 4)), tf.Variable(random.randn(3, 2))
    logits, means = tf.matmul(tf.constant(x), w), tf.matmul(tf.constant(x), v)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=np.zeros(4000, int), logits=logits))
    layers = opt.LayerCollection()
    layers.register_categorical_predictive_distribution(logits, seed=1)
    layers.register_normal_predictive_distribution(means, var=0.25, seed=2)
    rule = opt.KFACOptimizer(0.1, layer_collection=layers, estimation_mode="gradients")
    train = rule.minimize(loss + tf.reduce_mean(means))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        p = session.run(tf.nn.softmax(logits))
        session.run(train)
        classes, normal = session.run([rule.get_slot(w, "G"), rule.get_slot(v, "G")])
    np.testing.assert_allclose(classes, np.diag(p.mean(0)) - p.T @ p / 4000, atol=0.02)
    np.testing.assert_allclose(normal, np.eye(2) / 0.25, atol=0.3)


def test_inverses_that_are_not_finite_are_not_taken() -> None:
    reference = Reference()
    network = Network(reference, False, False)
    train = network.rule.minimize(network.loss)
    x, y = batch(0, 0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {network.x: x, network.y: y})
        before = session.run(network.slots("G_inverse"))
        network.slots("G")[0].load(np.full((3, 3), np.nan), session)
        session.run(train, {network.x: x, network.y: y})
        after, weights = session.run([network.slots("G_inverse"), network.theta()])
    np.testing.assert_array_equal(after[0], before[0])
    assert not np.array_equal(after[1], before[1]) and all(np.isfinite(t).all() for t in weights)
