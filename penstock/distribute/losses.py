"""Losses of examples as that of a batch which several replicas share."""

from __future__ import annotations

from typing import Any

from penstock.distribute.context import get_strategy, has_strategy, in_cross_replica_context
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.ops.array.reshaping import expand_dims
from penstock.ops.array.reshaping import shape as shape_of
from penstock.ops.math.casting import cast
from penstock.ops.math.reduce import reduce_sum


def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None) -> Tensor:
    """The sum of the examples' losses over the size of the batch of all replicas, which it is a part of.

    >>> tf.nn.compute_average_loss(tf.constant([1.0, 3.0]))
    <tf.Tensor: shape=(), dtype=float32, numpy=2.0>
    """
    losses: Any = convert_to_tensor(per_example_loss)
    if losses.shape.rank == 0:
        raise ValueError("Invalid value passed for `per_example_loss`. Expected a tensor with at least rank 1.")
    if sample_weight is not None:
        weights: Any = convert_to_tensor(sample_weight, dtype=losses.dtype)
        while weights.shape.rank and losses.shape.rank and weights.shape.rank < losses.shape.rank:
            weights = expand_dims(weights, -1)
        losses = losses * weights
    if global_batch_size is None:
        _require_replica("compute_average_loss")
        dims: Any = shape_of(losses)
        global_batch_size = get_strategy().num_replicas_in_sync * dims[0]
    else:
        size = convert_to_tensor(global_batch_size)
        if size.shape.rank != 0:
            raise ValueError(f"global_batch_size must be scalar, received shape {size.shape}.")
        if not size.dtype.is_integer:
            raise TypeError(f"global_batch_size must be an int, received {global_batch_size!r}.")
        if isinstance(global_batch_size, int) and global_batch_size < 0:
            raise ValueError("global_batch_size must be non-negative.")
    total: Any = reduce_sum(losses)
    average: Tensor = total / cast(global_batch_size, total.dtype)
    return average


def scale_regularization_loss(regularization_loss: Any) -> Tensor:
    """The sum of losses over the number of replicas, each of which adds it once."""
    _require_replica("scale_regularization_loss")
    total: Any = reduce_sum(regularization_loss)
    scaled: Tensor = total / cast(get_strategy().num_replicas_in_sync, total.dtype)
    return scaled


def _require_replica(name: str) -> None:
    if has_strategy() and in_cross_replica_context():
        raise RuntimeError(
            f"You are calling `{name}` in cross replica context, while it was expected to be called in replica context."
        )
