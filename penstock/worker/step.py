"""Step: what the instructions of one step share, and how they wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import CancelledError, DeadlineExceededError, InternalError
from penstock.wire.loop import Signal
from penstock.worker.cancellation import Cancellation
from penstock.worker.rendezvous import KEY_BITS, Rendezvous
from penstock.worker.transfer import RecvCall

_NOWHERE = Rendezvous()  # of steps that are in one task


class Step:
    """What instructions of one step share: cancellation, deadline, tensors from other tasks, and what is traced."""

    __slots__ = (
        "asked_by",
        "cancelled",
        "deadline",
        "drawn",
        "give_way",
        "parting",
        "quick",
        "rendezvous",
        "send",
        "timings",
        "undo",
        "wait",
        "waited",
    )

    def __init__(self, cancelled: Cancellation, deadline: float | None = None, trace: bool = False) -> None:
        self.cancelled = cancelled
        self.deadline = deadline  # by time.monotonic()
        self.drawn: dict[str, np.ndarray] = {}
        # What an op calls that would have to wait, if the step may be left there; it gives what goes on with the step.
        self.give_way: Callable[[], Callable[[], None]] | None = None
        self.quick = False  # whether what would take long, as compiling does, is to be left to another thread
        self.rendezvous: Rendezvous = _NOWHERE  # where tensors of other tasks arrive
        # To a task, keys and values, unless the way there is the last argument; whether they were sent.
        self.send: Callable[[str, Sequence[int], Sequence[Any], Any], bool] = _to_nobody
        self.asked_by: Any = None  # the way back to who asked for it, if that is another process
        self.parting: tuple[Sequence[int], Sequence[Any]] = (), ()  # tensors that go there together with the answer
        self.wait: Callable[[Signal, float | None], bool] = Signal.wait
        self.timings: list[tuple[str, str, str, float, float]] | None = [] if trace else None
        self.undo: list[Callable[[], None]] = []  # what an interpreted segment has changed, should it fail
        self.waited = 0.0  # seconds, for tensors of other tasks and in queues

    def check(self, where: str) -> None:
        """Raises if the step was cancelled or is past its deadline."""
        if self.cancelled.is_set:
            raise CancelledError(None, where, f"The step was cancelled before '{where}' ran.")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceededError(None, where, f"Timed out before '{where}' could run.")

    def inner(self) -> Step:
        """A step for a body: the same, but random numbers are drawn anew."""
        step = Step(self.cancelled, self.deadline)
        step.rendezvous, step.send, step.wait, step.timings = self.rendezvous, self.send, self.wait, self.timings
        return step

    def wait_for(self, recv: RecvCall, keys: Sequence[int]) -> None:
        """Waits until all tensors of a Recv are there, the step is cancelled, or its deadline has passed."""
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
        """Seconds until the deadline, or None without one."""
        return None if self.deadline is None else self.deadline - time.monotonic()


def _to_nobody(task: str, keys: Sequence[int], values: Sequence[Any], kept_for: Any) -> bool:
    raise InternalError(f"A step of one task was to send to {task}.")
