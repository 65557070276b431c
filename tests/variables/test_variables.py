"""Variables make TensorFlow's nodes, hold values across steps, and change as TensorFlow's do."""

from __future__ import annotations

import numpy as np
import pytest
from golden_programs import check, load

import penstock.v1 as tf
from penstock.errors import InvalidArgumentError
from penstock.graph.importer import import_graph_def

_ROWS = {
    "graphdef/naming.json": [
        "variable_names",
        "variable_names_resource",
        "assign_names_resource",
        "global_step_names",
        "collections_api",
        "group_per_device",
        "control_dependencies_semantics",
    ],
    "semantics/device_nesting.json": [
        "function_by_type",
        "variable_and_its_ops",
        "resource_variable_and_its_ops",
        "variable_scope_caching_device",
        "gradients_colocation",
    ],
    "semantics/variable_init.json": [
        "report_uninitialized",
        "init_depends_on_other_variable",
        "initializer_run_order_unspecified_but_safe",
        "variables_initializer_structure",
        "re_init_resets",
        "load_and_eval",
        "sessions_do_not_share_variables",
    ],
    "ops/programs.json": [
        "var_",
        "gradients_of_gather_is_indexed_slices",
        "moving_variables_init_order",
        "local_variables",
        "initializers_deterministic",
    ],
    "ops/errors.json": [
        "dtype_assign",
        "assign_shape",
        "variable_no_init",
        "variable_unknown_shape",
        "create_global_step_twice",
        "uninitialized_",
    ],
}


def _chosen() -> list[dict]:
    """The rows named above; a name that ends in '_' stands for all that begin with it."""
    rows = []
    for path, names in _ROWS.items():
        for row in load(path)["cases"]:
            if any(row["id"] == n or (n.endswith("_") and row["id"].startswith(n)) for n in names):
                rows.append(row)
    return rows


@pytest.mark.parametrize("row", _chosen(), ids=lambda row: row["id"])
def test_golden_program(row: dict) -> None:
    check(row, tf)


def _described(op: object) -> dict:
    return {
        "type": op.type,
        "inputs": [t.name for t in op.inputs],
        "control_inputs": [c.name for c in op.control_inputs],
        "device": op.device,
        "outputs": [[t.dtype.name, t.shape.as_list()] for t in op.outputs],
        "colocation": [c.decode() for c in op.colocation_groups()],
    }


@pytest.mark.parametrize("model", ["model_ref", "model_resource", "partitioned"])
def test_nodes_of_variables(model: str) -> None:
    """Every node that the variables of a golden model consist of: its type, inputs, device and colocation."""
    golden = load(f"graphdef/{model}.json")
    program = golden["program"].split("train = ")[0]
    with tf.Graph().as_default() as graph:
        exec(compile(program, model, "exec"), {"tf": tf})
    made = [op for op in graph.get_operations() if op.name.startswith(("layer1/", "p/", "global_step"))]
    assert len(made) > 10
    for op in made:
        assert _described(op) == golden["ops"][op.name], op.name


