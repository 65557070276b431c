"""Adam: steps scaled by running estimates of the gradient's first and second moments (arXiv:1412.6980)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.graph import get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, control_dependencies
from penstock.graph.typing import TensorLike
from penstock.ops.control.grouping import group
from penstock.ops.math.casting import cast
from penstock.ops.math.unary import sqrt
from penstock.ops.state.scatter import SCATTER
from penstock.ops.state.training import apply_adam
from penstock.optim.optimizer import Optimizer, as_type, op_of
from penstock.variables import updates


class AdamOptimizer(Optimizer):
    """Adam; `epsilon` is added to the root of the uncorrected second moment ("epsilon hat" in the paper).

    >>> train = tf.train.AdamOptimizer(1e-3).minimize(loss)
    """

    def __init__(
        self,
        learning_rate: TensorLike = 0.001,
        beta1: TensorLike = 0.9,
        beta2: TensorLike = 0.999,
        epsilon: TensorLike = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(use_locking, name)
        self._lr, self._beta1, self._beta2, self._epsilon = learning_rate, beta1, beta2, epsilon
        self._lr_t: Any = None
        self._beta1_t: Any = None
        self._beta2_t: Any = None
        self._epsilon_t: Any = None

    def _get_beta_accumulators(self) -> tuple[Any, Any]:
        graph = get_default_graph()
        return self._get_non_slot_variable("beta1_power", graph), self._get_non_slot_variable("beta2_power", graph)

    def _create_slots(self, var_list: list[Any]) -> None:
        # All variables share the powers of beta. They are placed with the variable that is first by name, not by order.
        first = min(var_list, key=lambda v: str(v.name))
        self._create_non_slot_variable(self._call_if_callable(self._beta1), "beta1_power", first)
        self._create_non_slot_variable(self._call_if_callable(self._beta2), "beta2_power", first)
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
            self._zeros_slot(var, "v", self._name)

    def _prepare(self) -> None:
        self._lr_t = convert_to_tensor(self._call_if_callable(self._lr), name="learning_rate")
        self._beta1_t = convert_to_tensor(self._call_if_callable(self._beta1), name="beta1")
        self._beta2_t = convert_to_tensor(self._call_if_callable(self._beta2), name="beta2")
        self._epsilon_t = convert_to_tensor(self._call_if_callable(self._epsilon), name="epsilon")

    def _settings(self, dtype: DType) -> tuple[Any, ...]:
        """Powers of beta, learning rate, betas and epsilon in the type of a variable."""
        powers = self._get_beta_accumulators()
        return (
            *(as_type(power, dtype) for power in powers),
            *(cast(t, dtype) for t in (self._lr_t, self._beta1_t, self._beta2_t, self._epsilon_t)),
        )

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        return apply_adam.ref(var, m, v, *self._settings(var.dtype.base_dtype), grad, use_locking=self._use_locking)

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        m, v = self.get_slot(handle, "m"), self.get_slot(handle, "v")
        return apply_adam.resource(
            handle.handle,
            m.handle,
            v.handle,
            *self._settings(grad.dtype.base_dtype),
            grad,
            use_locking=self._use_locking,
        )

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        def add(slot: Any, indices: Any, rows: Any) -> Any:
            return updates.scatter_add(slot, indices, rows, use_locking=self._use_locking)

        return self._apply_sparse_shared(grad.values, var, grad.indices, add)

    def _resource_apply_sparse(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        def add(slot: Any, indices: Any, rows: Any) -> Any:
            with control_dependencies([SCATTER["Add"][1](slot.handle, indices, rows)]):
                return slot.value()

        return self._apply_sparse_shared(grad, handle, indices, add)

    def _apply_sparse_shared(self, grad: Any, var: Any, indices: Tensor, scatter_add: Callable[..., Any]) -> Any:
        """Decays and moves all rows, even those without a gradient, as the dense rule does."""
        beta1_power, beta2_power, rate, beta1, beta2, epsilon = self._settings(var.dtype.base_dtype)
        rate = rate * sqrt(1 - beta2_power) / (1 - beta1_power)
        m = self._decayed(var, "m", beta1, grad * (1 - beta1), indices, scatter_add)
        v = self._decayed(var, "v", beta2, (grad * grad) * (1 - beta2), indices, scatter_add)
        root = sqrt(v)
        moved = updates.assign_sub(var, rate * m / (root + epsilon), use_locking=self._use_locking)
        return group(op_of(moved), m, v)

    def _decayed(self, var: Any, name: str, beta: Any, rows: Any, indices: Any, scatter_add: Callable[..., Any]) -> Any:
        slot = self.get_slot(var, name)
        decayed = updates.assign(slot, slot * beta, use_locking=self._use_locking)
        with control_dependencies([op_of(decayed)]):
            return scatter_add(slot, indices, rows)

    def _moved(self, var: Any, slot_name: str, beta: Any, towards: Any) -> Any:
        """A slot after a step of its running mean, for rules that need its value."""
        slot = self.get_slot(var, slot_name)
        return updates.assign(slot, slot * beta + towards * (1 - beta), use_locking=self._use_locking)

    def _finish(self, update_ops: list[Any], name_scope: str) -> Operation:
        ops = [op_of(update) for update in update_ops]
        with control_dependencies(ops):
            powers = self._get_beta_accumulators()
            with colocate_with(powers[0]):
                for power, beta in zip(powers, (self._beta1_t, self._beta2_t), strict=True):
                    ops.append(op_of(power.assign(power * beta, use_locking=self._use_locking)))
        return group(*ops, name=name_scope)
