"""Graphs with control flow that TensorFlow wrote, imported and run: the values are TensorFlow's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN
from google.protobuf import text_format
from tensorboard.compat.proto.graph_pb2 import GraphDef

import penstock.v1 as tf

FOLDER = GOLDEN / "graphdef_runs"
ROWS = {row["id"]: row for row in json.loads((FOLDER / "control_flow.json").read_text())}


def saved(name: str) -> GraphDef:
    return GraphDef.FromString((FOLDER / f"{name}.pb").read_bytes())


def check_runs(row: dict[str, Any], prefix: str = "") -> None:
    with tf.Session() as session:
        if row["init"]:
            session.run([tf.get_default_graph().get_operation_by_name(prefix + name) for name in row["init"]])
        for run in row["runs"]:
            feeds = {f"{prefix}{name}:0": value for name, value in run["feeds"].items()}
            names = list(run["values"])
            for name, value in zip(names, session.run([prefix + n for n in names], feeds), strict=True):
                np.testing.assert_allclose(value, run["values"][name], 1e-5, 1e-6, err_msg=f"{name} for {feeds}")


@pytest.mark.parametrize("name", list(ROWS))
@pytest.mark.parametrize("again", [False, True], ids=["read", "written_and_read"])
def test_values_are_those_of_tensorflow(name: str, again: bool) -> None:
    proto = saved(name)
    if again:
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(proto, name="")
            proto = GraphDef.FromString(graph.as_graph_def().SerializeToString())
    with tf.Graph().as_default():
        tf.import_graph_def(proto, name="" if again else "here")
        check_runs(ROWS[name], "" if again else "here/")


def test_what_is_random_runs_once_for_two_conditionals() -> None:
    with tf.Graph().as_default():
        tf.import_graph_def(saved("dropout_cond"), name="")
        x = np.arange(1.0, 13.0, dtype=np.float32).reshape(4, 3)
        with tf.Session() as session:
            for training in (True, False, True):
                y, grad = session.run(["y:0", "grad:0"], {"x:0": x, "training:0": training})
                np.testing.assert_allclose(y, x * grad, 1e-6)
                assert set(np.unique(grad)) == ({0.0, 4.0} if training else {1.0})


def test_the_gradient_of_a_loop_is_refused_but_can_be_made_anew() -> None:
    proto = saved("loop_gradient")
    with tf.Graph().as_default() as graph:
        with pytest.raises(ValueError, match=r"gradients/.*StackV2"):
            tf.import_graph_def(proto)
        assert graph.get_operations() == []
        tf.import_graph_def(tf.graph_util.extract_sub_graph(proto, ["a"]), name="")
        x = graph.get_tensor_by_name("x:0")
        (grad,) = tf.gradients(tf.reduce_sum(graph.get_tensor_by_name("a:0")), x)
        with tf.Session() as session:
            value = session.run(grad, {x: [0.5, 1.5]})
    np.testing.assert_allclose(value, [9.1552734e-04, 4.3789390e03], 1e-5)


def node(name: str, op: str, *inputs: str, **attrs: str) -> str:
    texts = "".join(f' input: "{i}"' for i in inputs)
    kinds = "".join(f' attr {{ key: "{k}" value {{ {v} }} }}' for k, v in attrs.items())
    return f'node {{ name: "{name}" op: "{op}"{texts}{kinds} }}\n'


FLOAT = {"T": "type: DT_FLOAT"}
START = node("x", "Placeholder", dtype="type: DT_FLOAT") + node("p", "Placeholder", dtype="type: DT_BOOL")
START += node("q", "Placeholder", dtype="type: DT_BOOL")
SWITCHES = node("s", "Switch", "x", "p", **FLOAT) + node("t", "Switch", "x", "q", **FLOAT)
ENTER = node("e", "Enter", "x", frame_name='s: "f"', **FLOAT)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (node("m", "Merge", "s", "t", **FLOAT), "'m' .*two branches of one conditional"),
        (node("m", "Merge", "s", "x", **FLOAT), "'m' .*two branches of one conditional"),
        (node("m", "Merge", "s", **FLOAT), "'m' .*has 1 inputs"),
        (node("m", "Merge", "s:2", "s", **FLOAT), "'s' .*no output 2"),
        (node("a", "AddV2", "s", "t", **FLOAT), "'a' .*two conditionals"),
        (node("o", "Exit", "x", **FLOAT), "'o' .*not in a loop"),
        (ENTER + node("o", "Exit", "e", **FLOAT), ""),
        (
            ENTER
            + node("m", "Merge", "e", "n", **FLOAT)
            + node("n", "NextIteration", "m", **FLOAT)
            + node("w", "Switch", "m", "p", **FLOAT)
            + node("o", "Exit", "w", **FLOAT),
            "'o' .*not in a loop",
        ),
        (node("m", "Merge", "s", "s:1", **FLOAT) + node("i", "Identity", "m:1", T="type: DT_INT32"), "output 1"),
        (node("a", "AddV2", "s", "s:1", **FLOAT) + node("m", "Merge", "a", "s:1", **FLOAT), "'m'"),
        (node("m", "Merge", "a", "s", **FLOAT) + node("a", "AddV2", "s:1", "m", **FLOAT), "cycle"),
    ],
    ids=lambda v: None if "node" in v else v or "no_result",
)
def test_what_is_no_control_flow_is_refused(nodes: str, message: str) -> None:
    proto = text_format.Parse(START + SWITCHES + nodes, GraphDef())
    with tf.Graph().as_default() as graph:
        if not message:  # a loop without an Exit is left out, since nothing can use it
            tf.import_graph_def(proto, name="")
            assert [op.name for op in graph.get_operations()] == ["x", "p", "q"]
            return
        with pytest.raises(ValueError, match=message):
            tf.import_graph_def(proto)
        assert graph.get_operations() == []


def test_what_is_inside_cannot_be_asked_for() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="'cond/mul' is inside a conditional"):
        tf.import_graph_def(saved("golden_control_flow"), return_elements=["cond/mul:0"])
