"""AdaMax: Adam with the infinity norm of past gradients as its scale (arXiv:1412.6980, section 7.1)."""

from __future__ import annotations

from typing import Any

from penstock.graph.operation import Operation
from penstock.graph.scopes import colocate_with, control_dependencies
from penstock.graph.typing import TensorLike
from penstock.ops.control.grouping import group
from penstock.ops.state import training
from penstock.optim.optimizer import as_type, op_of
from penstock.optim.rule import RuleOptimizer


class AdaMaxOptimizer(RuleOptimizer):
    """AdaMax: `m = beta1 * m + (1 - beta1) * g; v = max(beta2 * v, |g|); var -= rate / (1 - beta1 ** t) * m / v`.

    `epsilon` is added to `v`. Sparse gradients change only the rows that they have, moments included.

    >>> train = tf.contrib.opt.AdaMaxOptimizer(2e-3).minimize(loss)
    """

    _rule = training.ada_max
    _slot_inputs = {"m": "m", "v": "v"}

    def __init__(
        self,
        learning_rate: TensorLike = 0.001,
        beta1: TensorLike = 0.9,
        beta2: TensorLike = 0.999,
        epsilon: TensorLike = 1e-8,
        use_locking: bool = False,
        name: str = "AdaMax",
    ) -> None:
        settings = {
            "lr": (learning_rate, "learning_rate"),
            "beta1": (beta1, "beta1"),
            "beta2": (beta2, "beta2"),
            "epsilon": (epsilon, "epsilon"),
        }
        super().__init__(use_locking, name, settings)

    def _create_slots(self, var_list: list[Any]) -> None:
        first = min(var_list, key=lambda v: str(v.name))
        self._create_non_slot_variable(self._call_if_callable(self._settings["beta1"][0]), "beta1_power", first)
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
            self._zeros_slot(var, "v", self._name)

    def _inputs(self, var: Any) -> dict[str, Any]:
        power = as_type(self._get_non_slot_variable("beta1_power"), var.dtype.base_dtype)
        return {**super()._inputs(var), "beta1_power": power}

    def _finish(self, update_ops: list[Any], name_scope: str) -> Operation:
        ops = [op_of(update) for update in update_ops]
        power = self._get_non_slot_variable("beta1_power")
        with control_dependencies(ops), colocate_with(power):
            ops.append(op_of(power.assign(power * self._tensors["beta1"], use_locking=self._use_locking)))
        return group(*ops, name=name_scope)
