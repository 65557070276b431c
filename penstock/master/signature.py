"""A signature is a graph that is compiled for one set of feeds and fetches, as a part for each of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.master.ahead import Ahead
from penstock.master.tasks import Task
from penstock.passes.ir import Subgraph
from penstock.wire.loop import Signal
from penstock.worker.step import Step
from penstock.worker.worker import Worker

_SERVERS = "/job:ps/"  # how the names of parameter servers begin


@dataclass(slots=True, eq=False)
class Part:
    """A partition that is registered with its task. A step has one part for each."""

    task: Task
    graph: Any  # the handle that the task gave for it
    feeds: list[int]
    fetches: list[int]


@dataclass(slots=True, eq=False)
class LocalPart(Part):
    """A part in this process. It runs in the thread that calls `run`."""

    worker: Worker


class Signature:
    """Holds a graph that is compiled for one set of feeds and fetches."""

    __slots__ = (
        "ahead",
        "fetch_count",
        "joins",
        "local_part",
        "may_read_ahead",
        "on_servers",
        "other_parts",
        "run_whole",
        "source",
        "version",
        "wait",
    )

    def __init__(self, parts: list[Part], fetch_count: int, source: Subgraph | None = None, version: int = 0) -> None:
        self.source = source  # to place it anew; None without a cluster
        self.version = version  # of the membership by which it is placed
        self.ahead = Ahead()
        self.joins = False  # it waits until this task is a member
        self.on_servers = any(p.task.name.startswith(_SERVERS) for p in parts)
        self.local_part = next((p for p in parts if isinstance(p, LocalPart)), None)
        self.other_parts = [p for p in parts if p is not self.local_part]
        self.fetch_count = fetch_count
        # The other task reads when its part is over. That must be when the whole step is, since the next one may have
        # to find what some other step has written before this one was over, as in synchronous training.
        local = self.local_part
        self.may_read_ahead = (
            len(self.other_parts) == 1 and local is not None and local.worker.ends_by_sending(local.graph)
        )
        # A thread that waits for tasks of other processes reads their loop meanwhile, if they share one.
        loops = {id(p.task.loop): p.task.loop for p in self.other_parts if p.task.loop is not None}
        self.wait = next(iter(loops.values())).wait if len(loops) == 1 else Signal.wait
        # A step of one local task has no Send or Recv, and is a plain call.
        self.run_whole: Callable[[Sequence[Any], Step], list[Any]] | None = None
        if self.local_part is not None and not self.other_parts:
            self.run_whole = self.local_part.worker.runner(self.local_part.graph)

    def become(self, other: Signature) -> None:
        """Takes on another placement of the same graph. No step of it is running."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))
