"""Calling an op: inputs first, then the attrs that no input decides, required ones first, then the name."""

from __future__ import annotations

from typing import Any

import pytest

import penstock.v1 as tf
from penstock.graph.opdef import registered

CALLS = [
    ("SegmentSum", ([1.0], [0], "n"), {}),
    ("MatMul", ([[1.0]], [[2.0]], True, False), {"transpose_a": True, "transpose_b": False}),
    ("MatMul", ([[1.0]], [[2.0]], True), {"transpose_a": True, "transpose_b": False}),
    ("RandomUniform", ([2], tf.float64, 3, 5, "n"), {"dtype": tf.float64, "seed": 3, "seed2": 5}),
]


@pytest.mark.parametrize(("op", "arguments", "attrs"), CALLS)
def test_positional_attrs(op: str, arguments: tuple[Any, ...], attrs: dict[str, Any]) -> None:
    with tf.Graph().as_default():
        made = registered(op)(*arguments).op
    assert made.name == ("n" if arguments[-1] == "n" else op)
    assert {key: made.attrs[key] for key in attrs} == attrs


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (([1.0], [0], "n", 3), {}, "2 inputs"),
        (([1.0], [0], "n"), {"name": "m"}, "multiple values for argument 'name'"),
        (([1.0],), {}, "missing input 'segment_ids'"),
    ],
)
def test_too_many_or_few_arguments(arguments: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(TypeError, match=message):
        tf.segment_sum(*arguments, **named)


def test_device_scopes_of_a_body_hold_outside_it() -> None:
    made = []

    def branch() -> Any:
        with tf.device("/job:ps/task:1"), tf.init_scope():
            made.append(tf.constant(1.0))
        return tf.constant(2.0)

    with tf.Graph().as_default() as graph:
        with tf.device("/job:worker"):
            tf.cond(tf.placeholder(tf.bool, []), branch, lambda: 0.0)
        assert (made[0].graph, made[0].device) == (graph, "/job:ps/task:1")
