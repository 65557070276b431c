"""Control flow runs as plain Python where nodes run as they are made."""

import pytest

import penstock.v1 as tf
from penstock.autograph.dispatch import becomes_nodes
from penstock.graph.operation import Tensor


class Known(Tensor):
    """A tensor with a value, as eager execution has them."""

    __slots__ = ()

    def __bool__(self):
        return bool(tf.get_static_value(self))


@pytest.fixture
def eager():
    with tf.Graph().as_default() as graph:
        graph.is_eager = True
        yield graph


def known(value):
    tensor = tf.constant(value)
    return Known(tensor.op, 0, tensor.dtype, tensor.shape)


def test_tensors_with_values_make_no_control_flow(eager):
    def f(yes, no):
        found = []
        if yes:
            found.append("if")
        found.append("and" if yes and no else "or" if no or yes else "none")
        if not no:
            found.append("not")
        rest = [yes, no]
        while rest[0]:
            del rest[0]
        for flag in [yes, no]:
            if flag:
                continue
            found.append("for")
        return found, len(rest)

    assert tf.autograph.to_graph(f)(known(True), known(False)) == (["if", "or", "not", "for"], 1)
    assert {op.type for op in eager.get_operations()} == {"Const"}


def test_tensors_with_values_are_tensors_in_a_graph(eager):
    value = known(True)
    assert not becomes_nodes(value)
    with tf.Graph().as_default():
        assert becomes_nodes(value)


@pytest.mark.parametrize("value", [True, 1, None, "x", [1]])
def test_python_values_are_python(value):
    assert not becomes_nodes(value)


@pytest.mark.parametrize("use_resource", [False, True])
def test_variables_are_tensors(use_resource):
    with tf.Graph().as_default(), tf.Session() as session:
        flag = tf.Variable(True, use_resource=use_resource)
        rows = tf.Variable([1, 2, 3], use_resource=use_resource)

        def f():
            total = 0
            for row in rows:
                total += row
            if flag:
                total = total * 2
            return total, flag and total < 0, len(rows)

        total, both, length = tf.autograph.to_graph(f)()
        session.run(tf.global_variables_initializer())
        assert session.run([total, both]) == [12, False]
        assert length == 3
