"""Partition: one subgraph per task, with a Send and a Recv on every edge between tasks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.device import DeviceSpecV2
from penstock.ops.array.creation import const
from penstock.ops.engine.send_recv import recv, send
from penstock.passes.ir import SPLIT, WAVE, Edge, Node, Subgraph, sorted_nodes
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
        feeds = [i for i, n in enumerate(subgraph.feeds) if task_of(n.device) == task]
        fetches = [i for i, (n, _) in enumerate(subgraph.fetches) if task_of(n.device) == task]
        part = cut.part(task, [subgraph.feeds[i] for i in feeds], [subgraph.fetches[i] for i in fetches])
        parts.append(Partition(task, part, feeds, fetches))
    return parts


class Cut:
    """A placed subgraph, cut along the borders between tasks.

    `shared` are feeds (by id) that each task may have from outside. In a body, whose Sends and Recvs may run several
    times in a step, they are `repeated`.
    """

    def __init__(
        self, subgraph: Subgraph, keys: Iterator[int], shared: Collection[int] = (), repeated: bool = False
    ) -> None:
        self._targets = subgraph.targets
        self._keys, self._shared, self._repeated = keys, shared, repeated
        self._members: dict[str, list[Node]] = {}
        self._received: dict[tuple[int, int, str], Node] = {}
        self._waves = _waves(subgraph.nodes)
        self._ragged = ragged_nodes(subgraph.nodes)
        for node in subgraph.nodes:
            self._add(node)
            if SPLIT in node.attrs:
                node.attrs[WAVE] = self._waves[id(node)]
        for node in subgraph.nodes:
            node.inputs = [self.at(edge, node.device) for edge in node.inputs]
            node.controls = [self.at((source, -1), node.device)[0] for source in node.controls]

    def at(self, edge: Edge, device: str) -> Edge:
        """The input of a node on `device` for an edge (-1 for control): the edge, or one Recv per value and task."""
        source, index = edge
        here = task_of(device)
        if task_of(source.device) == here:
            return edge
        key = (id(source), index, here)
        if key not in self._received:
            if index == 0 and (id(source) in self._shared or _is_small_constant(source)):
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
            return feed
        return self._received.get((id(feed), 0, task)) if id(feed) in self._shared else None

    def part(self, task: str, feeds: list[Node], fetches: list[Edge]) -> Subgraph:
        """The part of one task. Nobody here may want what others wait for, but it must run."""
        nodes = self._members.get(task, [])
        targets = [n for n in self._targets if task_of(n.device) == task]
        targets += [n for n in nodes if n.op.name == "_Send" or SPLIT in n.attrs]
        return Subgraph(sorted_nodes(nodes), feeds, fetches, targets)

    def _add(self, node: Node) -> None:
        self._members.setdefault(task_of(node.device), []).append(node)

    def _sent(self, source: Node, index: int, device: str) -> Node:
        """The Recv on `device` for a value of another task, or for the token of a control edge."""
        value: Edge = (source, index)
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
                [source] if index < 0 else [],
                source.device,
                source.order,
            )
        )
        received = {
            "tensor_type": dtype,
            "send_task": task_of(source.device),
            "wave": self._waves[id(source)] + 1,
            "ragged": source in self._ragged and index >= 0,
            **both,
        }
        return Node(f"{source.name}/_recv_{index}", recv, received, (dtype,), device=device, order=source.order)


def _waves(nodes: list[Node]) -> dict[int, int]:
    """How often the way to each node goes from one task to another, at most.

    What a task receives may depend on what it has sent: then it comes in a later wave, and nothing of an earlier one
    may wait for it. The copies of a split node wait for each other, so all have one wave, which is no other's: all
    tasks come to split nodes in the same order.
    """
    waves: dict[int, int] = {}
    latest = 0  # wave of a split node
    for _, together in itertools.groupby(nodes, lambda n: n.attrs.get(SPLIT, id(n))):
        copies = list(together)
        found = 0
        for node in copies:
            sources = [*(s for s, _ in node.inputs), *node.controls]
            here = task_of(node.device)
            found = max([found, *(waves[id(s)] + (task_of(s.device) != here) for s in sources)])
        if SPLIT in copies[0].attrs:
            found = latest = max(found, latest + 1)
        waves.update((id(node), found) for node in copies)
    return waves


def _is_small_constant(node: Node) -> bool:
    return node.op.name == "Const" and not node.controls and node.attrs["value"].size <= MAX_COPIED
