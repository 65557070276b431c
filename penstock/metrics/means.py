"""tf.metrics: numbers that accumulate over steps in local variables.

Each function returns two tensors: the value so far, and an update that adds one more batch and gives the new value.
Running `tf.local_variables_initializer()` starts over.
"""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Tensor
from penstock.graph.scopes import add_to_collections, control_dependencies
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, reshaping, selection
from penstock.ops.linalg.diag import diag_part
from penstock.ops.math import arithmetic, casting, compare, reduce, unary
from penstock.ops.math.histogram import confusion_matrix
from penstock.ops.nn.weights import broadcast_weights, expanded_if, remove_squeezable_dimensions, squeezed_if
from penstock.variables.enums import VariableAggregation, VariableSynchronization
from penstock.variables.scope import variable_scope
from penstock.variables.updates import assign_add, scatter_add
from penstock.variables.variable import Variable

Metric = tuple[Tensor, Tensor]


def metric_variable(shape: Any, dtype: Any, name: str) -> Any:
    """A variable that is zero when local variables are initialized; its replicas are summed."""
    return Variable(
        lambda: creation.zeros(shape, dtype),
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES],
        name=name,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=VariableAggregation.SUM,
    )


def _local(name: str) -> Any:
    return metric_variable([], dt.float32, name)


def collected(value: Tensor, update: Tensor, metrics_collections: Any, updates_collections: Any) -> Metric:
    if metrics_collections:
        add_to_collections(metrics_collections, value)
    if updates_collections:
        add_to_collections(updates_collections, update)
    return value, update


def aligned(values: Tensor, weights: Any) -> Tensor:
    """Adds or removes a last dimension of size 1 of `weights`, if that gives them the rank of `values`."""
    weights = convert_to_tensor(weights)
    if weights.shape.rank == 0:
        scalar: Tensor = weights
        return scalar
    if weights.shape.rank is not None and values.shape.rank is not None:
        difference = weights.shape.rank - values.shape.rank
        if difference == 1:
            return reshaping.squeeze(weights, [-1])
        return reshaping.expand_dims(weights, [-1]) if difference == -1 else weights
    rank, excess = reshaping.rank(weights), arithmetic.subtract(reshaping.rank(weights), reshaping.rank(values))
    missing = compare.logical_and(compare.equal(-1, excess), compare.not_equal(rank, 0))
    return expanded_if(missing, squeezed_if(compare.equal(1, excess), weights))


def fitted(labels: Any, predictions: Any, weights: Any) -> tuple[Tensor, Tensor, Any]:
    labels, predictions = remove_squeezable_dimensions(labels, predictions)
    if not predictions.shape.is_compatible_with(labels.shape):
        raise ValueError(
            f"labels and predictions must have the same shape, received {labels.shape} and {predictions.shape}."
        )
    return labels, predictions, None if weights is None else aligned(predictions, weights)


