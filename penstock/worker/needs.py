"""Needs: what a step must get before it can go on.

The thread that reads a task's messages must not block. An instruction of a step that runs there returns what it needs
instead of waiting for it, and is run again once it is there.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.segments.running import Company


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors from other tasks, by their keys in the step's rendezvous."""

    keys: Sequence[int]


class Other(enum.Enum):
    """Something else than tensors."""

    CHANGE = "a change of a queue or accumulator, which wakes the step"
    THREAD = "a thread of its own, since it blocks or takes long"


Need = Tensors | Company | Other
