"""Nadam: Adam with Nesterov's momentum (Dozat, "Incorporating Nesterov Momentum into Adam", 2015)."""

from __future__ import annotations

from typing import Any

from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.ops.array.creation import ones_like, zeros_like
from penstock.ops.array.selection import where
from penstock.ops.control.grouping import group
from penstock.ops.math.compare import greater
from penstock.ops.math.unary import sqrt
from penstock.ops.state.training import apply_adam
from penstock.optim.adam import AdamOptimizer
from penstock.optim.dense_rows import dense_rows
from penstock.optim.optimizer import op_of
from penstock.variables import updates


class NadamOptimizer(AdamOptimizer):
    """Adam that moves by `(1 - beta1) * g + beta1 * m`, the momentum that the next step would start with.

    As in TensorFlow, one bias correction, `sqrt(1 - beta2 ** t) / (1 - beta1 ** t)`, serves both terms; the paper
    corrects `m` by one step more. With a sparse gradient all moments decay, and only rows that have a gradient move.

    >>> train = tf.contrib.opt.NadamOptimizer(1e-3).minimize(loss)
    """

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        settings = self._settings(var.dtype.base_dtype)
        return apply_adam.ref(var, m, v, *settings, grad, use_locking=self._use_locking, use_nesterov=True)

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        handles = (v.handle for v in (handle, self.get_slot(handle, "m"), self.get_slot(handle, "v")))
        settings = self._settings(grad.dtype.base_dtype)
        return apply_adam.resource(*handles, *settings, grad, use_locking=self._use_locking, use_nesterov=True)

    def _apply_sparse_duplicate_indices(self, grad: IndexedSlices, var: Any) -> Any:
        return self._move_rows(grad.values, var, grad.indices)

    def _resource_apply_sparse_duplicate_indices(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        return self._move_rows(grad, handle, indices)

    def _move_rows(self, values: Any, var: Any, indices: Tensor) -> Any:
        beta1_power, beta2_power, rate, beta1, beta2, epsilon = self._settings(var.dtype.base_dtype)
        grad: Any = dense_rows(values, indices, var)
        m = self._moved(var, "m", beta1, grad)
        v = self._moved(var, "v", beta2, grad * grad)
        ahead = grad * (1 - beta1) + beta1 * m
        step = rate * sqrt(1 - beta2_power) / (1 - beta1_power) * ahead / (sqrt(v) + epsilon)
        used = greater(dense_rows(ones_like(indices), indices, var), 0)
        rows: Any = where(used, step, zeros_like(step))
        moved = updates.assign_sub(var, rows, use_locking=self._use_locking)
        return group(op_of(moved), op_of(m), op_of(v))
