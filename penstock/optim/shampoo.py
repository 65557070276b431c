"""Shampoo: a preconditioner for each dimension of a variable (Gupta et al., arXiv:1802.09568)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.graph.typing import TensorLike
from penstock.ops.array.arranging import transpose
from penstock.ops.array.creation import zeros
from penstock.ops.array.gathering import gather
from penstock.ops.control.flow import cond
from penstock.ops.linalg.diag import eye
from penstock.ops.linalg.matmul import tensordot
from penstock.ops.math.arithmetic import floormod, pow
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import less
from penstock.ops.math.reduce import reduce_sum
from penstock.optim.dense_rows import dense_rows
from penstock.optim.matrix_power import power_by_eigenvalues, power_by_iteration
from penstock.optim.optimizer import Optimizer
from penstock.variables import updates

Setting = float | Callable[[Any], Any]


class ShampooOptimizer(Optimizer):
    """Adagrad with a matrix per dimension: `var -= rate * (product over j of Gbar_j ** (-alpha / rank)) gbar`.

    `gbar = gbar_decay * gbar + gbar_weight * g` is the gradient or its running mean. `Gbar_j = mat_gbar_decay * Gbar_j
    + mat_gbar_weight * G`, where G is the product of g with itself over all dimensions but j. The power is taken of
    `Gbar_j / size + epsilon * I`, and along dimensions longer than `max_matrix_size` of the diagonal alone. Each of
    these settings may be a function of the step, a tensor that starts at 1.

    `global_step` is needed for intervals: preconditioners are updated every `precond_update_interval` steps, and their
    powers computed every `svd_interval` steps, by eigenvalues or with `use_iterative_root` by Newton's method.

    >>> train = tf.contrib.opt.ShampooOptimizer(step, learning_rate=0.1, svd_interval=20).minimize(loss, step)
    """

    def __init__(
        self,
        global_step: TensorLike = 0,
        max_matrix_size: int = 768,
        gbar_decay: Setting = 0.0,
        gbar_weight: Setting = 1.0,
        mat_gbar_decay: Setting = 1.0,
        mat_gbar_weight: Setting = 1.0,
        learning_rate: Setting = 1.0,
        svd_interval: Setting = 1,
        precond_update_interval: Setting = 1,
        epsilon: float = 1e-4,
        alpha: float = 0.5,
        use_iterative_root: bool = False,
        use_locking: bool = False,
        name: str = "Shampoo",
    ) -> None:
        super().__init__(use_locking, name)
        intervals = {"svd_interval": svd_interval, "precond_update_interval": precond_update_interval}
        for setting, value in intervals.items():
            if not callable(value) and value < 1:
                raise ValueError(f"{setting} must be at least 1, received {value}.")
        self._global_step = global_step
        self._max_matrix_size = max_matrix_size
        self._values: dict[str, Setting] = {
            "gbar_decay": gbar_decay,
            "gbar_weight": gbar_weight,
            "mat_gbar_decay": mat_gbar_decay,
            "mat_gbar_weight": mat_gbar_weight,
            "learning_rate": learning_rate,
            **intervals,
        }
        self._epsilon, self._alpha = epsilon, alpha
        self._power = power_by_iteration if use_iterative_root else power_by_eigenvalues
        self._step: Any = None

    def _prepare(self) -> None:
        self._step = cast(self._global_step, dt.float32) + 1.0

    def _now(self, setting: str, dtype: Any) -> Any:
        """The value of a setting in this step."""
        value = self._values[setting]
        return cast(value(self._step), dtype) if callable(value) else value

    def _create_slots(self, var_list: list[Any]) -> None:
        for var in var_list:
            dtype = var.dtype.base_dtype
            self._zeros_slot(var, "gbar", self._name)
            for i, size in enumerate(var.get_shape().as_list()):
                if size > self._max_matrix_size:
                    self._get_or_make_slot(var, zeros([size], dtype), f"Gbar_{i}", self._name)
                    continue
                if self._values["svd_interval"] != 1:
                    self._get_or_make_slot(var, eye(size, dtype=dtype), f"H_{i}", self._name)
                self._get_or_make_slot(var, zeros([size, size], dtype), f"Gbar_{i}", self._name)

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        return self._apply(grad, var, None)

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        return self._apply(grad, handle, None)

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        return self._apply_rows(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        return self._apply_rows(grad, handle, indices)

    def _apply_rows(self, grad: Any, var: Any, indices: Tensor) -> Any:
        rows_alone = var.get_shape()[0].value > self._max_matrix_size
        if rows_alone and self._values["gbar_decay"] == 0.0 and self._values["mat_gbar_decay"] == 1.0:
            return self._apply(grad, var, indices)
        return self._apply(dense_rows(grad, indices, var), var, None)

    def _apply(self, grad: Any, var: Any, indices: Tensor | None) -> Any:
        dtype, sizes = var.dtype.base_dtype, var.get_shape().as_list()
        step = self._mean(self.get_slot(var, "gbar"), "gbar_decay", self._now("gbar_weight", dtype) * grad, dtype)
        for i, size in enumerate(sizes):
            others = [j for j in range(len(sizes)) if j != i]
            if size <= self._max_matrix_size:
                # Each product takes the first dimension off and puts it last: after all of them the order is as before.
                step = tensordot(step, self._preconditioner(var, i, size, grad, others), [[0], [0]])
            else:
                diagonal = self._diagonal(var, i, reduce_sum(grad * grad, others), indices if i == 0 else None)
                turned: Any = transpose(step, [*range(1, len(sizes)), 0])
                step = turned * pow(diagonal + self._epsilon, -self._alpha / len(sizes))
        step = self._now("learning_rate", dtype) * step
        if indices is not None:
            return updates.scatter_sub(var, indices, step, use_locking=self._use_locking)
        return updates.assign_sub(var, step, use_locking=self._use_locking)

    def _mean(self, slot: Any, decay: str, added: Any, dtype: Any) -> Any:
        """A slot after `slot = decay * slot + added`. A slot that forgets at once is never read, so it stays zero."""
        if self._values[decay] == 0.0:
            return added
        if self._values[decay] == 1.0:
            return updates.assign_add(slot, added, use_locking=self._use_locking)
        return updates.assign(slot, self._now(decay, dtype) * slot + added, use_locking=self._use_locking)

    def _preconditioner(self, var: Any, i: int, size: int, grad: Any, others: list[int]) -> Any:
        dtype, gbar = var.dtype.base_dtype, self.get_slot(var, f"Gbar_{i}")

        def update() -> Any:
            weight = self._now("mat_gbar_weight", dtype) * self._now("precond_update_interval", dtype)
            return self._mean(gbar, "mat_gbar_decay", weight * tensordot(grad, grad, [others, others]), dtype) + 0.0

        def power() -> Any:
            return self._power(updated / size, self._epsilon, -self._alpha / (len(others) + 1))

        def stored_power() -> Any:
            return updates.assign(self.get_slot(var, f"H_{i}"), power(), use_locking=self._use_locking) + 0.0

        updated = self._every("precond_update_interval", update, lambda: gbar.read_value())
        if self._values["svd_interval"] == 1:
            return power()
        return self._every("svd_interval", stored_power, lambda: self.get_slot(var, f"H_{i}").read_value())

    def _every(self, interval: str, do: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        if self._values[interval] == 1:
            return do()
        return cond(less(floormod(self._step, cast(self._now(interval, dt.float32), dt.float32)), 1.0), do, otherwise)

    def _diagonal(self, var: Any, i: int, squares: Any, indices: Tensor | None) -> Any:
        gbar, dtype = self.get_slot(var, f"Gbar_{i}"), var.dtype.base_dtype
        added = self._now("mat_gbar_weight", dtype) * squares
        if indices is None:
            return self._mean(gbar, "mat_gbar_decay", added, dtype)
        return gather(updates.scatter_add(gbar, indices, added, use_locking=self._use_locking), indices)
