"""Momentum: `accum = momentum * accum + grad; var -= learning_rate * accum`."""

from __future__ import annotations

from typing import Any

from penstock.graph.typing import TensorLike
from penstock.ops.state import training
from penstock.optim.rule import RuleOptimizer


class MomentumOptimizer(RuleOptimizer):
    """Gradient descent with momentum; `use_nesterov` looks one step ahead.

    >>> train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    """

    _rule = training.momentum
    _slot_inputs = {"accum": "momentum"}

    def __init__(
        self,
        learning_rate: TensorLike,
        momentum: TensorLike,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(
            use_locking, name, {"lr": (learning_rate, "learning_rate"), "momentum": (momentum, "momentum")}
        )
        self._use_nesterov = use_nesterov

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            self._zeros_slot(var, "momentum", self._name)

    def _attrs(self) -> dict[str, Any]:
        return {"use_nesterov": self._use_nesterov}
