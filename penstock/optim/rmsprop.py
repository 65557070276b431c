"""RMSProp: steps over the root of a running mean of squared gradients, with momentum (Tieleman and Hinton, 2012)."""

from __future__ import annotations

from typing import Any

from penstock.graph.typing import TensorLike
from penstock.ops.state import training
from penstock.optim.rule import RuleOptimizer
from penstock.variables.initializers import Ones


class RMSPropOptimizer(RuleOptimizer):
    """RMSProp; `centered` divides by an estimate of the gradient's variance instead of its second moment.

    >>> train = tf.train.RMSPropOptimizer(1e-3, decay=0.9, momentum=0.9).minimize(loss)
    """

    def __init__(
        self,
        learning_rate: TensorLike,
        decay: TensorLike = 0.9,
        momentum: TensorLike = 0.0,
        epsilon: TensorLike = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        settings = {
            "lr": (learning_rate, "learning_rate"),
            "rho": (decay, "decay"),
            "momentum": (momentum, "momentum"),
            "epsilon": (epsilon, "epsilon"),
        }
        super().__init__(use_locking, name, settings)
        self._centered = centered
        self._rule = training.centered_rms_prop if centered else training.rms_prop
        self._slot_inputs = {"ms": "rms", "mom": "momentum", **({"mg": "mg"} if centered else {})}  # type: ignore[misc]

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            shape, dtype = var.get_shape(), var.dtype.base_dtype
            if shape.is_fully_defined():
                self._get_or_make_slot_with_initializer(var, Ones(), shape, dtype, "rms", self._name)
            else:
                self._filled_slot(var, 1.0, "rms", self._name)
            if self._centered:
                self._zeros_slot(var, "mg", self._name)
            self._zeros_slot(var, "momentum", self._name)
