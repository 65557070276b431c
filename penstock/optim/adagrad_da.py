"""Adagrad dual averaging: the minimiser of all gradients so far, for sparse linear models (Duchi et al., 2011)."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.typing import TensorLike
from penstock.ops.math.casting import cast
from penstock.ops.state import training
from penstock.optim.rule import RuleOptimizer, require_positive


class AdagradDAOptimizer(RuleOptimizer):
    """Adagrad dual averaging; `global_step` counts the steps, from which the regularisation follows.

    >>> train = tf.train.AdagradDAOptimizer(0.1, global_step).minimize(loss, global_step=global_step)
    """

    _rule = training.adagrad_da
    _slot_inputs = {
        "gradient_accumulator": "gradient_accumulator",
        "gradient_squared_accumulator": "gradient_squared_accumulator",
    }

    def __init__(
        self,
        learning_rate: TensorLike,
        global_step: TensorLike,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        require_positive(initial_gradient_squared_accumulator_value=initial_gradient_squared_accumulator_value)
        settings = {
            "lr": (learning_rate, "learning_rate"),
            "l1": (l1_regularization_strength, "l1_regularization_strength"),
            "l2": (l2_regularization_strength, "l2_regularization_strength"),
        }
        super().__init__(use_locking, name, settings)
        self._initial_value = initial_gradient_squared_accumulator_value
        self._global_step = global_step
        self._next_step: Any = None

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            self._zeros_slot(var, "gradient_accumulator", self._name)
            self._filled_slot(var, self._initial_value, "gradient_squared_accumulator", self._name)

    def _prepare(self) -> None:
        super()._prepare()
        self._next_step = cast(self._global_step, dt.int64) + 1

    def _inputs(self, var: Any) -> dict[str, Any]:
        return {**super()._inputs(var), "global_step": self._next_step}
