"""Metrics accumulate over batches in local variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf

LABELS, PREDICTIONS = np.array([[1, 1, 0, 0], [1, 0, 0, 1]]), np.array([[1, 0, 1, 0], [1, 1, 0, 1]])
WEIGHTS = np.array([[1.0, 2.0, 0.0, 1.0], [1.0, 3.0, 1.0, 0.5]], np.float32)


def share(part: Any, whole: Any, weights: Any) -> Any:
    return (part * weights).sum() / (whole * weights).sum()


EXPECTED: dict[str, Any] = {
    "accuracy": lambda y, p, w: share(y == p, np.ones_like(y), w),
    "mean_squared_error": lambda y, p, w: share((y - p) ** 2, np.ones_like(y), w),
    "precision": lambda y, p, w: share(y * p, p, w),
    "recall": lambda y, p, w: share(y * p, y, w),
}


@pytest.mark.parametrize("known", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("weighted", [True, False], ids=["weights", "plain"])
@pytest.mark.parametrize("name", EXPECTED)
def test_batches_add_up(name: str, weighted: bool, known: bool) -> None:
    kind = tf.float32 if name == "mean_squared_error" else tf.int64
    weights = WEIGHTS if weighted else np.ones_like(WEIGHTS)
    with tf.Graph().as_default(), tf.Session() as session:
        labels, predictions = (tf.placeholder(kind, [4] if known else None) for _ in range(2))
        fed = tf.placeholder(tf.float32, [4] if known else None)
        value, update = getattr(tf.metrics, name)(labels, predictions, *([fed] if weighted else []))
        session.run(tf.local_variables_initializer())
        assert session.run(value) == 0.0
        for i in range(2):
            feeds = {labels: LABELS[i], predictions: PREDICTIONS[i], fed: weights[i]}
            expected = EXPECTED[name](LABELS[: i + 1], PREDICTIONS[: i + 1], weights[: i + 1])
            assert session.run(update, feeds) == pytest.approx(expected)
            assert session.run(value) == pytest.approx(expected)


def test_mean_of_weighted_columns() -> None:
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        weights = np.array([[0.0], [1.0], [3.0]], np.float32)
        # A missing last dimension is added, a superfluous one dropped.
        updates = [
            tf.metrics.mean(values, weights)[1],
            tf.metrics.mean(values, weights[:, 0])[1],
            tf.metrics.mean(values[:, :1], weights[:, :, None])[1],
            tf.metrics.mean(values, 2.0)[1],
        ]
        session.run(tf.local_variables_initializer())
        assert session.run(updates) == pytest.approx([4.0, 4.0, 3.5, 2.5])


def test_collections() -> None:
    with tf.Graph().as_default():
        value, update = tf.metrics.mean([1.0], metrics_collections=["values"], updates_collections=["updates"])
        variables = [v.name for v in tf.get_collection(tf.GraphKeys.METRIC_VARIABLES)]
        assert variables == ["mean/total:0", "mean/count:0"] == [v.name for v in tf.local_variables()]
        assert (tf.get_collection("values"), tf.get_collection("updates")) == ([value], [update])
        assert tf.global_variables() == []


def test_shapes_that_differ_are_refused() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="same shape"):
        tf.metrics.accuracy(tf.zeros([2]), tf.zeros([3]))
