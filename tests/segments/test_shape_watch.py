"""Warnings about shapes that keep changing: for which inputs, and when."""

from __future__ import annotations

import numpy as np
import pytest

import penstock.v1
import penstock.worker.transfer  # noqa: F401  (declares _Recv)
from penstock.graph.opdef import registered
from penstock.passes.ir import Node
from penstock.segments.shape_watch import MANY, ShapeWatch, shape_text, user_name, value_text


def test_an_input_of_many_shapes_is_named_once():
    watch = ShapeWatch("fc/MatMul", ["x", "y"])
    messages = [watch.note([f"float32[{n}, 10]", "int32[]"], 0.5) for n in range(3 * MANY)]
    assert [bool(m) for m in messages] == [i == MANY for i in range(3 * MANY)]
    message = messages[MANY]
    assert message is not None
    assert "'fc/MatMul'" in message and f"{MANY + 1} shapes of 'x'" in message and "'y'" not in message
    assert "float32[5, 10], float32[6, 10], float32[7, 10], float32[8, 10]" in message
    assert "0.5 s" in message


def test_few_shapes_are_no_cause():
    watch = ShapeWatch("s", ["x"])
    assert not any(watch.note([f"float32[{n % MANY}]"], 0.1) for n in range(100))


def test_inputs_that_change_together_are_named_together():
    watch = ShapeWatch("s", ["images", "labels", "rate"], many=1)
    assert watch.note(["[1]", "[1]", "[]"], 1.0) is None
    assert "shapes of 'images' and 'labels'" in str(watch.note(["[2]", "[2]", "[]"], 3.0))


def test_another_cause_is_told_of_too():
    watch = ShapeWatch("s", ["a", "b"], many=2)
    for n in range(3):
        told = watch.note([f"[{n}]", "[]"], 1.0)
    assert "'a'" in str(told)
    watch.note(["[2]", "[1]"], 1.0)
    told = watch.note(["[2]", "[2]"], 1.0)
    assert "'b'" in str(told) and "'a'" not in str(told)


def test_the_cost_is_the_mean():
    watch = ShapeWatch("s", ["x"], many=1)
    watch.note(["[1]"], 0.5)
    assert "about 0.4 s" in str(watch.note(["[2]"], 0.3))


def test_the_shapes_shown_are_the_last_ones():
    watch = ShapeWatch("s", ["x"], many=2)
    watch.note(["[1]"], 1.0)
    watch.note(["[2]"], 1.0)
    watch.note(["[1]"], 1.0)
    assert "at last [1], [3];" in str(watch.note(["[3]"], 1.0))


@pytest.mark.parametrize(
    ("op", "name", "tensor"),
    [
        ("Relu", "fc/Relu", ""),
        ("_Arg", "_arg/x:0", ""),
        ("_Arg", "_arg/_arg/x:0:0", ""),
        ("_Recv", "x/_recv_0", "x:0"),
        ("_Recv", "_arg/x:0/_recv_0", "_arg/x:0:0"),
    ],
)
def test_inputs_have_the_names_that_the_program_gave(op, name, tensor):
    node = Node(name, registered(op), {"tensor_name": tensor}, ())
    assert user_name(node) == ("fc/Relu" if op == "Relu" else "x")


def test_shapes_and_values_as_text():
    assert shape_text(np.zeros((2, 0), np.float32)) == "float32[2, 0]"
    assert shape_text([1]) == "list"
    assert value_text(np.array([2, 3])) == "int64[2] = [2 3]"
