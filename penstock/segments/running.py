"""A segment and the steps that run it know each other by this: what it uses of a step, and what steps wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np


class RunningStep(Protocol):
    """The part of a step that segments use."""

    drawn: dict[str, np.ndarray]  # random keys of this step, by node name
    wake: Callable[[], None] | None  # None: it may block its thread, and compile
    has_company: bool  # its thread has more steps at hand, and an instruction may return Company
    undo: list[Callable[[], None]]  # undoes what an interpreted segment has changed, if it fails


class Company:
    """The other steps that the thread has at hand: some may be about to run the same instruction."""

    def run(self, every: Sequence[list[Any]]) -> int:
        """Runs the instruction for the first of the steps that have these values, and returns for how many.

        It returns 0 if each of them should run it by itself. If it raises an error, nothing has changed.
        """
        raise NotImplementedError
