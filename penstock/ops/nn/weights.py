"""Weights of losses and metrics: checks that they fit the values, and broadcasting."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, joining, reshaping, slicing
from penstock.ops.control import grouping
from penstock.ops.debugging import assertion
from penstock.ops.math import arithmetic, casting, compare, reduce

_REFUSED = "Weights must be a scalar, or have the rank of the values and in each dimension their size or 1."


def assert_broadcastable(weights: Any, values: Any) -> Operation:
    """An operation that fails unless `weights` fit `values`.

    They fit if they are a scalar, or have the same rank and in each dimension the same size or 1. If static shapes
    do not fit, it raises ValueError at once.

    >>> with tf.control_dependencies([assert_broadcastable(weights, losses)]): weighted = losses * weights
    """
    with name_scope(None, "assert_broadcastable", [weights, values]) as scope:
        weights, weights_shape, weights_rank = _described(weights, "weights")
        values, values_shape, values_rank = _described(values, "values")
        if weights.shape.rank == 0 and values.shape.rank is not None:
            return grouping.no_op(name="static_scalar_check_success")
        if weights.shape.rank is not None and values.shape.rank is not None:
            if weights.shape.rank != values.shape.rank:
                raise ValueError(
                    f"{_REFUSED} Received {weights.label} of shape {weights.shape} "
                    f"for {values.label} of shape {values.shape}."
                )
            if weights.shape.is_fully_defined() and values.shape.is_fully_defined():
                sizes = zip(weights.shape.as_list(), values.shape.as_list(), strict=True)
                for i, (weight, value) in enumerate(sizes):
                    if weight not in (1, value):
                        raise ValueError(
                            f"{_REFUSED} Dimension {i} differs: received {weights.label} of shape {weights.shape} "
                            f"for {values.label} of shape {values.shape}."
                        )
                return grouping.no_op(name="static_dims_check_success")
        is_scalar = compare.equal(0, weights_rank, name="is_scalar")
        with name_scope("is_valid_shape"):
            # Compared up to the shorter length, so that shapes of different length cause no error.
            common = [arithmetic.minimum(weights_rank, values_rank)]
            ours, theirs = (slicing.slice(s, [0], common) for s in (weights_shape, values_shape))
            fits = reduce.reduce_all(compare.logical_or(compare.equal(ours, 1), compare.equal(ours, theirs)))
            nonscalar = compare.logical_and(compare.equal(weights_rank, values_rank), fits)
            valid = compare.logical_or(is_scalar, nonscalar)
        data = [
            _REFUSED,
            f"Received weights {weights.label} of shape",
            weights_shape,
            f"and values {values.label} of shape",
            values_shape,
        ]
        return assertion.Assert(valid, data, name=scope)


def _described(value: Any, what: str) -> tuple[Tensor, Tensor, Tensor]:
    with name_scope(None, what, [value]) as scope:
        tensor = convert_to_tensor(value, name=scope)
        return tensor, reshaping.shape(tensor, name="shape"), reshaping.rank(tensor, name="rank")


def broadcast_weights(weights: Any, values: Any) -> Tensor:
    """`weights` in the shape of `values`, as `assert_broadcastable` allows it.

    >>> mean = tf.reduce_sum(w * v) / tf.reduce_sum(broadcast_weights(w, v))
    """
    with name_scope(None, "broadcast_weights", [weights, values]) as scope:
        values = convert_to_tensor(values, name="values")
        weights = convert_to_tensor(weights, dtype=values.dtype.base_dtype, name="weights")
        known = weights.shape.is_fully_defined() and values.shape.is_fully_defined()
        if known and weights.shape.is_compatible_with(values.shape):
            same: Tensor = weights
            return same
        with control_dependencies([assert_broadcastable(weights, values)]):
            return arithmetic.multiply(weights, creation.ones_like(values), name=scope)


def _last_may_be_one(tensor: Tensor) -> bool:
    return not tensor.shape.rank or tensor.shape.as_list()[-1] in (None, 1)


def remove_squeezable_dimensions(
    labels: TensorLike, predictions: TensorLike, expected_rank_diff: int = 0, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Drops the last dimension, of size 1, from the argument whose rank is too large by one.

    `expected_rank_diff` is the expected rank of `predictions` minus that of `labels`.

    >>> labels, logits = remove_squeezable_dimensions(labels, logits, expected_rank_diff=1)
    """
    with name_scope(name, "remove_squeezable_dimensions", [labels, predictions]):
        labels, predictions = convert_to_tensor(labels), convert_to_tensor(predictions)
        more, fewer = expected_rank_diff + 1, expected_rank_diff - 1
        if labels.shape.rank is not None and predictions.shape.rank is not None:
            difference = predictions.shape.rank - labels.shape.rank
            if difference == more and _last_may_be_one(predictions):
                predictions = reshaping.squeeze(predictions, [-1])
            elif difference == fewer and _last_may_be_one(labels):
                labels = reshaping.squeeze(labels, [-1])
            return labels, predictions
        by = arithmetic.subtract(reshaping.rank(predictions), reshaping.rank(labels), name="sub")
        given = labels, predictions
        if _last_may_be_one(predictions) and predictions.shape.rank != 0:
            predictions = squeezed_if(compare.equal(more, by), given[1])
        if _last_may_be_one(labels) and labels.shape.rank != 0:
            labels = squeezed_if(compare.equal(fewer, by), given[0])
        return labels, predictions


def squeezed_if(condition: Tensor, tensor: Tensor) -> Tensor:
    """`tensor` without its last dimension, of size 1, if `condition` is true at run time."""
    with name_scope("cond"):
        kept = arithmetic.subtract(reshaping.rank(tensor), casting.cast(condition, dt.int32))
        # A reshape, since a squeeze in a branch would have to fit even if the branch is not taken.
        return reshaping.reshape(tensor, slicing.slice(reshaping.shape(tensor), [0], [kept]))


def expanded_if(condition: Tensor, tensor: Tensor) -> Tensor:
    """`tensor` with one more dimension, of size 1, if `condition` is true at run time."""
    with name_scope("cond"):
        ones = creation.fill([casting.cast(condition, dt.int32)], 1)
        return reshaping.reshape(tensor, joining.concat([reshaping.shape(tensor), ones], 0))
