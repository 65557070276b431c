"""Random graphs: lists of steps; each takes two of the tensors before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st

import penstock.v1 as tf

WIDTH = 3

# Each maps tensors [rows, WIDTH] to such tensors, for any number of rows.
STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + tf.reduce_sum(y, 0),
    "center": lambda x, y: x - tf.reduce_mean(x, 0, keepdims=True),
    "concat": lambda x, y: tf.concat([x, y], 0),
    "cumsum": lambda x, y: tf.cumsum(x) / 10.0,
    "gather": lambda x, y: tf.gather(x, tf.range(tf.shape(x)[0]) // 2),
    "gram": lambda x, y: tf.matmul(x, tf.matmul(x, y[: tf.shape(x)[0]], transpose_a=True)) / 10.0,
    "half": lambda x, y: x[: (tf.shape(x)[0] + 1) // 2],
    "loop": lambda x, y: (
        tf.while_loop(lambda i, v: i < tf.shape(x)[0], lambda i, v: (i + 1, v * 0.9 + x[i]), [0, tf.zeros([WIDTH])])[1]
        + y
    ),
    "mask": lambda x, y: tf.boolean_mask(x, x[:, 0] > -0.5),
    "max": lambda x, y: tf.maximum(x, tf.reduce_max(y)),
    "noise": lambda x, y: x + tf.random_uniform(tf.shape(x), seed=3),
    "norm": lambda x, y: tf.nn.l2_normalize(x, 1),
    "product": lambda x, y: x * y[:1],
    "reverse": lambda x, y: tf.reverse(x, [0]),
    "segments": lambda x, y: tf.segment_sum(x, tf.range(tf.shape(x)[0]) // 3),
    "softmax": lambda x, y: tf.nn.softmax(x, axis=0),
    "sort": lambda x, y: tf.sort(x, axis=0),
    "tile": lambda x, y: tf.tile(x, [2, 1]),
    "unique": lambda x, y: tf.gather(x, tf.unique(tf.range(tf.shape(x)[0]) % 4)[0]),
    "where": lambda x, y: tf.where(x > 0, x, tf.zeros_like(x) - 0.1),
}

Steps = list[tuple[str, int, int]]


def graphs(names: Iterable[str], most: int = 6) -> st.SearchStrategy[Steps]:
    """Graphs of steps of these names; the numbers choose the tensors that a step takes."""
    step = st.tuples(st.sampled_from(sorted(names)), st.integers(0, 5), st.integers(0, 5))
    return st.lists(step, min_size=2, max_size=most)


def few(count: int) -> settings:
    """A number of examples, the same in each run. They are not shrunk, which takes very long."""
    phases = [Phase.explicit, Phase.generate]
    return settings(max_examples=count, deadline=None, derandomize=True, phases=phases)
