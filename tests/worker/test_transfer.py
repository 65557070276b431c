"""Sends and receives of a step are grouped into common transfers, and use shared memory again."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

import penstock.v1  # noqa: F401  (declares the ops)
from penstock.graph.opdef import op_of
from penstock.passes.ir import Node
from penstock.segments.borrowing import watched
from penstock.segments.stored_variable import let_go
from penstock.wire.loop import Signal
from penstock.worker.cancellation import Cancellation
from penstock.worker.outbox import Outbox
from penstock.worker.rendezvous import Rendezvous
from penstock.worker.step import Step
from penstock.worker.transfer import RecvCall, SendCall, note_unused, together


def node(op: str, task: str = "", repeated: bool = False) -> Node:
    return Node(f"{op}_{task}", op_of(op), {"recv_task": task, "repeated": repeated}, ())


def names(steps: list[Any]) -> list[Any]:
    return [[n.name for n in step] if isinstance(step, list) else getattr(step, "name", step) for step in steps]


def test_sends_wait_for_others_while_the_host_does_little() -> None:
    steps = [node("_Send", "a"), node("Reshape"), node("_Send", "b"), node("Unique"), node("_Send", "a")]
    assert names(together(steps)) == ["Reshape_", ["_Send_b"], "Unique_", ["_Send_a", "_Send_a"]]


def test_small_work_that_no_send_needs_comes_after_it() -> None:
    steps = [node("_Send", "a"), node("Reshape"), node("_Send", "b"), node("_Send", "a"), node("Unique"), node("_Recv")]
    found = names(together(steps))
    assert found[0] == "Reshape_"
    assert sorted(found[1:3]) == [["_Send_a", "_Send_a"], ["_Send_b"]]
    assert found[3:] == ["Unique_", ["_Recv_"]]


def test_sends_go_out_before_anything_that_may_take_long() -> None:
    segment: Any = "segment"  # no node
    for long in (segment, node("_Recv"), node("QueueDequeueV2"), node("While"), node("PyFunc")):
        found = together([node("_Send", "a"), long, node("_Send", "a")])
        assert [isinstance(step, list) and step[0].op.name == "_Send" for step in found] == [True, False, True]


def test_sends_of_iterations_are_numbered_by_themselves() -> None:
    steps = [node("_Send", "a"), node("_Send", "a", repeated=True)]
    assert names(together(steps)) == [["_Send_a"], ["_Send_a"]]


def test_neighbouring_receives_are_one() -> None:
    steps = [node("_Recv"), node("_Recv"), node("Reshape"), node("_Recv"), node("_Send", "a"), node("_Recv")]
    assert names(together(steps)) == [["_Recv_", "_Recv_"], "Reshape_", ["_Recv_"], ["_Send_a"], ["_Recv_"]]


class Owner:
    """Numbers edges as they come."""

    def __init__(self) -> None:
        self.slots: dict[Any, int] = {}

    def slot(self, edge: Any) -> int:
        return self.slots.setdefault(edge, len(self.slots))

    source = slot


def test_a_send_forgets_what_was_received_and_is_not_needed_after_it() -> None:
    owner = Owner()
    received = [Node(f"r{i}", op_of("_Recv"), _transfer(), ()) for i in range(4)]
    sends = [Node(f"s{i}", op_of("_Send"), _transfer(), ()) for i in range(3)]
    for send, source in zip(sends, (received[0], received[1], received[1]), strict=True):
        send.inputs.append((source, 0))
    calls: list[Any] = [RecvCall(owner, received), *(SendCall(owner, [send]) for send in sends)]
    note_unused(calls, [owner.slot((received[3], 0))])
    assert [call.unused for call in calls[1:]] == [[2], [0], []]
    values: list[Any] = ["sent", "sent later", "unused", "fetched"]
    calls[2](values, Nowhere())
    assert values == [None, "sent later", "unused", "fetched"]


def test_a_receive_frees_results_that_nobody_needs_while_it_waits() -> None:
    owner = Owner()
    nodes = [Node(f"r{i}", op_of("_Recv"), _transfer(), ()) for i in range(4)]
    send = Node("s", op_of("_Send"), _transfer(), ())
    send.inputs.append((nodes[0], 0))
    later = Node("later", op_of("_Send"), _transfer(), ())
    later.inputs.append((nodes[1], 0))
    calls: list[Any] = [
        RecvCall(owner, nodes[:3]),
        SendCall(owner, [send]),
        RecvCall(owner, nodes[3:]),
        SendCall(owner, [later]),
    ]
    note_unused(calls, [owner.slot((nodes[2], 0))])
    assert [call.done for call in (calls[0], calls[2])] == [[], [0]]
    values: list[Any] = ["sent", "sent later", "fetched", "waits"]
    step = Step(Cancellation())
    step.rendezvous = Rendezvous()
    seen: list[Any] = []

    def arrive(arrived: Signal, timeout: float | None) -> bool:
        seen.extend(values)
        step.rendezvous.put([0], ["received"])
        return arrived.wait(timeout)

    step.wait = arrive
    assert calls[2](values, step) is None
    assert seen == [None, "sent later", "fetched", "waits"]
    assert values == [None, "sent later", "fetched", "received"]


class Nowhere:
    """A step whose sends go nowhere."""

    outbox = Outbox(0, lambda task: Nowhere())

    def deliver(self, *_: object) -> None:
        """Drops tensors."""


def _transfer() -> dict[str, Any]:
    names = dict.fromkeys(("recv_task", "send_task", "tensor_name"), "")
    return {**names, "key": 0, "repeated": False}


def test_memory_that_was_lent_to_xla_is_free_after_let_go() -> None:
    array = np.arange(6, dtype=np.float32)
    lent, used = watched(array)
    np.testing.assert_array_equal(lent, array)
    users = [lent[2:].reshape(2, 2)]  # jax may keep views of what it is called with
    del lent
    assert used() is not None
    late = threading.Timer(0.02, users.clear)  # as XLA's thread does, a moment after the results are there
    late.start()
    let_go(jax.devices("cpu")[0], [used])
    assert used() is None
    late.join()
