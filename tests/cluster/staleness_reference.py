"""Workers with stale gradients, in NumPy: when each may go on, and the variables after each event.

A worker reads the variables, and later pushes its gradient. In between others may push theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

RATE = 0.1
START = {"w": np.array([1.0, 3.0]), "e": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}
ROWS = np.array([2, 0, 2])  # of "e"; one occurs twice


def goal(worker: int, step: int) -> float:
    """The number that a worker pulls the variables to, different in each step."""
    return float(worker + 1 + 0.5 * step)


def gradients(values: dict[str, np.ndarray], worker: int, step: int) -> dict[str, np.ndarray]:
    """The gradients of a step that has read `values`."""
    sparse = np.zeros_like(values["e"])
    np.add.at(sparse, ROWS, values["e"][ROWS] - goal(worker, step))
    return {"w": values["w"] - goal(worker, step), "e": sparse}


@dataclass
class Simulated:
    """One worker."""

    steps: int = 0
    read: dict[str, np.ndarray] | None = None
    grads: dict[str, np.ndarray] | None = None
    begun: bool = True
    clock: int = 0
    seen: int = 0
    ahead: int = 0
    missed: int = 0


@dataclass
class Bounded:
    """Stale synchronous parallel: `read` and `push` are events, `granted` the workers whose step has just ended."""

    count: int
    staleness: float
    values: dict[str, np.ndarray] = field(default_factory=lambda: dict(START))
    updates: int = 0

    def __post_init__(self) -> None:
        self.workers = [Simulated() for _ in range(self.count)]
        self.record: list[tuple[int, int]] = []

    def can_read(self, worker: int) -> bool:
        return self.workers[worker].begun and self.workers[worker].read is None

    def can_push(self, worker: int) -> bool:
        return self.workers[worker].read is not None and self.workers[worker].grads is None

    def read(self, worker: int) -> None:
        self.workers[worker].read = dict(self.values)

    def push(self, worker: int) -> list[int]:
        one = self.workers[worker]
        assert one.read is not None
        one.grads = gradients(one.read, worker, one.steps)
        one.missed = self.updates - one.seen
        ready = [worker]
        if self.staleness == 0:
            ready = [i for i, w in enumerate(self.workers) if w.grads is not None]
            if len(ready) < self.count:
                return []
        for i in ready:
            self._apply(self.workers[i])
        return self._grant()

    def _apply(self, one: Simulated) -> None:
        assert one.grads is not None
        self.values = {name: value - RATE * one.grads[name] for name, value in self.values.items()}
        self.record.append((one.missed, one.ahead))
        self.updates += 1
        one.clock += 1
        one.steps += 1
        one.read, one.grads, one.begun = None, None, False

    def _grant(self) -> list[int]:
        slowest = min(one.clock for one in self.workers)
        granted = [i for i, w in enumerate(self.workers) if not w.begun and slowest >= w.clock - self.staleness]
        for i in granted:
            one = self.workers[i]
            one.begun, one.seen, one.ahead = True, self.updates, one.clock - slowest
        return granted


@dataclass
class Softsync:
    """n-softsync: an update for every `group` gradients, each divided by its staleness; momentum as the rule."""

    count: int
    group: int
    momentum: float
    values: dict[str, np.ndarray] = field(default_factory=lambda: dict(START))
    step: int = 0

    def __post_init__(self) -> None:
        self.workers = [Simulated() for _ in range(self.count)]
        self.record: list[int] = []
        self._pending: list[tuple[int, dict[str, np.ndarray]]] = []
        self._sums = {name: 0.0 * value for name, value in START.items()}

    def can_read(self, worker: int) -> bool:
        return self.workers[worker].read is None

    def can_push(self, worker: int) -> bool:
        return not self.can_read(worker)

    def read(self, worker: int) -> None:
        self.workers[worker].read = dict(self.values)

    def push(self, worker: int) -> list[int]:
        one = self.workers[worker]
        assert one.read is not None
        self._pending.append((one.seen, gradients(one.read, worker, one.steps)))
        if len(self._pending) == self.group:
            self._update()
        one.steps += 1
        one.read, one.seen = None, self.step
        return [worker]

    def _update(self) -> None:
        ages = [self.step - seen for seen, _ in self._pending]
        for name in START:
            parts = [grads[name] / max(age, 1) for age, (_, grads) in zip(ages, self._pending, strict=True)]
            mean = np.mean(parts, 0)
            # Momentum of a sparse gradient decays only in the rows that have one.
            rows = np.unique(ROWS) if name == "e" else slice(None)
            self._sums[name][rows] = self.momentum * self._sums[name][rows] + mean[rows]
            self.values[name] = self.values[name].copy()
            self.values[name][rows] -= RATE * self._sums[name][rows]
        self.record += ages
        self.step += 1
        self._pending = []
