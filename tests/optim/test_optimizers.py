"""Optimizers make the same steps as TensorFlow's, under the same names and on the same devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN, check, load

import penstock.v1 as tf
from penstock.ops.state import training
from penstock.optim.accumulation import GradientAccumulationOptimizer

_CASES = load("optimizers/index.json")["cases"]
_DATA = np.load(GOLDEN / "optimizers/trajectories.npz")


def _build(case: dict[str, Any]) -> tuple[dict[str, Any], Any, dict[Any, Any]]:
    """The trained variables, the training op, and the values to record under the keys of the golden file."""
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
    counted = {"global_step": step} if "AdagradDA" in case["optimizer"] else {}
    rule = getattr(tf.train, case["optimizer"].rpartition(".")[2])(**case["kwargs"], **counted)
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
    with tf.Graph().as_default() as graph:
        exec(golden["program"], {"tf": tf})
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
    new_var, new_accum = training.momentum.sparse.ref.kernel(
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
    worker = session._master.tasks.default.worker
    return len(worker._graphs[compiled.local_part.graph].executable.instructions)


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


_ROW_RULES = [
    tf.train.MomentumOptimizer(0.1, 0.9),
    tf.train.AdamOptimizer(0.1),
    tf.train.AdagradOptimizer(0.1),
    tf.train.FtrlOptimizer(0.1),
    tf.train.RMSPropOptimizer(0.1, momentum=0.5),
    tf.contrib.opt.LazyAdamOptimizer(0.1, name="LazyAdam"),
    tf.contrib.opt.AdaMaxOptimizer(0.1),
]


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("rule", _ROW_RULES, ids=lambda rule: rule.get_name())
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

    # If the distinct indices are fetched, they must be computed: the same steps, in several segments.
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


_SCHEDULES = load("optimizers/index.json")["schedules"]


@pytest.mark.parametrize("case", _SCHEDULES, ids=lambda case: case["id"])
def test_schedules(case: dict[str, Any]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        kwargs = dict(case["kwargs"])
        schedule = getattr(tf.train, case["fn"].rpartition(".")[2])
        rate = schedule(step, **kwargs) if "boundaries" in kwargs else schedule(global_step=step, **kwargs)
        found = [session.run(rate, {step: s}) for s in case["steps"]]
    np.testing.assert_allclose(found, case["values"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", load("optimizers/index.json")["ema"], ids=lambda case: case["id"])
def test_moving_averages(case: dict[str, Any]) -> None:
    targets, expected = _DATA["ema/targets"], _DATA[case["key"]]
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable(np.float32([1.0, -1.0, 0.5]), name="v", use_resource=case["use_resource"])
        count = tf.Variable(0, name="gs", trainable=False, use_resource=case["use_resource"])
        value = tf.placeholder(tf.float32, targets[0].shape)
        ema = tf.train.ExponentialMovingAverage(num_updates=count if case["num_updates"] else None, **case["kwargs"])
        x = tf.identity(v, name="x") if case["of_tensor"] else v
        update = ema.apply([x])
        average = ema.average(x)
        assert average.op.name == case["average_op_name"]
        assert [u.op.name for u in tf.global_variables()] == case["all_variables"]
        assign, counted = v.assign(value), count.assign_add(1)
        session.run(tf.global_variables_initializer())
        rows = [session.run(average)]
        for t, target in enumerate(targets):
            if t:
                session.run(counted)
            session.run(assign, {value: target})
            session.run(update)
            rows.append(session.run(average))
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("use_resource", [False, True])
def test_averages_and_their_decay_follow_the_step_before(use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable(1.0, use_resource=use_resource)
        count = tf.train.get_or_create_global_step()
        train = tf.train.GradientDescentOptimizer(1.0).apply_gradients([(tf.constant(1.0), v)], global_step=count)
        ema = tf.train.ExponentialMovingAverage(0.9, num_updates=count)
        with tf.control_dependencies([train]):
            train = ema.apply([v])
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run([v, ema.average(v)]) == [0.0, pytest.approx(2 / 11)]


def test_clipped_gradients() -> None:
    golden = load("optimizers/index.json")["clip_by_global_norm"]
    with tf.Graph().as_default(), tf.Session() as session:
        w, e = (tf.Variable(_DATA[f"common/{name}0"], name=name) for name in ("w", "e"))
        dense, values = tf.placeholder(tf.float32, [3, 2]), tf.placeholder(tf.float32, [4, 2])
        indices = tf.placeholder(tf.int32, [4])
        sparse = tf.IndexedSlices(values, indices, tf.constant([6, 2]))
        (clipped, rows), norm = tf.clip_by_global_norm([dense, sparse], golden["clip_norm"])
        train = tf.train.MomentumOptimizer(0.1, 0.9).apply_gradients([(clipped, w), (rows, e)])
        session.run(tf.global_variables_initializer())
        found: dict[str, list[Any]] = {key: [] for key in golden["keys"]}
        for t in range(len(_DATA[golden["keys"]["norm"]])):
            feeds = {
                dense: _DATA["common/dense_grads"][t] * golden["dense_scale"],
                values: _DATA["common/sparse_values"][t],
                indices: _DATA["common/sparse_indices"][t],
            }
            *parts, _ = session.run([norm, clipped, rows.values, train], feeds)
            for key, part in zip(("norm", "clipped_dense", "clipped_sparse_values"), parts, strict=True):
                found[key].append(part)
            for key, variable in (("w", w), ("e", e)):
                found[key].append(session.run(variable))
    for key, name in golden["keys"].items():
        expected = _DATA[name][-len(found[key]) :]
        np.testing.assert_allclose(found[key], expected, rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("run", ["sgd", "adam"])
def test_softmax_regression(run: str) -> None:
    rule = {"sgd": lambda: tf.train.GradientDescentOptimizer(0.5), "adam": lambda: tf.train.AdamOptimizer(0.05)}[run]()
    with tf.Graph().as_default(), tf.Session() as session:
        w, b = tf.Variable(_DATA["softmax/w0"]), tf.Variable(np.zeros(3, np.float32))
        x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.int64, [None])
        logits = tf.matmul(x, w) + b
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        train = rule.minimize(loss)
        session.run(tf.global_variables_initializer())
        for t, expected in enumerate(_DATA[f"softmax_{run}/loss"]):
            found, _ = session.run([loss, train], {x: _DATA["softmax/x"][t], y: _DATA["softmax/y"][t]})
            assert found == pytest.approx(expected, rel=1e-5), t
            np.testing.assert_allclose(session.run(w), _DATA[f"softmax_{run}/w"][t], rtol=1e-5, atol=1e-6)


def test_periods_of_a_schedule_are_counted_exactly() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = tf.train.exponential_decay(1.0, step, 41, 0.5, staircase=True)
        assert [session.run(rate, {step: s}) for s in (40, 41, 81, 82, 41 * 9)] == [1.0, 0.5, 0.5, 0.25, 0.5**9]


@pytest.mark.parametrize("use_resource", [False, True])
def test_accumulated_gradients_are_those_of_one_large_batch(use_resource: bool) -> None:
    rows = np.random.RandomState(0).rand(8, 3).astype(np.float32)

    def train(batches: list[np.ndarray], steps: int) -> tuple[np.ndarray, int]:
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, [None, 3])
            w = tf.Variable([[1.0], [2.0], [3.0]], use_resource=use_resource)
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
            count = tf.train.get_or_create_global_step()
            rule = GradientAccumulationOptimizer(tf.train.AdamOptimizer(0.1), steps)
            op = rule.minimize(loss, global_step=count)
            session.run(tf.global_variables_initializer())
            for batch in batches:
                session.run(op, {x: batch})
            return session.run(w), int(session.run(count))

    whole, updates = train([rows, rows], 1)
    parts, same = train([*np.split(rows, 4)] * 2, 4)
    assert updates == same == 2
    np.testing.assert_allclose(parts, whole, rtol=1e-5)
    with pytest.raises(ValueError, match="at least 1"):
        GradientAccumulationOptimizer(tf.train.AdamOptimizer(0.1), 0)
