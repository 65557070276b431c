"""tf.metrics of probabilities: cases counted at several thresholds, and values computed from these counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies
from penstock.graph.typing import TensorLike
from penstock.logging import warning
from penstock.metrics.means import Metric, collected, fitted, metric_variable
from penstock.ops.array import arranging, creation, joining, passthrough, reshaping, selection
from penstock.ops.debugging.check_ops import assert_greater_equal, assert_less_equal
from penstock.ops.math import argmax, arithmetic, casting, compare, cumulative, reduce, unary
from penstock.ops.nn.weights import broadcast_weights
from penstock.variables.scope import variable_scope
from penstock.variables.updates import assign_add

_EPSILON = 1e-7

# The name of the variable, and the label and prediction that it counts.
_CASES: dict[str, tuple[str, bool, bool]] = {
    "tp": ("true_positives", True, True),
    "fn": ("false_negatives", True, False),
    "tn": ("true_negatives", False, False),
    "fp": ("false_positives", False, True),
}


def _counts(
    labels: Any, predictions: Any, thresholds: Sequence[float], weights: Any, includes: Sequence[str] = tuple(_CASES)
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The number of cases of each kind at each threshold so far, and the updates of those numbers."""
    predictions = convert_to_tensor(predictions)
    kind, message = predictions.dtype, "predictions must be in [0, 1]"
    checks = [
        assert_greater_equal(predictions, casting.cast(0.0, kind), message=message),
        assert_less_equal(predictions, casting.cast(1.0, kind), message=message),
    ]
    with control_dependencies(checks):
        labels, predictions, weights = fitted(
            casting.cast(labels, dt.bool), casting.cast(predictions, dt.float32), weights
        )
    rows = len(thresholds)
    column: Any = reshaping.reshape(predictions, [-1, 1])
    labels = reshaping.reshape(casting.cast(labels, dt.bool), [1, -1])
    count = column.shape.as_list()[0]
    if count is None:
        sizes: Any = reshaping.shape(column)
        count = sizes[0]
    limits = joining.tile(
        reshaping.expand_dims(creation.constant(list(thresholds), dtype=dt.float32), [1]), joining.stack([1, count])
    )
    positive = {True: compare.greater(joining.tile(arranging.transpose(column), [rows, 1]), limits)}
    if "fn" in includes or "tn" in includes:
        positive[False] = compare.logical_not(positive[True])
    label = {True: joining.tile(labels, [rows, 1])}
    if "fp" in includes or "tn" in includes:
        label[False] = compare.logical_not(label[True])
    if weights is not None:
        weights = broadcast_weights(casting.cast(weights, dt.float32), predictions)
        weights = joining.tile(reshaping.reshape(weights, [1, -1]), [rows, 1])
    values, updates = {}, {}
    for case, (name, is_label, is_positive) in _CASES.items():
        if case in includes:
            values[case] = metric_variable([rows], dt.float32, name)
            hits: Any = casting.cast(compare.logical_and(label[is_label], positive[is_positive]), dt.float32)
            if weights is not None:
                hits = hits * weights
            updates[case] = assign_add(values[case], reduce.reduce_sum(hits, 1))
    return values, updates


def _spread(count: int) -> list[float]:
    """`count` thresholds from just below 0 to just above 1."""
    inner = [(i + 1) * 1.0 / (count - 1) for i in range(count - 2)]
    return [0.0 - _EPSILON, *inner, 1.0 + _EPSILON]


def _one_case(
    case: str,
    labels: Any,
    predictions: Any,
    thresholds: Any,
    weights: Any,
    metrics_collections: Any,
    updates_collections: Any,
    name: str | None,
) -> Metric:
    with variable_scope(name, _CASES[case][0], [predictions, labels, weights]):
        values, updates = _counts(labels, predictions, thresholds, weights, (case,))
        value = passthrough.identity(values[case])
        return collected(value, updates[case], metrics_collections, updates_collections)


def true_positives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The number of true positives at each threshold: `tf.metrics.true_positives_at_thresholds(y, p, [0.5])`."""
    return _one_case("tp", labels, predictions, thresholds, weights, metrics_collections, updates_collections, name)


def true_negatives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The number of true negatives at each threshold: `tf.metrics.true_negatives_at_thresholds(y, p, [0.5])`."""
    return _one_case("tn", labels, predictions, thresholds, weights, metrics_collections, updates_collections, name)


