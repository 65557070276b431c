"""Variables go to the parameter server with the least load."""

from __future__ import annotations

import pytest

import penstock.v1 as tf


@pytest.mark.parametrize("use_resource", [False, True])
def test_bytes_decide(use_resource: bool) -> None:
    strategy = tf.contrib.training.GreedyLoadBalancingStrategy(2, tf.contrib.training.byte_size_load_fn)
    with tf.Graph().as_default(), tf.device(tf.train.replica_device_setter(ps_tasks=2, ps_strategy=strategy)):
        variables = [
            tf.get_variable(f"v{i}", shape, dtype, tf.zeros_initializer(), use_resource=use_resource)
            for i, (shape, dtype) in enumerate(
                [([10, 10], tf.float32), ([10], tf.float32), ([10, 10], tf.float64), ([5], tf.float32), ([], tf.int32)]
            )
        ]
        assert [v.device for v in variables] == [f"/job:ps/task:{task}" for task in (0, 1, 1, 0, 0)]


def test_any_function_may_weigh() -> None:
    strategy = tf.contrib.training.GreedyLoadBalancingStrategy(3, lambda op: 10.0 if op.name == "heavy" else 1.0)
    with tf.Graph().as_default():
        ops = [tf.no_op(name) for name in ("heavy", "a", "b", "c", "d")]
        assert [strategy(op) for op in ops] == [0, 1, 2, 1, 2]


def test_a_size_that_is_not_known() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 2])
        with pytest.raises(ValueError, match="not known"):
            tf.contrib.training.byte_size_load_fn(x.op)
