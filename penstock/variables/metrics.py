"""tf.metrics: numbers that accumulate over steps in local variables.

Each function returns two tensors: the value so far, and an update that takes in one more batch and gives the new value.
Running `tf.local_variables_initializer()` starts over.
"""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import add_to_collections, control_dependencies
from penstock.graph.tensor import Tensor
from penstock.ops import array, casting, compare, math, passthrough, reduce, reshaping, selection
from penstock.ops.check_ops import assert_rank_in, assert_type
from penstock.ops.weights import broadcast_weights, expanded_if, remove_squeezable_dimensions, squeezed_if
from penstock.variables.enums import VariableAggregation, VariableSynchronization
from penstock.variables.scope import variable_scope
from penstock.variables.updates import assign_add
from penstock.variables.variable import Variable

Metric = tuple[Tensor, Tensor]


def _local(name: str) -> Any:
    """A float that is 0 when local variables are initialized; replicas of it add up."""
    return Variable(
        lambda: array.zeros([], dt.float32),
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES],
        name=name,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=VariableAggregation.SUM,
    )


def _collected(value: Tensor, update: Tensor, metrics_collections: Any, updates_collections: Any) -> Metric:
    if metrics_collections:
        add_to_collections(metrics_collections, value)
    if updates_collections:
        add_to_collections(updates_collections, update)
    return value, update


def _aligned(values: Tensor, weights: Any) -> Tensor:
    """`weights` with a last dimension of size 1 more or less, where that gives them the rank of `values`."""
    weights = convert_to_tensor(weights)
    if weights.shape.rank == 0:
        scalar: Tensor = weights
        return scalar
    if weights.shape.rank is not None and values.shape.rank is not None:
        difference = weights.shape.rank - values.shape.rank
        if difference == 1:
            return reshaping.squeeze(weights, [-1])
        return reshaping.expand_dims(weights, [-1]) if difference == -1 else weights
    rank, excess = reshaping.rank(weights), math.subtract(reshaping.rank(weights), reshaping.rank(values))
    missing = compare.logical_and(compare.equal(-1, excess), compare.not_equal(rank, 0))
    return expanded_if(missing, squeezed_if(compare.equal(1, excess), weights))


def _fitted(labels: Any, predictions: Any, weights: Any) -> tuple[Tensor, Tensor, Any]:
    labels, predictions = remove_squeezable_dimensions(labels, predictions)
    if not predictions.shape.is_compatible_with(labels.shape):
        raise ValueError(
            f"labels and predictions must have the same shape, received {labels.shape} and {predictions.shape}."
        )
    return labels, predictions, None if weights is None else _aligned(predictions, weights)


def mean(
    values: Any, weights: Any = None, metrics_collections: Any = None, updates_collections: Any = None,
    name: str | None = None,
) -> Metric:  # fmt: skip
    """The (weighted) mean of all values so far.

    >>> loss_so_far, update = tf.metrics.mean(loss)
    """
    with variable_scope(name, "mean", [values, weights]):
        values = casting.cast(values, dt.float32)
        total, count = _local("total"), _local("count")
        if weights is None:
            number = casting.cast(reshaping.size(values), dt.float32)
        else:
            weights = casting.cast(_aligned(values, weights), dt.float32)
            weights = broadcast_weights(weights, values)
            values = math.multiply(values, weights)
            number = reduce.reduce_sum(weights)
        new_total = assign_add(total, reduce.reduce_sum(values))
        with control_dependencies([values]):
            new_count = assign_add(count, number)
        value = math.div_no_nan(total, math.maximum(count, 0), name="value")
        update = math.div_no_nan(new_total, math.maximum(new_count, 0), name="update_op")
        return _collected(value, update, metrics_collections, updates_collections)


