"""A Step holds what the instructions of one step share in a task, and lets them wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import CancelledError, DeadlineExceededError, InternalError
from penstock.wire.loop import Signal
from penstock.worker.cancellation import Cancellation
from penstock.worker.outbox import Outbox, Route
from penstock.worker.rendezvous import KEY_BITS, Rendezvous
from penstock.worker.transfer import RecvCall

_NOWHERE = Rendezvous()  # for steps that are all in one task


class Step:
    """Holds what the instructions of one step share: cancellation, deadline, tensors of other tasks, timings."""

    __slots__ = (
        "ahead",
        "cancelled",
        "commit",
        "deadline",
        "drawn",
        "has_company",
        "outbox",
        "rendezvous",
        "requester",
        "timings",
        "undo",
        "wait",
        "waited",
        "wake",
    )

    def __init__(self, cancelled: Cancellation, deadline: float | None = None, trace: bool = False) -> None:
        self.cancelled = cancelled
        self.deadline = deadline  # by time.monotonic()
        self.drawn: dict[str, np.ndarray] = {}  # random keys of this step, by node name
        # Has the step go on after an instruction has returned what it needs. None: instructions block their thread.
        self.wake: Callable[[], None] | None = None
        self.has_company = False  # its thread has more steps at hand, and an instruction may return Company
        self.rendezvous: Rendezvous = _NOWHERE  # tensors of other tasks arrive here
        self.outbox: Outbox = _TO_NOBODY  # what is sent to other tasks goes here
        self.requester: Any = None  # the route to the master, if that is in another process
        self.ahead: tuple[int, Sequence[int], list[Any]] | None = None  # number, keys, tensors for the next step
        self.wait: Callable[[Signal, float | None], bool] = Signal.wait
        self.timings: list[tuple[str, str, str, float, float]] | None = [] if trace else None
        self.undo: list[Callable[[], None]] = []  # undoes what an interpreted segment has changed, if it fails
        self.commit: Any = None  # for a closure, which writes once though it may run again
        self.waited = 0.0  # seconds that it was blocked

    def check(self, where: str) -> None:
        """Raises if the step was cancelled or is past its deadline."""
        if self.cancelled.is_set:
            raise CancelledError(None, where, f"The step was cancelled before '{where}' ran.")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceededError(None, where, f"Timed out before '{where}' could run.")

    def inner(self) -> Step:
        """Returns a step for a body: the same, but with new random keys."""
        step = Step(self.cancelled, self.deadline)
        step.rendezvous, step.outbox, step.wait, step.timings = self.rendezvous, self.outbox, self.wait, self.timings
        return step

    def wait_for(self, recv: RecvCall, keys: Sequence[int]) -> None:
        """Blocks until all tensors of a Recv have arrived. Raises if the step is cancelled or its deadline passes."""
        arrived = Signal()
        if self.rendezvous.ready(keys, arrived.set):
            return
        began = time.perf_counter()
        in_time = self.wait(arrived, self.remaining())
        self.waited += time.perf_counter() - began
        if not in_time:
            awaited = ", ".join(recv.tensors[key % (1 << KEY_BITS)] for key in self.rendezvous.missing(keys))
            raise DeadlineExceededError(None, recv.name, f"Timed out waiting for {awaited}.")
        self.check(recv.name)

    def remaining(self) -> float | None:
        """Returns the seconds until the deadline, or None without one."""
        return None if self.deadline is None else self.deadline - time.monotonic()


def _to_nobody(task: str) -> Route:
    raise InternalError(f"A step that is all in one task tried to send to {task}.")


_TO_NOBODY = Outbox(0, _to_nobody)  # for steps that are all in one task
