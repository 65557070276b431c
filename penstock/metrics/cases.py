"""tf.metrics of true and false, positive and negative cases: counts, precision, recall."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies
from penstock.graph.typing import TensorLike
from penstock.metrics.means import Metric, collected, fitted, metric_variable
from penstock.ops.array import passthrough, reshaping, selection
from penstock.ops.debugging.check_ops import assert_rank_in, assert_type
from penstock.ops.math import arithmetic, casting, compare, reduce
from penstock.variables.scope import variable_scope
from penstock.variables.updates import assign_add


def _count(values: Any, weights: Any) -> Metric:
    """The number of `values` that were true so far."""
    assert_type(values, dt.bool)
    count = metric_variable([], dt.float32, "count")
    values = casting.cast(values, dt.float32)
    if weights is not None:
        weights = casting.cast(weights, dt.float32)
        with control_dependencies([assert_rank_in(weights, (0, reshaping.rank(values)))]):
            values = arithmetic.multiply(values, weights)
    value = passthrough.identity(count)
    return value, assign_add(count, reduce.reduce_sum(values))


def _cases(kind: str, labels: Any, predictions: Any, weights: Any, label: bool, prediction: bool) -> Metric:
    with variable_scope(None, kind, [predictions, labels, weights]):
        both = compare.logical_and(compare.equal(labels, label), compare.equal(predictions, prediction))
        return _count(both, weights)


def _counted(
    kind: str,
    label: bool,
    prediction: bool,
    labels: Any,
    predictions: Any,
    weights: Any,
    metrics_collections: Any,
    updates_collections: Any,
    name: str | None,
) -> Metric:
    with variable_scope(name, kind, [predictions, labels, weights]):
        predictions, labels = casting.cast(predictions, dt.bool), casting.cast(labels, dt.bool)
        labels, predictions, weights = fitted(labels, predictions, weights)
        both = compare.logical_and(compare.equal(labels, label), compare.equal(predictions, prediction))
        value, update = _count(both, weights)
        return collected(value, update, metrics_collections, updates_collections)


def true_positives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The number of right positive predictions so far: `tf.metrics.true_positives(labels, predictions)`."""
    return _counted(
        "true_positives", True, True, labels, predictions, weights, metrics_collections, updates_collections, name
    )


def true_negatives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The number of right negative predictions so far: `tf.metrics.true_negatives(labels, predictions)`."""
    return _counted(
        "true_negatives", False, False, labels, predictions, weights, metrics_collections, updates_collections, name
    )


def false_positives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The number of wrong positive predictions so far: `tf.metrics.false_positives(labels, predictions)`."""
    return _counted(
        "false_positives", False, True, labels, predictions, weights, metrics_collections, updates_collections, name
    )


def false_negatives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The number of wrong negative predictions so far: `tf.metrics.false_negatives(labels, predictions)`."""
    return _counted(
        "false_negatives", True, False, labels, predictions, weights, metrics_collections, updates_collections, name
    )


def _share(part: Any, rest: Any, name: str) -> Tensor:
    return selection.where(compare.greater(part + rest, 0), part / (part + rest), 0.0, name=name)


def _share_of_positives(
    default_name: str,
    rest: tuple[str, bool, bool],
    labels: Any,
    predictions: Any,
    weights: Any,
    metrics_collections: Any,
    updates_collections: Any,
    name: str | None,
) -> Metric:
    """The ratio of true positives to true positives plus `rest` (given by its name, label and prediction)."""
    with variable_scope(name, default_name, [predictions, labels, weights]):
        predictions, labels = casting.cast(predictions, dt.bool), casting.cast(labels, dt.bool)
        labels, predictions, weights = fitted(labels, predictions, weights)
        hits, new_hits = _cases("true_positives", labels, predictions, weights, True, True)
        kind, label, prediction = rest
        others, new_others = _cases(kind, labels, predictions, weights, label, prediction)
        value, update = _share(hits, others, "value"), _share(new_hits, new_others, "update_op")
        return collected(value, update, metrics_collections, updates_collections)


def precision(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of positive predictions that were right: `tf.metrics.precision(labels, predictions)`."""
    return _share_of_positives(
        "precision",
        ("false_positives", False, True),
        labels,
        predictions,
        weights,
        metrics_collections,
        updates_collections,
        name,
    )


def recall(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of positive labels that were found: `tf.metrics.recall(labels, predictions)`."""
    return _share_of_positives(
        "recall",
        ("false_negatives", True, False),
        labels,
        predictions,
        weights,
        metrics_collections,
        updates_collections,
        name,
    )
