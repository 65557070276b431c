"""LARS: a learning rate per layer, for large batches (You et al., arXiv:1708.03888)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.graph.operation import Tensor
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import ones_like
from penstock.ops.array.selection import where
from penstock.ops.linalg.norm import norm
from penstock.ops.math.arithmetic import minimum
from penstock.ops.math.compare import greater
from penstock.optim.momentum import MomentumOptimizer
from penstock.optim.rule import require_not_negative


def ratio_or_one(numerator: Any, denominator: Any, ratio: Any) -> Any:
    """`ratio`, or 1 where one of two norms is zero: a layer that starts at zero must still be able to move."""
    return where(greater(minimum(numerator, denominator), 0.0), ratio, ones_like(ratio))


class LARSOptimizer(MomentumOptimizer):
    """Momentum, with a rate of its own for each variable: `m = momentum * m + rate * (g + weight_decay * w); w -= m`.

    The rate is `learning_rate * eeta * |w| / (|g| + weight_decay * |w| + epsilon)`. Layers whose gradients are large
    beside their weights take smaller steps, and others larger ones, so that batches of thousands of examples train as
    small ones do. Variables with a name that contains a string of `skip_list` (biases, scales of normalisation) take
    the plain rate without decay, as do sparse gradients; where a norm is zero, the rate is plain too.

    `GradientAccumulationOptimizer` makes a batch of several steps; with `worker_device` the sums stay on the worker:

    >>> rule = tf.contrib.opt.LARSOptimizer(0.1, skip_list=["bias", "batch_norm"])
    >>> rule = tf.train.GradientAccumulationOptimizer(rule, steps=16, worker_device="/job:worker/task:0")
    >>> train = rule.minimize(loss, global_step=step)
    """

    def __init__(
        self,
        learning_rate: TensorLike,
        momentum: float = 0.9,
        weight_decay: float = 0.0001,
        eeta: float = 0.001,
        epsilon: float = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Sequence[str] | None = None,
        use_nesterov: bool = False,
    ) -> None:
        require_not_negative(momentum=momentum, weight_decay=weight_decay)
        super().__init__(learning_rate, momentum, False, name, use_nesterov)
        self._weight_decay, self._eeta, self._epsilon = weight_decay, eeta, epsilon
        self._skip_list = tuple(skip_list or ())

    def compute_lr(self, grad: TensorLike, var: Any) -> tuple[Any, Any]:
        """The learning rate of a variable for a dense gradient, and the gradient with decay."""
        rate = self._inputs(var)["lr"]
        if any(part in var.name for part in self._skip_list):
            return rate, grad
        weights: Any = norm(var)
        slope: Any = norm(grad)
        scale = self._eeta * weights / (slope + self._weight_decay * weights + self._epsilon)
        return rate * ratio_or_one(weights, slope, scale), grad + self._weight_decay * var

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        return self._step(self._rule.dense.ref, grad, var)

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        return self._step(self._rule.dense.resource, grad, handle)

    def _step(self, op: Any, grad: Any, var: Any) -> Any:
        rate, slope = self.compute_lr(grad, var)
        return self._add(op, var, rate * slope, lr=ones_like(rate))
