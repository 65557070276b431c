"""LAMB: Adam with a step length per layer, for large batches (You et al., arXiv:1904.00962)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.graph.operation import Tensor
from penstock.graph.typing import TensorLike
from penstock.ops.control.grouping import group
from penstock.ops.linalg.norm import norm
from penstock.ops.math.unary import sqrt
from penstock.optim.adam import AdamOptimizer
from penstock.optim.dense_rows import DenseRows
from penstock.optim.lars import ratio_or_one
from penstock.optim.optimizer import op_of
from penstock.optim.rule import require_not_negative
from penstock.variables import updates


class LAMBOptimizer(DenseRows, AdamOptimizer):
    """Adam's direction with decayed weights, scaled so that a step is `learning_rate * |w|` long in each variable.

    With Adam's moments, corrected for their bias, `r = m / (sqrt(v) + epsilon) + weight_decay * w`, and
    `w -= learning_rate * |w| / |r| * r`; where a norm is zero, the factor is 1. Variables with a name that contains a
    string of `skip_list` (biases, scales of normalisation) take Adam's step without decay or factor.

    `GradientAccumulationOptimizer` makes a batch of several steps; with `worker_device` the sums stay on the worker:

    >>> rule = tf.contrib.opt.LAMBOptimizer(1e-3, weight_decay=0.01, skip_list=["bias", "LayerNorm"])
    >>> rule = tf.train.GradientAccumulationOptimizer(rule, steps=16, worker_device="/job:worker/task:0")
    >>> train = rule.minimize(loss, global_step=step)
    """

    def __init__(
        self,
        learning_rate: TensorLike = 0.001,
        weight_decay: float = 0.0,
        beta1: TensorLike = 0.9,
        beta2: TensorLike = 0.999,
        epsilon: TensorLike = 1e-6,
        skip_list: Sequence[str] | None = None,
        use_locking: bool = False,
        name: str = "LAMB",
    ) -> None:
        require_not_negative(weight_decay=weight_decay)
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._weight_decay = weight_decay
        self._skip_list = tuple(skip_list or ())

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        beta1_power, beta2_power, rate, beta1, beta2, epsilon = self._settings(var.dtype.base_dtype)
        m = self._moved(var, "m", beta1, grad)
        v = self._moved(var, "v", beta2, grad * grad)
        direction: Any = m / (1 - beta1_power) / (sqrt(v / (1 - beta2_power)) + epsilon)
        if not any(part in var.name for part in self._skip_list):
            direction = direction + self._weight_decay * var
            weights: Any = norm(var)
            length: Any = norm(direction)
            direction = direction * ratio_or_one(weights, length, weights / length)
        moved = updates.assign_sub(var, rate * direction, use_locking=self._use_locking)
        return group(op_of(moved), op_of(m), op_of(v))

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        return self._apply_dense(grad, handle)