def false_positives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The number of false positives at each threshold: `tf.metrics.false_positives_at_thresholds(y, p, [0.5])`."""
    return _one_case("fp", labels, predictions, thresholds, weights, metrics_collections, updates_collections, name)


def false_negatives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The number of false negatives at each threshold: `tf.metrics.false_negatives_at_thresholds(y, p, [0.5])`."""
    return _one_case("fn", labels, predictions, thresholds, weights, metrics_collections, updates_collections, name)


def _share_at_thresholds(
    kind: str,
    rest: str,
    labels: Any,
    predictions: Any,
    thresholds: Any,
    weights: Any,
    metrics_collections: Any,
    updates_collections: Any,
    name: str | None,
) -> Metric:
    """The ratio of true positives to true positives plus `rest`, at each threshold."""
    with variable_scope(name, f"{kind}_at_thresholds", [predictions, labels, weights]):
        values, updates = _counts(labels, predictions, thresholds, weights, ("tp", rest))
        value, update = (
            arithmetic.divide(counts["tp"], _EPSILON + counts["tp"] + counts[rest], name=f"{kind}_{suffix}")
            for counts, suffix in ((values, "value"), (updates, "update_op"))
        )
        return collected(value, update, metrics_collections, updates_collections)


def precision_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The precision at each threshold: `tf.metrics.precision_at_thresholds(labels, probabilities, [0.3, 0.5])`."""
    return _share_at_thresholds(
        "precision", "fp", labels, predictions, thresholds, weights, metrics_collections, updates_collections, name
    )


def recall_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: TensorLike,
    weights: TensorLike = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The recall at each threshold: `tf.metrics.recall_at_thresholds(labels, probabilities, [0.3, 0.5])`."""
    return _share_at_thresholds(
        "recall", "fn", labels, predictions, thresholds, weights, metrics_collections, updates_collections, name
    )


_METHODS = ("trapezoidal", "careful_interpolation", "minoring", "majoring")


def auc(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = None,
    num_thresholds: int = 200,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
    thresholds: TensorLike = None,
) -> Metric:
    """The area under the curve of true against false positive rate, or of precision against recall (curve="PR").

    >>> area, update = tf.metrics.auc(labels, probabilities)
    """
    with variable_scope(name, "auc", [labels, predictions, weights]):
        if curve not in ("ROC", "PR"):
            raise ValueError(f"curve must be either ROC or PR, {curve} unknown")
        if summation_method not in _METHODS:
            raise ValueError(f"Invalid summation_method: {summation_method}; it must be one of {_METHODS}.")
        if curve == "PR" and summation_method == "trapezoidal":
            warning("Trapezoidal rule is known to produce incorrect PR-AUCs; use careful_interpolation instead.")
        limits = _spread(num_thresholds)
        if thresholds is not None:
            limits = [0.0 - _EPSILON, *sorted(thresholds), 1.0 + _EPSILON]
        values, updates = _counts(labels, predictions, limits, weights)
        careful = curve == "PR" and summation_method == "careful_interpolation"
        areas = []
        for counts, suffix in ((values, "value"), (updates, "update_op")):
            exact = {case: convert_to_tensor(count) for case, count in counts.items()}
            areas.append(_interpolated_area(**exact) if careful else _area(curve, summation_method, suffix, **exact))
        return collected(areas[0], areas[1], metrics_collections, updates_collections)


def _area(curve: str, method: str, name: str, *, tp: Any, fn: Any, tn: Any, fp: Any) -> Tensor:
    epsilon = 1.0e-6
    recall: Any = arithmetic.divide(tp + epsilon, tp + fn + epsilon)
    x: Any
    y: Any
    if curve == "ROC":
        x, y = arithmetic.divide(fp, fp + tn + epsilon), recall
    else:
        x, y = recall, arithmetic.divide(tp + epsilon, tp + fp + epsilon)
    last = int(x.shape.as_list()[0]) - 1
    widths: Any = x[:last] - x[1:]
    if method == "minoring":
        heights: Any = arithmetic.minimum(y[:last], y[1:])
    elif method == "majoring":
        heights = arithmetic.maximum(y[:last], y[1:])
    else:
        heights = (y[:last] + y[1:]) / 2.0
    return reduce.reduce_sum(arithmetic.multiply(widths, heights), name=name)


