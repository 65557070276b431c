"""Makes the view of a running cluster from the reports of its tasks. Pure: two samples in, a view out.

A sample is the Status message of a task, or a text that says why there is none. Rates are per time between two.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.launch.cluster import Task

Sample = Any  # a Status message, or a str

_TASK = re.compile(r"/job:([^/]+)/replica:\d+/task:(\d+)")
SINGLE = 8  # staleness up to this has its own bar; beyond it each bar is twice as wide as the previous one


@dataclass(frozen=True)
class VariableView:
    """A variable; 0 bytes if it is not initialized. An unknown dimension is None."""

    name: str
    container: str
    device: str  # CPU:0
    dtype: str
    shape: tuple[int | None, ...]
    bytes: int


@dataclass(frozen=True)
class ResourceView:
    """A queue, accumulator, table, ...: None for a size that it does not have, and for an unlimited capacity.

    What bounds the staleness of gradients keeps histograms of it: pairs of a staleness and a number of gradients.
    """

    name: str
    container: str
    kind: str
    size: int | None
    capacity: int | None
    staleness: tuple[tuple[int, int], ...] = ()  # updates by others between the reads of a gradient and its own
    clocks_ahead: tuple[tuple[int, int], ...] = ()  # clocks that its worker was ahead of the slowest


@dataclass(frozen=True)
class CompiledView:
    """The number of compiled programs of a segment, and their compile time."""

    segment: str
    count: int
    seconds: float


@dataclass(frozen=True)
class TaskView:
    """A task of the cluster. `problem` says why it did not answer; then the rest is empty. None: not known."""

    task: str  # worker:0
    address: str
    problem: str = ""
    incarnation: int = 0
    uptime: float = 0.0
    devices: tuple[str, ...] = ()
    steps: int = 0
    failed_steps: int = 0
    updates: int = 0
    steps_per_second: float | None = None
    bytes_sent_per_second: float | None = None
    bytes_received_per_second: float | None = None
    milliseconds_per_step: float | None = None
    sessions: tuple[str, ...] = ()
    graphs: int = 0
    variables: tuple[VariableView, ...] = ()  # the largest first
    resources: tuple[ResourceView, ...] = ()
    compilations: int = 0
    compile_seconds: float = 0.0
    compilations_last_minute: int = 0
    compile_seconds_last_minute: float = 0.0
    loaded_programs: int = 0  # from disk
    compiled_segments: tuple[CompiledView, ...] = ()  # the slowest ones
    staleness: tuple[tuple[int, int], ...] = ()  # updates by others between read and write, and how often

    @property
    def variable_bytes(self) -> int:
        return sum(v.bytes for v in self.variables)


@dataclass(frozen=True)
class ClusterView:
    """All tasks of a cluster, as they were at one moment."""

    tasks: tuple[TaskView, ...]

    def as_dict(self) -> dict[str, Any]:
        """This view as a dict for JSON.

        >>> ClusterView((TaskView("ps:0", "ps0:2222", "connection refused"),)).as_dict()["tasks"][0]["problem"]
        'connection refused'
        """
        tasks = [{**dataclasses.asdict(t), "variable_bytes": t.variable_bytes} for t in self.tasks]
        for task in tasks:
            task["staleness"] = _counts("updates", task["staleness"])
            for resource in task["resources"]:
                resource["staleness"] = _counts("updates", resource["staleness"])
                resource["clocks_ahead"] = _counts("clocks", resource["clocks_ahead"])
        return {"tasks": tasks, "variable_bytes": sum(t.variable_bytes for t in self.tasks)}


def _counts(unit: str, histogram: tuple[tuple[int, int], ...]) -> list[dict[str, int]]:
    return [{unit: value, "count": count} for value, count in histogram]


def task_of(name: str) -> Task | None:
    """The task of a full name; None if the name is not that of a task.

    >>> str(task_of("/job:ps/replica:0/task:1"))
    'ps:1'
    """
    found = _TASK.match(name)
    return Task(found[1], int(found[2])) if found else None


def view_of(addresses: Mapping[Task, str], before: Mapping[Task, Sample], after: Mapping[Task, Sample]) -> ClusterView:
    """Makes the view of a cluster from two samples of its tasks; without the first there are no rates."""
    return ClusterView(tuple(_task(task, at, before.get(task), after[task]) for task, at in addresses.items()))


def _task(task: Task, address: str, before: Sample | None, now: Sample) -> TaskView:
    if isinstance(now, str):
        return TaskView(str(task), address, now)
    same = before is not None and not isinstance(before, str) and before.incarnation == now.incarnation
    steps, sent, received = _rates(before, now) if same else (None, None, None)
    variables = [
        VariableView(
            v.name,
            v.container,
            v.device.rpartition("/device:")[2],
            v.dtype,
            tuple(None if n < 0 else n for n in v.shape),
            v.bytes,
        )
        for v in now.variables
    ]
    return TaskView(
        str(task),
        address,
        "",
        now.incarnation,
        now.uptime,
        devices=tuple(d.name.rpartition("/device:")[2] for d in now.devices),
        steps=now.steps,
        failed_steps=now.failed_steps,
        updates=now.updates,
        steps_per_second=steps,
        bytes_sent_per_second=sent,
        bytes_received_per_second=received,
        milliseconds_per_step=_work(before if same else None, now),
        sessions=tuple(s.name for s in now.sessions),
        graphs=sum(s.graphs for s in now.sessions),
        variables=tuple(sorted(variables, key=lambda v: (-v.bytes, v.name))),
        resources=tuple(
            ResourceView(
                r.name,
                r.container,
                r.kind,
                None if r.size < 0 else r.size,
                None if r.capacity < 0 else r.capacity,
                _histogram(r.staleness),
                _histogram(r.clocks_ahead),
            )
            for r in sorted(now.resources, key=lambda r: (r.kind, r.name))
        ),
        compilations=now.compiled.count,
        compile_seconds=now.compiled.seconds,
        compilations_last_minute=now.compiled_last_minute.count,
        compile_seconds_last_minute=now.compiled_last_minute.seconds,
        loaded_programs=now.loaded_programs,
        compiled_segments=tuple(CompiledView(c.segment, c.count, c.seconds) for c in now.compiled_segments),
        staleness=_histogram(now.staleness),
    )


def _histogram(rows: Any) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((row.updates, row.count) for row in rows))


def _rates(before: Sample, now: Sample) -> tuple[float | None, float | None, float | None]:
    """Steps, and bytes sent and received, per second."""
    seconds = now.clock - before.clock
    if seconds <= 0:
        return None, None, None
    # Per peer: bytes of a closed connection are in the previous sample but not in this one.
    known = {p.name: p for p in before.peers}
    sent = received = 0
    for peer in now.peers:
        old = known.get(peer.name)
        # A peer whose counts have decreased has a new connection.
        if old is None or peer.bytes_sent < old.bytes_sent or peer.bytes_received < old.bytes_received:
            sent, received = sent + peer.bytes_sent, received + peer.bytes_received
        else:
            sent += peer.bytes_sent - old.bytes_sent
            received += peer.bytes_received - old.bytes_received
    return (now.steps - before.steps) / seconds, sent / seconds, received / seconds


def _work(before: Sample | None, now: Sample) -> float | None:
    """Milliseconds of work per step between two samples, or of all steps if there were none."""
    if before is not None and now.steps > before.steps:
        return float(1e3 * (now.busy - before.busy) / (now.steps - before.steps))
    return 1e3 * now.busy / now.steps if now.steps else None


def bars(staleness: tuple[tuple[int, int], ...]) -> list[tuple[str, int]]:
    """A staleness histogram as bars with labels: one bar per number at first, then wider ones.

    >>> bars(((0, 10), (1, 3), (9, 1), (40, 2)))
    [('0', 10), ('1', 3), ('9-16', 1), ('33-64', 2)]
    """
    counts: dict[tuple[int, int], int] = {}
    for updates, count in staleness:
        low, high = updates, updates
        if updates > SINGLE:
            high = SINGLE
            while high < updates:
                low, high = high + 1, 2 * high
        counts[low, high] = counts.get((low, high), 0) + count
    return [(str(low) if low == high else f"{low}-{high}", count) for (low, high), count in sorted(counts.items())]
