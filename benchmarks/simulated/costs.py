"""What the real code costs: measured lap by lap in processor time, and charged in simulated time.

A task that handles a message makes laps: it decodes the message, runs instructions of a graph, sends an answer. Each
kind of lap has one cost, the median of what it took. A run that measures charges what each lap takes; a run that is
given the costs charges those, so that equal costs and seeds give equal results.
"""

from __future__ import annotations

import statistics
import time


class Costs:
    """Seconds by kind of lap. A kind that is not known costs what it takes the first time.

    >>> costs = Costs(); costs.of("receive RunGraph", 0.0001); costs.medians()
    {'receive RunGraph': 0.0001}
    """

    def __init__(self, known: dict[str, float] | None = None) -> None:
        self.known = known
        self._taken: dict[str, list[float]] = {}

    def of(self, kind: str, took: float) -> float:
        """Returns what a lap costs that took so long."""
        if self.known is not None:
            return self.known.setdefault(kind, took)
        self._taken.setdefault(kind, []).append(took)
        return took

    def forget(self) -> None:
        """Forgets what was measured so far, since code was being compiled."""
        self._taken.clear()

    def medians(self) -> dict[str, float]:
        """Returns the cost of each kind."""
        if self.known is not None:
            return dict(self.known)
        return {kind: statistics.median(taken) for kind, taken in sorted(self._taken.items())}


class Laps:
    """The laps of one thread: its work from `begin` to `end`, cut at each call of `lap`.

    A lap is named after what it begins and ends with: sending an answer costs more after an update than after a read.
    """

    def __init__(self, costs: Costs, role: str) -> None:
        self.role = role  # tasks with one role have the same costs
        self._costs = costs
        self._from = ""  # what the lap began with
        self._mark: float | None = None  # None: no job is under way
        self.elapsed = 0.0  # simulated seconds since `begin`

    def begin(self, what: str) -> None:
        """Begins a job."""
        self._from, self.elapsed, self._mark = what, 0.0, time.thread_time()

    def lap(self, what: str, besides: float = 0.0) -> None:
        """Ends a lap, which costs what laps of its name cost, and what is modelled `besides`."""
        if self._mark is not None:
            took = time.thread_time() - self._mark
            self.elapsed += self._costs.of(f"{self.role}: {self._from} -> {what}", took) + besides
            self._from, self._mark = what, time.thread_time()

    def skip(self) -> None:
        """Leaves out what was done since the last lap, since no real task does it."""
        if self._mark is not None:
            self._mark = time.thread_time()

    def end(self) -> float:
        """Ends the job and returns what it costs."""
        self.lap("end")
        self._mark = None
        seconds, self.elapsed = self.elapsed, 0.0
        return seconds
