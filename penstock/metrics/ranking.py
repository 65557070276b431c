"""tf.metrics of rankings: precision and recall among the k classes with the highest scores.

Labels are sets of classes, one for each example: dense with the classes along the last axis, or a SparseTensor. A
class that is given twice counts once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.metrics.means import Metric, collected, metric_variable
from penstock.ops.array import creation, gathering, reshaping, selection
from penstock.ops.control.flow import cond
from penstock.ops.linalg import diag
from penstock.ops.math import arithmetic, casting, compare, cumulative, reduce
from penstock.ops.nn import layer_parts
from penstock.ops.nn.weights import broadcast_weights
from penstock.variables.updates import assign_add


class _Classes(NamedTuple):
    """The classes of each example along the last axis, and a mask of the positions that count."""

    ids: Any
    present: Any


def _labels(labels: Any, predictions: Any) -> _Classes:
    if isinstance(labels, SparseTensor):
        ids: Any = casting.cast(gathering.scatter_nd(labels.indices, labels.values, labels.dense_shape), dt.int64)
        ones = creation.ones_like(labels.values)
        return _Classes(ids, compare.greater(gathering.scatter_nd(labels.indices, ones, labels.dense_shape), 0))
    labels = convert_to_tensor(labels, name="labels")
    if not labels.dtype.is_integer:
        raise TypeError(f"labels must be classes, of an integer type, received {labels.dtype.name}.")
    if labels.shape.rank is not None and labels.shape.rank + 1 == predictions.shape.rank:
        labels = reshaping.expand_dims(labels, -1)
    labels = casting.cast(labels, dt.int64)
    return _Classes(labels, creation.ones_like(labels, dtype=dt.bool))


def _first_of_equals(classes: _Classes) -> Any:
    """Marks the positions that hold a class for the first time in their row."""
    same: Any = compare.equal(reshaping.expand_dims(classes.ids, -1), reshaping.expand_dims(classes.ids, -2))
    earlier = casting.cast(compare.logical_and(same, reshaping.expand_dims(classes.present, -2)), dt.int32)
    # Strictly below the diagonal: compares position i with the positions j < i.
    repeats = arithmetic.subtract(diag.matrix_band_part(earlier, -1, 0), diag.matrix_band_part(earlier, 0, 0))
    return compare.logical_and(classes.present, compare.equal(reduce.reduce_sum(repeats, -1), 0))


def _is_in(ids: Any, classes: _Classes) -> Any:
    same = compare.equal(reshaping.expand_dims(ids, -1), reshaping.expand_dims(classes.ids, -2))
    return reduce.reduce_any(compare.logical_and(same, reshaping.expand_dims(classes.present, -2)), -1)


def _number(of: _Classes, found_in: _Classes, found: bool, class_id: int | None, weights: Any) -> Any:
    """The weighted number of classes of all examples that are, or are not, among others."""
    hit = _is_in(of.ids, found_in)
    counts = compare.logical_and(_first_of_equals(of), hit if found else compare.logical_not(hit))
    if class_id is not None:
        counts = compare.logical_and(counts, compare.equal(of.ids, convert_to_tensor(class_id, dtype=dt.int64)))
    number = casting.cast(reduce.reduce_sum(casting.cast(counts, dt.int32), -1), dt.float64)
    if weights is not None:
        weights = casting.cast(weights, dt.float64)
        number = arithmetic.multiply(number, broadcast_weights(weights, number))
    return reduce.reduce_sum(number)


def _at_k(name: str, k: Any, class_id: int | None = None) -> str:
    named = f"{name}_at_{k}" if k is not None else f"{name}_at_k"
    return named if class_id is None else f"{named}_class{class_id}"


def _streamed(name: str, number: Any) -> tuple[Any, Any]:
    with name_scope(None, name, [number]) as scope:
        total = metric_variable([], dt.float64, scope)
        return total, assign_add(total, number, name="update")


def _share_at_k(
    kind: str,
    rest: str,
    labels: Any,
    predictions_idx: Any,
    k: Any,
    class_id: int | None,
    weights: Any,
    metrics_collections: Any,
    updates_collections: Any,
    name: str | None,
) -> Metric:
    with name_scope(name, _at_k(kind, k, class_id), [predictions_idx, weights]) as scope:
        top = casting.cast(predictions_idx, dt.int64)
        known, chosen = _labels(labels, top), _Classes(top, creation.ones_like(top, dtype=dt.bool))
        hits = _number(chosen, known, True, class_id, weights)
        of, others = (chosen, known) if rest == "false_positive" else (known, chosen)
        misses = _number(of, others, False, class_id, weights)
        tp, new_tp = _streamed(_at_k("true_positive", k, class_id), hits)
        miss, new_miss = _streamed(_at_k(rest, k, class_id), misses)
        value = arithmetic.divide(tp, arithmetic.add(tp, miss), name=scope)
        update = arithmetic.divide(new_tp, arithmetic.add(new_tp, new_miss), name="update")
        return collected(value, update, metrics_collections, updates_collections)


def recall_at_top_k(
    labels: TensorLike,
    predictions_idx: TensorLike,
    k: TensorLike = None,
    class_id: int | None = None,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of labels that were among the predicted classes: `tf.metrics.recall_at_top_k(labels, classes)`."""
    return _share_at_k(
        "recall",
        "false_negative",
        labels,
        predictions_idx,
        k,
        class_id,
        weights,
        metrics_collections,
        updates_collections,
        name,
    )


