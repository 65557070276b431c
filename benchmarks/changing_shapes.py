"""Trains with batches and sentences of changing size, timed from the first step, compared with plain jax.jit.

    python benchmarks/changing_shapes.py [--steps 80] [--work mlp] [--side penstock]

Prints milliseconds per step, over all steps and over the second half. jax.jit compiles for each new shape.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import penstock.v1 as tf

UNITS, WORDS, BATCH = 64, 5000, 32


def batches(steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and labels, 20 to 199 at a time."""
    random = np.random.RandomState(0)
    sizes = random.randint(20, 200, steps)
    return [(random.rand(n, 784).astype("f"), np.eye(10, dtype="f")[random.randint(0, 10, n)]) for n in sizes]


def sentences(steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sentences of 5 to 59 words, and labels."""
    random = np.random.RandomState(0)
    lengths = random.randint(5, 60, steps)
    return [(random.randint(0, WORDS, (BATCH, n), np.int32), random.randint(0, 2, BATCH, np.int32)) for n in lengths]


def weights(name: str, *shape: int) -> Any:
    return tf.get_variable(name, shape, initializer=tf.random_normal_initializer(stddev=0.05, seed=1))


def mlp_in_penstock() -> tuple[list[Any], Any]:
    x, y = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.float32, [None, 10])
    hidden = tf.nn.relu(tf.matmul(x, weights("hidden", 784, 100)))
    logits = tf.matmul(hidden, weights("out", 100, 10))
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
    return [x, y], tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def mlp_in_jax() -> tuple[dict[str, Any], Any]:
    def loss(p: Any, x: Any, y: Any) -> Any:
        logits = jax.nn.relu(x @ p["hidden"]) @ p["out"]
        return -jnp.mean(jnp.sum(y * jax.nn.log_softmax(logits), 1))

    return {"hidden": jnp.full((784, 100), 0.01), "out": jnp.full((100, 10), 0.01)}, loss


def lstm_in_penstock() -> tuple[list[Any], Any]:
    words, labels = tf.placeholder(tf.int32, [None, None]), tf.placeholder(tf.int32, [None])
    inputs = tf.nn.embedding_lookup(weights("table", WORDS, UNITS), words)
    cell = tf.nn.rnn_cell.LSTMCell(UNITS)
    outputs, _ = tf.nn.dynamic_rnn(cell, inputs, dtype=tf.float32)
    logits = tf.matmul(tf.reduce_mean(outputs, 1), weights("out", UNITS, 2))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return [words, labels], tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def lstm_in_jax() -> tuple[dict[str, Any], Any]:
    def loss(p: Any, words: Any, labels: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            c, h = state
            i, j, f, o = jnp.split(jnp.concatenate([x, h], 1) @ p["kernel"], 4, 1)
            c = c * jax.nn.sigmoid(f + 1.0) + jax.nn.sigmoid(i) * jnp.tanh(j)
            h = jnp.tanh(c) * jax.nn.sigmoid(o)
            return (c, h), h

        zeros = jnp.zeros((words.shape[0], UNITS))
        _, outputs = jax.lax.scan(step, (zeros, zeros), p["table"][words].swapaxes(0, 1))
        chosen = jax.nn.log_softmax(outputs.mean(0) @ p["out"])
        return -jnp.mean(jnp.take_along_axis(chosen, labels[:, None], 1))

    table, kernel = jnp.full((WORDS, UNITS), 0.01), jnp.full((2 * UNITS, 4 * UNITS), 0.01)
    return {"table": table, "kernel": kernel, "out": jnp.full((UNITS, 2), 0.01)}, loss


def timed(step: Callable[[Any, Any], None], feeds: Sequence[tuple[Any, Any]]) -> list[float]:
    """Milliseconds per step, over all steps and over the second half."""
    times = []
    for x, y in feeds:
        began = time.perf_counter()
        step(x, y)
        times.append(time.perf_counter() - began)
    return [round(1e3 * float(np.mean(part)), 2) for part in (times, times[len(times) // 2 :])]


def in_penstock(build: Callable[[], tuple[list[Any], Any]], feeds: Any) -> list[float]:
    with tf.Graph().as_default(), tf.Session() as session:
        placeholders, train = build()
        session.run(tf.global_variables_initializer())
        return timed(lambda x, y: session.run(train, dict(zip(placeholders, (x, y), strict=True))), feeds)


def in_jax(build: Callable[[], tuple[dict[str, Any], Any]], feeds: Any) -> list[float]:
    parameters, loss = build()

    @jax.jit
    def update(parameters: Any, x: Any, y: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, jax.grad(loss)(parameters, x, y))

    def step(x: Any, y: Any) -> None:
        nonlocal parameters
        parameters = jax.block_until_ready(update(parameters, x, y))

    return timed(step, feeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--work", choices=["mlp", "lstm"], nargs="*", default=["mlp", "lstm"])
    parser.add_argument("--side", choices=["penstock", "jax.jit"], nargs="*", default=["penstock", "jax.jit"])
    chosen = parser.parse_args()
    sides = {
        "mlp": (batches, partial(in_penstock, mlp_in_penstock), partial(in_jax, mlp_in_jax)),
        "lstm": (sentences, partial(in_penstock, lstm_in_penstock), partial(in_jax, lstm_in_jax)),
    }
    for work in chosen.work:
        feeds, *runs = sides[work]
        for side, run in zip(("penstock", "jax.jit"), runs, strict=True):
            if side in chosen.side:
                print(json.dumps({"work": work, "steps": chosen.steps, side: run(feeds(chosen.steps))}), flush=True)


if __name__ == "__main__":
    main()
