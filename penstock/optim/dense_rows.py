"""Sparse gradients as dense ones, for rules in which rows without a gradient change too."""

from __future__ import annotations

from typing import Any

from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.ops.array import reshaping
from penstock.ops.math.segments import unsorted_segment_sum
from penstock.optim.optimizer import Optimizer


def dense_rows(values: Any, indices: Any, var: Any) -> Tensor:
    """A tensor of the shape of `var`: the sums of the rows of each index, and zeros elsewhere.

    It takes no list of distinct indices, so its size is the same in each step.
    """
    rows = var.get_shape()[0].value
    return unsorted_segment_sum(values, indices, reshaping.shape(var)[0] if rows is None else rows)  # type: ignore[index]


class DenseRows(Optimizer):
    """Base class of rules that treat a sparse gradient as the dense one that it stands for."""

    def _apply_sparse_duplicate_indices(self, grad: IndexedSlices, var: Any) -> Any:
        return self._apply_dense(dense_rows(grad.values, grad.indices, var), var)

    def _resource_apply_sparse_duplicate_indices(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        return self._resource_apply_dense(dense_rows(grad, indices, handle), handle)
