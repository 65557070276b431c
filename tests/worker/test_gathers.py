"""Lookups on the host: neighbours run as one instruction, and give what each would give alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.worker.gathers import GatherCall

ON_CPU = tf.ConfigProto(device_count={"GPU": 0})


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def _joined(sess: Any) -> list[int]:
    """The numbers of lookups that instructions of the session's graphs stand for."""
    workers = [task.worker for task in sess._master.tasks.connected()]
    executables = [graph.executable for worker in workers for graph in worker._graphs.values()]
    return [len(i.each) for e in executables for i in e.instructions if isinstance(i, GatherCall)]


@pytest.mark.parametrize("use_resource", [False, True])
def test_neighbouring_lookups_are_one(use_resource: bool) -> None:
    tables = [np.arange(size * 2, dtype=np.float32).reshape(size, 2) + size for size in (5, 7)]
    variables = [tf.get_variable(f"v{len(t)}", initializer=t, use_resource=use_resource) for t in tables]
    ids = tf.placeholder(tf.int32, [None])
    wanted = tf.unique(ids)[0]
    found = [tf.identity(tf.gather(v, wanted), name=f"found{i}") for i, v in enumerate(variables)]
    with tf.Session(config=ON_CPU) as sess:
        sess.run(tf.global_variables_initializer())
        for fed in ([4, 4, 0], [], [1, 2, 3, 4]):
            rows = list(dict.fromkeys(fed))
            for result, table in zip(sess.run(found, {ids: fed}), tables, strict=True):
                np.testing.assert_array_equal(result, table[rows])
        assert 2 in _joined(sess)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] = 6 is not in \[0, 5\)") as caught:
            sess.run(found, {ids: [0, 6]})
        assert caught.value.op is not None and caught.value.op.inputs[1] is wanted
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0\] = -1 is not in \[0, 5\)"):
            sess.run(found, {ids: [-1]})


@pytest.mark.parametrize("axis", [0, 1])
def test_a_lookup_along_another_axis_is_left_alone(axis: int) -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    variable = tf.get_variable("v", initializer=table)
    ids = tf.placeholder(tf.int32, [None])
    found = tf.gather(variable, tf.unique(ids)[0], axis=axis)
    with tf.Session(config=ON_CPU) as sess:
        sess.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(sess.run(found, {ids: [2, 0, 2]}), np.take(table, [2, 0], axis))
        assert _joined(sess) == ([1] if axis == 0 else [])


def test_a_lookup_in_an_uninitialised_table_says_so() -> None:
    variable = tf.get_variable("missing", [3, 4])
    with tf.Session(config=ON_CPU) as sess, pytest.raises(tf.errors.FailedPreconditionError, match="missing"):
        sess.run(tf.gather(variable, tf.unique([1, 1])[0]))
