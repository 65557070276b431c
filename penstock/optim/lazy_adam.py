"""Lazy Adam: Adam that leaves rows without a gradient as they are, moments included."""

from __future__ import annotations

from typing import Any

from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.ops.state.training import lazy_adam
from penstock.optim.adam import AdamOptimizer


class LazyAdamOptimizer(AdamOptimizer):
    """Adam (arXiv:1412.6980) whose sparse steps touch only the rows that have a gradient.

    Plain Adam decays the moments of all rows in each step and moves them all, which costs time in proportion to the
    table. Here a row's moments wait until the row occurs again, so large embeddings train faster, along a slightly
    different path. Dense gradients are applied as by Adam.

    >>> train = tf.contrib.opt.LazyAdamOptimizer(1e-3).minimize(loss)
    """

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        settings = self._settings(var.dtype.base_dtype)
        return lazy_adam.sparse.ref(var, m, v, *settings, grad.values, grad.indices, use_locking=self._use_locking)

    def _resource_apply_sparse(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        state = (handle, self.get_slot(handle, "m"), self.get_slot(handle, "v"))
        settings = self._settings(grad.dtype.base_dtype)
        return lazy_adam.sparse.resource(
            *(v.handle for v in state), *settings, grad, indices, use_locking=self._use_locking
        )
