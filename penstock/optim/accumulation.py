"""Gradient accumulation: one update for the gradients of several steps, for batches that do not fit at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation
from penstock.graph.scopes import colocate_with, control_dependencies, device, init_scope, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import zeros, zeros_like
from penstock.ops.control.flow import cond
from penstock.ops.control.grouping import group
from penstock.ops.math.arithmetic import floormod
from penstock.ops.math.compare import equal
from penstock.optim.optimizer import Optimizer, op_of
from penstock.variables.variable import Variable


class GradientAccumulationOptimizer(Optimizer):
    """Sums gradients over `steps` calls of the train op; on the last of them `opt` applies their mean.

    `global_step` counts the updates, not the calls. Sparse gradients are summed as dense ones. The sums are slots
    beside the variables. With `worker_device` they are local variables there: each worker of a cluster has its own, and
    only one call of `steps` sends gradients to the parameter servers.

    >>> rule = GradientAccumulationOptimizer(tf.train.AdamOptimizer(1e-3), steps=4)
    >>> train = rule.minimize(loss, global_step=step)
    """

    def __init__(
        self, opt: Optimizer, steps: int, name: str = "GradientAccumulation", worker_device: str | None = None
    ) -> None:
        super().__init__(False, name)
        if steps < 1:
            raise ValueError(f"steps must be at least 1, received {steps}.")
        self._opt = opt
        self._steps = steps
        self._worker_device = worker_device

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """See the wrapped optimizer."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        pairs = [(grad, var) for grad, var in grads_and_vars if grad is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        with init_scope():
            if self._worker_device is None:
                sums = [self._zeros_slot(var, "sum", self._name) for _, var in pairs]
                count = self._create_non_slot_variable(convert_to_tensor(0, dtype=dt.int32), "accumulated", pairs[0][1])
            else:
                sums = [self._local(zeros(var.get_shape(), var.dtype.base_dtype), var.op.name) for _, var in pairs]
                count = self._local(0, "accumulated")
        with name_scope(name, self._name):
            added = []
            for (grad, _), total in zip(pairs, sums, strict=True):
                with colocate_with(total):
                    dense = convert_to_tensor(grad) if isinstance(grad, IndexedSlices) else grad
                    added.append(op_of(total.assign_add(dense)))
            with control_dependencies(added), colocate_with(count):
                counted = count.assign_add(1)
            with control_dependencies([op_of(counted)]):
                return op_of(
                    cond(
                        equal(floormod(count.read_value(), self._steps), 0),
                        lambda: self._update_all(pairs, sums, global_step),
                        lambda: convert_to_tensor(False),
                    )
                )

    def _local(self, value: Any, of: str) -> Variable:
        with device(self._worker_device), name_scope(None):
            return Variable(value, name=f"{of}/{self._name}", trainable=False, collections=[GraphKeys.LOCAL_VARIABLES])

    def _update_all(self, pairs: list[tuple[Any, Any]], sums: list[Variable], global_step: Any) -> Any:
        totals: list[Any] = [total.read_value() for total in sums]
        means = [total / self._steps for total in totals]
        applied = self._opt.apply_gradients(
            [(mean, var) for mean, (_, var) in zip(means, pairs, strict=True)], global_step
        )
        with control_dependencies([applied]):
            cleared = group(*(op_of(held.assign(zeros_like(total))) for held, total in zip(sums, totals, strict=True)))
        with control_dependencies([cleared]):
            return convert_to_tensor(True)

    def get_slot(self, var: Any, name: str) -> Any:
        return super().get_slot(var, name) or self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        return sorted({*super().get_slot_names(), *self._opt.get_slot_names()})

    def variables(self) -> list[Any]:
        return sorted([*super().variables(), *self._opt.variables()], key=lambda v: str(v.name))
