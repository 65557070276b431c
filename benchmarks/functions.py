"""What a call of tf.function and an op with eager execution cost, beside the same by jax alone.

Run on a quiet machine: `chrt -r 5 python benchmarks/functions.py`. It prints the median of some rounds in
microseconds, and the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import penstock as tf

BATCH, INPUTS, HIDDEN, CLASSES = 100, 784, 100, 10
RATE = 0.01


def microseconds(calls: list[Callable[[], Any]], rounds: int, count: int) -> list[float]:
    """The median over rounds of the time of one call, for each of the calls. They take turns."""
    for call in calls:
        for _ in range(count):
            jax.block_until_ready(call())
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, found, strict=True):
            began = time.perf_counter()
            for _ in range(count):
                result = call()
            jax.block_until_ready(result)
            times.append((time.perf_counter() - began) / count)
    return [statistics.median(times) * 1e6 for times in found]


def parameters() -> list[np.ndarray]:
    """The initial weights and biases of a perceptron with one hidden layer."""
    draw = np.random.default_rng(0)
    first = draw.normal(0, 0.1, (INPUTS, HIDDEN)).astype(np.float32)
    second = draw.normal(0, 0.1, (HIDDEN, CLASSES)).astype(np.float32)
    return [first, np.zeros(HIDDEN, np.float32), second, np.zeros(CLASSES, np.float32)]


def batch() -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    draw = np.random.default_rng(1)
    return draw.normal(size=(BATCH, INPUTS)).astype(np.float32), draw.integers(0, CLASSES, BATCH).astype(np.int32)


def perceptron() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A training step as a tf.function, and as a jitted function of jax."""
    images, labels = batch()
    variables = [tf.Variable(p) for p in parameters()]
    x, y = tf.constant(images), tf.constant(labels)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.matmul(x, variables[0]) + variables[1])
            logits = tf.matmul(hidden, variables[2]) + variables[3]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(RATE * gradient)
        return loss

    def loss_of(p: list[Any], x: Any, y: Any) -> Any:
        logits = jax.nn.relu(x @ p[0] + p[1]) @ p[2] + p[3]
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(BATCH), y])

    @jax.jit
    def update(p: list[Any], x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(p, x, y)
        return loss, [a - RATE * g for a, g in zip(p, grads, strict=True)]

    state = [jnp.asarray(p) for p in parameters()]
    jax_x, jax_y = jnp.asarray(images), jnp.asarray(labels)

    def jax_step() -> Any:
        nonlocal state
        loss, state = update(state, jax_x, jax_y)
        return loss.block_until_ready()

    return lambda: step(x, y)._value, jax_step


def cases() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """By name: the call with penstock, and the same with jax."""
    small = np.arange(8, dtype=np.float32)
    square = np.random.default_rng(2).normal(size=(100, 100)).astype(np.float32)
    s, m = tf.constant(small) + 0.0, tf.constant(square) + 0.0
    js, jm = jnp.asarray(small), jnp.asarray(square)
    add = tf.function(lambda a, b: a + b)
    jax_add = jax.jit(lambda a, b: a + b)
    return {
        "function: a + b": (lambda: add(s, s)._value, lambda: jax_add(js, js)),
        "function: step of a perceptron": perceptron(),
        "eager: add of 8 numbers": (lambda: tf.add(s, s)._value, lambda: jnp.add(js, js)),
        "eager: matmul of 100x100": (lambda: tf.matmul(m, m)._value, lambda: jnp.matmul(jm, jm)),
        "eager: reduce_sum of 100x100": (lambda: tf.reduce_sum(m)._value, lambda: jnp.sum(jm)),
        "eager: relu of 100x100": (lambda: tf.nn.relu(m)._value, lambda: jax.nn.relu(jm)),
    }


def main() -> None:
    """Measures and prints all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    print(f"{'':34}{'penstock':>10}{'jax':>10}{'ratio':>8}")
    for name, pair in cases().items():
        mine, other = microseconds(list(pair), options.rounds, options.calls)
        print(f"{name:34}{mine:10.1f}{other:10.1f}{mine / other:8.2f}")


if __name__ == "__main__":
    main()
