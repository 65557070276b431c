"""Barriers: a NoOp that only one task waits for is in that task.

`group` makes a NoOp for each device, and one that joins them where the program is, in the worker. What follows is
often on a parameter server again, such as the count of steps after the updates: so each training step would go from the
parameter servers to the worker and back once more, for nothing.
"""

from __future__ import annotations

from collections import defaultdict

from penstock.passes.ir import Node, Subgraph
from penstock.passes.partition import task_of
from penstock.passes.place import with_devices


def move_barriers(subgraph: Subgraph) -> Subgraph:
    """The placed subgraph with each NoOp where the only task is that waits for it, if fewer messages go there then."""
    barriers = [node for node in subgraph.nodes if node.op.name == "NoOp"]
    if not barriers:
        return subgraph
    waiting: dict[Node, list[Node]] = defaultdict(list)
    for node in subgraph.nodes:
        for source in node.controls:
            waiting[source].append(node)
    devices: dict[Node, str] = {}
    for node in reversed(barriers):  # one may wait for another
        waits = [devices.get(waiter, waiter.device) for waiter in waiting[node]]
        if node in subgraph.targets or len({task_of(device) for device in waits}) != 1:
            continue
        sources = [task_of(source.device) for source in node.controls]
        here, there = task_of(node.device), task_of(waits[0])
        if len(sources) - sources.count(there) < len(sources) - sources.count(here) + (here != there):
            devices[node] = waits[0]
    return with_devices(subgraph, lambda node: devices.get(node, node.device)) if devices else subgraph
