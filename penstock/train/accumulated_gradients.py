"""AGNOptimizer: workers explore by themselves and send the mean of their gradients (Hermans, arXiv:1710.02368)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Operation
from penstock.graph.scopes import colocate_with, control_dependencies, device
from penstock.ops.array.creation import zeros_like
from penstock.ops.control.grouping import group
from penstock.optim.optimizer import Optimizer, op_of
from penstock.train.session_run_hook import SessionRunHook
from penstock.train.worker_copies import CopyingGetter, PullingHook, WorkerCopiesOptimizer


class AGNCustomGetter(CopyingGetter):
    """Makes each trainable variable a local variable on `worker_device`, and beside it a center and a sum of gradients.

    The center is a global variable, which a replica device setter places; the sum is on the worker. Use it with
    `tf.get_variable`.

    >>> getter = tf.contrib.opt.AGNCustomGetter("/job:worker/task:0")
    >>> with tf.device(setter), tf.variable_scope("", custom_getter=getter):
    ...     w = tf.get_variable("w", [784, 10])
    """

    _aside = "grad_variable"


class AGNOptimizer(WorkerCopiesOptimizer):
    """Accumulated gradient normalization: a worker steps `communication_period` times, then sends its mean gradient.

    Each step changes the worker's copies by `optimizer` and adds the gradients to sums. When it is time, the sums
    divided by their number are applied to the centers, by the same rule with slots of its own, and the worker goes on
    from there. So however long a worker explores, its update is as large as that of one step. `global_step` counts the
    updates of all workers, who do not wait for each other.

    >>> rule = tf.contrib.opt.AGNOptimizer(tf.train.GradientDescentOptimizer(0.1), num_worker, getter)
    >>> train = rule.minimize(loss, global_step=step)
    >>> hooks = [rule.make_session_run_hook(is_chief, task_index)]
    """

    _getter_class = AGNCustomGetter
    _argument = {"getter": "custom_getter", "period": "communication_period"}

    def __init__(
        self,
        optimizer: Optimizer,
        num_worker: int,
        custom_getter: AGNCustomGetter,
        communication_period: int = 10,
        use_locking: bool = True,
        name: str = "AGNOptimizer",
    ) -> None:
        super().__init__(optimizer, num_worker, custom_getter, communication_period, use_locking, name)
        # The centers are shared, so their slots are too, and must not be those of the worker's copies.
        self._center_opt = copy.copy(optimizer)
        self._center_opt._slots, self._center_opt._non_slot_dict = {}, {}

    def _keep(self, pairs: list[tuple[Any, Any]]) -> list[Operation]:
        sums = self._getter._asides
        added = []
        for grad, var in pairs:
            if grad is not None:
                with device(var.device):
                    added.append(op_of(sums[var].assign_add(convert_to_tensor(grad), use_locking=self._use_locking)))
        return added

    def _meeting(self, trained: list[Any], global_step: Any) -> Callable[[], Operation]:
        centers, sums = ([found[var] for var in trained] for found in (self._getter._centers, self._getter._asides))

        def meet() -> Operation:
            means = [total.read_value() / self._period for total in sums]
            applied = self._center_opt.apply_gradients(list(zip(means, centers, strict=True)))
            with control_dependencies([applied]):
                moves = [self._pull(trained), self._clear(sums)]
                if global_step is not None:
                    with colocate_with(global_step):
                        moves.append(op_of(global_step.assign_add(1)))
            return group(*moves)

        return meet

    def _clear(self, sums: list[Any]) -> Operation:
        return group(*(op_of(total.assign(zeros_like(total), use_locking=self._use_locking)) for total in sums))

    def get_init_op(self, task_index: int) -> Operation:
        """The operation that a worker runs before its first step: copies start as the centers are, sums as zeros.

        >>> sess.run(rule.get_init_op(task_index))
        """
        copies = self._copies()
        return group(self._pull(copies), self._clear([self._getter._asides[var] for var in copies]))

    def make_session_run_hook(self, is_chief: bool, task_index: int) -> SessionRunHook:
        """The hook that the MonitoredSession of a worker needs.

        >>> tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=[rule.make_session_run_hook(is_chief, 0)])
        """
        return PullingHook(lambda: self.get_init_op(task_index))
