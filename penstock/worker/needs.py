"""Needs: what a step must get before it can go on.

The thread that reads a task's messages must not block. An instruction of a step that runs there returns what it needs
instead of waiting for it, and is run again once it is there.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors from other tasks, by their keys in the step's rendezvous."""

    keys: Sequence[int]


class Other(enum.Enum):
    """Something else than tensors."""

    CHANGE = "a change of a queue or accumulator, which wakes the step"
    THREAD = "a thread of its own, since it blocks or takes long"


class Company:
    """The other steps that the thread has at hand: some may be about to run the same instruction."""

    def run(self, every: Sequence[list[Any]]) -> int:
        """Runs the instruction for the first of the steps that have these values, and returns for how many.

        It returns 0 if each of them should run it by itself. If it raises an error, nothing has changed.
        """
        raise NotImplementedError


Need = Tensors | Company | Other
