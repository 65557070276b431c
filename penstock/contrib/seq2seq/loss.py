"""sequence_loss: cross-entropy over the steps of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.indexing import get_item
from penstock.ops.array.reshaping import reshape, shape
from penstock.ops.math.arithmetic import div_no_nan, multiply
from penstock.ops.math.casting import cast
from penstock.ops.math.reduce import count_nonzero, reduce_sum
from penstock.ops.nn.cross_entropy import sparse_softmax_cross_entropy_with_logits
from penstock.rnn.base import size_at


def sequence_loss(
    logits: TensorLike,
    targets: TensorLike,
    weights: TensorLike,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    sum_over_timesteps: bool = False,
    sum_over_batch: bool = False,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """The cross-entropy of `logits` [batch, time, classes] and `targets` [batch, time], weighted, averaged or summed.

    >>> loss = tf.contrib.seq2seq.sequence_loss(logits, targets, tf.sequence_mask(lengths, dtype=tf.float32))
    """
    if average_across_timesteps and sum_over_timesteps:
        raise ValueError("average_across_timesteps and sum_over_timesteps cannot be set to True at same time.")
    if average_across_batch and sum_over_batch:
        raise ValueError("average_across_batch and sum_over_batch cannot be set to True at same time.")
    if (average_across_batch and sum_over_timesteps) or (sum_over_batch and average_across_timesteps):
        raise ValueError("one axis cannot be averaged while the other is summed: average both, or sum both.")
    with name_scope(name, "sequence_loss", [logits, targets, weights]):
        logits, targets, weights = (convert_to_tensor(t) for t in (logits, targets, weights))
        for what, tensor, rank, form in (
            ("Logits", logits, 3, "batch_size x sequence_length x logits"),
            ("Targets", targets, 2, "batch_size x sequence_length"),
            ("Weights", weights, 2, "batch_size x sequence_length"),
        ):
            if tensor.shape.rank not in (None, rank):
                raise ValueError(f"{what} must be a [{form}] tensor, received shape {tensor.shape}")
        flat = reshape(logits, [-1, size_at(logits, 2)])
        labels = reshape(targets, [-1])
        function = softmax_loss_function or sparse_softmax_cross_entropy_with_logits
        losses = multiply(function(labels=labels, logits=flat), reshape(weights, [-1]))
        over_time = average_across_timesteps or sum_over_timesteps
        over_batch = average_across_batch or sum_over_batch
        if not over_time and not over_batch:
            return reshape(losses, get_item(shape(logits), slice(0, 2)))
        axis = None if over_time and over_batch else [0] if over_batch else [1]
        if axis is not None:
            losses = reshape(losses, get_item(shape(logits), slice(0, 2)))
        total = reduce_sum(losses, axis=axis)
        if average_across_timesteps or average_across_batch:
            return div_no_nan(total, reduce_sum(weights, axis=axis))
        return div_no_nan(total, cast(count_nonzero(weights, axis=axis), total.dtype))
