"""Nodes go where their resources are after these have moved, and the numbers of synchronous training follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.errors import FailedPreconditionError
from penstock.passes.ir import Subgraph
from penstock.passes.pipeline import applied, placement
from penstock.passes.place import place
from penstock.passes.prune import prune
from penstock.passes.relocate import Homes, bonds, relocate
from penstock.passes.replicas import OF_REPLICAS, follow_replicas

PS0, PS1, WORKER = "/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1", "/job:worker/replica:0/task:0"
DEVICES = [f"{task}/device:CPU:0" for task in (WORKER, PS0, PS1)]


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default():
        yield


def placed(*targets: Any) -> Subgraph:
    return place(prune((), (), [getattr(t, "op", t) for t in targets]), DEVICES)


def devices(subgraph: Subgraph) -> dict[str, str]:
    return {node.name: node.device.partition("/device")[0] for node in subgraph.nodes}


def trained(use_resource: bool) -> Any:
    with tf.device("/job:ps/task:0"):
        w = tf.get_variable("w", [2], use_resource=use_resource)
        rate = tf.get_variable("rate", initializer=0.1)
    with tf.device("/job:worker/task:0"):
        loss = tf.reduce_sum(w * w)
    return tf.train.MomentumOptimizer(rate, 0.9).minimize(loss)


@pytest.mark.parametrize("use_resource", [False, True])
def test_a_variable_moves_with_its_slots_and_what_updates_it(use_resource: bool) -> None:
    train = trained(use_resource)
    before = placed(train)
    homes = Homes({(PS0, "", "w"): PS1, (PS0, "", "w/Momentum"): PS1})
    found = devices(relocate(before, homes))
    assert found["w"] == found["w/Momentum"] == PS1
    (update,) = [name for name in found if "update_w" in name and "Apply" in name]
    assert found[update] == PS1
    assert found["rate"] == PS0  # it is only read there
    assert {name for name, task in found.items() if task == WORKER} == {
        name for name, task in devices(before).items() if task == WORKER
    }
    assert [set(each) for each in bonds(before)] == [{("", "w"), ("", "w/Momentum")}]


@pytest.mark.parametrize("use_resource", [False, True])
def test_what_one_op_takes_must_be_together(use_resource: bool) -> None:
    train = trained(use_resource)
    with pytest.raises(
        FailedPreconditionError, match=r"are used by one operation, and parameter servers .* parted them"
    ):
        relocate(placed(train), Homes({(PS0, "", "w"): PS1}))


def test_all_of_a_server_that_has_left_is_on_its_stand_in() -> None:
    with tf.device("/job:ps/task:1"):
        v = tf.get_variable("v", initializer=1.0)
        sum_ = v + tf.constant(2.0, name="two")
    found = devices(relocate(placed(sum_), Homes({}, {PS1: PS0})))
    assert set(found.values()) == {PS0}


@pytest.mark.parametrize("kinds", [["CPU"], ["CPU", "GPU"]])
def test_a_server_that_has_left_had_the_devices_of_its_stand_in(kinds: list[str]) -> None:
    with tf.device("/job:ps/task:1"):
        v = tf.get_variable("v", initializer=1.0)
    subgraph = prune((), (), [v.op])
    found = [
        applied(placement([f"{task}/device:{kind}:0" for task in tasks for kind in kinds], False, homes), subgraph)
        for tasks, homes in (((PS0, PS1), None), ((PS0,), Homes({}, {PS1: PS0})))
    ]
    assert [n.device for n in found[0].nodes] == [f"{PS1}/device:{kinds[-1]}:0"]
    assert [n.device for n in found[1].nodes] == [f"{PS0}/device:{kinds[-1]}:0"]


def test_what_a_stand_in_has_passed_on_is_found() -> None:
    homes = Homes({(PS0, "", "late"): WORKER}, {PS1: PS0})
    assert homes.find(PS1, ("", "late")) == WORKER
    assert homes.find(PS1, ("", "other")) == PS0


@pytest.mark.parametrize(
    ("value", "told", "added", "expected"),
    [(2, 2, 4, 6), (6, 6, -3, 3), (3, 4, 4, 6), (8, 4, 2, 12), (1, 2, -1, 1), (1, 3, -5, 1), (2, 2, 0, 2)],
)
def test_numbers_keep_their_share_of_the_replicas(value: int, told: int, added: int, expected: int) -> None:
    number, other = tf.constant(value, name="number"), tf.constant(value, name="other")
    number.op._set_attr(OF_REPLICAS, told)
    found = follow_replicas(prune((), (number, other), ()), added)
    values = {node.name: node.attrs["value"] for node in found.nodes}
    assert values == {"number": expected, "other": value}
    assert all(array.dtype == np.int32 for array in values.values())
