"""Transfer: sending tensors of a step to other tasks, and waiting for those that come from there.

Sends to one task that are next to each other in a step become one message; so do waits for tensors.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from penstock.passes.ir import Node
from penstock.worker.resources import Variable


class SendCall:
    """Sends values, or what variables hold, to one task."""

    waits = False
    out_slots: tuple[int, ...] = ()

    def __init__(self, owner: Any, nodes: list[Node]) -> None:
        self.task: str = nodes[0].attrs["recv_task"]
        self.is_last = False  # of what a step does
        self.keys = [n.attrs["key"] for n in nodes]
        self.repeated: bool = nodes[0].attrs["repeated"]
        self.sources: list[int | Variable] = [owner.source(n.inputs[0]) for n in nodes]
        self.in_slots = [s for s in self.sources if isinstance(s, int)]
        self.name = nodes[0].name
        self.device = nodes[0].device
        self.label = f"{self.name} = Send({', '.join(n.attrs['tensor_name'] for n in nodes)})"

    def gathered(self, values: list[Any]) -> list[Any]:
        """What is sent, on the host."""
        sent = []
        for source in self.sources:
            value = values[source] if isinstance(source, int) else source.snapshot()
            if value.__class__ is not np.ndarray and isinstance(value, jax.Array):
                value = np.asarray(value)
            sent.append(value)
        return sent

    def __call__(self, values: list[Any], step: Any) -> None:
        tensors = self.gathered(values)
        if self.repeated:
            step.send(self.task, step.rendezvous.numbered(self.keys), tensors, None)
        elif not step.send(self.task, self.keys, tensors, step.asked_by if self.is_last else None):
            step.parting = self.keys, tensors


class RecvCall:
    """Waits for values from other tasks."""

    waits = True
    in_slots: tuple[int, ...] = ()

    def __init__(self, owner: Any, nodes: list[Node]) -> None:
        self.keys = [n.attrs["key"] for n in nodes]
        self.repeated: bool = nodes[0].attrs["repeated"]
        self.out_slots = [owner.slot((n, 0)) for n in nodes]
        self.name = nodes[0].name
        self.device = nodes[0].device
        self.tensors = {n.attrs["key"]: f"'{n.attrs['tensor_name']}' from {n.attrs['send_task']}" for n in nodes}
        self.label = f"{self.name} = Recv({', '.join(n.attrs['tensor_name'] for n in nodes)})"

    def __call__(self, values: list[Any], step: Any) -> None:
        keys = step.rendezvous.numbered(self.keys) if self.repeated else self.keys
        step.wait_for(self, keys)
        for slot, value in zip(self.out_slots, step.rendezvous.take(keys), strict=True):
            values[slot] = value


def together(steps: list[Any]) -> list[Any]:
    """Steps of a plan with sends to one task as one list, and neighbouring receives as one list.

    A send waits for others as long as only small work on the host lies between: a message costs more than that.
    """
    if not any(isinstance(step, Node) and step.op.name in ("_Send", "_Recv") for step in steps):
        return steps
    result: list[Any] = []
    held: dict[Any, list[Node]] = {}
    receives: list[Node] | None = None  # if they are what comes last
    for step in steps:
        name = step.op.name if isinstance(step, Node) else ""
        if name == "_Send":
            held.setdefault((step.attrs["recv_task"], step.attrs["repeated"]), []).append(step)
            continue
        if not name or not _is_small(step):
            if held:
                receives = None
            result += held.values()
            held = {}
        if name != "_Recv":
            receives = None
            result.append(step)
        elif receives is not None:
            receives.append(step)
        else:
            receives = [step]
            result.append(receives)
    return [*result, *held.values()]


def _is_small(node: Node) -> bool:
    """Tells if a node on the host neither waits nor calls what may take long."""
    op = node.op
    return not (op.blocking or op.control_flow or op.stateful or "functions" in op.wants or op.takes_variables)
