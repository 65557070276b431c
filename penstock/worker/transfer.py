"""These instructions send tensors of a step to other tasks, and wait for tensors from there.

Neighbouring sends to one task become one message, and neighbouring receives one wait.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.memory import JoinedArrays
from penstock.ops.engine.joined import split_tensor
from penstock.passes.ir import Node
from penstock.segments.stored_variable import StoredVariable, is_jax_array
from penstock.worker.needs import Need, Tensors
from penstock.worker.outbox import Outbox

Flush = Callable[[Outbox], None]
MOST_AHEAD = 1 << 22  # bytes: for more than that the time of a round trip does not matter


class SendCall:
    """Sends values, or the values of variables, to one task."""

    blocks = False
    writes = False
    out_slots: tuple[int, ...] = ()

    def __init__(self, owner: Any, nodes: list[Node]) -> None:
        self.task: str = nodes[0].attrs["recv_task"]
        self.flush: Flush | None = Outbox.flush  # how what is to be sent is sent afterwards
        self.unused: list[int] = []  # slots of received tensors that no instruction from here on needs
        self.keys = [n.attrs["key"] for n in nodes]
        self.repeated: bool = nodes[0].attrs["repeated"]
        self.sources = [[owner.source(edge) for edge in n.inputs] for n in nodes]  # several are joined
        self._shapes = [[tuple(shape.as_list()) for shape in n.attrs.get("shapes", ())] for n in nodes]
        every = list(itertools.chain(*self.sources))
        self.in_slots = [s for s in every if isinstance(s, int)]
        self.nbytes = sum(s.declared_bytes for s in every if isinstance(s, StoredVariable))
        self.name = nodes[0].name
        self.device = nodes[0].device
        self.label = f"{self.name} = Send({', '.join(n.attrs['tensor_name'] for n in nodes)})"

    def gathered(self, values: list[Any]) -> list[Any]:
        """Returns the tensors to send, in host memory."""
        sent: list[Any] = []
        for sources, shapes in zip(self.sources, self._shapes, strict=True):
            tensors = [_on_host(values[s] if isinstance(s, int) else s.snapshot()) for s in sources]
            if len(tensors) == 1:
                sent += tensors
            elif [tensor.shape for tensor in tensors] == shapes:
                sent.append(JoinedArrays(tensors))
            else:
                received = ", ".join(str(list(tensor.shape)) for tensor in tensors)
                expected = ", ".join(str(list(shape)) for shape in shapes)
                raise InvalidArgumentError(
                    None,
                    self.name,
                    f"'{self.name}': the variables have shapes {expected}, but the gradients {received}.",
                )
        return sent

    def __call__(self, values: list[Any], step: Any) -> None:
        for slot in self.unused:
            values[slot] = None  # if the tensor is in shared memory, this message may be written there
        keys = step.rendezvous.numbered(self.keys) if self.repeated else self.keys
        step.outbox.post(self.task, keys, self.gathered(values))
        if self.flush is not None:
            self.flush(step.outbox)


class RecvCall:
    """Takes values from other tasks, or waits for them."""

    blocks = False
    writes = False
    in_slots: tuple[int, ...] = ()

    def __init__(self, owner: Any, nodes: list[Node]) -> None:
        self.keys = [n.attrs["key"] for n in nodes]
        self.repeated: bool = nodes[0].attrs["repeated"]
        self._need = Tensors(self.keys)
        self.flush: Flush | None = Outbox.flush
        self.done: list[int] = []  # slots of results that no instruction from here on needs
        self.out_slots = [owner.slot((n, 0)) for n in nodes]
        self.name = nodes[0].name
        self.device = nodes[0].device
        self.tensors = {n.attrs["key"]: f"'{n.attrs['tensor_name']}' from {n.attrs['send_task']}" for n in nodes}
        self.label = f"{self.name} = Recv({', '.join(n.attrs['tensor_name'] for n in nodes)})"

    def __call__(self, values: list[Any], step: Any) -> Need | None:
        keys = step.rendezvous.numbered(self.keys) if self.repeated else self.keys
        taken = step.rendezvous.take(keys)
        if taken is None:
            if step.wake is not None:
                return self._need
            if step.outbox and step.rendezvous.missing(keys):
                step.outbox.flush_all()
            for slot in self.done:
                values[slot] = None  # to free them takes a moment, in which others are at work
            step.wait_for(self, keys)
            taken = step.rendezvous.take(keys)
        for slot, value in zip(self.out_slots, taken, strict=True):
            values[slot] = value if value.__class__ is not JoinedArrays else np.asarray(value)  # from this process
        if self.flush is not None and step.outbox:
            self.flush(step.outbox)
        return None


def _on_host(value: Any) -> Any:
    return np.asarray(value) if value.__class__ is not np.ndarray and is_jax_array(value) else value


def note_unused(instructions: Sequence[Any], fetches: Iterable[int | StoredVariable]) -> None:
    """Tells sends and receives what no instruction after them needs.

    That is received tensors for a send, each for one send, and results of instructions for a receive.
    """
    receives = [i for i in instructions if isinstance(i, RecvCall) or _splits(i)]
    received = {slot for i in receives for slot in i.out_slots}.difference(fetches)
    made = {slot for i in instructions for slot in i.out_slots}.difference(fetches)
    first: dict[int, SendCall] = {}
    following: RecvCall | None = None
    for instruction in reversed(instructions):
        ended = made.intersection((*instruction.in_slots, *instruction.out_slots))
        made -= ended
        if following is not None:
            following.done += ended
        received.difference_update(instruction.in_slots)
        if isinstance(instruction, SendCall):
            first.update(dict.fromkeys(received, instruction))
        elif isinstance(instruction, RecvCall):
            following = instruction
    for slot, send in first.items():
        send.unused.append(slot)


def _splits(instruction: Any) -> bool:
    """Tells if an instruction gives views of a tensor."""
    return hasattr(instruction, "node") and instruction.node.op is split_tensor


def opening(instructions: Sequence[Any]) -> SendCall | None:
    """Returns the send that a step begins with, if it is of variables, and the next instruction waits for tensors.

    Whoever gets these values ahead of the step need not ask for the step before having tensors for it.
    """
    match instructions[:2]:
        case [SendCall(in_slots=[], repeated=False) as send, RecvCall()] if send.nbytes <= MOST_AHEAD:
            return send
    return None


def together(stages: list[Any]) -> list[Any]:
    """Returns the stages of a plan, with sends to one task joined to a list, and neighbouring receives likewise.

    A send waits for later ones to the same task while there is only small work on the host before them, since that
    costs less than another message. Small work that no send needs comes after it: the other task need not wait for it.
    """
    if not any(isinstance(stage, Node) and stage.op.name in ("_Send", "_Recv") for stage in stages):
        return stages
    result: list[Any] = []
    held: dict[Any, list[Node]] = {}
    places: dict[Any, int] = {}  # where the last of the held sends to a task may be
    receives: list[Node] | None = None  # the last stage, if it is a list of receives
    for stage in [*stages, None]:
        name = stage.op.name if isinstance(stage, Node) else ""
        if name == "_Send":
            key = stage.attrs["recv_task"], stage.attrs["repeated"]
            held.setdefault(key, []).append(stage)
            places[key] = len(result)
            continue
        if held and (not name or not _is_small(stage)):
            receives = None
            for key in sorted(held, key=places.__getitem__, reverse=True):
                result.insert(places[key], held[key])
            held = {}
        if name != "_Recv":
            receives = None
            result.append(stage)
        elif receives is not None:
            receives.append(stage)
        else:
            receives = [stage]
            result.append(receives)
    return result[:-1]


def flush_before(instructions: Sequence[Any], at: int, at_end: bool) -> Flush | None:
    """Returns how to flush before an instruction. None: all may wait, there is small work until the next send or wait.

    After the last instruction it may wait if `at_end` says so. While segments compute, what is small may wait; while a
    node may wait for other tasks, no tensor may.
    """
    work = list(itertools.takewhile(lambda i: not isinstance(i, (SendCall, RecvCall)), instructions[at:]))
    nodes = [i.node for i in work if hasattr(i, "node")]
    if not all(map(_is_small, nodes)):
        return Outbox.flush
    is_small = len(nodes) == len(work) and (at_end or at + len(work) < len(instructions))
    return None if is_small else Outbox.flush_large


def _is_small(node: Node) -> bool:
    """Tells if a node on the host neither blocks nor takes long."""
    op = node.op
    return not (op.blocking or op.control_flow or op.stateful or "functions" in op.wants or op.takes_variables)
