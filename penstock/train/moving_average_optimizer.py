"""MovingAverageOptimizer: trains variables and keeps averages of them, which are what gets saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.graph.operation import Operation
from penstock.graph.scopes import control_dependencies
from penstock.graph.typing import TensorLike
from penstock.ops.control.grouping import group
from penstock.optim.optimizer import Optimizer
from penstock.optim.wrapper import WrapperOptimizer
from penstock.train.saveables import by_name
from penstock.train.saver import Saver
from penstock.variables.initialize import global_variables
from penstock.variables.moving_averages import ExponentialMovingAverage
from penstock.variables.partitioned import PartitionedVariable


def swapped_saver(var_list: Any, swapped: dict[Any, Any], name: str, settings: dict[str, Any]) -> Saver:
    """A Saver that saves and restores `swapped[v]` under the name of each variable `v` that is in there."""
    named = var_list if isinstance(var_list, Mapping) else by_name(var_list)

    def swap(var: Any) -> Any:
        if isinstance(var, (PartitionedVariable, list, tuple)):
            return [swapped.get(part, part) for part in var]
        return swapped.get(var, var)

    return Saver({key: swap(var) for key, var in named.items()}, name=name, **settings)


class MovingAverageOptimizer(WrapperOptimizer):
    """Makes steps by `opt` and moves an average after each: `average -= (1 - average_decay) * (average - var)`.

    Averages of the last weights often do better than the weights themselves (Polyak and Juditsky, 1992). The
    `swapping_saver` saves averages under the names of their variables, so that evaluation needs no change: it restores
    as usual. With `num_updates`, a step counter, early averages follow faster. With `sequential_update=False` averages
    move at the same time as the variables.

    >>> rule = tf.contrib.opt.MovingAverageOptimizer(tf.train.MomentumOptimizer(0.1, 0.9), 0.999)
    >>> train = rule.minimize(loss, global_step=step)
    >>> scaffold = tf.train.Scaffold(saver=rule.swapping_saver())
    >>> tf.train.MonitoredTrainingSession(checkpoint_dir=folder, scaffold=scaffold)
    """

    def __init__(
        self, opt: Optimizer, average_decay: float = 0.9999, num_updates: Any = None, sequential_update: bool = True
    ) -> None:
        super().__init__(opt, False, "MovingAverage")
        self._ema = ExponentialMovingAverage(average_decay, num_updates=num_updates)
        self._sequential_update = sequential_update
        self._swapped: dict[Any, Any] | None = None

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        pairs = list(grads_and_vars)
        train = self._opt.apply_gradients(pairs, global_step=global_step, name=name)
        trained = [var for grad, var in pairs if grad is not None]
        with control_dependencies([train] if self._sequential_update else []):
            averaged = self._ema.apply(trained)
        self._swapped = self._swapped or {}
        for var in trained:
            average = self._ema.average(var)
            self._swapped.update({var: average, average: var})
        return group(train, averaged, name="train_with_avg")

    def swapping_saver(self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any) -> Saver:
        """A Saver for training, in whose files a variable and its average are exchanged; restoring undoes this.

        Other arguments are those of `tf.train.Saver`.

        >>> saver = rule.swapping_saver(max_to_keep=3)
        """
        if self._swapped is None:
            raise RuntimeError("swapping_saver() must be called after apply_gradients() or minimize().")
        return swapped_saver(global_variables() if var_list is None else var_list, self._swapped, name, kwargs)
