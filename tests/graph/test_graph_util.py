"""Parts of graphs, frozen variables, and op types as functions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN
from tensorboard.compat.proto.graph_pb2 import GraphDef

import penstock.v1 as tf
from penstock.graph.opdef import all_ops


def model(use_resource: bool) -> tuple[Any, Any, Any]:
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    with tf.variable_scope("m", use_resource=use_resource):
        w = tf.get_variable("w", [3, 2], initializer=tf.ones_initializer())
        b = tf.get_variable("b", [2], initializer=tf.constant_initializer(0.5))
        table = tf.get_variable("table", initializer=np.arange(12, dtype=np.float32).reshape(6, 2))
    rows = tf.nn.embedding_lookup(table, [1, 4])
    y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, w) + b, lambda: -tf.matmul(x, w))
    out = tf.identity(tf.reduce_sum(y) + tf.reduce_sum(rows), name="out")
    train = tf.train.GradientDescentOptimizer(0.1).minimize(out)
    return x, out, train


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("kept", [[], ["m/b"]])
def test_a_frozen_graph_gives_the_same(use_resource: bool, kept: list[str]) -> None:
    with tf.Graph().as_default() as graph:
        x, out, train = model(use_resource)
        feed = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train, {x: feed})
            expected = [session.run(out, {x: sign * feed}) for sign in (1, -1)]
            if not kept:
                frozen = tf.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["out"])
            else:
                frozen = tf.graph_util.convert_variables_to_constants(
                    session, graph.as_graph_def(), ["out"], variable_names_blacklist=kept
                )
    variables = {n.name for n in frozen.node if n.op in ("VariableV2", "VarHandleOp")}
    assert variables == set(kept)
    if kept:
        return
    frozen = GraphDef.FromString(frozen.SerializeToString())
    for part in (frozen, tf.graph_util.remove_training_nodes(frozen, ["out"])):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.import_graph_def(part, name="")
            actual = [session.run("out:0", {"x:0": sign * feed}) for sign in (1, -1)]
        np.testing.assert_allclose(actual, expected, 1e-6)


@pytest.mark.parametrize("name", ["functional", "cond_reads_resource"])
def test_variables_in_bodies_are_frozen_too(name: str) -> None:
    """The branches and functions of these graphs of TensorFlow read resource variables."""
    x = np.array([1.0, 2.0], np.float32)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        proto = GraphDef.FromString((GOLDEN / "graphdef_runs" / f"{name}.pb").read_bytes())
        result = "cond/Identity:0" if name == "functional" else "y:0"
        (out,) = tf.import_graph_def(proto, return_elements=[result], name="")
        session.run([op for op in graph.get_operations() if op.name in ("v/Assign", "t/Assign")])
        expected = [session.run(out, {"x:0": sign * x}) for sign in (1, -1)]
        frozen = tf.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), [out.op.name])
    assert not [n.name for n in frozen.node if n.op in ("VarHandleOp", "ReadVariableOp")]
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(GraphDef.FromString(frozen.SerializeToString()), name="")
        np.testing.assert_allclose([session.run(out.name, {"x:0": sign * x}) for sign in (1, -1)], expected, 1e-6)


@pytest.mark.parametrize("name", ["model_ref", "model_resource", "control_flow"])
def test_parts_are_those_that_tensorflow_cuts(name: str) -> None:
    rows = json.loads((GOLDEN / "graphdef_runs" / "graph_util.json").read_text())[name]
    folder = "graphdef" if name != "control_flow" else "graphdef_runs"
    file = name if name != "control_flow" else "golden_control_flow"
    proto = GraphDef.FromString((GOLDEN / folder / f"{file}.pb").read_bytes())
    for dest, expected in rows["extract"].items():
        assert [n.name for n in tf.graph_util.extract_sub_graph(proto, [dest]).node] == expected
    removed = tf.graph_util.remove_training_nodes(proto)
    assert [[n.name, list(n.input)] for n in removed.node] == rows["remove"]
    on_cpu = [n.name for n in proto.node if tf.graph_util.must_run_on_cpu(n, True)]
    assert on_cpu == rows["cpu"]


def test_wrong_arguments() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [2, 3], name="x")
        proto = graph.as_graph_def()
        with pytest.raises(TypeError, match="list"):
            tf.graph_util.extract_sub_graph(proto, "x")
        with pytest.raises(TypeError, match="GraphDef"):
            tf.graph_util.extract_sub_graph("x", ["x"])
        with pytest.raises(AssertionError, match="nothing is not in graph"):
            tf.graph_util.extract_sub_graph(proto, ["nothing"])
        assert tf.graph_util.tensor_shape_from_node_def_name(graph, "^x").as_list() == [2, 3]
        for kwargs in ({"a": x}, {"a": x, "b": x, "c": x}, {}):
            with pytest.raises(TypeError, match="MatMul"):
                tf.raw_ops.MatMul(**kwargs)
        with pytest.raises(TypeError):
            tf.raw_ops.MatMul(x, x)
        with pytest.raises(AttributeError, match="MatMul"):
            _ = tf.raw_ops.Matmull


def test_every_op_type_is_a_raw_op() -> None:
    assert set(dir(tf.raw_ops)) == {op.name for op in all_ops() if not op.name.startswith("_")}
    with tf.Graph().as_default(), tf.Session() as session:
        product = tf.raw_ops.MatMul(a=[[1.0, 2.0]], b=[[3.0, 4.0]], transpose_b=True, name="p")
        unique = tf.raw_ops.Unique(x=[3, 3, 1])
        assert (product.name, unique._fields) == ("p:0", ("y", "idx"))
        assert session.run(product).tolist() == [[11.0]]
        assert session.run(unique.idx).tolist() == [0, 0, 1]
