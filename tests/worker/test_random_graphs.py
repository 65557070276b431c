"""Random graphs with sizes that change: all tiers agree on values, gradients and random draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import penstock.v1 as tf

WIDTH = 3
SIZES = (5, 2, 9, 17, 1, 6)

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

graphs = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=6
)


def _results(steps: list[tuple[str, int, int]]) -> list[Any]:
    """Values and gradients of a graph of these steps for each size, or the type of the error."""
    found: list[Any] = []
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(5)
        x = tf.placeholder(tf.float32, [None, WIDTH])
        tensors = [x]
        for name, first, second in steps:
            tensors.append(STEPS[name](tensors[first % len(tensors)], tensors[second % len(tensors)]))
        gradient = tf.gradients(tf.reduce_sum(tensors[-1] ** 2), x)[0]
        fetches = [tensors[-1], *([] if gradient is None else [tf.convert_to_tensor(gradient)])]
        for size in SIZES:
            rows = np.random.RandomState(size).randn(size, WIDTH).astype(np.float32)
            try:
                found.append(session.run(fetches, {x: rows}))
            except tf.errors.OpError as error:
                found.append(type(error))
    return found


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])  # shrinking takes very long
@given(graphs)
def test_all_tiers_agree(steps: list[tuple[str, int, int]]) -> None:
    results = {}
    for tier in ("exact", "interpreted", "padded", ""):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_TIER", tier)
            results[tier] = _results(steps)
    for tier in ("interpreted", "padded", ""):
        for size, ours, exact in zip(SIZES, results[tier], results["exact"], strict=True):
            if isinstance(exact, type) or isinstance(ours, type):
                assert ours is exact, (tier, size)
                continue
            for one, other in zip(ours, exact, strict=True):
                scale = float(np.abs(other).max(initial=1))
                np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * scale, err_msg=f"{tier!r}, size {size}")
