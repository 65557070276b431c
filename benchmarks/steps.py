"""Train steps in two forms: through a session, and as a program for jax.jit alone. Both start from the same values.

It needs only jax, numpy, tensorboard and absl, as penstock itself does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import penstock.v1 as tf

Step = Callable[[], float]


class Pair(NamedTuple):
    """One train step in both forms; each call runs one step and returns the loss."""

    penstock: Step
    jax: Step


def _normal(shape: tuple[int, ...], stddev: float, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).normal(0, stddev, shape).astype(np.float32)


# An MLP of one hidden layer of 100 units, Adam, batches of 100.

_MLP = {
    "w1": _normal((784, 100), 1 / 28, 1),
    "b1": np.zeros(100, np.float32),
    "w2": _normal((100, 10), 0.1, 2),
    "b2": np.zeros(10, np.float32),
}


def mlp() -> Pair:
    """A multilayer perceptron for images of 28 by 28 pixels, as in tutorials."""
    images = np.random.RandomState(0).rand(100, 784).astype(np.float32)
    labels = np.eye(10, dtype=np.float32)[np.random.RandomState(0).randint(0, 10, 100)]
    return Pair(_mlp_session(images, labels), _mlp_jax(images, labels))


def _mlp_session(images: np.ndarray, labels: np.ndarray) -> Step:
    with tf.Graph().as_default() as graph:
        x, y = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.float32, [None, 10])
        p = {name: tf.Variable(value) for name, value in _MLP.items()}
        hidden = tf.nn.relu(tf.matmul(x, p["w1"]) + p["b1"])
        guess = tf.nn.softmax(tf.matmul(hidden, p["w2"]) + p["b2"])
        loss = -tf.reduce_sum(y * tf.log(tf.clip_by_value(guess, 1e-10, 1.0)))
        train = tf.train.AdamOptimizer(0.001).minimize(loss)
        return _session_step(graph, train, loss, {x: images, y: labels})


def _session_step(graph: tf.Graph, train: tf.Operation, loss: tf.Tensor, feeds: Mapping[tf.Tensor, np.ndarray]) -> Step:
    session = tf.Session(graph=graph)
    session.run(tf.global_variables_initializer())
    return lambda: session.run([train, loss], feed_dict=feeds)[1]


def _mlp_jax(images: np.ndarray, labels: np.ndarray) -> Step:
    def loss_of(p: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x @ p["w1"] + p["b1"])
        guess = jax.nn.softmax(hidden @ p["w2"] + p["b2"])
        return -jnp.sum(y * jnp.log(jnp.clip(guess, 1e-10, 1.0)))

    def step(params, m, v, powers, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        rate = 0.001 * jnp.sqrt(1 - powers[1]) / (1 - powers[0])
        m = jax.tree.map(lambda m, g: m + (g - m) * (1 - 0.9), m, grads)
        v = jax.tree.map(lambda v, g: v + (g * g - v) * (1 - 0.999), v, grads)
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, m, v)
        return loss, params, m, v, (powers[0] * 0.9, powers[1] * 0.999)

    zeros = {name: np.zeros_like(value) for name, value in _MLP.items()}
    state = (_MLP, zeros, zeros, (np.float32(0.9), np.float32(0.999)))
    return _jax_step(step, state, (images, labels))


def _jax_step(step: Callable[..., tuple], state: tuple, batch: tuple[np.ndarray, ...]) -> Step:
    compiled = jax.jit(step, donate_argnums=tuple(range(len(state))))
    held = list(jax.tree.map(jnp.array, state))

    def run() -> float:
        loss, *held[:] = compiled(*held, *batch)
        return float(loss)

    return run


# A CNN of two convolutions with pooling and two dense layers, gradient descent, batches of 64.

_CNN = {
    "k1": _normal((5, 5, 3, 64), 0.05, 1),
    "b1": np.zeros(64, np.float32),
    "k2": _normal((5, 5, 64, 64), 0.05, 2),
    "b2": np.zeros(64, np.float32),
    "w1": _normal((2304, 192), 0.04, 3),
    "w2": _normal((192, 10), 0.07, 4),
}


def cnn() -> Pair:
    """A convolutional network for images of 24 by 24 pixels in three colours."""
    images = np.random.RandomState(0).rand(64, 24, 24, 3).astype(np.float32)
    labels = np.random.RandomState(0).randint(0, 10, 64)
    return Pair(_cnn_session(images, labels), _cnn_jax(images, labels))


def _cnn_session(images: np.ndarray, labels: np.ndarray) -> Step:
    def layer(t: tf.Tensor, kernel: tf.Variable, bias: tf.Variable) -> tf.Tensor:
        t = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(t, kernel, [1, 1, 1, 1], padding="SAME"), bias))
        return tf.nn.max_pool(t, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="SAME")

    with tf.Graph().as_default() as graph:
        x, y = tf.placeholder(tf.float32, [None, 24, 24, 3]), tf.placeholder(tf.int64, [None])
        p = {name: tf.Variable(value) for name, value in _CNN.items()}
        flat = tf.reshape(layer(layer(x, p["k1"], p["b1"]), p["k2"], p["b2"]), [-1, 2304])
        logits = tf.matmul(tf.nn.relu(tf.matmul(flat, p["w1"])), p["w2"])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        return _session_step(graph, train, loss, {x: images, y: labels})


def _cnn_jax(images: np.ndarray, labels: np.ndarray) -> Step:
    def layer(t: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        t = lax.conv_general_dilated(t, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return lax.reduce_window(jax.nn.relu(t + bias), -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    def loss_of(p: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        flat = layer(layer(x, p["k1"], p["b1"]), p["k2"], p["b2"]).reshape(-1, 2304)
        logits = jax.nn.relu(flat @ p["w1"]) @ p["w2"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))

    def step(params, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    return _jax_step(step, (_CNN,), (images, labels))


# Measuring


def best_times(calls: Mapping[str, Callable[[], object]], count: int, rounds: int, warmup: int = 3) -> dict[str, float]:
    """Seconds per call of each, the best of several rounds in which they take turns."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        for _ in range(warmup):
            call()
    for number in range(rounds):
        for name in list(calls)[:: 1 if number % 2 else -1]:
            call = calls[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / count)
    return best


def check_same_loss(pair: Pair, steps: int = 3, tolerance: float = 1e-3) -> None:
    """Raises an error if the two forms compute different losses: then their times could not be compared."""
    for step in range(steps):
        ours, theirs = pair.penstock(), pair.jax()
        if not np.isclose(ours, theirs, rtol=tolerance):
            raise RuntimeError(f"step {step}: the session's loss is {ours}, that of plain JAX {theirs}.")