def _interpolated_area(*, tp: Any, fn: Any, tn: Any, fp: Any) -> Tensor:
    """The area under precision against recall, with true positives linear in positives between thresholds.

    See Davis and Goadrich, "The Relationship Between Precision-Recall and ROC Curves" (2006).
    """
    last = tp.shape.as_list()[0] - 1
    gained = tp[:last] - tp[1:]
    positives = tp + fp
    before, after = positives[:last], positives[1:]
    slope: Any = arithmetic.div_no_nan(gained, arithmetic.maximum(before - after, 0), name="prec_slope")
    intercept = tp[1:] - arithmetic.multiply(slope, after)
    ratio = selection.where(
        compare.logical_and(before > 0, after > 0),
        arithmetic.div_no_nan(before, arithmetic.maximum(after, 0), name="recall_relative_ratio"),
        creation.ones_like(after),
    )
    parts = arithmetic.div_no_nan(
        slope * (gained + intercept * unary.log(ratio)), arithmetic.maximum(tp[1:] + fn[1:], 0), name="pr_auc_increment"
    )
    return reduce.reduce_sum(parts, name="interpolate_pr_auc")


def _where_closest(
    default_name: str,
    wanted: float,
    what: str,
    at: Callable[..., Any],
    labels: Any,
    predictions: Any,
    weights: Any,
    num_thresholds: int,
    metrics_collections: Any,
    updates_collections: Any,
    name: str | None,
) -> Metric:
    if wanted < 0 or wanted > 1:
        raise ValueError(f"`{what}` must be in the range [0, 1]. Currently, `{what}` is {wanted}.")
    with variable_scope(name, default_name, [labels, predictions, weights]):
        values, updates = _counts(labels, predictions, _spread(num_thresholds), weights)
        value, update = (
            at(wanted, suffix, **{case: convert_to_tensor(count) for case, count in counts.items()})
            for counts, suffix in ((values, "value"), (updates, "update_op"))
        )
        return collected(value, update, metrics_collections, updates_collections)


def _sensitivity(specificity: float, name: str, *, tp: Any, fn: Any, tn: Any, fp: Any) -> Any:
    found: Any = arithmetic.divide(tn, tn + fp + _EPSILON)
    at = casting.cast(argmax.argmin(unary.abs(found - specificity), 0), dt.int32)
    return arithmetic.divide(tp[at], tp[at] + fn[at] + _EPSILON, name)


def _specificity(sensitivity: float, name: str, *, tp: Any, fn: Any, tn: Any, fp: Any) -> Any:
    found: Any = arithmetic.divide(tp, tp + fn + _EPSILON)
    distance = unary.abs(found - sensitivity)
    # The last of the closest thresholds, not the first.
    closest = casting.cast(compare.equal(distance, reduce.reduce_min(distance)), dt.int64)
    at = casting.cast(argmax.argmax(cumulative.cumsum(closest), 0), dt.int32)
    return arithmetic.divide(tn[at], tn[at] + fp[at] + _EPSILON, name)


def sensitivity_at_specificity(
    labels: TensorLike,
    predictions: TensorLike,
    specificity: float,
    weights: TensorLike = None,
    num_thresholds: int = 200,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The recall at the threshold where the true negative rate is closest to `specificity`.

    >>> tf.metrics.sensitivity_at_specificity(labels, probabilities, 0.9)
    """
    return _where_closest(
        "sensitivity_at_specificity",
        specificity,
        "specificity",
        _sensitivity,
        labels,
        predictions,
        weights,
        num_thresholds,
        metrics_collections,
        updates_collections,
        name,
    )


def specificity_at_sensitivity(
    labels: TensorLike,
    predictions: TensorLike,
    sensitivity: float,
    weights: TensorLike = None,
    num_thresholds: int = 200,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The true negative rate at the threshold where the recall is closest to `sensitivity`.

    >>> tf.metrics.specificity_at_sensitivity(labels, probabilities, 0.9)
    """
    return _where_closest(
        "specificity_at_sensitivity",
        sensitivity,
        "sensitivity",
        _specificity,
        labels,
        predictions,
        weights,
        num_thresholds,
        metrics_collections,
        updates_collections,
        name,
    )
