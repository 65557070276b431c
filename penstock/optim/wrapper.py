"""WrapperOptimizer: the base of optimizers that leave gradients, slots and updates to another one."""

from __future__ import annotations

from typing import Any

from penstock.optim.optimizer import Optimizer


class WrapperOptimizer(Optimizer):
    """Passes what it does not change to `opt`."""

    def __init__(self, opt: Optimizer, use_locking: bool, name: str) -> None:
        if not isinstance(opt, Optimizer):
            raise TypeError(f"opt must be an instance of tf.train.Optimizer, received {opt!r}.")
        super().__init__(use_locking, name)
        self._opt = opt

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """See the wrapped optimizer."""
        return self._opt.compute_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """See the wrapped optimizer."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """See the wrapped optimizer."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[Any]:
        """See the wrapped optimizer."""
        return self._opt.variables()
