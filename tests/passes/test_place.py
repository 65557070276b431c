"""Placement: a variable is on the same device in every step, independent of other nodes."""

import pytest

import penstock.v1 as tf
from penstock.errors import InvalidArgumentError
from penstock.passes.place import place
from penstock.passes.prune import prune

TASK = "/job:localhost/replica:0/task:0"
DEVICES = [f"{TASK}/device:CPU:0", f"{TASK}/device:GPU:0"]


def placed(fetches, targets=(), soft=False):
    subgraph = place(prune([], fetches, targets), DEVICES, soft)
    return {n.name: n.device.rpartition("device:")[2] for n in subgraph.nodes}


def test_host_ops_do_not_move_a_variable():
    with tf.Graph().as_default():
        v = tf.Variable([1.0, 2.0], name="v")
        with tf.colocate_with(v):
            distinct, _ = tf.unique([1, 1, 2])
        devices = [
            placed([], [v.initializer]),
            placed([v + 1.0]),
            placed([distinct], [v.initializer]),
            placed([tf.is_variable_initialized(v)]),
        ]
        assert {d["v"] for d in devices} == {"GPU:0"}


def test_host_ops_alone_are_on_the_cpu():
    with tf.Graph().as_default():
        queue = tf.FIFOQueue(2, tf.float32, name="q")
        assert set(placed([queue.size()]).values()) == {"CPU:0"}
        with tf.device("/gpu:0"):
            distinct, _ = tf.unique([1, 1, 2])
        with pytest.raises(InvalidArgumentError, match="CPU only"):
            placed([distinct])


def test_soft_placement_takes_another_of_the_kind_else_a_cpu():
    with tf.Graph().as_default():
        with tf.device("/gpu:1"):
            tower = tf.random_normal([2], name="tower")
            distinct, _ = tf.unique([1, 1, 2], name="unique")
        with tf.device("/device:TPU:0"):
            other = tf.random_normal([2], name="other")
        devices = placed([tower, distinct, other], soft=True)
        found = {name: devices[name] for name in ("tower", "unique", "other")}
        assert found == {"tower": "GPU:0", "unique": "CPU:0", "other": "CPU:0"}
        with pytest.raises(InvalidArgumentError, match="available devices"):
            placed([tower])


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_a_read_for_another_device_does_not_move_a_variable(use_resource):
    with tf.Graph().as_default(), tf.variable_scope("", use_resource=use_resource):
        v = tf.get_variable("v", initializer=1.0)
        with tf.device("/cpu:0"):
            read = v.read_value()
        assert placed([], [v.initializer])["v"] == placed([read])["v"] == "GPU:0"


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_control_flow_moves_no_variable(use_resource):
    """A conditional and a loop that use variables of several devices leave each where it is in other steps."""
    with tf.Graph().as_default(), tf.variable_scope("", use_resource=use_resource):
        free = tf.get_variable("free", initializer=1.0)
        with tf.device("/cpu:0"):
            bound = tf.get_variable("bound", initializer=1.0)
        queue = tf.FIFOQueue(2, tf.float32, name="q")
        chosen = tf.cond(queue.size() > 0, lambda: tf.assign_add(free, bound), lambda: bound + queue.dequeue())
        loop = tf.while_loop(lambda i: i < free, lambda i: i + bound, [0.0])
        both = {"free": "GPU:0", "bound": "CPU:0"}
        assert placed([], [tf.global_variables_initializer()]).items() >= both.items()
        assert placed([chosen]).items() >= both.items()
        assert placed([loop]).items() >= both.items()
        of_one = tf.cond(queue.size() > 0, lambda: bound.read_value(), lambda: tf.constant(0.0), name="of_one")
        assert placed([of_one])["of_one"] == "CPU:0"  # with its only variable
