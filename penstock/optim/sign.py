"""AddSign and PowerSign: rules found by search (Bello et al., "Neural Optimizer Search", arXiv:1709.07417).

Both look at the agreement of a gradient `g` with its running mean `m = beta * m + (1 - beta) * g`: `sign(g) * sign(m)`
is 1 where the direction persists and -1 where it turned. A decay, a function of the global step, may fade it out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from penstock.graph.operation import Operation, Tensor
from penstock.graph.typing import TensorLike
from penstock.ops.state import training
from penstock.ops.state.update_forms import Update
from penstock.optim.dense_rows import DenseRows
from penstock.optim.rule import RuleOptimizer
from penstock.optim.sign_decay import SignDecay


class _SignOptimizer(DenseRows, RuleOptimizer):
    """The part that both rules share. Where the gradient is zero a step is zero, so rows without one stay."""

    _update_op: Update
    _slot_inputs = {"m": "m"}

    def __init__(
        self, use_locking: bool, name: str, settings: dict[str, tuple[Any, str]], sign_decay_fn: SignDecay | None
    ) -> None:
        super().__init__(use_locking, name, {**settings, "sign_decay": (1.0, "sign_decay")})
        self._sign_decay_fn = sign_decay_fn

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        if self._sign_decay_fn is not None:
            self._settings["sign_decay"] = (self._sign_decay_fn(global_step), "sign_decay")
        return super().apply_gradients(grads_and_vars, global_step, name)

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            self._zeros_slot(var, "m", self._name)

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        return self._add(self._update_op.ref, var, grad)

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        return self._add(self._update_op.resource, handle, grad)


class AddSignOptimizer(_SignOptimizer):
    """`var -= learning_rate * (alpha + decay * sign(g) * sign(m)) * g`.

    `sign_decay_fn` gets the global step, which then must be passed to `minimize`.

    >>> decay = tf.contrib.opt.get_cosine_decay_fn(1000)
    >>> train = tf.contrib.opt.AddSignOptimizer(0.1, sign_decay_fn=decay).minimize(loss, global_step=step)
    """

    _update_op = training.apply_add_sign

    def __init__(
        self,
        learning_rate: TensorLike = 0.1,
        alpha: TensorLike = 1.0,
        beta: TensorLike = 0.9,
        sign_decay_fn: SignDecay | None = None,
        use_locking: bool = False,
        name: str = "AddSignOptimizer",
    ) -> None:
        settings = {"lr": (learning_rate, "learning_rate"), "alpha": (alpha, "alpha"), "beta": (beta, "beta")}
        super().__init__(use_locking, name, settings, sign_decay_fn)


class PowerSignOptimizer(_SignOptimizer):
    """`var -= learning_rate * base ** (decay * sign(g) * sign(m)) * g`.

    `sign_decay_fn` gets the global step, which then must be passed to `minimize`.

    >>> decay = tf.contrib.opt.get_linear_decay_fn(1000)
    >>> train = tf.contrib.opt.PowerSignOptimizer(0.1, sign_decay_fn=decay).minimize(loss, global_step=step)
    """

    _update_op = training.apply_power_sign

    def __init__(
        self,
        learning_rate: TensorLike = 0.1,
        base: float = math.e,
        beta: TensorLike = 0.9,
        sign_decay_fn: SignDecay | None = None,
        use_locking: bool = False,
        name: str = "PowerSignOptimizer",
    ) -> None:
        if base <= 0:
            raise ValueError(f"base must be positive, received {base}.")
        settings = {
            "lr": (learning_rate, "learning_rate"),
            "logbase": (math.log(base), "logbase"),
            "beta": (beta, "beta"),
        }
        super().__init__(use_locking, name, settings, sign_decay_fn)
