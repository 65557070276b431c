"""contrib.losses and slim.losses: the losses of tf.losses with predictions before labels."""

from __future__ import annotations

from typing import Any

from penstock.contrib.arg_scope import add_arg_scope
from penstock.graph.convert import convert_to_tensor
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import add_to_collection, get_collection, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation
from penstock.ops.math import arithmetic, casting
from penstock.ops.nn import activation, collected_losses


@add_arg_scope
def compute_weighted_loss(losses_: Any, weights: TensorLike = 1.0, scope: str | None = None) -> Any:
    """The mean of `losses`, weighted, added to the collection of losses."""
    return collected_losses.compute_weighted_loss(losses_, weights, scope)


@add_arg_scope
def add_loss(loss: TensorLike, loss_collection: str | None = GraphKeys.LOSSES) -> None:
    """Adds a custom loss to the collection of losses."""
    if loss_collection:
        add_to_collection(loss_collection, loss)


def get_losses(scope: str | None = None, loss_collection: str = GraphKeys.LOSSES) -> list[Any]:
    """The losses that were added."""
    return get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Any]:
    """The penalties that were added."""
    return get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_total_loss(add_regularization_losses: bool = True, name: str = "total_loss") -> Any:
    """The sum of all losses and penalties: `slim.losses.get_total_loss()`."""
    found = get_losses() + (get_regularization_losses() if add_regularization_losses else [])
    return arithmetic.add_n(found, name=name)


def absolute_difference(
    predictions: TensorLike, labels: TensorLike = None, weights: TensorLike = 1.0, scope: str | None = None
) -> Any:
    """`tf.losses.absolute_difference` with predictions first."""
    return collected_losses.absolute_difference(labels, predictions, weights, scope)


def sigmoid_cross_entropy(
    logits: TensorLike,
    multi_class_labels: TensorLike = None,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
) -> Any:
    """`tf.losses.sigmoid_cross_entropy` with logits first."""
    with name_scope(scope, "sigmoid_cross_entropy_loss", [logits, multi_class_labels, weights]) as scope:
        return collected_losses.sigmoid_cross_entropy(multi_class_labels, logits, weights, label_smoothing, scope)


def softmax_cross_entropy(
    logits: TensorLike,
    onehot_labels: TensorLike = None,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
) -> Any:
    """`tf.losses.softmax_cross_entropy` with logits first: `slim.losses.softmax_cross_entropy(logits, labels)`."""
    with name_scope(scope, "softmax_cross_entropy_loss", [logits, onehot_labels, weights]) as scope:
        return collected_losses.softmax_cross_entropy(onehot_labels, logits, weights, label_smoothing, scope)


def sparse_softmax_cross_entropy(
    logits: TensorLike, labels: TensorLike, weights: TensorLike = 1.0, scope: str | None = None
) -> Any:
    """`tf.losses.sparse_softmax_cross_entropy` with logits first."""
    with name_scope(scope, "sparse_softmax_cross_entropy_loss", [logits, labels, weights]) as scope:
        return collected_losses.sparse_softmax_cross_entropy(labels, logits, weights, scope)


def log_loss(
    predictions: TensorLike,
    labels: TensorLike = None,
    weights: TensorLike = 1.0,
    epsilon: float = 1e-7,
    scope: str | None = None,
) -> Any:
    """`tf.losses.log_loss` with predictions first."""
    return collected_losses.log_loss(labels, predictions, weights, epsilon, scope)


def hinge_loss(logits: TensorLike, labels: TensorLike = None, scope: str | None = None) -> Any:
    """max(0, 1 - y * logits) of each element, with y = 1 or -1 for labels 1 and 0; not reduced, not collected."""
    with name_scope(scope, "hinge_loss", [logits, labels]):
        logits = convert_to_tensor(logits)
        doubled = arithmetic.multiply(2.0, casting.cast(labels, logits.dtype.base_dtype))
        signs = arithmetic.subtract(doubled, creation.ones_like(doubled))
        return activation.relu(arithmetic.subtract(creation.ones_like(signs), arithmetic.multiply(signs, logits)))


def mean_squared_error(
    predictions: TensorLike, labels: TensorLike = None, weights: TensorLike = 1.0, scope: str | None = None
) -> Any:
    """`tf.losses.mean_squared_error` with predictions first."""
    return collected_losses.mean_squared_error(labels, predictions, weights, scope)


def mean_pairwise_squared_error(
    predictions: TensorLike, labels: TensorLike = None, weights: TensorLike = 1.0, scope: str | None = None
) -> Any:
    """`tf.losses.mean_pairwise_squared_error` with predictions first."""
    return collected_losses.mean_pairwise_squared_error(labels, predictions, weights, scope)


def cosine_distance(
    predictions: TensorLike,
    labels: TensorLike = None,
    axis: int | None = None,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    dim: int | None = None,
) -> Any:
    """`tf.losses.cosine_distance` with predictions first."""
    at = dim if axis is None else axis
    return collected_losses.cosine_distance(labels, predictions, axis=at, weights=weights, scope=scope)
