"""Sends and receives of a step are grouped into common transfers."""

from __future__ import annotations

from typing import Any

import penstock.v1  # noqa: F401  (declares the ops)
from penstock.graph.opdef import op_of
from penstock.passes.ir import Node
from penstock.worker.transfer import together


def node(op: str, task: str = "", repeated: bool = False) -> Node:
    return Node(f"{op}_{task}", op_of(op), {"recv_task": task, "repeated": repeated}, ())


def names(steps: list[Any]) -> list[Any]:
    return [[n.name for n in step] if isinstance(step, list) else getattr(step, "name", step) for step in steps]


def test_sends_wait_for_others_while_the_host_does_little() -> None:
    steps = [node("_Send", "a"), node("Reshape"), node("_Send", "b"), node("Unique"), node("_Send", "a")]
    assert names(together(steps)) == ["Reshape_", "Unique_", ["_Send_a", "_Send_a"], ["_Send_b"]]


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
