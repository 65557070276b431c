"""Momentum: `accum = momentum * accum + grad; var -= learning_rate * accum`."""

from __future__ import annotations

from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.tensor import IndexedSlices, Tensor
from penstock.ops.casting import cast
from penstock.ops.training import apply_momentum, sparse_apply_momentum
from penstock.optim.optimizer import Optimizer


class MomentumOptimizer(Optimizer):
    """Gradient descent with momentum; `use_nesterov` looks one step ahead.

    >>> train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._use_nesterov = use_nesterov
        self._learning_rate_tensor: Any = None
        self._momentum_tensor: Any = None

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            self._zeros_slot(var, "momentum", self._name)

    def _prepare(self) -> None:
        rate = self._call_if_callable(self._learning_rate)
        self._learning_rate_tensor = convert_to_tensor(rate, name="learning_rate")
        momentum = self._call_if_callable(self._momentum)
        self._momentum_tensor = convert_to_tensor(momentum, name="momentum")

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        return apply_momentum.ref(var, self.get_slot(var, "momentum"), *self._settings(var, grad), **self._flags())

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        accum = self.get_slot(handle, "momentum")
        return apply_momentum.resource(handle.handle, accum.handle, *self._settings(handle, grad), **self._flags())

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        accum = self.get_slot(var, "momentum")
        return sparse_apply_momentum.ref(
            var, accum, *self._settings(var, grad.values, grad.indices), **self._flags()
        )

    def _resource_apply_sparse(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        accum = self.get_slot(handle, "momentum")
        return sparse_apply_momentum.resource(
            handle.handle, accum.handle, *self._settings(handle, grad, indices), **self._flags()
        )

    def _settings(self, var: Any, *gradient: Tensor) -> tuple[Any, ...]:
        dtype = var.dtype.base_dtype
        return cast(self._learning_rate_tensor, dtype), *gradient, cast(self._momentum_tensor, dtype)

    def _flags(self) -> dict[str, Any]:
        return {"use_locking": self._use_locking, "use_nesterov": self._use_nesterov}
