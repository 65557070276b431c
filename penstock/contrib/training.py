"""create_train_op: combines gradients, updates and the check of the loss into one tensor to run."""

from __future__ import annotations

from typing import Any

from penstock.contrib.layers.optimizers import multiply_gradients
from penstock.contrib.layers.summaries import add_gradients_summaries
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import control_dependencies, get_collection, get_collection_ref, name_scope
from penstock.graph.typing import TensorLike
from penstock.logging import warning
from penstock.ops.array import passthrough
from penstock.ops.control import grouping
from penstock.ops.math.clip import clip_by_norm
from penstock.optim.optimizer import Optimizer
from penstock.variables.global_step import get_or_create_global_step
from penstock.variables.initialize import trainable_variables

_USE_GLOBAL_STEP = 0


def clip_gradient_norms(gradients_to_variables: Any, max_norm: float) -> list[Any]:
    """Clips each gradient by its own norm."""
    clipped = []
    for gradient, variable in gradients_to_variables:
        if isinstance(gradient, IndexedSlices):
            gradient = IndexedSlices(clip_by_norm(gradient.values, max_norm), gradient.indices, gradient.dense_shape)
        elif gradient is not None:
            gradient = clip_by_norm(gradient, max_norm)
        clipped.append((gradient, variable))
    return clipped


def clip_gradient_norms_fn(max_norm: float) -> Any:
    """A function for `transform_grads_fn` that clips each gradient by its own norm."""
    return lambda gradients_to_variables: clip_gradient_norms(gradients_to_variables, max_norm)


def create_train_op(
    total_loss: TensorLike,
    optimizer: Any,
    global_step: TensorLike = _USE_GLOBAL_STEP,
    update_ops: Any = None,
    variables_to_train: Any = None,
    transform_grads_fn: Any = None,
    summarize_gradients: bool = False,
    gate_gradients: int = Optimizer.GATE_OP,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    check_numerics: bool = True,
) -> Any:
    """A tensor that trains when it is run, and returns the loss; the updates in UPDATE_OPS run first.

    >>> train = tf.contrib.training.create_train_op(loss, tf.train.AdamOptimizer())
    """
    if global_step is _USE_GLOBAL_STEP:
        global_step = get_or_create_global_step()
    collected = get_collection(GraphKeys.UPDATE_OPS)
    updates = collected if update_ops is None else list(update_ops)
    if any(not any(each is update for update in updates) for each in collected):
        warning("update_ops in create_train_op does not contain all the update_ops in GraphKeys.UPDATE_OPS")
    if updates:
        with control_dependencies(updates):
            barrier = grouping.no_op(name="update_barrier")
        total_loss = grouping.with_dependencies([barrier], total_loss)
    variables = trainable_variables() if variables_to_train is None else list(variables_to_train)
    if not variables:
        raise ValueError("create_train_op: there are no variables to train.")
    gradients = optimizer.compute_gradients(
        total_loss,
        variables,
        gate_gradients=gate_gradients,
        aggregation_method=aggregation_method,
        colocate_gradients_with_ops=colocate_gradients_with_ops,
    )
    if transform_grads_fn:
        gradients = transform_grads_fn(gradients)
    if summarize_gradients:
        with name_scope("summarize_grads"):
            add_gradients_summaries(gradients)
    applied = optimizer.apply_gradients(gradients, global_step=global_step)
    with name_scope("train_op"):
        if check_numerics:
            total_loss = passthrough.check_numerics(total_loss, "LossTensor is inf or nan")
        train_op = grouping.with_dependencies([applied], total_loss)
    train_ops = get_collection_ref(GraphKeys.TRAIN_OP)
    if not any(train_op is each for each in train_ops):
        train_ops.append(train_op)
    return train_op


def slim_train_op(
    total_loss: TensorLike,
    optimizer: Any,
    global_step: TensorLike = _USE_GLOBAL_STEP,
    update_ops: Any = None,
    variables_to_train: Any = None,
    clip_gradient_norm: float = 0,
    summarize_gradients: bool = False,
    gate_gradients: int = Optimizer.GATE_OP,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    gradient_multipliers: Any = None,
    check_numerics: bool = True,
) -> Any:
    """`create_train_op` with clipping and multipliers of gradients.

    >>> train = slim.learning.create_train_op(loss, optimizer, clip_gradient_norm=4.0)
    """

    def transformed(gradients: Any) -> Any:
        if gradient_multipliers:
            gradients = multiply_gradients(gradients, gradient_multipliers)
        return clip_gradient_norms(gradients, clip_gradient_norm) if clip_gradient_norm > 0 else gradients

    return create_train_op(
        total_loss,
        optimizer,
        global_step,
        update_ops,
        variables_to_train,
        transformed,
        summarize_gradients,
        gate_gradients,
        aggregation_method,
        colocate_gradients_with_ops,
        check_numerics,
    )
