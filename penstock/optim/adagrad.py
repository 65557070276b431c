"""Adagrad: steps divided by the root of the sum of all squared gradients so far (Duchi et al., 2011)."""

from __future__ import annotations

from typing import Any

from penstock.graph.typing import TensorLike
from penstock.ops.state import training
from penstock.optim.rule import RuleOptimizer, require_positive


class AdagradOptimizer(RuleOptimizer):
    """Adagrad.

    >>> train = tf.train.AdagradOptimizer(0.1).minimize(loss)
    """

    _rule = training.adagrad
    _slot_inputs = {"accum": "accumulator"}

    def __init__(
        self,
        learning_rate: TensorLike,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        require_positive(initial_accumulator_value=initial_accumulator_value)
        super().__init__(use_locking, name, {"lr": (learning_rate, "learning_rate")})
        self._initial_accumulator_value = initial_accumulator_value

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            self._filled_slot(var, self._initial_accumulator_value, "accumulator", self._name)