def mean(
    values: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The (weighted) mean of all values so far.

    >>> loss_so_far, update = tf.metrics.mean(loss)
    """
    with variable_scope(name, "mean", [values, weights]):
        values = casting.cast(values, dt.float32)
        total, count = _local("total"), _local("count")
        if weights is None:
            number = casting.cast(reshaping.size(values), dt.float32)
        else:
            weights = casting.cast(aligned(values, weights), dt.float32)
            weights = broadcast_weights(weights, values)
            values = arithmetic.multiply(values, weights)
            number = reduce.reduce_sum(weights)
        new_total = assign_add(total, reduce.reduce_sum(values))
        with control_dependencies([values]):
            new_count = assign_add(count, number)
        value = arithmetic.div_no_nan(total, arithmetic.maximum(count, 0), name="value")
        update = arithmetic.div_no_nan(new_total, arithmetic.maximum(new_count, 0), name="update_op")
        return collected(value, update, metrics_collections, updates_collections)


def accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of `predictions` that were equal to `labels`.

    >>> accuracy, update = tf.metrics.accuracy(labels, tf.argmax(logits, 1))
    """
    labels, predictions, weights = fitted(labels, predictions, weights)
    if labels.dtype.base_dtype != predictions.dtype.base_dtype:
        predictions = casting.cast(predictions, labels.dtype.base_dtype)
    correct = casting.cast(compare.equal(predictions, labels), dt.float32)
    return mean(correct, weights, metrics_collections, updates_collections, name or "accuracy")


def mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The mean of squared differences so far: `tf.metrics.mean_squared_error(y, predictions)`."""
    labels, predictions, weights = fitted(labels, predictions, weights)
    error = arithmetic.squared_difference(labels, predictions)
    return mean(error, weights, metrics_collections, updates_collections, name or "mean_squared_error")


def mean_absolute_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The mean of absolute differences so far: `tf.metrics.mean_absolute_error(y, predictions)`."""
    labels, predictions, weights = fitted(labels, predictions, weights)
    error = unary.abs(arithmetic.subtract(predictions, labels, name="sub"))
    return mean(error, weights, metrics_collections, updates_collections, name or "mean_absolute_error")


def root_mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The root of the mean of squared differences so far: `tf.metrics.root_mean_squared_error(y, predictions)`."""
    squares, update = mean_squared_error(labels, predictions, weights, None, None, name or "root_mean_squared_error")
    return collected(unary.sqrt(squares), unary.sqrt(update), metrics_collections, updates_collections)


def mean_relative_error(
    labels: TensorLike,
    predictions: TensorLike,
    normalizer: Any,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The mean of absolute differences divided by `normalizer`, where that is not 0.

    >>> tf.metrics.mean_relative_error(y, predictions, normalizer=y)
    """
    labels, predictions, weights = fitted(labels, predictions, weights)
    predictions, normalizer = remove_squeezable_dimensions(predictions, normalizer)
    if not predictions.shape.is_compatible_with(normalizer.shape):
        raise ValueError(
            f"predictions and normalizer must have the same shape, received {predictions.shape} and {normalizer.shape}."
        )
    is_zero, none = compare.equal(normalizer, 0.0), creation.zeros_like(labels)
    error = arithmetic.divide(unary.abs(arithmetic.subtract(labels, predictions, name="sub")), normalizer)
    relative = selection.where(is_zero, none, error)
    return mean(relative, weights, metrics_collections, updates_collections, name or "mean_relative_error")


def mean_cosine_distance(
    labels: TensorLike,
    predictions: TensorLike,
    dim: int,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """1 minus the mean of the products of vectors (along `dim`), which should be of length 1.

    >>> tf.metrics.mean_cosine_distance(labels, predictions, dim=1)
    """
    labels, predictions, weights = fitted(labels, predictions, weights)
    products = reduce.reduce_sum(arithmetic.multiply(predictions, labels), [dim], keepdims=True)
    value, update = mean(products, weights, None, None, name or "mean_cosine_distance")
    return collected(
        arithmetic.subtract(1.0, value), arithmetic.subtract(1.0, update), metrics_collections, updates_collections
    )


def percentage_below(
    values: TensorLike,
    threshold: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of values less than `threshold`: `tf.metrics.percentage_below(errors, 0.5)`."""
    is_below = casting.cast(compare.less(values, threshold), dt.float32)
    return mean(is_below, weights, metrics_collections, updates_collections, name or "percentage_below_threshold")


def mean_tensor(
    values: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The (weighted) mean of each element so far: `tf.metrics.mean_tensor(values)` has the shape of `values`."""
    with variable_scope(name, "mean", [values, weights]):
        values = casting.cast(values, dt.float32)
        total = metric_variable(values.shape, dt.float32, "total_tensor")
        count = metric_variable(values.shape, dt.float32, "count_tensor")
        number = creation.ones_like(values)
        if weights is not None:
            weights = casting.cast(aligned(values, weights), dt.float32)
            weights = broadcast_weights(weights, values)
            values, number = arithmetic.multiply(values, weights), arithmetic.multiply(number, weights)
        new_total = assign_add(total, values)
        with control_dependencies([values]):
            new_count = assign_add(count, number)
        value = arithmetic.div_no_nan(total, arithmetic.maximum(count, 0), name="value")
        update = arithmetic.div_no_nan(new_total, arithmetic.maximum(new_count, 0), name="update_op")
        return collected(value, update, metrics_collections, updates_collections)


def _flat(tensor: Any) -> Any:
    """`tensor` as a vector."""
    return tensor if tensor.shape.rank == 1 else reshaping.reshape(tensor, [-1])


def mean_per_class_accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The mean over classes of the accuracy in each class; the update gives the accuracy of each class.

    >>> tf.metrics.mean_per_class_accuracy(labels, predictions, num_classes=10)
    """
    with variable_scope(name, "mean_accuracy", [predictions, labels, weights]):
        labels = casting.cast(labels, dt.int64)
        labels, predictions, weights = fitted(labels, predictions, weights)
        total = metric_variable([num_classes], dt.float32, "total")
        count = metric_variable([num_classes], dt.float32, "count")
        labels, predictions = _flat(labels), _flat(predictions)
        ones: Any = creation.ones([reshaping.size(labels)], dt.float32)
        if labels.dtype != predictions.dtype:
            predictions = casting.cast(predictions, labels.dtype)
        right: Any = casting.cast(compare.equal(predictions, labels), dt.float32)
        if weights is not None:
            weights = casting.cast(_flat(weights), dt.float32)
            right, ones = right * weights, ones * weights
        new_total, new_count = scatter_add(total, labels, ones), scatter_add(count, labels, right)
        each = arithmetic.div_no_nan(count, arithmetic.maximum(total, 0))
        value = reduce.reduce_mean(each, name="mean_accuracy")
        update = arithmetic.div_no_nan(new_count, arithmetic.maximum(new_total, 0), name="update_op")
        return collected(value, update, metrics_collections, updates_collections)


def mean_iou(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The mean over classes of intersection over union; the update gives the confusion matrix.

    >>> tf.metrics.mean_iou(labels, predictions, num_classes=21)
    """
    with variable_scope(name, "mean_iou", [predictions, labels, weights]):
        predictions, labels = convert_to_tensor(predictions), convert_to_tensor(labels)
        if not predictions.shape.is_compatible_with(labels.shape):
            raise ValueError(
                f"labels and predictions must have the same shape, received {labels.shape} and {predictions.shape}."
            )
        total = metric_variable([num_classes, num_classes], dt.float64, "total_confusion_matrix")
        predictions, labels = _flat(casting.cast(predictions, dt.int64)), _flat(casting.cast(labels, dt.int64))
        if weights is not None:
            weights = _flat(convert_to_tensor(weights))
        matrix = confusion_matrix(labels, predictions, num_classes, weights=weights, dtype=dt.float64)
        update = assign_add(total, matrix)
        rows: Any = casting.cast(reduce.reduce_sum(total, 0), dt.float32)
        columns: Any = casting.cast(reduce.reduce_sum(total, 1), dt.float32)
        both: Any = casting.cast(diag_part(total), dt.float32)
        union = rows + columns - both
        # A class that never occurred is left out.
        present: Any = reduce.reduce_sum(casting.cast(compare.not_equal(union, 0), dt.float32))
        union = selection.where(compare.greater(union, 0), union, creation.ones_like(union))
        share: Any = reduce.reduce_sum(arithmetic.divide(both, union), name="mean_iou")
        value = selection.where(compare.greater(present, 0), share / present, 0.0)
        return collected(value, update, metrics_collections, updates_collections)
