"""A step tracker knows how far one step is. It is pure: events go in, actions come out, nothing waits or sends.

>>> tracker = StepTracker(["ps", "worker"])
>>> tracker.finished("worker", [1.0])
[]
>>> tracker.failed("ps", UnavailableError("gone"))
[Ended()]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.errors import OpError

Part = TypeVar("Part", bound=Hashable)


@dataclass(frozen=True, slots=True)
class CancelPart(Generic[Part]):
    """Asks the master to cancel a part that still runs."""

    part: Part
    why: OpError


@dataclass(frozen=True, slots=True)
class Ended:
    """Tells the master that the step has ended: `error` and `results` are final."""


Action = CancelPart[Part] | Ended


class StepTracker(Generic[Part]):
    """Tracks the parts of a step that still run, the results of the others, and the first error.

    An event that comes twice, late, or from an unknown part changes nothing.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self.waiting: dict[Part, None] = dict.fromkeys(parts)
        self.results: dict[Part, list[Any]] = {}
        self.error: OpError | None = None
        self.ended = False

    def finished(self, part: Part, values: list[Any]) -> list[Action[Part]]:
        """Takes the results of a part that has run."""
        if self.ended or part not in self.waiting:
            return []
        del self.waiting[part]
        self.results[part] = values
        return self._end_if_over()

    def failed(self, part: Part, error: OpError) -> list[Action[Part]]:
        """Takes the error of a part. The first error is the step's, and cancels the other parts."""
        if self.ended or part not in self.waiting:
            return []
        del self.waiting[part]
        return [*self._cancel_all(error), *self._end_if_over()]

    def cancelled(self, error: OpError) -> list[Action[Part]]:
        """Ends the step with an error, because of its deadline or of the session. All parts are cancelled."""
        if self.ended:
            return []
        actions = self._cancel_all(error)
        self.ended = True
        return [*actions, Ended()]

    def _cancel_all(self, error: OpError) -> list[Action[Part]]:
        if self.error is not None:
            return []
        self.error = error
        return [CancelPart(part, error) for part in self.waiting]

    def _end_if_over(self) -> list[Action[Part]]:
        if self.waiting:
            return []
        self.ended = True
        return [Ended()]
