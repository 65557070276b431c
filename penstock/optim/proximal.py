"""Proximal rules: a gradient step, then shrinkage by L1 and L2 regularisation (Duchi and Singer, 2009)."""

from __future__ import annotations

from typing import Any

from penstock.graph.typing import TensorLike
from penstock.ops.state import training
from penstock.optim.rule import RuleOptimizer, require_positive


def _settings(learning_rate: Any, l1: Any, l2: Any, rate_input: str) -> dict[str, tuple[Any, str]]:
    return {
        rate_input: (learning_rate, "learning_rate"),
        "l1": (l1, "l1_regularization_strength"),
        "l2": (l2, "l2_regularization_strength"),
    }


class ProximalGradientDescentOptimizer(RuleOptimizer):
    """Gradient descent with proximal L1 and L2 regularisation.

    >>> train = tf.train.ProximalGradientDescentOptimizer(0.1, l1_regularization_strength=0.01).minimize(loss)
    """

    _rule = training.proximal_gradient_descent

    def __init__(
        self,
        learning_rate: TensorLike,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        settings = _settings(learning_rate, l1_regularization_strength, l2_regularization_strength, "alpha")
        super().__init__(use_locking, name, settings)


class ProximalAdagradOptimizer(RuleOptimizer):
    """Adagrad with proximal L1 and L2 regularisation.

    >>> train = tf.train.ProximalAdagradOptimizer(0.1, l1_regularization_strength=0.01).minimize(loss)
    """

    _rule = training.proximal_adagrad
    _slot_inputs = {"accum": "accumulator"}

    def __init__(
        self,
        learning_rate: TensorLike,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        require_positive(initial_accumulator_value=initial_accumulator_value)
        settings = _settings(learning_rate, l1_regularization_strength, l2_regularization_strength, "lr")
        super().__init__(use_locking, name, settings)
        self._initial_accumulator_value = initial_accumulator_value

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            self._filled_slot(var, self._initial_accumulator_value, "accumulator", self._name)
