"""An outbox collects what a step sends to other tasks, so that each of them gets few messages.

What is posted waits until the step is flushed: before it waits for others, before work that takes long, and at its
end. Then each task gets one message with all that waits for it: the request to run its part, and tensors. A request to
a task that can do nothing before it gets tensors waits for them, or until the step itself can do nothing more. Those
that are small, such as the number of a step, wait with it for larger ones, such as gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.errors import OpError

SMALL = 1 << 10  # bytes


class Route(Protocol):
    """Delivers tensors to another task."""

    def deliver(self, step: int, keys: Sequence[int], values: list[Any]) -> None:
        """Hands tensors of a step over to the task: the list may be empty afterwards."""


Start = Callable[[Sequence[int], list[Any]], None]  # asks a task to run its part, and gives it these tensors


class Outbox:
    """Holds what one step sends, by task. Only the thread that runs the step uses it.

    >>> outbox.post("/job:ps/replica:0/task:0", [3], [gradient])
    >>> outbox.flush()
    """

    __slots__ = ("_patient", "_route", "_starts", "_step", "_tensors")

    def __init__(self, step: int, route: Callable[[str], Route]) -> None:
        self._step = step
        self._route = route
        self._starts: dict[str, Start] = {}
        self._patient: dict[str, Start] = {}  # requests that wait for the first tensors
        self._tensors: dict[str, tuple[list[int], list[Any]]] = {}

    def __bool__(self) -> bool:
        """Tells if something waits."""
        return bool(self._tensors or self._starts or self._patient)

    def begin(self, task: str, start: Start, is_patient: bool = False) -> None:
        """Posts the request to run a task's part; it comes before all tensors for the task, or waits for the first."""
        (self._patient if is_patient else self._starts)[task] = start

    def post(self, task: str, keys: Sequence[int], values: list[Any]) -> None:
        """Posts tensors."""
        waiting = self._tensors.get(task)
        if waiting is None:
            self._tensors[task] = list(keys), values
        else:
            waiting[0].extend(keys)
            waiting[1].extend(values)

    def flush(self) -> None:
        """Sends everything but requests that wait for tensors, before work that takes long.

        An error leaves the rest unsent: the step fails, and its master cancels the other parts.
        """
        tasks = list(self._tensors)
        if len(tasks) > 1:
            tasks.sort(key=self._nbytes, reverse=True)  # who gets most has most to do
        for task in tasks:
            keys, values = self._tensors.pop(task)
            start = self._starts.pop(task, None) or self._patient.pop(task, None)
            if start is None:
                self._route(task).deliver(self._step, keys, values)
            else:
                start(keys, values)
        while self._starts:
            self._starts.popitem()[1]((), [])

    def flush_large(self) -> None:
        """Sends the same, but what is small waits with its request, before work that waits for nobody."""
        waiting = {task: self._tensors.pop(task) for task in self._patient if self._is_small(task)}
        self.flush()
        self._tensors = waiting

    def _is_small(self, task: str) -> bool:
        return task in self._tensors and self._nbytes(task) <= SMALL

    def _nbytes(self, task: str) -> int:
        return sum([value.nbytes for value in self._tensors[task][1]])

    def flush_all(self) -> None:
        """Sends everything, before a wait or at the end of a step."""
        self.flush()
        self.start_rest()

    def flush_at_end(self) -> OpError | None:
        """Sends everything after the last instruction of a step, and returns the error if that fails."""
        try:
            self.flush_all()
        except OpError as error:
            return error
        return None

    def start_rest(self) -> None:
        """Begins all parts that have not begun, without their tensors."""
        for starts in (self._starts, self._patient):
            while starts:
                starts.popitem()[1]((), [])

    def take(self, task: str) -> tuple[Sequence[int], list[Any]]:
        """Removes and returns the tensors for a task, to put them into a message of its own."""
        return self._tensors.pop(task, ((), []))
