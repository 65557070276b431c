"""Workers that average, in NumPy: the values of every worker and of the centers after each step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

START = {"v0": np.array(0.0), "v1": np.array([1.0, 3.0])}


def gradient(worker: int, step: int) -> dict[str, np.ndarray]:
    """The gradients of a worker's step: different for each, so that no mistake of order cancels out."""
    slope = 1.0 + worker + 0.25 * step
    return {"v0": np.array(-slope), "v1": np.array([0.5 * slope, -0.25 * slope])}


@dataclass
class Momentum:
    """The rule of a set of variables; with `momentum` 0 it is gradient descent."""

    rate: float
    momentum: float
    sums: dict[str, np.ndarray] = field(default_factory=dict)

    def apply(self, values: dict[str, np.ndarray], grads: dict[str, np.ndarray]) -> None:
        for name, grad in grads.items():
            self.sums[name] = self.momentum * self.sums.get(name, 0.0) + grad
            values[name] = values[name] - self.rate * self.sums[name]


class Reference:
    """Workers 0 to `workers` - 1 of one kind: "model", "elastic" or "agn". `step` makes one step of one worker."""

    def __init__(self, kind: str, workers: int, period: int, moving_rate: float, rate: float, momentum: float) -> None:
        self.kind, self.period, self.moving_rate = kind, period, moving_rate
        self.center = dict(START)
        self.copies = [dict(START) for _ in range(workers)]
        self.asides = [dict(START) for _ in range(workers)]
        self.sums = [{name: 0.0 * value for name, value in START.items()} for _ in range(workers)]
        self.rules = [Momentum(rate, momentum) for _ in range(workers)]
        self.center_rule = Momentum(rate, momentum)
        self.local_steps = [0] * workers
        self.global_step = 0
        self._waiting: list[int] = []

    def step(self, worker: int) -> None:
        grads = gradient(worker, self.local_steps[worker])
        self.rules[worker].apply(self.copies[worker], grads)
        for name, grad in grads.items():
            self.sums[worker][name] = self.sums[worker][name] + grad
        self.local_steps[worker] += 1
        if self.local_steps[worker] % self.period == 0:
            getattr(self, f"_meet_{self.kind}")(worker)

    def _meet_model(self, worker: int) -> None:
        self._waiting.append(worker)
        if len(self._waiting) == len(self.copies):
            self.center = {name: np.mean([copy[name] for copy in self.copies], 0) for name in START}
            self.copies = [dict(self.center) for _ in self.copies]
            self.global_step += 1
            self._waiting = []

    def _meet_elastic(self, worker: int) -> None:
        self.asides[worker] = dict(self.center)
        for name in START:
            pull = self.moving_rate * (self.copies[worker][name] - self.center[name])
            self.copies[worker][name] = self.copies[worker][name] - pull
            self.center[name] = self.center[name] + pull
        self.global_step += 1

    def _meet_agn(self, worker: int) -> None:
        self.center_rule.apply(self.center, {name: total / self.period for name, total in self.sums[worker].items()})
        self.copies[worker] = dict(self.center)
        self.sums[worker] = {name: 0.0 * value for name, value in START.items()}
        self.global_step += 1

    def state(self, worker: int) -> dict[str, np.ndarray]:
        """The variables as the worker sees them, by name."""
        found = {name: self.copies[worker][name] for name in START}
        found |= {f"global_center_variable/{name}": self.center[name] for name in START}
        if self.kind == "elastic":
            found |= {f"local_center_variable/{name}": self.asides[worker][name] for name in START}
        if self.kind == "agn":
            found |= {f"grad_variable/{name}": self.sums[worker][name] for name in START}
        return {**found, "local_step": np.array(self.local_steps[worker]), "global_step": np.array(self.global_step)}
