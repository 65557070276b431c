"""Adam whose bias correction follows the global step instead of counters of its own."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.operation import Operation
from penstock.graph.typing import TensorLike
from penstock.ops.array.passthrough import identity
from penstock.ops.math.arithmetic import pow
from penstock.ops.math.casting import cast
from penstock.optim.adam import AdamOptimizer
from penstock.optim.lazy_adam import LazyAdamOptimizer
from penstock.optim.optimizer import Optimizer


class AdamGSOptimizer(AdamOptimizer):
    """Adam (arXiv:1412.6980) with the powers `beta1 ** t` and `beta2 ** t` of `t = global_step + 1`.

    It has no variables for these powers, which all workers of a cluster would otherwise change in each step.

    >>> train = tf.contrib.opt.AdamGSOptimizer(step, 1e-3).minimize(loss, global_step=step)
    """

    def __init__(
        self,
        global_step: TensorLike = 0,
        learning_rate: TensorLike = 0.001,
        beta1: TensorLike = 0.9,
        beta2: TensorLike = 0.999,
        epsilon: TensorLike = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._global_step = global_step
        self._powers: tuple[Any, Any] = (None, None)

    def _get_beta_accumulators(self) -> tuple[Any, Any]:
        return self._powers

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
            self._zeros_slot(var, "v", self._name)

    def _prepare(self) -> None:
        super()._prepare()
        count: Any = cast(identity(self._global_step), dt.float32) + 1.0
        self._powers = (pow(self._beta1_t, count), pow(self._beta2_t, count))

    def _finish(self, update_ops: list[Any], name_scope: str) -> Operation:
        return Optimizer._finish(self, update_ops, name_scope)


class LazyAdamGSOptimizer(AdamGSOptimizer, LazyAdamOptimizer):
    """AdamGSOptimizer whose sparse steps touch only the rows that have a gradient, as those of LazyAdamOptimizer.

    >>> train = tf.contrib.opt.LazyAdamGSOptimizer(step, 1e-3).minimize(loss, global_step=step)
    """
