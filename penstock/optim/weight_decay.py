"""Decoupled weight decay: weights shrink beside the step (Loshchilov and Hutter, arXiv:1711.05101).

A penalty in the loss goes through the rule: Adam divides it by the root of the second moment like any gradient. Decay
that is decoupled shrinks each weight by the same factor, whatever its gradients were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation
from penstock.graph.scopes import control_dependencies
from penstock.graph.typing import TensorLike
from penstock.ops.array.gathering import gather
from penstock.ops.array.selection import unique
from penstock.ops.math.casting import cast
from penstock.optim.adam import AdamOptimizer
from penstock.optim.momentum import MomentumOptimizer
from penstock.optim.optimizer import Optimizer, op_of


class DecoupledWeightDecayExtension(Optimizer):
    """Base class that adds decay to the optimizer class that follows it: `var -= weight_decay * var` before each step.

    It suits rules whose step does not depend on the variable's value. Of a variable with a sparse gradient only the
    rows that have one decay. A schedule for the learning rate does not change the decay, which may be a function too.

    >>> class AdagradWOptimizer(DecoupledWeightDecayExtension, tf.train.AdagradOptimizer): ...
    >>> train = AdagradWOptimizer(weight_decay=1e-4, learning_rate=0.1).minimize(loss, decay_var_list=[w])
    """

    def __init__(self, weight_decay: TensorLike, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._weight_decay = weight_decay
        self._weight_decay_tensor: Any = None
        self._decay_var_list: list[Any] | None = None

    def minimize(
        self,
        loss: TensorLike,
        global_step: TensorLike = None,
        var_list: Any = None,
        gate_gradients: int = Optimizer.GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: TensorLike = None,
        decay_var_list: Iterable[Any] | None = None,
    ) -> Operation:
        """`Optimizer.minimize` that decays `decay_var_list`, or all variables that it trains.

        >>> train = tf.contrib.opt.AdamWOptimizer(1e-4, 1e-3).minimize(loss, decay_var_list=kernels)
        """
        pairs = self.compute_gradients(
            loss, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
        )
        return self.apply_gradients(pairs, global_step, name, decay_var_list)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: TensorLike = None,
        name: str | None = None,
        decay_var_list: Iterable[Any] | None = None,
    ) -> Operation:
        """`Optimizer.apply_gradients` that decays `decay_var_list`, or all variables that have a gradient."""
        self._decay_var_list = None if decay_var_list is None else list(decay_var_list)
        return super().apply_gradients(grads_and_vars, global_step, name)

    def _prepare(self) -> None:
        super()._prepare()
        self._weight_decay_tensor = convert_to_tensor(self._call_if_callable(self._weight_decay), name="weight_decay")

    def _update(self, grad: Any, var: Any) -> Any:
        if self._decay_var_list is not None and not any(var is decayed for decayed in self._decay_var_list):
            return super()._update(grad, var)
        decay: Any = cast(self._weight_decay_tensor, var.dtype.base_dtype)
        if isinstance(grad, IndexedSlices):
            rows = unique(grad.indices)[0]
            shrunk: Any = decay * gather(var, rows)
            decayed = var.scatter_sub(IndexedSlices(shrunk, rows), use_locking=self._use_locking)
        else:
            decayed = var.assign_sub(decay * var, use_locking=self._use_locking)
        with control_dependencies([op_of(decayed)]):
            return super()._update(grad, var)


def extend_with_decoupled_weight_decay(base_optimizer: type[Any]) -> type[Any]:
    """A class of optimizers with the rule of `base_optimizer` and decoupled weight decay, its first argument.

    >>> RMSPropW = tf.contrib.opt.extend_with_decoupled_weight_decay(tf.train.RMSPropOptimizer)
    >>> train = RMSPropW(weight_decay=1e-4, learning_rate=1e-3).minimize(loss)
    """

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):  # type: ignore[misc]
        """The rule of another class, with decoupled weight decay."""

    return OptimizerWithDecoupledWeightDecay


class MomentumWOptimizer(DecoupledWeightDecayExtension, MomentumOptimizer):
    """Momentum with decoupled weight decay: SGDW of the paper, with its `learning_rate * decay` as `weight_decay`.

    >>> train = tf.contrib.opt.MomentumWOptimizer(1e-4, 0.1, 0.9).minimize(loss)
    """

    def __init__(
        self,
        weight_decay: TensorLike,
        learning_rate: TensorLike,
        momentum: TensorLike,
        use_locking: bool = False,
        name: str = "MomentumW",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(weight_decay, learning_rate, momentum, use_locking, name, use_nesterov)


class AdamWOptimizer(DecoupledWeightDecayExtension, AdamOptimizer):
    """Adam with decoupled weight decay: AdamW of the paper, with its `schedule * decay` as `weight_decay`.

    >>> train = tf.contrib.opt.AdamWOptimizer(1e-4, learning_rate=1e-3).minimize(loss)
    """

    def __init__(
        self,
        weight_decay: TensorLike,
        learning_rate: TensorLike = 0.001,
        beta1: TensorLike = 0.9,
        beta2: TensorLike = 0.999,
        epsilon: TensorLike = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(weight_decay, learning_rate, beta1, beta2, epsilon, use_locking, name)
