"""Step: what a master knows of one step. Pure: events go in, instructions come out, nothing waits or sends.

>>> step = StepState(["ps", "worker"])
>>> step.finished("worker", [1.0])
[]
>>> step.failed("ps", UnavailableError("gone"))
[Ended()]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.errors import OpError


@dataclass(frozen=True, slots=True)
class AbortPart:
    """Tell a part that is still running to give up."""

    part: Hashable
    why: OpError


@dataclass(frozen=True, slots=True)
class Ended:
    """All parts have answered, or nobody waits for them any more: look at `error` and `results`."""


Instruction = AbortPart | Ended


class StepState:
    """The parts of a step that still run, the results of the others, and the first error.

    What comes twice, late, or from a part that is none of this step changes nothing.
    """

    def __init__(self, parts: Iterable[Hashable]) -> None:
        self.waiting: dict[Hashable, None] = dict.fromkeys(parts)
        self.results: dict[Hashable, list[Any]] = {}
        self.error: OpError | None = None
        self.ended = False

    def finished(self, part: Hashable, values: list[Any]) -> list[Instruction]:
        """A part has run to its end."""
        if self.ended or part not in self.waiting:
            return []
        del self.waiting[part]
        self.results[part] = values
        return self._end_if_over()

    def failed(self, part: Hashable, error: OpError) -> list[Instruction]:
        """A part has failed. The first failure is the step's; the others are told to give up."""
        if self.ended or part not in self.waiting:
            return []
        del self.waiting[part]
        return [*self._abort_all(error), *self._end_if_over()]

    def given_up(self, error: OpError) -> list[Instruction]:
        """The step was cancelled, or its time is over: the parts are told, and nobody waits for them."""
        if self.ended:
            return []
        instructions = self._abort_all(error)
        self.ended = True
        return [*instructions, Ended()]

    def _abort_all(self, error: OpError) -> list[Instruction]:
        if self.error is not None:
            return []
        self.error = error
        return [AbortPart(part, error) for part in self.waiting]

    def _end_if_over(self) -> list[Instruction]:
        if self.waiting:
            return []
        self.ended = True
        return [Ended()]
