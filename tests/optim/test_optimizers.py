"""Optimizers take the steps that TensorFlow's take, under the same names and on the same devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN, check, load
from namespace import make

from penstock.ops.training import sparse_apply_momentum
from penstock.optim import adam, gradient_descent, momentum, optimizer

tf = make()
for _rule in (gradient_descent.GradientDescentOptimizer, momentum.MomentumOptimizer, adam.AdamOptimizer):
    setattr(tf.train, _rule.__name__, _rule)
tf.train.Optimizer = optimizer.Optimizer

_CASES = load("optimizers/index.json")["cases"]
_DATA = np.load(GOLDEN / "optimizers/trajectories.npz")


def _build(case: dict[str, Any]) -> tuple[dict[str, Any], Any, dict[Any, Any]]:
    """The trained variables, the training op, and what is to be recorded under the keys of the golden file."""
    dtype = getattr(tf, case["dtype"])
    step = tf.train.get_or_create_global_step()
    variables = {
        name: tf.Variable(tf.constant(_DATA[f"common/{name}0"], dtype), name=name, use_resource=case["use_resource"])
        for name in ("w", "e")
    }
    fed = {
        "dense_grads": tf.placeholder(dtype, [3, 2]),
        "sparse_values": tf.placeholder(dtype, [4, 2]),
        "sparse_indices": tf.placeholder(tf.int32, [4]),
    }
    rule = getattr(tf.train, case["optimizer"].rpartition(".")[2])(**case["kwargs"])
    sparse = tf.IndexedSlices(fed["sparse_values"], fed["sparse_indices"], tf.constant([6, 2]))
    pairs = [(fed["dense_grads"], variables["w"]), (sparse, variables["e"])]
    train = rule.apply_gradients(pairs, global_step=step)
    assert train.name == case["train_op"] and train.type == case["train_op_type"]
    assert rule.get_slot_names() == case["slot_names"]
    assert [v.op.name for v in tf.global_variables()] == [name for name, *_ in case["global_variables"]]
    assert [v.op.name for v in rule.variables()] == case["optimizer_variables"]
    recorded = {"global_step": step, **variables}
    for key in case["keys"]:
        if key.startswith("slot/"):
            _, name, slot = key.split("/")
            recorded[key] = rule.get_slot(variables[name], slot)
            assert recorded[key].op.name == case["slot_variables"][name][slot]
        elif key.startswith("nonslot/"):
            recorded[key] = next(v for v in rule.variables() if v.op.name == key.partition("/")[2])
    return recorded, train, fed


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["id"])
def test_trajectories(case: dict[str, Any]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        recorded, train, fed = _build(case)
        assert recorded.keys() == case["keys"].keys()
        session.run(tf.global_variables_initializer())
        rows = [session.run(recorded)]
        for t in range(20):
            session.run(train, {tensor: _DATA[f"common/{name}"][t] for name, tensor in fed.items()})
            rows.append(session.run(recorded))
    for key, name in case["keys"].items():
        np.testing.assert_allclose([row[key] for row in rows], _DATA[name], rtol=1e-5, atol=1e-6, err_msg=key)


_PROGRAMS = [
    *load("optimizers/programs.json")["cases"],
    *(row for row in load("graphdef/naming.json")["cases"] if row["id"] == "optimizer_names"),
    *(row for row in load("semantics/device_nesting.json")["cases"] if row["id"] == "optimizer_devices"),
]


@pytest.mark.parametrize("row", _PROGRAMS, ids=lambda row: row["id"])
def test_programs(row: dict[str, Any]) -> None:
    check(row, tf)


@pytest.mark.parametrize("kind", ["ref", "resource"])
def test_training_graph_of_a_model(kind: str) -> None:
    golden = load(f"graphdef/model_{kind}.json")
    names = SimpleNamespace(**{**vars(tf), "summary": SimpleNamespace(scalar=lambda *_: None)})
    with tf.Graph().as_default() as graph:
        exec(golden["program"], {"tf": names})
    made = {op.name: op for op in graph.get_operations()}
    for name, expected in golden["ops"].items():
        if "Momentum" in name:
            op = made[name]
            assert op.type == expected["type"] and op.device == expected["device"], name
            assert [t.name for t in op.inputs] == expected["inputs"], name
            assert [c.name for c in op.control_inputs] == expected["control_inputs"], name
            assert [g.decode() for g in op.colocation_groups()] == expected["colocation"], name
            assert [[t.dtype.name, t.shape.as_list()] for t in op.outputs] == expected["outputs"], name


def test_sparse_rows_that_occur_twice_are_applied_one_after_the_other() -> None:
    var, accum = np.zeros((4, 2), np.float32), np.ones((4, 2), np.float32)
    grad = np.arange(10, dtype=np.float32).reshape(5, 2)
    indices = np.array([3, 1, 3, 0, 3])
    expected_var, expected_accum = var.copy(), accum.copy()
    for row, i in zip(grad, indices, strict=True):
        expected_accum[i] = expected_accum[i] * 0.5 + row
        expected_var[i] -= 0.1 * expected_accum[i]
    new_var, new_accum = sparse_apply_momentum.ref.kernel(
        var, accum, np.float32(0.1), grad, indices, np.float32(0.5), use_nesterov=False
    )
    np.testing.assert_allclose(new_accum, expected_accum, rtol=1e-6)
    np.testing.assert_allclose(new_var, expected_var, rtol=1e-6)


@pytest.mark.parametrize("use_resource", [False, True])
def test_constraint_sees_the_updated_value(use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable([1.0, -1.0], use_resource=use_resource, constraint=lambda x: tf.maximum(x, 0.25))
        train = tf.train.GradientDescentOptimizer(0.5).apply_gradients([(tf.constant([1.0, 1.0]), v)])
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run(v).tolist() == [0.5, 0.25]


def test_slots_of_partitions_are_partitions() -> None:
    with tf.Graph().as_default():
        v = tf.get_variable("v", [5, 2], partitioner=tf.fixed_size_partitioner(2))
        rule = tf.train.MomentumOptimizer(0.1, 0.9)
        rule.apply_gradients([(tf.ones(part.shape.as_list()), part) for part in v])
        slot = rule.get_slot(list(v)[1], "momentum")
        assert slot.op.name == "v/part_1/Momentum"
        info = slot._get_save_slice_info()
        assert (info.full_name, info.spec) == ("v/Momentum", "5 2 3,2:0,2")


def _instructions(session: Any, feeds: Any, fetches: Any, targets: Any) -> int:
    compiled = session._master.signature(feeds, fetches, targets, session.graph.mutations)
    return sum(len(part.worker._graphs[part.handle].instructions) for part in compiled.parts)


@pytest.mark.parametrize("use_resource", [False, True])
def test_one_step_is_one_segment(use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 3])
        w = tf.Variable(tf.ones([3, 2]), use_resource=use_resource)
        b = tf.Variable(tf.zeros([2]), use_resource=use_resource)
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b))
        train = tf.train.AdamOptimizer(0.1).minimize(loss, global_step=tf.train.get_or_create_global_step())
        session.run(tf.global_variables_initializer())
        assert _instructions(session, (x,), (loss,), (train,)) == 1
        losses = [session.run([train, loss], {x: np.ones((4, 3), np.float32)})[1] for _ in range(5)]
        assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("rule", [momentum.MomentumOptimizer(0.1, 0.9), adam.AdamOptimizer(0.1)], ids=["m", "a"])
def test_sums_of_duplicate_rows_stay_in_the_segment(rule: Any, use_resource: bool) -> None:
    def run(fetch_the_indices: bool) -> np.ndarray:
        with tf.Graph().as_default() as graph, tf.Session() as session:
            ids = tf.placeholder(tf.int64, [4])
            table = tf.Variable(tf.ones([5, 2]), name="table", use_resource=use_resource)
            loss = tf.reduce_sum(tf.square(tf.gather(table, ids)))
            train = rule.minimize(loss)
            (distinct,) = (op.outputs[0] for op in graph.get_operations() if op.type == "Unique")
            fetches = (distinct,) if fetch_the_indices else ()
            assert (_instructions(session, (ids,), fetches, (train,)) == 1) is not fetch_the_indices
            session.run(tf.global_variables_initializer())
            for batch in ([1, 3, 1, 1], [0, 1, 2, 3], [4, 4, 4, 4]):
                session.run((train, *fetches), {ids: batch})
            before = session.run(table)
            with pytest.raises(tf.errors.InvalidArgumentError, match="7 is not in"):
                session.run((train, *fetches), {ids: [0, 1, 7, 7]})
            np.testing.assert_array_equal(session.run(table), before)
            return before

    # With the distinct indices as a result there is no way around them: the same steps, cut in pieces.
    np.testing.assert_allclose(run(False), run(True), rtol=1e-6)


def test_constant_indices() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.Variable(tf.ones([3, 2]))
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 2]))
        for gate in (tf.train.Optimizer.GATE_NONE, tf.train.Optimizer.GATE_OP, tf.train.Optimizer.GATE_GRAPH):
            train = tf.train.MomentumOptimizer(lambda: 0.25, 0.9).minimize(loss, gate_gradients=gate)
            session.run(tf.global_variables_initializer())
            session.run(train)
            assert session.run(table).tolist() == [[1.0, 1.0], [0.5, 0.5], [0.75, 0.75]]


def test_errors() -> None:
    with tf.Graph().as_default():
        v, unused = tf.Variable(1.0, name="v"), tf.Variable(1.0, name="unused")
        rule = tf.train.GradientDescentOptimizer(0.1)
        count = tf.Variable(1, name="count")
        for error, message, call in (
            (ValueError, "No variables provided", lambda: rule.apply_gradients([])),
            (ValueError, "No gradients provided for any variable", lambda: rule.apply_gradients([(None, v)])),
            (ValueError, "No gradients provided for any variable", lambda: rule.minimize(v * v, var_list=[unused])),
            (ValueError, "No variables to optimize", lambda: rule.minimize(v * v, var_list=[])),
            (ValueError, "gate_gradients must be one of", lambda: rule.minimize(v * v, gate_gradients=3)),
            (ValueError, "Invalid type int32", lambda: rule.minimize(count + 1)),
            (TypeError, "Gradient must be convertible", lambda: rule.apply_gradients([(object(), v)])),
            (NotImplementedError, "unsupported type", lambda: rule.apply_gradients([(1.0, "v")])),
            (NotImplementedError, "Trying to update a Tensor", lambda: rule.apply_gradients([(1.0, v * v)])),
            (ValueError, "optimizer name", lambda: tf.train.Optimizer(False, "")),
        ):
            with pytest.raises(error, match=message):
                call()
