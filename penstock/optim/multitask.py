"""Optimizers for losses of several tasks: a task that a batch has no examples of leaves no trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation
from penstock.graph.typing import TensorLike
from penstock.ops.control.flow import cond
from penstock.ops.control.grouping import group, no_op
from penstock.ops.math.clip import clip_by_global_norm, global_norm
from penstock.ops.math.compare import equal
from penstock.ops.math.reduce import count_nonzero
from penstock.optim.optimizer import Optimizer, op_of


class MultitaskOptimizerWrapper:
    """Has `opt` skip variables whose gradient is all zeros, slots included.

    A masked-out task has a gradient of zeros. Most rules take that for news: running means move towards zero, momentum
    goes on. Here it means that nothing is known, and the variable waits for the next batch with examples of its task.
    All else is that of `opt`.

    >>> rule = tf.contrib.opt.MultitaskOptimizerWrapper(tf.train.MomentumOptimizer(0.1, 0.9))
    >>> pairs, norm = tf.contrib.opt.clip_gradients_by_global_norm(rule.compute_gradients(loss), 15.0)
    >>> train = rule.apply_gradients(pairs, global_step=step)
    """

    def __init__(self, opt: Optimizer) -> None:
        if not isinstance(opt, Optimizer):
            raise TypeError(f"opt must be an instance of tf.train.Optimizer, received {opt!r}.")
        self._opt = opt
        update = opt._update

        def update_unless_zero(grad: Any, var: Any) -> Operation:
            values = grad.values if isinstance(grad, IndexedSlices) else grad
            return op_of(cond(equal(count_nonzero(values), 0), no_op, lambda: group(op_of(update(grad, var)))))

        opt._update = update_unless_zero  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opt, name)


def clip_gradients_by_global_norm(
    gradients_variables: Iterable[tuple[Any, Any]], clip_norm: TensorLike = 20.0
) -> tuple[list[tuple[Any, Any]], Any]:
    """Pairs with gradients scaled to a global norm of at most `clip_norm`, and the norm before.

    >>> pairs, norm = tf.contrib.opt.clip_gradients_by_global_norm(rule.compute_gradients(loss), 15.0)
    """
    pairs = list(gradients_variables)
    if not pairs:
        raise ValueError("gradients_variables must have at least one pair, received none.")
    gradients = [grad for grad, _ in pairs]
    norm = global_norm(gradients)  # gradients of zeros add nothing to it
    clipped, _ = clip_by_global_norm(gradients, clip_norm, use_norm=norm)
    return [(grad, var) for grad, (_, var) in zip(clipped, pairs, strict=True)], norm
