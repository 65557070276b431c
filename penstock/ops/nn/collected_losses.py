"""tf.losses: losses that are weighted, reduced to one number and collected."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Tensor
from penstock.graph.scopes import add_to_collection, control_dependencies, get_collection, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, passthrough, ranges, reshaping, selection
from penstock.ops.math import arithmetic, casting, compare, operators, reduce, unary  # noqa: F401
from penstock.ops.nn import activation
from penstock.ops.nn import cross_entropy as loss
from penstock.ops.nn.weights import assert_broadcastable, broadcast_weights, remove_squeezable_dimensions, squeezed_if


class Reduction:
    """The ways in which the weighted losses of a batch become one number."""

    NONE: ClassVar[str] = "none"
    SUM: ClassVar[str] = "weighted_sum"
    SUM_OVER_BATCH_SIZE: ClassVar[str] = "weighted_sum_over_batch_size"
    MEAN: ClassVar[str] = "weighted_mean"
    SUM_BY_NONZERO_WEIGHTS: ClassVar[str] = "weighted_sum_by_nonzero_weights"
    SUM_OVER_NONZERO_WEIGHTS: ClassVar[str] = SUM_BY_NONZERO_WEIGHTS

    @classmethod
    def all(cls) -> tuple[str, ...]:
        return cls.NONE, cls.SUM, cls.MEAN, cls.SUM_OVER_BATCH_SIZE, cls.SUM_BY_NONZERO_WEIGHTS

    @classmethod
    def validate(cls, key: Any) -> None:
        if key not in cls.all():
            raise ValueError(f"A loss reduction is one of {', '.join(cls.all())}; received {key!r}.")


_LOSSES = GraphKeys.LOSSES
_BY_NONZERO = Reduction.SUM_BY_NONZERO_WEIGHTS


# Collected losses.


def add_loss(loss: TensorLike, loss_collection: str | None = _LOSSES) -> None:
    """Collects a loss of your own, for `get_total_loss`.

    >>> tf.losses.add_loss(tf.reduce_mean(penalty))
    """
    if loss_collection:
        add_to_collection(loss_collection, loss)


def get_losses(scope: str | None = None, loss_collection: str = _LOSSES) -> list[Any]:
    """The losses collected so far (under `scope`): `tf.losses.get_losses()`."""
    return get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Any]:
    """The penalties of variables made with a regularizer: `tf.losses.get_regularization_losses()`."""
    return get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_regularization_loss(scope: str | None = None, name: str = "total_regularization_loss") -> Tensor:
    """The sum of `get_regularization_losses`; 0.0 if there are none."""
    penalties = get_regularization_losses(scope)
    return arithmetic.add_n(penalties, name=name) if penalties else creation.constant(0.0)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """The sum of all losses collected, and of the regularization losses.

    >>> train = optimizer.minimize(tf.losses.get_total_loss())
    """
    collected = get_losses(scope=scope)
    if add_regularization_losses:
        collected = [*collected, *get_regularization_losses(scope=scope)]
    return arithmetic.add_n(collected, name=name)


# Weights and reduction.


def compute_weighted_loss(
    losses: Any,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """`losses` times `weights`, reduced as `reduction` says, and collected.

    >>> tf.losses.compute_weighted_loss(tf.square(error), weights=mask)
    """
    Reduction.validate(reduction)
    with name_scope(scope, "weighted_loss", [losses, weights]):
        with control_dependencies([assert_broadcastable(weights, losses)]):
            losses = convert_to_tensor(losses)
            kind = losses.dtype.base_dtype
            losses, weights = casting.cast(losses, dt.float32), casting.cast(weights, dt.float32)
            result: Tensor = arithmetic.multiply(losses, weights)
            if reduction != Reduction.NONE:
                result = _reduced(result, losses, weights, reduction)
        result = casting.cast(result, kind)
        add_loss(result, loss_collection)
        return result


def _reduced(weighted: Tensor, losses: Any, by: Any, reduction: str) -> Tensor:
    total = reduce.reduce_sum(weighted)
    if reduction == Reduction.SUM:
        return total
    if reduction == Reduction.MEAN:
        count = reduce.reduce_sum(creation.ones_like(losses) * by)
    elif reduction == Reduction.SUM_OVER_BATCH_SIZE:
        with name_scope(None, "num_elements", [losses]) as scope:
            count = casting.cast(reshaping.size(losses, name=scope), losses.dtype.base_dtype)
    else:
        count = _num_present(losses, by)
    # The sum of a scalar is the scalar: TensorFlow's graphs have this node.
    return arithmetic.div_no_nan(reduce.reduce_sum(total), count, name="value")


def _num_present(losses: Tensor, by: Tensor, per_batch: bool = False) -> Tensor:
    """The number of losses with a weight other than 0, in total or per row."""
    with name_scope(None, "num_present", [losses, by]) as scope:
        zero = compare.equal(by, 0.0)
        present = selection.where(zero, creation.zeros_like(by), creation.ones_like(by))
        present = broadcast_weights(present, losses)
        if per_batch:
            axes = ranges.range(1, reshaping.rank(present))
            return reduce.reduce_sum(present, axis=axes, keepdims=True, name=scope)
        return reduce.reduce_sum(present, name=scope)


def _both(first: Any, second: Any, what: str) -> None:
    if first is None or second is None:
        raise ValueError(f"{what}: both must be given, received {first!r} and {second!r}.")


def _floats(labels: Any, predictions: Any, what: str) -> tuple[Any, Any]:
    """(labels, predictions) as float32; the predictions come first among the nodes."""
    predictions, labels = casting.cast(predictions, dt.float32), casting.cast(labels, dt.float32)
    _same_shape(labels, predictions, what)
    return labels, predictions


def _same_shape(labels: Tensor, predictions: Tensor, what: str) -> None:
    if not predictions.shape.is_compatible_with(labels.shape):
        raise ValueError(
            f"{what}: labels and predictions must have the same shape, received {labels.shape} and {predictions.shape}."
        )


# Distances of predictions.


def mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """The mean of squared differences: `tf.losses.mean_squared_error(y, predictions)`."""
    _both(labels, predictions, "mean_squared_error")
    with name_scope(scope, "mean_squared_error", [predictions, labels, weights]) as scope:
        labels, predictions = _floats(labels, predictions, "mean_squared_error")
        losses = arithmetic.squared_difference(predictions, labels)
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def mean_pairwise_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
) -> Tensor:
    """The mean squared error of `predictions` in the differences between two entries of a row.

    >>> tf.losses.mean_pairwise_squared_error(labels, predictions)
    """
    _both(labels, predictions, "labels and predictions")
    with name_scope(scope, "mean_pairwise_squared_error", [predictions, labels, weights]):
        by = casting.cast(weights, dt.float32)
        labels = casting.cast(labels, dt.float32)
        with control_dependencies([assert_broadcastable(by, labels)]):
            predictions = casting.cast(predictions, dt.float32)
            _same_shape(labels, predictions, "mean_pairwise_squared_error")
            missed: Any = arithmetic.subtract(predictions, labels)
            axes = ranges.range(1, reshaping.rank(missed))
            squares = reduce.reduce_sum(unary.square(missed), axis=axes, keepdims=True)
            count: Any = _num_present(missed, by, per_batch=True)
            per_pair: Any = arithmetic.div_no_nan(squares, arithmetic.maximum(count - 1, 0), name="value")
            first = 2.0 * per_pair
            total = unary.square(reduce.reduce_sum(missed, axis=axes, keepdims=True))
            pairs = arithmetic.maximum(arithmetic.multiply(count, count - 1), 0)
            per_pair = arithmetic.div_no_nan(total, pairs, name="value")
            second = 2.0 * per_pair
            loss = reduce.reduce_sum(arithmetic.multiply(first - second, by))
            some: Any = reduce.reduce_sum(count)
            result: Tensor = selection.where(some > 0, loss, creation.zeros_like(loss), name="value")
            add_loss(result, loss_collection)
            return result


def absolute_difference(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """The mean of absolute differences: `tf.losses.absolute_difference(y, predictions)`."""
    _both(labels, predictions, "absolute_difference")
    with name_scope(scope, "absolute_difference", [predictions, labels, weights]) as scope:
        labels, predictions = _floats(labels, predictions, "absolute_difference")
        losses = unary.abs(arithmetic.subtract(predictions, labels))
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def huber_loss(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    delta: float = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Half the squared error up to `delta`, and linear beyond: `tf.losses.huber_loss(y, predictions)`."""
    _both(labels, predictions, "huber_loss")
    with name_scope(scope, "huber_loss", [predictions, labels, weights]) as scope:
        labels, predictions = _floats(labels, predictions, "huber_loss")
        distance = unary.abs(arithmetic.subtract(predictions, labels))
        quadratic = arithmetic.minimum(distance, delta)
        # Written as a sum of both parts: its gradient is right at 0, where that of a `where` would be NaN.
        linear = arithmetic.subtract(distance, quadratic)
        half = convert_to_tensor(0.5, dtype=quadratic.dtype)
        losses = arithmetic.add(
            arithmetic.multiply(half, arithmetic.multiply(quadratic, quadratic)),
            arithmetic.multiply(delta, linear),
            name="Add",
        )
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def log_loss(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    epsilon: float = 1e-7,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Cross-entropy of predicted probabilities; `epsilon` keeps the logarithms finite.

    >>> tf.losses.log_loss(y, tf.sigmoid(logits))
    """
    _both(labels, predictions, "log_loss")
    with name_scope(scope, "log_loss", [predictions, labels, weights]) as scope:
        labels, predictions = _floats(labels, predictions, "log_loss")
        yes: Any = unary.negative(arithmetic.multiply(labels, unary.log(predictions + epsilon)))
        losses = yes - arithmetic.multiply(1 - labels, unary.log(1 - predictions + epsilon))
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def hinge_loss(
    labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """max(0, 1 - (2 label - 1) logit) for labels 0 and 1: `tf.losses.hinge_loss(y, logits)`."""
    _both(labels, logits, "hinge_loss")
    with name_scope(scope, "hinge_loss", [logits, labels, weights]) as scope:
        labels, logits = _floats(labels, logits, "hinge_loss")
        ones = creation.ones_like(labels)
        signs = arithmetic.subtract(2 * labels, ones)
        losses = activation.relu(arithmetic.subtract(ones, arithmetic.multiply(signs, logits)))
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def cosine_distance(
    labels: TensorLike,
    predictions: TensorLike,
    axis: int | None = None,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
    dim: int | None = None,
) -> Tensor:
    """1 less the product of unit vectors along `axis`: `tf.losses.cosine_distance(a, b, axis=1)`."""
    axis = reduce.renamed(axis, "axis", dim, "dim")
    if axis is None:
        raise ValueError("cosine_distance: `axis` must be given.")
    _both(labels, predictions, "cosine_distance")
    with name_scope(scope, "cosine_distance_loss", [predictions, labels, weights]) as scope:
        labels, predictions = _floats(labels, predictions, "cosine_distance")
        products: Any = reduce.reduce_sum(arithmetic.multiply(predictions, labels), axis=(axis,), keepdims=True)
        return compute_weighted_loss(1 - products, weights, scope, loss_collection, reduction)


# Cross-entropies of logits.


def sigmoid_cross_entropy(
    multi_class_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Cross-entropy of independent classes; `label_smoothing` moves labels towards 1/2.

    >>> tf.losses.sigmoid_cross_entropy(y, logits)
    """
    _both(multi_class_labels, logits, "sigmoid_cross_entropy")
    with name_scope(scope, "sigmoid_cross_entropy_loss", [logits, multi_class_labels, weights]) as scope:
        logits = convert_to_tensor(logits)
        labels: Any = casting.cast(multi_class_labels, logits.dtype)
        _same_shape(labels, logits, "sigmoid_cross_entropy")
        if label_smoothing > 0:
            labels = labels * (1 - label_smoothing) + 0.5 * label_smoothing
        losses = loss.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits, name="xentropy")
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def softmax_cross_entropy(
    onehot_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Cross-entropy of exclusive classes; `label_smoothing` moves labels towards 1/classes.

    >>> tf.losses.softmax_cross_entropy(tf.one_hot(y, 10), logits)
    """
    _both(onehot_labels, logits, "softmax_cross_entropy")
    with name_scope(scope, "softmax_cross_entropy_loss", [logits, onehot_labels, weights]) as scope:
        logits = convert_to_tensor(logits)
        labels: Any = casting.cast(onehot_labels, logits.dtype)
        _same_shape(labels, logits, "softmax_cross_entropy")
        if label_smoothing > 0:
            dims: Any = reshaping.shape(labels)
            classes: Any = casting.cast(dims[-1], logits.dtype)
            spread = label_smoothing / classes
            labels = labels * (1.0 - label_smoothing) + spread
        labels = passthrough.stop_gradient(labels, name="labels_stop_gradient")
        losses = loss.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits, name="xentropy")
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def sparse_softmax_cross_entropy(
    labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Cross-entropy of exclusive classes, given by number.

    >>> tf.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
    """
    _both(labels, logits, "sparse_softmax_cross_entropy")
    with name_scope(scope, "sparse_softmax_cross_entropy_loss", [logits, labels, weights]) as scope:
        labels, logits, by = _without_extra_dimensions(labels, logits, weights)
        losses = loss.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits, name="xentropy")
        return compute_weighted_loss(losses, by, scope, loss_collection, reduction)


def _without_extra_dimensions(labels: Any, logits: Any, by: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Labels and weights without a last dimension of size 1."""
    labels, logits = remove_squeezable_dimensions(labels, logits, expected_rank_diff=1)
    by = convert_to_tensor(by)
    if by.shape.rank == 0:
        return labels, logits, by
    if by.shape.rank is not None and labels.shape.rank is not None:
        if by.shape.rank == labels.shape.rank + 1:
            by = reshaping.squeeze(by, [-1])
        return labels, logits, by
    if by.shape.rank is None or by.shape.as_list()[-1] in (None, 1):
        difference = arithmetic.subtract(reshaping.rank(by), reshaping.rank(labels), name="sub")
        by = squeezed_if(compare.equal(1, difference), by)
    return labels, logits, by
