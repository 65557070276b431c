"""Splitting control flow: a copy in each task that a body touches, none where all is in one task."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import penstock.v1 as tf
from penstock.passes.ir import SPLIT, WAVE, Node, Subgraph
from penstock.passes.partition import partition, task_of
from penstock.passes.place import place
from penstock.passes.portable import from_graph_def, to_graph_def
from penstock.passes.prune import body_of, prune
from penstock.passes.split import devices_in, split

PS0, PS1, WORKER = (f"/job:{job}/replica:0/task:{task}" for job, task in (("ps", 0), ("ps", 1), ("worker", 0)))
DEVICES = [f"{task}/device:CPU:0" for task in (WORKER, PS0, PS1)]


def placed(build: Callable[[], Any]) -> Subgraph:
    with tf.Graph().as_default():
        return place(prune([], [build()], []), DEVICES)


def variables() -> tuple[Any, Any]:
    made = []
    for name, device in (("a", PS0), ("b", PS1)):
        with tf.device(device):
            made.append(tf.get_variable(name, initializer=1.0))
    return made[0], made[1]


def ops(node: Node, body: str) -> dict[str, int]:
    """The number of ops of each type in a body; parameters do not count."""
    types = [n.op.name for n in body_of(node.attrs[body]).nodes]
    return {name: types.count(name) for name in sorted(set(types) - {"_Arg", "Const"})}


def test_each_task_has_its_ops() -> None:
    def build() -> Any:
        a, b = variables()
        with tf.device(WORKER):
            return tf.cond(a > b, lambda: tf.assign_add(a, 1.0) + 0.0, lambda: tf.exp(b.read_value()))

    keys = itertools.count()
    parts = {p.task: p.subgraph for p in partition(split(placed(build), DEVICES, False, keys), keys)}
    copies = {task: next(n for n in part.nodes if n.op.name == "If") for task, part in parts.items()}
    assert set(copies) == {WORKER, PS0, PS1}
    assert len({(n.attrs[SPLIT], n.attrs[WAVE]) for n in copies.values()}) == 1
    assert {task: len(n.dtypes) for task, n in copies.items()} == {WORKER: 1, PS0: 0, PS1: 0}
    assert ops(copies[PS0], "then_branch") == {"AddV2": 1, "AssignAdd": 1, "_Send": 1}
    assert ops(copies[PS0], "else_branch") == ops(copies[PS1], "then_branch") == {}
    assert ops(copies[PS1], "else_branch") == {"Identity": 1, "_Send": 1}
    assert ops(copies[WORKER], "else_branch") == {"Exp": 1, "Identity": 1, "_Recv": 1}
    # A task gets the same from a message, including devices of bodies and Sends without a receiver.
    for task, part in parts.items():
        arrived = next(n for n in from_graph_def(to_graph_def(part)).nodes if n.op.name == "If")
        for branch in ("then_branch", "else_branch"):
            assert ops(arrived, branch) == ops(copies[task], branch)
            assert {task_of(d) for d in devices_in(body_of(arrived.attrs[branch]).nodes)} <= {task}


def test_every_task_goes_round_as_often() -> None:
    def build() -> Any:
        a, b = variables()
        with tf.device(WORKER):
            return tf.while_loop(lambda x: x < 9.0, lambda x: x + tf.assign_add(a, b), [0.0])

    keys = itertools.count()
    parts = partition(split(placed(build), DEVICES, False, keys), keys)
    loops = {p.task: next(n for n in p.subgraph.nodes if n.op.name == "While") for p in parts if p.task != PS1}
    assert ops(loops[WORKER], "cond") == {"Less": 1, "_Send": 1}
    assert ops(loops[PS0], "cond") == {"_Recv": 1}
    # It gets x in each iteration. The captured value of b is sent once, before the loop.
    assert ops(loops[PS0], "body") == {"AddV2": 1, "AssignAdd": 1, "_Recv": 1, "_Send": 1}


@pytest.mark.parametrize("device", ["", PS0])
def test_control_flow_of_one_task_stays_as_it_is(device: str) -> None:
    def build() -> Any:
        a, b = variables()
        with tf.device(device):
            return tf.cond(a > b, lambda: a.read_value() * b, lambda: b + 1.0)

    subgraph = placed(build)
    assert split(subgraph, DEVICES, False, itertools.count()) is subgraph
    assert {task_of(n.device) for n in subgraph.nodes if n.op.name == "If"} == {PS0}


def test_a_queue_is_picked_where_it_is() -> None:
    def build() -> Any:
        with tf.device(PS1):
            queues = [tf.FIFOQueue(10, tf.int32, shapes=[()]) for _ in range(2)]
        with tf.device(WORKER):
            return tf.cond(tf.constant(True), lambda: queues[0].queue_ref, lambda: queues[1].queue_ref)

    subgraph = placed(build)
    assert split(subgraph, DEVICES, False, itertools.count()) is subgraph
    assert {task_of(n.device) for n in subgraph.nodes if n.op.name != "Const"} == {PS1}
