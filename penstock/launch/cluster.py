"""The tasks of a cluster, and TF_CONFIG, which tells each task its place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PS, CHIEF, WORKER, EVALUATOR = "ps", "chief", "worker", "evaluator"


class LaunchError(ValueError):
    """Raised if a cluster cannot be started as asked: the problem, what was received, and what to do."""


@dataclass(frozen=True, order=True)
class Task:
    """One process of a cluster; `str(task)` is `worker:0`."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


@dataclass(frozen=True)
class Size:
    """The number of tasks of each kind in a cluster.

    >>> Size(ps=1, workers=2, chief=True).addressed
    [Task(job='ps', index=0), Task(job='chief', index=0), Task(job='worker', index=0), Task(job='worker', index=1)]
    """

    ps: int = 1
    workers: int = 2
    chief: bool = False
    evaluator: bool = False

    def __post_init__(self) -> None:
        if self.ps < 0:
            raise LaunchError(f"--ps must not be negative, received {self.ps}. Give 0 for a cluster without one.")
        if self.workers < 1:
            raise LaunchError(
                f"--workers must be at least 1, received {self.workers}. A job without workers has no work."
            )

    @property
    def addressed(self) -> list[Task]:
        """The tasks that have an address in the cluster, in the order in which they are started."""
        counts = {PS: self.ps, CHIEF: int(self.chief), WORKER: self.workers}
        return [Task(job, index) for job, count in counts.items() for index in range(count)]

    @property
    def tasks(self) -> list[Task]:
        """All tasks, in the order in which they are started; an evaluator has no address."""
        return [*self.addressed, Task(EVALUATOR, 0)] if self.evaluator else self.addressed


@dataclass(frozen=True)
class Cluster:
    """Addresses by job; an evaluator is part of the launched job but has no address.

    Programs are told of the parameter servers that the job began with, `first_ps`, whoever has joined or left since:
    where they place variables must not change.
    """

    addresses: Mapping[str, tuple[str, ...]]
    evaluator: bool = False
    first_ps: tuple[str, ...] | None = None  # None: nobody has joined or left

    @classmethod
    def at(cls, size: Size, places: Iterable[str]) -> Cluster:
        """A cluster of that size; `places` are the addresses of `size.addressed`."""
        addresses: dict[str, tuple[str, ...]] = {}
        for task, address in zip(size.addressed, places, strict=True):
            addresses[task.job] = (*addresses.get(task.job, ()), address)
        return cls(addresses, size.evaluator)

    @property
    def tasks(self) -> list[Task]:
        """All tasks, in the order in which they are started."""
        tasks = [Task(job, index) for job, found in self.addresses.items() for index in range(len(found))]
        return [*tasks, Task(EVALUATOR, 0)] if self.evaluator else tasks

    @property
    def places(self) -> dict[str, str]:
        """The addresses by task.

        >>> Cluster({"worker": ("127.0.0.1:2222",)}).places
        {'worker:0': '127.0.0.1:2222'}
        """
        return {f"{job}:{i}": at for job, found in self.addresses.items() for i, at in enumerate(found)}

    @property
    def size(self) -> Size:
        """The number of tasks of each kind."""
        ps, chief, workers = (len(self.addresses.get(job, ())) for job in (PS, CHIEF, WORKER))
        return Size(ps, workers, bool(chief), self.evaluator)

    def resized(self, size: Size, places: Iterable[str]) -> Cluster:
        """The cluster after tasks have joined, left or moved; `places` are the addresses of `size.addressed`."""
        addresses = Cluster.at(size, places).addresses
        first = self.addresses.get(PS, ()) if self.first_ps is None else self.first_ps
        present = addresses.get(PS, ())
        # One that has left keeps the address that it had last: nobody is there.
        return Cluster(addresses, size.evaluator, (*present[: len(first)], *first[len(present) :]))

    def told_to(self, task: Task) -> Cluster:
        """The cluster as a task is told of it: a parameter server that has joined must find itself there."""
        if self.first_ps is None or (task.job == PS and task.index >= len(self.first_ps)):
            return self
        return Cluster({**self.addresses, PS: self.first_ps}, self.evaluator)

    def tf_config(self, task: Task) -> str:
        """The value of TF_CONFIG for a task.

        >>> Cluster({"worker": ("127.0.0.1:2222",)}).tf_config(Task("worker", 0))
        '{"cluster": {"worker": ["127.0.0.1:2222"]}, "task": {"type": "worker", "index": 0}}'
        """
        cluster = {job: list(found) for job, found in self.addresses.items()}
        return json.dumps({"cluster": cluster, "task": {"type": task.job, "index": task.index}})
