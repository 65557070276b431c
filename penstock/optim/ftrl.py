"""FTRL-Proximal: follow the regularised leader, for sparse models (McMahan et al., 2013)."""

from __future__ import annotations

from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.typing import TensorLike
from penstock.ops.math.arithmetic import maximum
from penstock.ops.state import training
from penstock.optim.rule import RuleOptimizer, require_not_negative


class FtrlOptimizer(RuleOptimizer):
    """FTRL with L1 and L2 regularisation, and shrinkage-type L2.

    >>> train = tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01).minimize(loss)
    """

    _slot_inputs = {"accum": "accum", "linear": "linear"}

    def __init__(
        self,
        learning_rate: TensorLike,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float | None = None,
    ) -> None:
        require_not_negative(
            initial_accumulator_value=initial_accumulator_value,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            l2_shrinkage_regularization_strength=l2_shrinkage_regularization_strength,
        )
        if learning_rate_power > 0.0:
            raise ValueError(f"learning_rate_power {learning_rate_power} needs to be negative or zero")
        settings = {
            "lr": (learning_rate, "learning_rate"),
            "l1": (l1_regularization_strength, "l1_regularization_strength"),
            "l2": (l2_regularization_strength, "l2_regularization_strength"),
            "lr_power": (learning_rate_power, "learning_rate_power"),
        }
        self._rule = training.ftrl
        if l2_shrinkage_regularization_strength > 0:
            self._rule = training.ftrl_v2
            settings["l2_shrinkage"] = (l2_shrinkage_regularization_strength, "l2_shrinkage_regularization_strength")
        super().__init__(use_locking, name, settings)
        self._initial_accumulator_value = initial_accumulator_value
        self._accum_name = accum_name
        self._linear_name = linear_name
        self._beta = beta or 0.0

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            self._filled_slot(var, self._initial_accumulator_value, "accum", self._accum_name or self._name)
            self._zeros_slot(var, "linear", self._linear_name or self._name)

    def _prepare(self) -> None:
        super()._prepare()
        if self._beta:
            # Beta is added to the roots of all accumulators, which is the same as more L2.
            beta: Any = convert_to_tensor(self._beta, name="beta")
            self._tensors["l2"] = self._tensors["l2"] + beta / (2.0 * maximum(self._tensors["lr"], 1e-36))
