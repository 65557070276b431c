"""RegAdagrad: Adagrad whose accumulators can be left out of an update, for losses that only regularise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.graph.typing import TensorLike
from penstock.optim.adagrad import AdagradOptimizer


class RegAdagradOptimizer(AdagradOptimizer):
    """Adagrad (Duchi et al., 2011); updates made under `avoid_updating_slots` use the accumulators as they are.

    The gradients of a regularisation term then do not slow down the learning of the rest.

    >>> rule = tf.contrib.opt.RegAdagradOptimizer(0.1)
    >>> train = rule.minimize(loss)
    >>> with rule.avoid_updating_slots():
    ...     shrink = rule.minimize(penalty)
    """

    def __init__(
        self,
        learning_rate: TensorLike,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "RegAdagrad",
    ) -> None:
        super().__init__(learning_rate, initial_accumulator_value, use_locking, name)
        self._should_update_slots = True

    @contextmanager
    def avoid_updating_slots(self) -> Iterator[None]:
        """Has the updates that are made inside leave the accumulators as they are."""
        before, self._should_update_slots = self._should_update_slots, False
        try:
            yield
        finally:
            self._should_update_slots = before

    def _attrs(self) -> dict[str, Any]:
        return {"update_slots": self._should_update_slots}
