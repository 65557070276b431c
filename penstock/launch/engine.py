"""The protocol of an engine, which runs the tasks of a job somewhere: on this machine, on Ray, Slurm or Kubernetes.

`penstock.launch.job` decides, `penstock.launch.launcher` passes its decisions to an engine, and the engine acts and
reports events (`penstock.launch.events`). An engine is a module with one function:

    @contextmanager
    def place(request: Request, events: Events) -> Iterator[Engine]:
        ...    # find places for the tasks, or raise LaunchError: the problem, and what to do
        yield engine
        ...    # end all that is left, and give the places back

`engines.py` names it. The rest follows from these rules:

* `start`, `terminate` and `kill` return soon; what comes of them is an event. None of them raises an error for a task
  that cannot be started, or has ended already: a failed start is `Ended`.
* After `start`, exactly one `Ended` is posted for the task, as its last event.
* A task keeps its address when it is restarted, where that is possible. Otherwise the engine changes `cluster`, posts
  `Moved`, and only then starts the task; the launcher stops and starts the others. So each start asks
  `request.commands` anew for what to run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from penstock.launch.cluster import PS, Cluster, Size, Task
from penstock.launch.events import Events
from penstock.launch.flags import ClusterFlags
from penstock.launch.kubernetes.options import Pods
from penstock.launch.program import Program
from penstock.launch.resources import Needs

MEMBERSHIP = "PENSTOCK_MEMBERSHIP"  # the variable by which a task finds the membership record as it is at its start


@dataclass(frozen=True)
class Invocation:
    """A script with its arguments and the settings that a task has besides its environment."""

    script: str
    args: tuple[str, ...]
    settings: Mapping[str, str]  # these replace variables of the environment
    defaults: Mapping[str, str]  # these do not
    membership: str = ""  # the record, for a file that MEMBERSHIP names; empty if nobody has joined or left

    def environment(self, around: Mapping[str, str]) -> dict[str, str]:
        """The environment of the task, from the one around it."""
        return {**self.defaults, **around, **self.settings}


@dataclass(frozen=True)
class Commands:
    """Says what each task of a job runs."""

    program: Program
    flags: ClusterFlags = field(default_factory=ClusterFlags)
    columns: int | None = None  # width of the terminal that shows a task's lines
    joining: dict[Task, int] = field(default_factory=dict)  # tasks that join, with the version that the job has then
    record: dict[str, Any] = field(default_factory=dict)  # the membership record, once tasks have joined or left

    def of(self, task: Task, cluster: Cluster) -> Invocation:
        """The invocation of a task of this cluster, as far as the task is told of it.

        The cluster's flags come first, since arguments after a `--` are not parsed as flags.
        """
        told = cluster.told_to(task)
        settings = {"TF_CONFIG": told.tf_config(task), "PENSTOCK_LAUNCHED": "1", "PYTHONUNBUFFERED": "1"}
        # Tasks write to a pipe. Without this they would not know that a progress bar is visible.
        if self.columns is not None:
            settings["PENSTOCK_TERMINAL_COLUMNS"] = str(self.columns)
        # Parameter servers keep variables in host memory: the accelerators are left to the workers.
        defaults = {"JAX_PLATFORMS": "cpu"} if task.job == PS else {}
        if task in self.joining:
            settings["PENSTOCK_JOINING"] = str(self.joining[task])
        args = (*self.flags.arguments(told, task), *self.program.args)
        return Invocation(str(self.program.script), args, settings, defaults, self._membership(cluster))

    def _membership(self, cluster: Cluster) -> str:
        """The record as text, with the addresses that its tasks have now: they may have moved since it was made."""
        if not self.record:
            return ""
        tasks = {job: {n: cluster.addresses[job][int(n)] for n in of} for job, of in self.record["tasks"].items()}
        return json.dumps({**self.record, "tasks": tasks})


@dataclass(frozen=True)
class Request:
    """Describes the job that an engine is to place. An engine refuses options that it cannot follow."""

    size: Size
    commands: Commands
    needs: Needs = field(default_factory=lambda: Needs({}))
    base_port: int | None = None  # the first of the ports; None: free ones
    pods: Pods | None = None  # for Kubernetes
    address: str | None = None  # of a running cluster that takes the tasks; None: the engine finds one
    wait: float = 60.0  # seconds until all tasks must have a place


class Engine(Protocol):
    """Runs the tasks of one job. All calls are made in one thread."""

    @property
    def cluster(self) -> Cluster:
        """The addresses of all tasks."""

    @property
    def notices(self) -> list[str]:
        """Lines for the user before the start, such as who has which GPU."""

    def start(self, task: Task, attempt: int) -> None:
        """Starts a task; `attempt` is the number of earlier starts."""

    def terminate(self, task: Task) -> None:
        """Asks a task and its children to end, as by SIGTERM."""

    def kill(self, task: Task) -> None:
        """Ends a task and its children, as by SIGKILL."""


@runtime_checkable
class ElasticEngine(Engine, Protocol):
    """An engine whose job can have more or fewer tasks while it runs."""

    def resize(self, size: Size) -> float:
        """Changes `cluster` to one of this size. Tasks that stay keep their addresses; LaunchError if it cannot be.

        Where tasks that join must wait for a place, `cluster` changes when they have it, before they run. The result
        is the number of seconds in which that happens; a start that fails says why it did not.
        """


Place = Callable[[Request, Events], AbstractContextManager[Engine]]
