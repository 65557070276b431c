"""Partition: one subgraph per task, with a Send and a Recv on every edge between tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.device import DeviceSpecV2
from penstock.ops.array import const
from penstock.ops.sendrecv import recv, send
from penstock.passes.ir import Edge, Node, Subgraph, sorted_nodes
from penstock.passes.rows_on_host import ragged_nodes

MAX_COPIED = 1024  # elements of a constant that each task gets for itself


@dataclass(slots=True)
class Partition:
    """The part of one task: which of the step's feeds it takes and which fetches it gives (their positions)."""

    task: str
    subgraph: Subgraph
    feeds: list[int]
    fetches: list[int]


def task_of(device: str) -> str:
    """/job:a/replica:0/task:1 of a full device name."""
    spec = DeviceSpecV2.from_string(device)
    return DeviceSpecV2(job=spec.job, replica=spec.replica, task=spec.task).to_string()


def partition(subgraph: Subgraph) -> list[Partition]:
    """Splits a placed subgraph by task. A single task gets the subgraph as it is."""
    tasks = {id(n): task_of(n.device) for n in subgraph.nodes}
    names = list(dict.fromkeys(tasks.values()))
    if len(names) <= 1:
        every = list(range(len(subgraph.feeds))), list(range(len(subgraph.fetches)))
        return [Partition(names[0] if names else "", subgraph, *every)]
    members: dict[str, list[Node]] = {name: [] for name in names}
    received: dict[tuple[int, int, str], Node] = {}
    waves = _waves(subgraph.nodes, tasks)
    ragged = ragged_nodes(subgraph.nodes)
    for node in subgraph.nodes:
        members[tasks[id(node)]].append(node)

    def over(source: Node, index: int, consumer: Node) -> Node:
        """The Recv in the consumer's task for a value of another task; made once per value and task."""
        there, here = tasks[id(source)], tasks[id(consumer)]
        key = (id(source), index, here)
        if key not in received and _is_small_constant(source) and index == 0:
            # Each task has its own copy of what is known beforehand.
            copy = Node(source.name, source.op, source.attrs, source.dtypes, device=consumer.device, order=source.order)
            tasks[id(copy)] = here
            members[here].append(copy)
            received[key] = copy
        if key not in received:
            sender, receiver = _pair(source, index, there, here, consumer.device, len(received))
            receiver.attrs["wave"] = waves[id(source)] + 1
            receiver.attrs["ragged"] = id(source) in ragged and index >= 0
            tasks[id(sender)], tasks[id(receiver)] = there, here
            members[there].append(sender)
            if sender.inputs[0][0] is not source:  # the token of a control edge
                tasks[id(sender.inputs[0][0])] = there
                members[there].append(sender.inputs[0][0])
            members[here].append(receiver)
            received[key] = receiver
        return received[key]

    for node in subgraph.nodes:
        node.inputs = [(s, i) if tasks[id(s)] == tasks[id(node)] else (over(s, i, node), 0) for s, i in node.inputs]
        node.controls = [s if tasks[id(s)] == tasks[id(node)] else over(s, -1, node) for s in node.controls]
    return [_part(subgraph, task, nodes, tasks) for task, nodes in members.items()]


def _waves(nodes: list[Node], tasks: dict[int, str]) -> dict[int, int]:
    """How often the way to each node goes from one task to another, at most.

    What a task receives may depend on what it has sent: then it comes in a later wave, and nothing of an earlier one
    may wait for it.
    """
    waves: dict[int, int] = {}
    for node in nodes:
        sources = [*(s for s, _ in node.inputs), *node.controls]
        here = tasks[id(node)]
        waves[id(node)] = max((waves[id(s)] + (tasks[id(s)] != here) for s in sources), default=0)
    return waves


def _is_small_constant(node: Node) -> bool:
    return node.op.name == "Const" and not node.controls and node.attrs["value"].size <= MAX_COPIED


def _pair(source: Node, index: int, there: str, here: str, device: str, key: int) -> tuple[Node, Node]:
    value: Edge = (source, index)
    if index < 0:
        token = Node(f"{source.name}/_token", const, {"dtype": dt.int32, "value": np.zeros((), np.int32)},
                     (dt.int32,), device=source.device, order=source.order)  # fmt: skip
        value = (token, 0)
    dtype = value[0].dtypes[value[1]].base_dtype
    name = f"{source.name}:{index}" if index >= 0 else f"^{source.name}"
    return (
        Node(f"{source.name}/_send_{index}", send, {"T": dtype, "tensor_name": name, "key": key, "recv_task": here},
             (), [value], [source] if index < 0 else [], source.device, source.order),
        Node(f"{source.name}/_recv_{index}", recv,
             {"tensor_type": dtype, "tensor_name": name, "key": key, "send_task": there}, (dtype,),
             device=device, order=source.order),
    )  # fmt: skip


def _part(whole: Subgraph, task: str, nodes: list[Node], tasks: dict[int, str]) -> Partition:
    feeds = [i for i, n in enumerate(whole.feeds) if tasks[id(n)] == task]
    fetches = [i for i, (n, _) in enumerate(whole.fetches) if tasks[id(n)] == task]
    sends = [n for n in nodes if n.op.name == "_Send"]
    targets = [n for n in whole.targets if tasks[id(n)] == task] + sends
    subgraph = Subgraph(
        sorted_nodes(nodes), [whole.feeds[i] for i in feeds], [whole.fetches[i] for i in fetches], targets
    )
    return Partition(task, subgraph, feeds, fetches)
