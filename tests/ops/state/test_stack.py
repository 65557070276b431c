"""Stacks: last in, first out, within a step."""

from __future__ import annotations

from typing import Any

import pytest

import penstock.v1 as tf

raw = tf.raw_ops


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def _after(*operations: Any) -> Any:
    return tf.control_dependencies([getattr(o, "op", o) for o in operations])


def test_the_last_comes_first() -> None:
    handle = raw.StackV2(max_size=-1, elem_type=tf.float32, stack_name="s")
    first = raw.StackPushV2(handle=handle, elem=[1.0, 2.0])
    with _after(first):
        second = raw.StackPushV2(handle=handle, elem=3.0)
    with _after(second):
        top = raw.StackPopV2(handle=handle, elem_type=tf.float32)
    with _after(top):
        bottom = raw.StackPopV2(handle=handle, elem_type=tf.float32)
    assert handle.shape.as_list() == [2] and first.shape.as_list() == [2] and top.shape.rank is None
    with tf.Session() as session:
        for _ in range(2):  # each step has a stack of its own
            assert [v.tolist() for v in session.run([second, top, bottom])] == [3.0, 3.0, [1.0, 2.0]]


@pytest.mark.parametrize("case", ["empty", "full", "closed", "other type"])
def test_refused(case: str) -> None:
    handle = raw.StackV2(max_size=1, elem_type=tf.float32, stack_name="s")
    pushed = raw.StackPushV2(handle=handle, elem=1.0)
    with _after(*[] if case == "empty" else [raw.StackCloseV2(handle=handle)] if case == "closed" else [pushed]):
        if case == "full":
            wrong = raw.StackPushV2(handle=handle, elem=1.0)
        else:
            wrong = raw.StackPopV2(handle=handle, elem_type=tf.int32 if case == "other type" else tf.float32)
    message = {
        "empty": "is empty",
        "full": "overflowed its max_size",
        "closed": "has already been closed",
        "other type": "holds float32, not int32",
    }[case]
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=rf"Stack\[s\] {message}"):
        session.run(wrong)
