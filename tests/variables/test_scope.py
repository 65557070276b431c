"""Variable scopes: names, reuse, defaults, getters, partitions, templates."""

from __future__ import annotations

import numpy as np
import pytest
from golden_programs import check, load

import penstock.v1 as tf
from penstock.variables.regularizers import l1_l2_regularizer, l2_regularizer

_FILES = {
    "graphdef/naming.json": ("variable_scope_", "get_variable_", "partitioned_names", "get_name_scope"),
    "semantics/partition_programs.json": ("",),
    "ops/errors.json": ("get_variable_", "variable_scope_"),
}
_ROWS = [row for path, names in _FILES.items() for row in load(path)["cases"] if row["id"].startswith(names)]


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row["id"])
def test_golden_program(row: dict) -> None:
    check(row, tf)


def test_custom_getters_nest_innermost_first() -> None:
    seen = []

    def getter(label: str, factor: float) -> object:
        def get(getter: object, name: str, *args: object, **kwargs: object) -> object:
            seen.append((label, name))
            return getter(name, *args, **kwargs) * factor

        return get

    with tf.Graph().as_default(), tf.Session() as session:
        outer = tf.variable_scope("a", custom_getter=getter("outer", 3.0))
        inner = tf.variable_scope("b", custom_getter=getter("inner", 2.0))
        with outer, inner:
            v = tf.get_variable("v", initializer=[1.0])
        session.run(tf.global_variables_initializer())
        assert seen == [("inner", "a/b/v"), ("outer", "a/b/v")]
        assert session.run(v).tolist() == [6.0]


def test_regularizers_are_collected() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope("s", regularizer=l2_regularizer(0.1)):
            tf.get_variable("v", initializer=[1.0, 2.0])
            tf.get_variable("w", initializer=[1.0, 2.0], regularizer=l1_l2_regularizer(0.1, 0.2))
            tf.get_variable("n", initializer=[1.0], regularizer=tf.no_regularizer)
        losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
        assert [loss.op.name for loss in losses] == [
            "s/v/Regularizer/l2_regularizer",
            "s/w/Regularizer/l1_l2_regularizer",
        ]
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(losses), [0.25, 0.8], rtol=1e-6)


def test_partitions_are_one_variable() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        start = tf.constant(np.eye(5, 2, dtype=np.float32))
        v = tf.get_variable("v", [5, 2], partitioner=tf.fixed_size_partitioner(2), initializer=start)
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(tf.convert_to_tensor(v)), np.eye(5, 2))
        session.run(v.assign(np.ones((5, 2), np.float32)))
        session.run(v.assign_add(tf.ones([5, 2])))
        np.testing.assert_array_equal(session.run(tf.convert_to_tensor(v)), np.full((5, 2), 2.0))
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            assert tf.get_variable("v", [5, 2]) is v
            with pytest.raises(ValueError, match="found partitions"):
                tf.get_variable("v", [5, 2], partitioner=tf.fixed_size_partitioner(3))


def test_templates_share_their_variables() -> None:
    with tf.Graph().as_default():
        scale = tf.make_template("scale", lambda x: x * tf.get_variable("w", []))
        names = [scale(1.0).op.name, scale(2.0).op.name]
        other = tf.make_template("scale", lambda x: x * tf.get_variable("w", []), create_scope_now_=True)
        names += [other(1.0).op.name]
        assert [v.name for v in tf.global_variables()] == ["scale/w:0", "scale_1/w:0"]
        assert names[:2] == ["scale/mul", "scale_1/mul"]
        careless = tf.make_template("careless", lambda: tf.Variable(1.0))
        careless()
        with pytest.raises(ValueError, match=r"tf\.get_variable"):
            careless()


def test_local_variables_are_not_trained() -> None:
    with tf.Graph().as_default():
        local = tf.get_local_variable("l", [1])
        assert (tf.local_variables(), tf.trainable_variables(), tf.global_variables()) == ([local], [], [])


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: tf.get_variable("a", initializer=1.0, dtype=tf.int32), ValueError),
        (lambda: tf.get_variable("c", [1], dtype=tf.complex64), ValueError),
        (lambda: tf.variable_scope(3).__enter__(), TypeError),
        (lambda: tf.variable_scope(None, "x", reuse=True).__enter__(), ValueError),
        (lambda: tf.get_variable("v", [1], custom_getter=3), ValueError),
        (lambda: tf.variance_scaling_initializer(mode="x"), ValueError),
        (lambda: tf.orthogonal_initializer()([2]), ValueError),
        (lambda: tf.constant_initializer("x")([2]), TypeError),
    ],
)
def test_misuse(make: object, error: type[Exception]) -> None:
    with tf.Graph().as_default(), pytest.raises(error):
        make()


@pytest.mark.parametrize("name", ["zeros", "constant", "random_uniform", "truncated_normal", "glorot_normal"])
def test_initializers_copy_by_config(name: str) -> None:
    initializer = getattr(tf.initializers, name)()
    assert type(initializer).from_config(initializer.get_config()).get_config() == initializer.get_config()
