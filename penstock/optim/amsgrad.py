"""AMSGrad: Adam whose second moment never shrinks (Reddi et al., "On the Convergence of Adam and Beyond", 2018)."""

from __future__ import annotations

from typing import Any

from penstock.graph.operation import Tensor
from penstock.graph.typing import TensorLike
from penstock.ops.state.training import apply_adam_with_amsgrad
from penstock.optim.adam import AdamOptimizer
from penstock.optim.dense_rows import DenseRows


class AMSGradOptimizer(DenseRows, AdamOptimizer):
    """Adam that divides by the root of `vhat`, the largest second moment so far: `vhat = max(vhat, v)`.

    Rare large gradients thus keep their influence. The bias correction of Adam stays, as in TensorFlow's op; the paper
    has none.

    >>> train = tf.contrib.opt.AMSGradOptimizer(1e-3).minimize(loss)
    """

    def __init__(
        self,
        learning_rate: TensorLike = 0.001,
        beta1: TensorLike = 0.9,
        beta2: TensorLike = 0.999,
        epsilon: TensorLike = 1e-8,
        use_locking: bool = False,
        name: str = "AMSGrad",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)

    def _create_slots(self, var_list: list[Any]) -> None:
        super()._create_slots(var_list)
        for var in var_list:
            self._zeros_slot(var, "vhat", self._name)

    def _state(self, var: Any) -> list[Any]:
        return [var, *(self.get_slot(var, name) for name in ("m", "v", "vhat"))]

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        settings = self._settings(var.dtype.base_dtype)
        return apply_adam_with_amsgrad.ref(*self._state(var), *settings, grad, use_locking=self._use_locking)

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        handles = [v.handle for v in self._state(handle)]
        settings = self._settings(grad.dtype.base_dtype)
        return apply_adam_with_amsgrad.resource(*handles, *settings, grad, use_locking=self._use_locking)
