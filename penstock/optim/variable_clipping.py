"""VariableClippingOptimizer: keeps the norms of variables, or of their rows, below a limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation
from penstock.graph.scopes import colocate_with, control_dependencies, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.gathering import gather
from penstock.ops.array.selection import unique
from penstock.ops.control.grouping import group
from penstock.ops.math.clip import clip_by_norm
from penstock.optim.optimizer import Optimizer, op_of
from penstock.optim.wrapper import WrapperOptimizer


class VariableClippingOptimizer(WrapperOptimizer):
    """Makes a step by `opt`, then scales variables so that no norm along the given dimensions exceeds `max_norm`.

    `vars_to_clip_dims` maps variables to lists of dimensions (max-norm constraints, Srebro and Shraibman, 2005). It is
    not gradient clipping: the variables themselves are scaled. After a sparse gradient only rows that it has are.

    >>> rule = tf.train.AdagradOptimizer(0.1)
    >>> rule = tf.contrib.opt.VariableClippingOptimizer(rule, {embedding: [1]}, max_norm=1.0)
    >>> train = rule.minimize(loss)
    """

    def __init__(
        self,
        opt: Optimizer,
        vars_to_clip_dims: Mapping[Any, list[int]],
        max_norm: TensorLike,
        use_locking: bool = False,
        colocate_clip_ops_with_vars: bool = False,
        name: str = "VariableClipping",
    ) -> None:
        super().__init__(opt, use_locking, name)
        self._vars_to_clip_dims = {var: list(dims) for var, dims in vars_to_clip_dims.items()}
        self._max_norm = max_norm
        self._colocate = colocate_clip_ops_with_vars

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        pairs = list(grads_and_vars)
        with name_scope(name, self._name) as scope:
            updated = self._opt.apply_gradients(pairs, global_step=global_step)
            clipped = []
            with control_dependencies([updated]):
                for grad, var in pairs:
                    if grad is not None and var in self._vars_to_clip_dims:
                        with name_scope("clip_" + var.op.name):
                            clipped.append(op_of(self._clip(grad, var)))
            return group(updated, *clipped, name=scope)

    def _clip(self, grad: Any, var: Any) -> Any:
        dims = self._vars_to_clip_dims[var]
        place = colocate_with(var) if self._colocate else nullcontext()
        if not isinstance(grad, IndexedSlices) or 0 in dims:
            with place:
                whole: Any = var.read_value()
                excess = whole - clip_by_norm(whole, self._max_norm, dims)
            with colocate_with(var):
                return var.assign_sub(excess, use_locking=self._use_locking)
        with colocate_with(var):
            indices = unique(grad.indices)[0]  # a row that occurs twice must not lose its excess twice
            rows: Any = gather(var.read_value(), indices)
        with place:
            excess = rows - clip_by_norm(rows, self._max_norm, dims)
        with colocate_with(var):
            return var.scatter_sub(IndexedSlices(excess, indices), use_locking=self._use_locking)