def precision_at_top_k(
    labels: TensorLike,
    predictions_idx: TensorLike,
    k: TensorLike = None,
    class_id: int | None = None,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of predicted classes that were among the labels: `tf.metrics.precision_at_top_k(labels, classes)`."""
    return _share_at_k(
        "precision",
        "false_positive",
        labels,
        predictions_idx,
        k,
        class_id,
        weights,
        metrics_collections,
        updates_collections,
        name,
    )


def recall_at_k(
    labels: TensorLike,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of labels among the `k` classes with the highest scores.

    >>> tf.metrics.recall_at_k(labels, logits, 5)
    """
    with name_scope(name, _at_k("recall", k, class_id), [predictions, weights]) as scope:
        _, top = layer_parts.top_k(predictions, k)
        return recall_at_top_k(labels, top, k, class_id, weights, metrics_collections, updates_collections, name=scope)


def precision_at_k(
    labels: TensorLike,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of the `k` classes with the highest scores that are labels.

    >>> tf.metrics.precision_at_k(labels, logits, 5)
    """
    with name_scope(name, _at_k("precision", k, class_id), [predictions, weights]) as scope:
        _, top = layer_parts.top_k(predictions, k)
        return precision_at_top_k(
            labels, top, k, class_id, weights, metrics_collections, updates_collections, name=scope
        )


def average_precision_at_k(
    labels: TensorLike,
    predictions: TensorLike,
    k: int,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The mean over examples of the precision at each of the first `k` ranks that holds a label.

    >>> tf.metrics.average_precision_at_k(labels, logits, 5)
    """
    with name_scope(name, _at_k("average_precision", k), [predictions, weights]) as scope:
        predictions = convert_to_tensor(predictions)
        _, top = layer_parts.top_k(predictions, k)
        top = casting.cast(top, dt.int64)
        known = _labels(labels, top)
        sizes: Any = reshaping.shape(predictions)
        known = known._replace(ids=_within(known.ids, casting.cast(sizes[-1], dt.int64)))
        precision = _average_precision(known, top, k)
        if weights is not None:
            weights = broadcast_weights(casting.cast(weights, dt.float64), precision)
            precision = arithmetic.multiply(precision, weights)
        with name_scope(None, "max", [precision]) as inner:
            most = metric_variable([], dt.float64, inner)
            if weights is None:
                batch: Any = casting.cast(reshaping.size(precision, name="batch_max"), dt.float64)
            else:
                batch = reduce.reduce_sum(weights, name="batch_max")
            new_most = assign_add(most, batch, name="update")
        with name_scope(None, "total", [precision]) as inner:
            total = metric_variable([], dt.float64, inner)
            new_total = assign_add(total, reduce.reduce_sum(precision, name="batch_total"), name="update")
        value = arithmetic.div_no_nan(total, most, name="mean")
        return collected(
            value, arithmetic.div_no_nan(new_total, new_most, name=scope), metrics_collections, updates_collections
        )


def _within(ids: Any, classes: Any) -> Any:
    """`ids`, with -1 for those that are not a class."""
    beyond = compare.greater_equal(reduce.reduce_max(ids), classes)
    none: Any = creation.ones_like(ids)
    return cond(beyond, lambda: selection.where(compare.greater_equal(ids, classes), -1 * none, ids), lambda: ids)


def _average_precision(known: _Classes, top: Any, k: int) -> Tensor:
    with name_scope("average_precision"):
        relevant = casting.cast(_is_in(top, known), dt.float64)
        ranks = cumulative.cumsum(creation.ones_like(relevant), -1)
        precision = arithmetic.divide(cumulative.cumsum(relevant, -1), ranks)
        earned = reduce.reduce_sum(arithmetic.multiply(relevant, precision), -1)
        real = compare.logical_and(known.present, compare.greater_equal(known.ids, creation.zeros_like(known.ids)))
        number = reduce.reduce_sum(casting.cast(real, dt.int64), -1)
        possible = arithmetic.minimum(number, convert_to_tensor(k, dtype=dt.int64))
        return arithmetic.divide(earned, casting.cast(possible, dt.float64))


def sparse_precision_at_k(
    labels: TensorLike,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """`precision_at_k` under its old name."""
    return precision_at_k(labels, predictions, k, class_id, weights, metrics_collections, updates_collections, name)


def sparse_average_precision_at_k(
    labels: TensorLike,
    predictions: TensorLike,
    k: int,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """`average_precision_at_k` under its old name."""
    return average_precision_at_k(labels, predictions, k, weights, metrics_collections, updates_collections, name)
