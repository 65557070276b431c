"""The membership record says which tasks a job has now, and where resources are that have moved.

Each change of the record makes a new version. The first parameter server holds it: it is in every job and never leaves.
It gives the record to who asked for the change, the launcher, which keeps it: a task that starts later finds it in the
file that PENSTOCK_MEMBERSHIP names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.errors import AbortedError, DataLossError
from penstock.graph.device import DeviceSpecV2, task_name
from penstock.master.cluster import ClusterSpec
from penstock.passes.relocate import Homes, Place

PS, WORKER = "ps", "worker"
ENVIRONMENT_VARIABLE = "PENSTOCK_MEMBERSHIP"
# The environment variable of tasks that are started to join a running job: the version that the job has then.
JOINING = "PENSTOCK_JOINING"


FIRST = task_name(PS, 0)  # holds the record, and stands in for parameter servers that have left


@dataclass(frozen=True)
class Membership:
    """A version of the record: the addresses of all tasks, by job and number, and where moved resources are.

    >>> Membership(1, {"ps": {0: "localhost:2222"}, "worker": {0: "localhost:2223"}}).names("ps")
    ['/job:ps/replica:0/task:0']
    """

    version: int = 0  # 0: nothing has changed since the job began, and `tasks` is empty
    tasks: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    homes: Mapping[Place, str] = field(default_factory=dict)
    # Parameter servers that have left once. What a program makes there stays with the one that stands in, even if a
    # server of the same number joins later.
    left: frozenset[str] = frozenset()

    def names(self, job: str) -> list[str]:
        """The names of a job's tasks."""
        return [task_name(job, number) for number in sorted(self.tasks.get(job, ()))]

    def address(self, task: str) -> str:
        """The address of a task; "" if it is not there."""
        spec = DeviceSpecV2.from_string(task)
        return self.tasks.get(spec.job or "", {}).get(spec.task or 0, "")

    def has_left(self, task: str) -> bool:
        """Tells if a task was there once and is not there now."""
        spec = DeviceSpecV2.from_string(task)
        return spec.job in self.tasks and not self.address(task)

    @cached_property
    def cluster(self) -> ClusterSpec:
        """The tasks as a ClusterSpec."""
        return ClusterSpec({job: dict(tasks) for job, tasks in self.tasks.items()})

    def cluster_of(self, told: ClusterSpec, keep: str = "") -> ClusterSpec:
        """The cluster that a program was told of, with the tasks that its jobs have now. Those of job `keep` stay."""
        jobs = {job: self.cluster if job in self.tasks and job != keep else told for job in {*told.jobs, *self.tasks}}
        return ClusterSpec(
            {job: {n: of.task_address(job, n) for n in of.task_indices(job)} for job, of in jobs.items()}
        )

    @property
    def places(self) -> Homes:
        """The tasks that have what programs place elsewhere."""
        return Homes(self.homes, dict.fromkeys(self.left, FIRST))

    def added_workers(self, told: ClusterSpec) -> int:
        """The number of workers beyond those that a program was told of; negative if there are fewer."""
        before = told.num_tasks(WORKER) if WORKER in told.jobs else 0
        return len(self.tasks[WORKER]) - before if self.version and WORKER in self.tasks else 0

    def to_json(self) -> str:
        """The record as text."""
        homes = [[*place, task] for place, task in sorted(self.homes.items())]
        return json.dumps({"version": self.version, "tasks": self.tasks, "homes": homes, "left": sorted(self.left)})

    @classmethod
    def from_json(cls, text: str, where: str = "a message") -> Membership:
        """Reads what `to_json` has written. Raises DataLossError, which names `where` it was, for anything else."""
        try:
            found: dict[str, Any] = json.loads(text)
            tasks = {
                str(job): {int(number): str(address) for number, address in of_job.items()}
                for job, of_job in found["tasks"].items()
            }
            homes = {(str(task), str(kept), str(name)): str(home) for task, kept, name, home in found["homes"]}
            return cls(int(found["version"]), tasks, homes, frozenset(map(str, found["left"])))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataLossError(f"The membership record in {where} cannot be read: {error!r}.") from error


NOTHING_CHANGED = Membership()


class Moved(AbortedError):
    """Raised inside a master if a graph was placed by an older membership than that of a task; it is placed anew."""

    def __init__(self, membership: Membership) -> None:
        super().__init__(f"The membership has version {membership.version} now.")
        self.membership = membership


def refused(task: str, received: int, current: int) -> AbortedError:
    """The answer of a task to a graph that was placed by another membership than its own."""
    return AbortedError(f"{_REFUSED} {received}, and {task} has version {current}: make a new session.")


def is_refusal(error: AbortedError) -> bool:
    """Tells if an error is such an answer."""
    return error.message.startswith(_REFUSED)


_REFUSED = "A graph was placed by the membership of version"


def load() -> Membership:
    """The record as it was when this task was started, or one that says that nothing has changed."""
    path = os.environ.get(ENVIRONMENT_VARIABLE)
    try:
        return Membership.from_json(Path(path).read_text(), f"'{path}'") if path else NOTHING_CHANGED
    except FileNotFoundError:
        return NOTHING_CHANGED
