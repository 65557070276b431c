"""contrib.metrics: the metrics of tf.metrics with predictions before labels, and their aggregation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.metrics import cases, means, thresholds
from penstock.ops.math import arithmetic, casting, compare, reduce


def accuracy(predictions: TensorLike, labels: TensorLike, weights: TensorLike = None, name: str | None = None) -> Any:
    """The share of equal elements in this batch."""
    if labels.dtype != predictions.dtype:
        raise ValueError(f"labels and predictions must be of one type, received {labels.dtype}, {predictions.dtype}.")
    with name_scope(name, "accuracy", [predictions, labels]):
        right: Any = casting.cast(compare.equal(predictions, labels), dt.float32)
        if weights is None:
            return reduce.reduce_mean(right)
        weights = casting.cast(convert_to_tensor(weights), dt.float32)
        return arithmetic.divide(reduce.reduce_sum(right * weights), reduce.reduce_sum(weights))


def _predictions_first(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def streaming(
        predictions: TensorLike,
        labels: TensorLike,
        weights: TensorLike = None,
        metrics_collections: Any = None,
        updates_collections: Any = None,
        name: str | None = None,
        **settings: Any,
    ) -> Any:
        return function(
            labels,
            predictions,
            weights=weights,
            metrics_collections=metrics_collections,
            updates_collections=updates_collections,
            name=name,
            **settings,
        )

    streaming.__name__ = streaming.__qualname__ = name
    streaming.__doc__ = f"`tf.metrics.{function.__name__}` with predictions first."
    return streaming


streaming_accuracy = _predictions_first(means.accuracy, "streaming_accuracy")
streaming_auc = _predictions_first(thresholds.auc, "streaming_auc")
streaming_mean_absolute_error = _predictions_first(means.mean_absolute_error, "streaming_mean_absolute_error")
streaming_mean_squared_error = _predictions_first(means.mean_squared_error, "streaming_mean_squared_error")
streaming_root_mean_squared_error = _predictions_first(
    means.root_mean_squared_error, "streaming_root_mean_squared_error"
)
streaming_precision = _predictions_first(cases.precision, "streaming_precision")
streaming_recall = _predictions_first(cases.recall, "streaming_recall")
streaming_true_positives = _predictions_first(cases.true_positives, "streaming_true_positives")
streaming_true_negatives = _predictions_first(cases.true_negatives, "streaming_true_negatives")
streaming_false_positives = _predictions_first(cases.false_positives, "streaming_false_positives")
streaming_false_negatives = _predictions_first(cases.false_negatives, "streaming_false_negatives")
streaming_mean = means.mean
streaming_mean_tensor = means.mean_tensor
streaming_percentage_less = means.percentage_below


def streaming_mean_iou(
    predictions: TensorLike,
    labels: TensorLike,
    num_classes: int,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Any:
    """`tf.metrics.mean_iou` with predictions first."""
    return means.mean_iou(labels, predictions, num_classes, weights, metrics_collections, updates_collections, name)


def aggregate_metrics(*value_update_tuples: Any) -> tuple[list[Any], list[Any]]:
    """The values and the updates of several metrics, as two lists."""
    if not value_update_tuples:
        raise ValueError("Expected at least one value_tensor/update_op pair")
    values, updates = zip(*value_update_tuples, strict=True)
    return list(values), list(updates)


def aggregate_metric_map(names_to_tuples: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values and the updates of several metrics, by name.

    >>> values, updates = slim.metrics.aggregate_metric_map({"accuracy": slim.metrics.streaming_accuracy(p, y)})
    """
    values, updates = zip(*names_to_tuples.values(), strict=True)
    return dict(zip(names_to_tuples, values, strict=True)), dict(zip(names_to_tuples, updates, strict=True))
