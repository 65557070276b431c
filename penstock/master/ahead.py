"""Variables that a step begins with may come with the answer to the step before: training is one round trip a step.

A session that runs one graph again and again has a parameter server answer with the variables that the next step will
read, and keeps them for a moment. They are what that step would have read if it had begun when the last one ended. They
are used if nothing else has run in this process since, and hardly any time has passed. Else the step reads anew.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SOON = 0.002  # seconds between two steps
_events = itertools.count()  # the begins and ends of steps over several tasks, of all sessions in this process


def is_wanted() -> bool:
    """Tells if sessions read ahead (PENSTOCK_READ_AHEAD)."""
    return os.environ.get("PENSTOCK_READ_AHEAD", "1") != "0"


class Brought(NamedTuple):
    """Tensors that a task has sent ahead of the step that needs them."""

    number: int  # by which the task knows them
    keys: Sequence[int]
    values: list[Any]


class Ahead:
    """Keeps what tasks have sent ahead of the next step of one signature.

    >>> brought = ahead.take()
    >>> ahead.keep({"/job:ps/replica:0/task:0": Brought(8, [0], [weights])})
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: tuple[int, float, Mapping[str, Brought]] | None = None  # the last event, the time, and by task

    def take(self) -> Mapping[str, Brought] | None:
        """Begins a step. Returns what was brought for it, or None if it does not follow the last one at once."""
        event, kept, self._kept = next(_events), self._kept, None
        if kept is None or kept[0] + 1 != event or time.monotonic() - kept[1] > SOON:
            return None
        return kept[2]

    def keep(self, brought: Mapping[str, Brought]) -> None:
        """Ends a step, which has brought something for the next one."""
        self._kept = next(_events), time.monotonic(), brought
