"""DropStaleGradientOptimizer: gradients of workers that took too long are not applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import colocate_with, control_dependencies
from penstock.graph.typing import TensorLike
from penstock.ops.array.passthrough import identity
from penstock.ops.control.flow import cond
from penstock.ops.io.summary import scalar
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import less_equal
from penstock.optim.optimizer import Optimizer
from penstock.optim.rule import require_not_negative
from penstock.optim.wrapper import WrapperOptimizer
from penstock.variables.global_step import get_global_step
from penstock.variables.initializers import Zeros
from penstock.variables.scope import get_variable


class DropStaleGradientOptimizer(WrapperOptimizer):
    """Drops the gradients of a step if others have made more than `staleness` steps since it began.

    With asynchronous workers a slow one computes gradients for variables that have long moved on (Chen et al.,
    arXiv:1604.00981). The global step tells how far: it is read before the gradients and after. The variable
    `stale_counter` counts what was dropped, and a summary shows its share of the steps.

    >>> rule = tf.contrib.opt.DropStaleGradientOptimizer(tf.train.GradientDescentOptimizer(0.1), staleness=5)
    >>> train = rule.minimize(loss, global_step=tf.train.get_or_create_global_step())
    """

    def __init__(
        self, opt: Optimizer, staleness: int, use_locking: bool = False, name: str = "DropStaleGradient"
    ) -> None:
        require_not_negative(staleness=staleness)
        super().__init__(opt, use_locking, name)
        self._staleness = staleness
        self._local_step: Any = None

    def compute_gradients(self, loss: TensorLike, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """See the wrapped optimizer. The global step is read before the gradients are computed."""
        step = get_global_step()
        if step is None:
            raise ValueError("The graph has no global step: call tf.train.get_or_create_global_step() first.")
        self._local_step = identity(step.read_value())
        with control_dependencies([self._local_step]):
            return self._opt.compute_gradients(identity(loss() if callable(loss) else loss), *args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Any:
        """A tensor that applies the gradients unless they are stale; its value is the number dropped so far."""
        if global_step is None:
            raise ValueError("global_step is required: it tells how old gradients are.")
        if self._local_step is None:
            raise ValueError("apply_gradients() must be called after compute_gradients(), which reads the global step.")
        pairs = list(grads_and_vars)
        with colocate_with(global_step):
            dropped = get_variable("stale_counter", [], initializer=Zeros(), trainable=False)
        ready = [grad if isinstance(grad, Tensor) else grad.op for grad, _ in pairs if grad is not None]
        with control_dependencies(ready), colocate_with(global_step):
            age: Any = global_step.read_value() - self._local_step

        def accept() -> Any:
            with control_dependencies([self._opt.apply_gradients(pairs, global_step=global_step, name=name)]):
                return convert_to_tensor(0.0)

        is_stale = cond(less_equal(age, self._staleness), accept, lambda: convert_to_tensor(1.0))
        steps: Any = cast(global_step.read_value(), dt.float32)
        scalar("Gradient staleness percentage", dropped.read_value() / (steps + 1.0))
        return dropped.assign_add(is_stale, use_locking=self._use_locking)
