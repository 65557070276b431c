"""Partition: one subgraph per task, with a Send and a Recv on every edge between tasks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.device import DeviceSpecV2
from penstock.ops.array.creation import const
from penstock.ops.engine.send_recv import recv, send
from penstock.passes.ir import SPLIT, WAVE, Edge, Node, Subgraph, sorted_nodes, sources_of
from penstock.passes.rows_on_host import ragged_nodes

MAX_COPIED = 1024  # elements of a constant that each task gets for itself


@dataclass(slots=True)
class Partition:
    """The part of one task: which of the step's feeds it takes and which fetches it gives (their positions)."""

    task: str
    subgraph: Subgraph
    feeds: list[int]
    fetches: list[int]


@functools.lru_cache(4096)
def task_of(device: str) -> str:
    """/job:a/replica:0/task:1 of a full device name."""
    spec = DeviceSpecV2.from_string(device)
    return DeviceSpecV2(job=spec.job, replica=spec.replica, task=spec.task).to_string()


def partition(subgraph: Subgraph, keys: Iterator[int] | None = None) -> list[Partition]:
    """Splits a placed subgraph by task. A single task gets the subgraph as it is.

    `keys` continues the keys of the Sends inside bodies, if there are any.
    """
    names = dict.fromkeys(task_of(n.device) for n in subgraph.nodes)
    if len(names) <= 1:
        every = list(range(len(subgraph.feeds))), list(range(len(subgraph.fetches)))
        return [Partition(next(iter(names), ""), subgraph, *every)]
    cut = Cut(subgraph, itertools.count() if keys is None else keys)
    parts = []
    for task in names:
        feeds = {i: cut.feed(n, task) for i, n in enumerate(subgraph.feeds) if task_of(n.device) == task}
        fetches = {i: cut.at(e, e[0].device) for i, e in enumerate(subgraph.fetches) if task_of(e[0].device) == task}
        part = cut.part(task, [n for n in feeds.values() if n is not None], list(fetches.values()))
        parts.append(Partition(task, part, list(feeds), list(fetches)))
    return parts


class Cut:
    """A copy of a placed subgraph, cut along the borders between tasks.

    `shared` are feeds that each task may have from outside. In a body, whose Sends and Recvs may run several times in a
    step, they are `repeated`.
    """

    def __init__(
        self, subgraph: Subgraph, keys: Iterator[int], shared: Collection[Node] = (), repeated: bool = False
    ) -> None:
        self._keys, self._shared, self._repeated = keys, shared, repeated
        self._members: dict[str, list[Node]] = {}
        self._received: dict[tuple[Node, int, str], Node] = {}
        self._waves = waves_of(subgraph.nodes)
        self._ragged = ragged_nodes(subgraph.nodes)
        self._copies: dict[Node, Node] = {}
        for node in subgraph.nodes:
            attrs = {**node.attrs, WAVE: self._waves[node]} if SPLIT in node.attrs else node.attrs
            self._copies[node] = replace(node, attrs=attrs, inputs=[], controls=[])
            self._add(self._copies[node])
        for node, copy in self._copies.items():
            copy.inputs = [self.at(edge, node.device) for edge in node.inputs]
            copy.controls = [self.at((source, -1), node.device)[0] for source in node.controls]
        self._targets = [self._copies[node] for node in subgraph.targets]

    def at(self, edge: Edge, device: str) -> Edge:
        """The input of a copy on `device` for an edge (-1 for control): the edge, or one Recv per value and task."""
        source, index = edge
        here = task_of(device)
        if task_of(source.device) == here:
            return self._copies[source], index
        key = (source, index, here)
        if key not in self._received:
            if index == 0 and (source in self._shared or _is_small_constant(source)):
                # Each task has its own copy of what is known beforehand.
                found = Node(source.name, source.op, source.attrs, source.dtypes, device=device, order=source.order)
            else:
                found = self._sent(source, index, device)
            self._add(found)
            self._received[key] = found
        return self._received[key], 0

    def feed(self, feed: Node, task: str) -> Node | None:
        """The node that stands for a feed in a task, if something there takes it."""
        if task_of(feed.device) == task:
            return self._copies[feed]
        return self._received.get((feed, 0, task)) if feed in self._shared else None

    def part(self, task: str, feeds: list[Node], fetches: list[Edge]) -> Subgraph:
        """The part of one task, which has these copies. Nobody may want what others wait for, but it must run."""
        nodes = self._members.get(task, [])
        targets = [n for n in self._targets if task_of(n.device) == task]
        targets += [n for n in nodes if n.op.name == "_Send" or SPLIT in n.attrs]
        return Subgraph(sorted_nodes(nodes), feeds, fetches, targets)

    def _add(self, node: Node) -> None:
        self._members.setdefault(task_of(node.device), []).append(node)

    def _sent(self, source: Node, index: int, device: str) -> Node:
        """The Recv on `device` for a value of another task, or for the token of a control edge."""
        value: Edge = (self._copies[source], index)
        if index < 0:
            token = Node(
                f"{source.name}/_token",
                const,
                {"dtype": dt.int32, "value": np.zeros((), np.int32)},
                (dt.int32,),
                device=source.device,
                order=source.order,
            )
            self._add(token)
            value = (token, 0)
        dtype = value[0].dtypes[value[1]].base_dtype
        name = f"{source.name}:{index}" if index >= 0 else f"^{source.name}"
        both = {"tensor_name": name, "key": next(self._keys), "repeated": self._repeated}
        self._add(
            Node(
                f"{source.name}/_send_{index}",
                send,
                {"T": dtype, "recv_task": task_of(device), **both},
                (),
                [value],
                [self._copies[source]] if index < 0 else [],
                source.device,
                source.order,
            )
        )
        received = {
            "tensor_type": dtype,
            "send_task": task_of(source.device),
            "wave": self._waves[source] + 1,
            "ragged": source in self._ragged and index >= 0,
            **both,
        }
        return Node(f"{source.name}/_recv_{index}", recv, received, (dtype,), device=device, order=source.order)


def waves_of(nodes: list[Node]) -> dict[Node, int]:
    """Counts how often the way to each node goes from one task to another, at most.

    What a task receives may depend on what it has sent: then it comes in a later wave, and nothing of an earlier one
    may wait for it. The copies of a split node wait for each other, so all have one wave, which is no other's: all
    tasks come to split nodes in the same order.
    """
    waves: dict[Node, int] = {}
    latest = 0  # wave of a split node
    for _, together in itertools.groupby(nodes, lambda n: n.attrs.get(SPLIT, id(n))):
        copies = list(together)
        found = 0
        for node in copies:
            here = task_of(node.device)
            found = max([found, *(waves[s] + (task_of(s.device) != here) for s in sources_of(node))])
        if SPLIT in copies[0].attrs:
            found = latest = max(found, latest + 1)
        waves.update(dict.fromkeys(copies, found))
    return waves


def _is_small_constant(node: Node) -> bool:
    return node.op.name == "Const" and not node.controls and node.attrs["value"].size <= MAX_COPIED
