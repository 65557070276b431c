"""The clock that workers with a bounded staleness share, and the record of how stale gradients were.

Each worker has a clock: the number of its steps. A worker *begins* a clock when it may read the variables, *arrives*
when its gradient is computed, and *advances* when the gradient is applied. With the bound s it begins clock c once the
slowest worker is at c - s or later. With s = 0 no gradient is applied before all workers have arrived, so that all
gradients of a clock are of the same variables.

A change of the bound is in force from one clock on, the same for all: the first that nobody has begun. A worker that is
behind goes on there when it next advances, so that the others wait for one step of it at most.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import AbortedError, DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from penstock.kernel.waiting import Waitable


class StalenessRecord:
    """Two histograms of gradients: by the updates of others, and by the clocks of others, that they have missed.

    >>> record = StalenessRecord(); record.note(updates=3, clocks=1); record.updates
    {3: 1}
    """

    def __init__(self) -> None:
        self.updates: dict[int, int] = {}
        self.clocks: dict[int, int] = {}

    def note(self, updates: int, clocks: int | None = None) -> None:
        """Counts one gradient."""
        self.updates[updates] = self.updates.get(updates, 0) + 1
        if clocks is not None:
            self.clocks[clocks] = self.clocks.get(clocks, 0) + 1


@dataclass(slots=True, eq=False)
class _Worker:
    """The state of one worker."""

    clock: int = 0
    begun: bool = True  # it computes the gradient of its clock; all may begin with the first
    arrived: bool = False  # the gradient is computed
    passed: bool = False  # it may be applied
    reported: bool = False  # the worker has been heard of
    left: bool = False  # nobody waits for it
    seen: int = 0  # the number of updates when it began
    ahead: int = 0  # how many clocks it was ahead of the slowest then
    missed: int = 0  # the updates from then until it arrived
    step: Any = None  # the step that waits, or that will advance


class Clock(Waitable):
    """The clocks of all workers. Steps wait here until their worker may go on, or for `deadline` seconds.

    >>> clock.arrive(0, 60.0, step); clock.advance(0, 60.0, step)
    1
    """

    kind = "StalenessClock"

    def __init__(self, name: str, num_workers: int, staleness: int) -> None:
        super().__init__(name)
        if num_workers < 1:
            raise InvalidArgumentError(f"{self}: num_workers must be at least 1, received {num_workers}.")
        self.num_workers = num_workers
        self.first_staleness = staleness
        self.record = StalenessRecord()
        self._updates = 0
        # Steps whose worker has joined anew since they began: what they still do is not the worker's.
        self._superseded: deque[Any] = deque(maxlen=2 * num_workers)
        self._reset()

    def _reset(self) -> None:
        self._workers = [_Worker() for _ in range(self.num_workers)]
        self._bounds = [(0, _bound(self.first_staleness))]  # each with the clock from which it is in force
        self._slowest = self._reached = 0

    def clocks(self) -> list[tuple[int, bool]]:
        """The clock of each worker, and True if it has arrived there."""
        with self._held():
            return [(worker.clock, worker.arrived) for worker in self._workers]

    def staleness(self) -> int:
        """The bound that was set last; -1 for none."""
        with self._held():
            bound = self._bounds[-1][1]
            return -1 if bound == math.inf else int(bound)

    def set_staleness(self, staleness: int) -> int:
        """Changes the bound; -1 for none. Returns the clock from which it is in force."""
        bound = _bound(staleness)
        with self._held():
            at, current = self._bounds[-1]
            for worker in self._workers:
                if not worker.left:
                    # Whoever waits under a bound that becomes wider is let go at once.
                    started = worker.begun if bound < current else worker.passed
                    at = max(at, worker.clock + started)
            if at == self._bounds[-1][0]:
                self._bounds.pop()
            self._bounds.append((at, bound))
            self._changed_clocks()
            return at

    def join(self, index: int, deadline: float, ctx: Any) -> int:
        """Lets a worker begin, at first or after it was away: at its own clock or that of the slowest other one."""
        with self._held():
            worker = self._worker(index, ctx)
            if worker.step is not ctx:  # else the step was suspended here, and runs this again
                if worker.step is not None:
                    self._superseded.append(worker.step)
                worker.step, worker.left = ctx, False
                others = [w.clock for w in self._workers if not w.left and w is not worker]
                worker.clock = max(worker.clock, min(others, default=0))
                worker.begun = worker.arrived = worker.passed = False
                self._changed_clocks()
            return self._begin(index, worker, deadline, ctx)

    def arrive(self, index: int, deadline: float, ctx: Any) -> int:
        """Notes that a gradient is computed; returns when it may be applied, with the updates that it has missed."""
        with self._held():
            worker = self._worker(index, ctx)
            if not worker.begun:
                raise FailedPreconditionError(
                    f"{self}: worker {index} may not begin clock {worker.clock}, since it has left or its last wait "
                    "has ended by an error. Run the optimizer's get_init_op(), which waits for it."
                )
            if worker.step is not ctx:
                worker.step, worker.arrived = ctx, True
                worker.missed = self._updates - worker.seen
                self._changed_clocks()
            clock = worker.clock

            def ready() -> bool:
                return self._bound_at(clock) > 0 or self._reached > clock

            def awaited(other: _Worker) -> bool:
                return other.clock + other.arrived <= clock

            what = f"worker {index} may not apply its gradient of clock {clock}"
            self._wait_for(ready, awaited, what, worker, deadline, ctx)
            worker.passed = True
            return worker.missed

    def advance(self, index: int, deadline: float, ctx: Any) -> int:
        """Notes that the gradient is applied; returns the next clock when the worker may begin it."""
        with self._held():
            worker = self._worker(index, ctx)
            if worker.begun:  # else the step was suspended here
                self.record.note(worker.missed, worker.ahead)
                self._updates += 1
                worker.clock = max(worker.clock + 1, self._bounds[-1][0])
                worker.step = ctx
                worker.begun = worker.arrived = worker.passed = False
                self._changed_clocks()
            return self._begin(index, worker, deadline, ctx)

    def leave(self, index: int) -> None:
        """Has nobody wait for a worker. Once all have left, the next ones start anew."""
        with self._held():
            worker = self._worker(index, None)
            worker.left, worker.begun = True, False
            if all(w.left for w in self._workers):
                self._reset()
            self._changed_clocks()

    def _worker(self, index: int, ctx: Any) -> _Worker:
        if not 0 <= index < self.num_workers:
            raise InvalidArgumentError(f"{self}: worker must be from 0 to {self.num_workers - 1}, received {index}.")
        if any(ctx is step for step in self._superseded):
            raise AbortedError(f"{self}: worker {index} has joined anew since this step began.")
        worker = self._workers[index]
        worker.reported = True
        return worker

    def _begin(self, index: int, worker: _Worker, deadline: float, ctx: Any) -> int:
        clock = worker.clock

        def ready() -> bool:
            return self._slowest >= clock - self._bound_at(clock)

        def awaited(other: _Worker) -> bool:
            return other.clock < clock - self._bound_at(clock)

        self._wait_for(ready, awaited, f"worker {index} may not begin clock {clock}", worker, deadline, ctx)
        worker.begun, worker.step = True, None
        worker.seen, worker.ahead = self._updates, clock - self._slowest
        return clock

    def _bound_at(self, clock: int) -> float:
        return next(bound for start, bound in reversed(self._bounds) if start <= clock)

    def _changed_clocks(self) -> None:
        """Wakes those who may go on. The minima are kept, since every step that waits asks for them."""
        present = [w for w in self._workers if not w.left]
        if present:
            self._slowest = min(w.clock for w in present)
            self._reached = min(w.clock + w.arrived for w in present)
            while len(self._bounds) > 1 and self._bounds[1][0] <= self._slowest:
                del self._bounds[0]
        self._notify()

    def _wait_for(
        self,
        ready: Callable[[], bool],
        awaited: Callable[[_Worker], bool],
        what: str,
        worker: _Worker,
        deadline: float,
        ctx: Any,
    ) -> None:
        """Waits until `ready()`. Raises DeadlineExceededError, with the workers that are awaited, when it is due."""
        in_time = self._wait_in_time(lambda: ready() or worker.step is not ctx, deadline, ctx)
        if worker.step is not ctx:
            raise AbortedError(f"{self}: {what} by this step: it has joined anew since.")
        if in_time:
            return
        worker.step = None
        names = [
            f"worker {i} ({f'at clock {w.clock}' if w.reported else 'has not reported'})"
            for i, w in enumerate(self._workers)
            if not w.left and awaited(w)
        ]
        raise DeadlineExceededError(
            f"{self}: {what}: for {deadline:g} s (deadline_secs) it has waited for {', '.join(names)}. Are they "
            "running? A worker that is started again goes on from here."
        )


def _bound(staleness: int) -> float:
    if staleness < -1:
        raise InvalidArgumentError(f"staleness must be at least 0, or -1 for no bound, received {staleness}.")
    return math.inf if staleness == -1 else float(staleness)


class GradientGroups:
    """Counts gradients and tells which of them completes a group; keeps the record of their staleness.

    >>> groups = GradientGroups("groups", 2); groups.add(), groups.add(), groups.add()
    (False, True, False)
    """

    kind = "GradientGroups"

    def __init__(self, name: str, group_size: int) -> None:
        if group_size < 1:
            raise InvalidArgumentError(f"group_size must be at least 1, received {group_size}.")
        self.name = name
        self.group_size = group_size
        self.record = StalenessRecord()
        self._lock = threading.Lock()
        self._count = 0

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"

    def add(self) -> bool:
        """Counts a gradient; True for the last of a group."""
        with self._lock:
            self._count = (self._count + 1) % self.group_size
            return self._count == 0

    def require(self, available: int) -> None:
        """Forgets gradients of an unfinished group that are not there: they were lost with a parameter server."""
        with self._lock:
            self._count = min(self._count, available)

    def note(self, missed: list[int]) -> None:
        """Records how many updates each gradient of a group has missed."""
        with self._lock:
            for updates in missed:
                self.record.note(updates)