@pytest.mark.parametrize("use_resource", [False, True])
def test_scatter_leaves_the_variable_alone_when_an_index_is_out_of_range(use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable([1.0, 2.0], use_resource=use_resource)
        i = tf.placeholder(tf.int32, [1])
        update = tf.scatter_add(v, i, [1.0]).op
        session.run(v.initializer)
        with pytest.raises(InvalidArgumentError, match=r"5 is not in \[0, 2\)"):
            session.run(update, {i: [5]})
        assert session.run(v).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("use_resource", [False, True])
def test_the_last_of_equal_indices_wins(use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable([0.0, 0.0, 0.0], use_resource=use_resource)
        session.run(v.initializer)
        session.run(tf.scatter_update(v, [2, 0, 2, 2, 0], [1.0, 2.0, 3.0, 4.0, 5.0]).op)
        assert session.run(v).tolist() == [5.0, 0.0, 4.0]


def test_a_write_is_read_after_it() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable([1.0, 2.0], use_resource=True)
        twice = v.assign_add([1.0, 1.0]).assign_add([2.0, 2.0])
        session.run(v.initializer)
        assert session.run(twice).tolist() == [4.0, 5.0]
        assert session.run(1.0 - v).tolist() == [-3.0, -4.0]
        assert [c.name for c in tf.group(twice).control_inputs] == ["AssignAddVariableOp_1"]


def test_variables_in_branches_and_loops() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v, w = tf.Variable(1.0, use_resource=True), tf.Variable(1.0)
        x = tf.placeholder(tf.float32, [])
        read = tf.cond(x > 0, lambda: v * 2.0 + w, lambda: v.read_value() * 3.0)
        write = tf.cond(x > 0, lambda: tf.identity(v.assign_add(1.0)), lambda: tf.identity(w.assign_sub(1.0)))

        def body(i: object) -> object:
            with tf.control_dependencies([v.assign_add(1.0)]):
                return i + v

        loop = tf.while_loop(lambda i: i < 20.0, body, [tf.constant(0.0)])
        session.run(tf.global_variables_initializer())
        assert [session.run(read, {x: s}) for s in (1.0, -1.0)] == [3.0, 3.0]
        assert [session.run(write, {x: s}) for s in (1.0, -1.0)] == [2.0, 0.0]
        session.run(v.initializer)
        assert (session.run(loop), session.run(v)) == (20.0, 6.0)  # 2 + 3 + 4 + 5 + 6


def test_protos_give_the_variables_back() -> None:
    with tf.Graph().as_default() as graph:
        tf.Variable([1.0, 2.0], name="v")
        tf.Variable([3.0], name="r", use_resource=True, trainable=False)
        tf.get_variable("p", [4], partitioner=tf.fixed_size_partitioner(2), initializer=tf.ones_initializer)
        protos = [v.to_proto() for v in tf.global_variables()]
    with tf.Graph().as_default(), tf.Session() as session:
        import_graph_def(graph.as_graph_def(), name="i")
        v, r, _, part = (tf.Variable.from_proto(p, import_scope="i") for p in protos)
        assert (r.trainable, part._get_save_slice_info().full_name, part._get_save_slice_info().spec) == (
            False,
            "i/p",
            "4 2,2",
        )
        session.run([v.initializer, r.initializer, part.initializer])
        assert [session.run(x + 1.0).tolist() for x in (v, r, part)] == [[2.0, 3.0], [4.0], [2.0, 2.0]]
        assert protos[0] == tf.Variable.from_proto(protos[0], import_scope="i").to_proto(export_scope="i")


def test_creators_see_and_change_what_is_made() -> None:
    with tf.Graph().as_default():
        with tf.variable_creator_scope(lambda make, **kwargs: make(**{**kwargs, "trainable": False})):
            made = [tf.Variable(1.0), tf.get_variable("w", [1])]
        assert [v.trainable for v in made] == [False, False]
        assert tf.trainable_variables() == []


@pytest.mark.parametrize("use_resource", [False, True])
def test_strings(use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable(["a", "b"], use_resource=use_resource)
        session.run(v.initializer)
        assert session.run([v, tf.identity(v)[1]])[0].tolist() == [b"a", b"b"]
        assert session.run(v.assign(["c", "d"])).tolist() == [b"c", b"d"]
        x = tf.placeholder(tf.string)
        with pytest.raises(InvalidArgumentError, match="shape"):
            session.run(v.assign(x), {x: ["e"]})


def test_containers_name_where_variables_live() -> None:
    with tf.Graph().as_default(), tf.container("c"):
        for use_resource in (False, True):
            assert tf.Variable(1.0, use_resource=use_resource).op.get_attr("container") == b"c"


def test_shape_may_change_if_not_validated() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable(1.0, validate_shape=False)
        session.run(v.initializer)
        session.run(tf.assign(v, [1.0, 2.0], validate_shape=False).op)
        assert v.shape.rank is None
        assert np.array_equal(session.run(v), [1.0, 2.0])


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: tf.Variable(1.0, constraint=3), ValueError),
        (lambda: tf.Variable(1.0, collections="x"), ValueError),
        (lambda: tf.Variable(1.0, dtype=tf.int32), TypeError),
        (lambda: tf.Variable([1.0, 2.0], shape=[3]), ValueError),
        (lambda: tf.Variable(1.0, 2.0, bogus=1), TypeError),
        (lambda: tf.Variable(1.0).assign_add([1.0, 2.0]), ValueError),
        (lambda: iter(tf.Variable([1.0])), TypeError),
        (lambda: tf.Variable([1.0]).scatter_add(3), TypeError),
        (lambda: tf.train.assert_global_step(tf.Variable(1.0)), TypeError),
        (lambda: tf.train.assert_global_step(tf.Variable([1])), TypeError),
        (lambda: tf.group(3), TypeError),
        (lambda: tf.tuple([None]), ValueError),
    ],
)
def test_misuse(make: object, error: type[Exception]) -> None:
    with tf.Graph().as_default(), pytest.raises(error):
        make()