def accuracy(
    labels: Any, predictions: Any, weights: Any = None, metrics_collections: Any = None,
    updates_collections: Any = None, name: str | None = None,
) -> Metric:  # fmt: skip
    """How often `predictions` have been equal to `labels`.

    >>> accuracy, update = tf.metrics.accuracy(labels, tf.argmax(logits, 1))
    """
    labels, predictions, weights = _fitted(labels, predictions, weights)
    if labels.dtype.base_dtype != predictions.dtype.base_dtype:
        predictions = casting.cast(predictions, labels.dtype.base_dtype)
    correct = casting.cast(compare.equal(predictions, labels), dt.float32)
    return mean(correct, weights, metrics_collections, updates_collections, name or "accuracy")


def mean_squared_error(
    labels: Any, predictions: Any, weights: Any = None, metrics_collections: Any = None,
    updates_collections: Any = None, name: str | None = None,
) -> Metric:  # fmt: skip
    """The mean of squared differences so far: `tf.metrics.mean_squared_error(y, predictions)`."""
    labels, predictions, weights = _fitted(labels, predictions, weights)
    error = math.squared_difference(labels, predictions)
    return mean(error, weights, metrics_collections, updates_collections, name or "mean_squared_error")


def _count(values: Any, weights: Any) -> Metric:
    """How many `values` have been true."""
    assert_type(values, dt.bool)
    count = _local("count")
    values = casting.cast(values, dt.float32)
    if weights is not None:
        weights = casting.cast(weights, dt.float32)
        with control_dependencies([assert_rank_in(weights, (0, reshaping.rank(values)))]):
            values = math.multiply(values, weights)
    value = passthrough.identity(count)
    return value, assign_add(count, reduce.reduce_sum(values))


def _cases(kind: str, labels: Any, predictions: Any, weights: Any, label: bool, prediction: bool) -> Metric:
    with variable_scope(None, kind, [predictions, labels, weights]):
        both = compare.logical_and(compare.equal(labels, label), compare.equal(predictions, prediction))
        return _count(both, weights)


def _share(part: Any, rest: Any, name: str) -> Tensor:
    return selection.where(compare.greater(part + rest, 0), part / (part + rest), 0.0, name=name)


def _share_of_positives(
    default_name: str, rest: tuple[str, bool, bool], labels: Any, predictions: Any, weights: Any,
    metrics_collections: Any, updates_collections: Any, name: str | None,
) -> Metric:  # fmt: skip
    """The true positives among themselves and the `rest` (its name, its label and its prediction)."""
    with variable_scope(name, default_name, [predictions, labels, weights]):
        predictions, labels = casting.cast(predictions, dt.bool), casting.cast(labels, dt.bool)
        labels, predictions, weights = _fitted(labels, predictions, weights)
        hits, new_hits = _cases("true_positives", labels, predictions, weights, True, True)
        kind, label, prediction = rest
        others, new_others = _cases(kind, labels, predictions, weights, label, prediction)
        value, update = _share(hits, others, "value"), _share(new_hits, new_others, "update_op")
        return _collected(value, update, metrics_collections, updates_collections)


def precision(
    labels: Any, predictions: Any, weights: Any = None, metrics_collections: Any = None,
    updates_collections: Any = None, name: str | None = None,
) -> Metric:  # fmt: skip
    """The share of positive predictions that were right: `tf.metrics.precision(labels, predictions)`."""
    return _share_of_positives(
        "precision", ("false_positives", False, True), labels, predictions, weights,
        metrics_collections, updates_collections, name,
    )  # fmt: skip


def recall(
    labels: Any, predictions: Any, weights: Any = None, metrics_collections: Any = None,
    updates_collections: Any = None, name: str | None = None,
) -> Metric:  # fmt: skip
    """The share of positive labels that were found: `tf.metrics.recall(labels, predictions)`."""
    return _share_of_positives(
        "recall", ("false_negatives", True, False), labels, predictions, weights,
        metrics_collections, updates_collections, name,
    )  # fmt: skip
