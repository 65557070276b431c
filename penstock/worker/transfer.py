"""These instructions send tensors of a step to other tasks, and wait for tensors from there.

Neighbouring sends to one task become one message, and neighbouring receives one wait.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from penstock.passes.ir import Node
from penstock.worker.resources import StoredVariable


class SendCall:
    """Sends values, or the values of variables, to one task."""

    waits = False
    out_slots: tuple[int, ...] = ()

    def __init__(self, owner: Any, nodes: list[Node]) -> None:
        self.task: str = nodes[0].attrs["recv_task"]
        self.is_last = False  # it is the last instruction
        self.keys = [n.attrs["key"] for n in nodes]
        self.repeated: bool = nodes[0].attrs["repeated"]
        self.sources: list[int | StoredVariable] = [owner.source(n.inputs[0]) for n in nodes]
        self.in_slots = [s for s in self.sources if isinstance(s, int)]
        self.name = nodes[0].name
        self.device = nodes[0].device
        self.label = f"{self.name} = Send({', '.join(n.attrs['tensor_name'] for n in nodes)})"

    def gathered(self, values: list[Any]) -> list[Any]:
        """Returns the tensors to send, in host memory."""
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
        elif not step.send(self.task, self.keys, tensors, step.requester if self.is_last else None):
            step.reply_tensors = self.keys, tensors


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


def together(stages: list[Any]) -> list[Any]:
    """Returns the stages of a plan, with sends to one task joined to a list, and neighbouring receives likewise.

    A send is delayed while only small work on the host follows, since that costs less than another message.
    """
    if not any(isinstance(stage, Node) and stage.op.name in ("_Send", "_Recv") for stage in stages):
        return stages
    result: list[Any] = []
    held: dict[Any, list[Node]] = {}
    receives: list[Node] | None = None  # the last stage, if it is a list of receives
    for stage in stages:
        name = stage.op.name if isinstance(stage, Node) else ""
        if name == "_Send":
            held.setdefault((stage.attrs["recv_task"], stage.attrs["repeated"]), []).append(stage)
            continue
        if not name or not _is_small(stage):
            if held:
                receives = None
            result += held.values()
            held = {}
        if name != "_Recv":
            receives = None
            result.append(stage)
        elif receives is not None:
            receives.append(stage)
        else:
            receives = [stage]
            result.append(receives)
    return [*result, *held.values()]


def _is_small(node: Node) -> bool:
    """Tells if a node on the host neither blocks nor takes long."""
    op = node.op
    return not (op.blocking or op.control_flow or op.stateful or "functions" in op.wants or op.takes_variables)
