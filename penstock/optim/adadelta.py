"""Adadelta: Adagrad over a window, in units of the steps themselves (arXiv:1212.5701)."""

from __future__ import annotations

from typing import Any

from penstock.graph.typing import TensorLike
from penstock.ops.state import training
from penstock.optim.rule import RuleOptimizer


class AdadeltaOptimizer(RuleOptimizer):
    """Adadelta.

    >>> train = tf.train.AdadeltaOptimizer(1.0, rho=0.95).minimize(loss)
    """

    _rule = training.adadelta
    _slot_inputs = {"accum": "accum", "accum_update": "accum_update"}

    def __init__(
        self,
        learning_rate: TensorLike = 0.001,
        rho: TensorLike = 0.95,
        epsilon: TensorLike = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        settings = {"lr": (learning_rate, "lr"), "rho": (rho, "rho"), "epsilon": (epsilon, "epsilon")}
        super().__init__(use_locking, name, settings)

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            self._zeros_slot(var, "accum", self._name)
            self._zeros_slot(var, "accum_update", self._name)
