"""Gradients: names, values, and the rules for tensors that have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN as FOLDER
from golden_programs import check, load, run_program
from tensorboard.compat.proto.graph_pb2 import GraphDef

import penstock.v1 as tf
from penstock.graph.function import Call
from penstock.graph.graph import Graph
from penstock.graph.importer import import_graph_def
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import op
from penstock.kernel.types import FLOATS
from penstock.ops.engine.vjp import vjp_gradient


def run(fetches: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feed)


def names(graph: Graph, under: str = "") -> list[str]:
    return [o.name for o in graph.get_operations() if o.name.startswith(under)]


GOLDEN = [row for row in load("graphdef/naming.json")["cases"] if row["id"] == "gradients_names"]
GOLDEN += [row for row in load("semantics/device_nesting.json")["cases"] if row["id"] == "gradients_colocation"]


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row["id"])
def test_names_and_places_are_tensorflows(row: dict[str, Any]) -> None:
    check(row, tf)


@pytest.mark.parametrize("model", ["model_ref", "model_resource"])
def test_a_training_graph_is_tensorflows(model: str) -> None:
    expected = GraphDef.FromString((FOLDER / "graphdef" / f"{model}.pb").read_bytes()).node
    forward = load(f"graphdef/{model}.json")["program"].partition("train =")[0]
    ask = "result = tf.gradients(total, [w, b], gate_gradients=True)[0].graph.as_graph_def()"
    actual = run_program({"id": model, "program": f"{forward}\n{ask}"}, tf).node

    def described(nodes: Any) -> list[Any]:
        return [
            (n.name, n.op, list(n.input), n.device, {k: str(v) for k, v in n.attr.items() if k[:5] != "_has_"})
            for n in nodes
            if n.name.startswith("gradients/")
        ]

    assert described(actual) == described(expected)


# Each is checked against differences of its own values, and its gradient's gradient likewise.
NUMERIC: dict[str, Any] = {
    "matmul": lambda x, y: tf.matmul(x, y, transpose_b=True),
    "broadcast": lambda x, y: x * y[0] - y / (x + 5.0),
    "tanh": lambda x, y: tf.tanh(x) * tf.exp(y),
    "sigmoid": lambda x, y: tf.sigmoid(x) ** 2.0 + tf.log(y + 5.0),
    "reduce": lambda x, y: tf.reduce_mean(x * x, axis=1, keepdims=True) + tf.reduce_max(y, axis=0),
    "softmax": lambda x, y: tf.nn.softmax(x) * y,
    "log_sum_exp": lambda x, y: tf.reduce_logsumexp(x + y, axis=1),
    "slices": lambda x, y: x[:, 1:] * tf.concat([y, y], 0)[1:3, :2],
    "gather": lambda x, y: tf.gather(x, [1, 0, 1]) * y[0],
    "select": lambda x, y: tf.where(x > y, x * y, y * y),
    "transpose": lambda x, y: tf.matmul(tf.transpose(x), y),
    "squared_difference": lambda x, y: tf.squared_difference(x, y),
}


@pytest.mark.parametrize("case", sorted(NUMERIC))
def test_values_against_differences(case: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.2, 1.0, (2, 3)), rng.uniform(0.2, 1.0, (2, 3))
    with tf.Graph().as_default():
        x, y = (tf.placeholder(tf.float64, [2, 3]) for _ in range(2))
        z = NUMERIC[case](x, y)
        weights = np.random.default_rng(1).normal(size=z.shape.as_list())
        total = tf.reduce_sum(z * tf.constant(weights))
        dx, dy = (tf.convert_to_tensor(g) for g in tf.gradients(total, [x, y]))
        mixed = tf.reduce_sum(dx * tf.sin(dy))
        second = tf.gradients(mixed, x)[0]
        with tf.Session() as session:
            cases = [(total, dx, 0), (total, dy, 1)]
            if second is not None:
                cases.append((mixed, tf.convert_to_tensor(second), 0))
            for value, grad, which in cases:
                expected = np.zeros_like(a)
                for i in np.ndindex(*a.shape):
                    step = np.zeros((2, *a.shape))
                    step[which][i] = 1e-5
                    up = session.run(value, {x: a + step[0], y: b + step[1]})
                    down = session.run(value, {x: a - step[0], y: b - step[1]})
                    expected[i] = (up - down) / 2e-5
                np.testing.assert_allclose(session.run(grad, {x: a, y: b}), expected, rtol=1e-4, atol=1e-6)


@op("TestCube", "T -> y: T", T=FLOATS)
def cube(x: Any) -> Any:
    return x * x * x


@op("TestScale", "T, Tn, T -> y: T, n: int32", static="n", T=FLOATS)
def scale(x: Any, n: Any, factor: Any) -> Any:
    return x * int(n) * factor, np.int32(n)


def test_vjp_nests_and_travels() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.constant([2.0, 3.0], name="x")
        y = cube(x)
        first = tf.gradients(y, x, name="a")[0]
        second = tf.gradients(first, x, name="b")[0]
        third = tf.gradients(second, x, name="c")[0]
        nodes = [o.name for o in graph.get_operations() if o.type == "Vjp"]
        assert nodes[:2] == ["a/TestCube_grad/Vjp", "b/a/TestCube_grad/Vjp_grad/Vjp"]
        forward = second.op.inputs[0].op.attrs["forward"] if second.op.type == "AddN" else second.op.attrs["forward"]
        assert isinstance(forward, Call)
        proto = graph.as_graph_def()
    with tf.Graph().as_default():
        again = import_graph_def(proto, return_elements=[t.name for t in (first, second, third)])
        np.testing.assert_allclose(run(again), [[12.0, 27.0], [12.0, 18.0], [6.0, 6.0]])


def test_vjp_keeps_static_inputs_static() -> None:
    with tf.Graph().as_default():
        x, n = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.int32, [])
        y, _ = scale(x, n, tf.constant([1.0, 2.0]))
        dx, dn = tf.gradients(y, [x, n])
        assert dn is None
        assert run(dx, {x: [1.0, 1.0], n: 3}).tolist() == [3.0, 6.0]


def test_complex_gradients_are_conjugated_as_in_tensorflow() -> None:
    with tf.Graph().as_default():
        z = tf.constant([1 + 2j], tf.complex64)
        assert run(tf.gradients(z * z, z, grad_ys=[tf.constant([1 + 0j], tf.complex64)])[0]).tolist() == [2 - 4j]
        with pytest.raises(TypeError, match="grad_ys"):
            tf.gradients(z * z, z)


def test_none_rules() -> None:
    with tf.Graph().as_default():
        x, z = tf.placeholder(tf.float32, [4], name="x"), tf.placeholder(tf.float32, [3])
        n = tf.constant(3)
        assert tf.gradients(x * 2.0, [z, n]) == [None, None]
        for y in (tf.cast(tf.cast(x, tf.int32), tf.float32), tf.argmax(x), tf.stop_gradient(x), tf.floor(x)):
            assert tf.gradients(y, x) == [None]
        assert tf.gradients([], x) == [None]
        assert tf.gradients(x, []) == []
        assert tf.gradients(x, [x])[0].name.endswith("grad_ys_0:0")
        zeros = tf.gradients(x, z, unconnected_gradients="zero")[0]
        assert zeros.shape.as_list() == [3]
        assert run(zeros).tolist() == [0.0] * 3
        a, _ = tf.split(x, 2)
        assert tf.gradients(a, x)[0].shape.as_list() == [4]
        assert "ZerosLike" in {o.type for o in x.graph.get_operations()}


@pytest.mark.parametrize(
    ("error", "kwargs"),
    [
        (ValueError, {"grad_ys": [None, None]}),
        (ValueError, {"unconnected_gradients": "foo"}),
        (ValueError, {"aggregation_method": 7}),
        (TypeError, {"grad_ys": [[True, False]]}),
        (TypeError, {"ys": "text"}),
        (ValueError, {"grad_ys": [[1.0, 2.0, 3.0]]}),
    ],
    ids=str,
)
def test_errors(error: type[Exception], kwargs: dict[str, Any]) -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2])
        with pytest.raises(error):
            tf.gradients(**{"ys": tf.identity(x) * 2.0 + x, "xs": [x], **kwargs})


def test_override_map_and_registry() -> None:
    double, bad = f"Double{id(object())}", f"Bad{id(object())}"
    tf.RegisterGradient(double)(lambda op, grad: grad * 2.0)
    tf.RegisterGradient(bad)(lambda op, grad: [grad, grad])
    with pytest.raises(KeyError):
        tf.RegisterGradient(double)(lambda op, grad: grad)
    with pytest.raises(KeyError):
        tf.NotDifferentiable(double)
    with tf.Graph().as_default() as graph:
        x = tf.constant([1.0, 2.0])
        for key, expected in ((double, None), (bad, ValueError), ("Nobody", LookupError)):
            with graph.gradient_override_map({"Identity": key}):
                y = tf.identity(x)
            if expected is None:
                assert run(tf.gradients(y, x)[0]).tolist() == [2.0, 2.0]
            else:
                with pytest.raises(expected):
                    tf.gradients(y, x)


def test_gates_and_sums() -> None:
    with tf.Graph().as_default() as graph:
        x, y = (tf.placeholder(tf.float32, [2], name=n) for n in "xy")
        with tf.device("/job:worker"):
            z = tf.multiply(x, y, name="z")
            tf.gradients(z, [x, y], gate_gradients=True, name="gate")
        gate = graph.get_operation_by_name("gate/z_grad/tuple/group_deps")
        assert gate.device == "/job:worker"
        assert [c.name for c in gate.control_inputs] == ["gate/z_grad/Mul", "gate/z_grad/Mul_1"]
        with tf.device("/job:ps"):
            a = tf.multiply(x, 2.0, name="a")
        b, c = tf.multiply(x, 3.0, name="b"), tf.multiply(x, 4.0, name="c")
        ys = [a, b, c]
        tf.gradients(ys, x, colocate_gradients_with_ops=True, name="sum")
        first, last = (graph.get_operation_by_name(f"sum/AddN{s}") for s in ("", "_1"))
        assert [t.op.name for t in first.inputs] == ["sum/b_grad/Mul", "sum/c_grad/Mul"]
        assert [t.op.name for t in last.inputs] == ["sum/AddN", "sum/a_grad/Mul"]
        assert (first.colocation_groups(), last.colocation_groups()) == ([b"loc:@b"], [b"loc:@x"])
        tf.gradients(ys, x, aggregation_method=tf.AggregationMethod.EXPERIMENTAL_TREE, name="tree")
        assert names(graph, "tree/x_gradient_sum") == ["tree/x_gradient_sum/AddN", "tree/x_gradient_sum/AddN_1"]


@pytest.mark.parametrize("use_resource", [False, True])
def test_variables_and_indexed_slices(use_resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        v = tf.get_variable("v", initializer=np.arange(8, dtype=np.float32).reshape(4, 2), use_resource=use_resource)
        y = tf.reduce_sum(tf.gather(v, [1, 3]) * 2.0) + tf.reduce_sum(tf.gather(v, [1]) * 5.0)
        sparse = tf.gradients(y, v)[0]
        assert isinstance(sparse, IndexedSlices)
        assert (sparse.values.name, sparse.indices.name) == ("gradients/concat:0", "gradients/concat_1:0")
        dense = tf.gradients(y + tf.reduce_sum(v), v, name="dense")[0]
        assert dense.name == "dense/AddN:0"
        values, indices, total = run([sparse.values, sparse.indices, dense])
        assert (values.tolist(), indices.tolist()) == ([[2.0, 2.0], [2.0, 2.0], [5.0, 5.0]], [1, 3, 1])
        assert total.tolist() == [[1.0, 1.0], [8.0, 8.0], [1.0, 1.0], [3.0, 3.0]]
        assert any(n.endswith("AddN/strided_slice") for n in names(graph, "dense"))


def test_hessians() -> None:
    with tf.Graph().as_default():
        x = tf.constant([[1.0, 2.0]])
        h = tf.hessians(tf.reduce_sum(x**3.0) + x[0, 0] * x[0, 1], x)[0]
        assert run(h).tolist() == [[[[6.0, 1.0]], [[1.0, 12.0]]]]


def test_custom_gradient() -> None:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def both(a: Any, b: Any) -> Any:
        return (a * b, a + b), lambda d1, d2: (d1 * 100.0, d2 * 7.0)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def with_variable(a: Any) -> Any:
        return a * v, lambda dy, variables: (dy * 3.0, [dy * 5.0 for _ in variables])

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def forgets_variable(a: Any) -> Any:
        return a * v, lambda dy: dy

    with tf.Graph().as_default():
        x = tf.constant(2.0)
        v = tf.get_variable("v", initializer=4.0, use_resource=True)
        p, q = both(x, 3.0)
        assert run([p, q, *tf.gradients([p, q], x)]) == [6.0, 5.0, 100.0]
        r = with_variable(x)
        assert run([r, *tf.gradients(r, [x, v])]) == [8.0, 3.0, 5.0]
        with pytest.raises(TypeError, match="variables"):
            forgets_variable(x)
        with pytest.raises(ValueError, match="keyword"):
            both(x, b=3.0)


def test_default_gradient_of_an_op_without_moving_inputs() -> None:
    with tf.Graph().as_default():
        y = tf.constant([1]) + tf.constant([2])
        assert vjp_gradient(y.op, None) == [None, None]
