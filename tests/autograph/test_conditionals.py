"""`if`, ternaries, `and`, `or`, `not`, `==` and `assert` on tensors."""

import numpy as np
import pytest
from graph_functions import i32, in_graph

import penstock.v1 as tf
from penstock import errors

Feature = tf.autograph.experimental.Feature


def test_if_elif_else_chooses_at_run_time():
    @in_graph
    def sign(x):
        if x < 0:
            r = "neg"
        elif tf.equal(x, 0):
            r = "zero"
        else:
            r = "pos"
        return r

    assert [sign(i32(v)) for v in (-1, 0, 5)] == [b"neg", b"zero", b"pos"]


def test_a_branch_assigns_to_several_variables():
    @in_graph
    def f(x, a, b):
        if x > 0:
            a, b = b, a
            c = a + 1
        else:
            c = b * 10
        return a, b, c

    assert [f(i32(v), i32(1), i32(2)) for v in (1, -1)] == [(2, 1, 3), (1, 2, 20)]


def test_an_if_without_else_keeps_the_variable():
    @in_graph
    def f(x):
        if x > 10:
            x = tf.constant(10)
        return x

    assert [f(i32(v)) for v in (5, 50)] == [5, 10]


def test_early_returns():
    @in_graph
    def f(x):
        if x < 0:
            return -x
        if x > 100:
            return tf.constant(100)
        x = x + 1
        return x

    assert [f(i32(v)) for v in (-5, 5, 500)] == [5, 6, 100]


def test_a_branch_on_a_python_value_is_decided_while_tracing():
    seen = []

    @in_graph
    def f(x, training):
        if training:
            seen.append("train")
            x = x * 2
        else:
            seen.append("infer")
        return x

    assert [f(i32(2), False), f(i32(2), True)] == [2, 4]
    assert seen == ["infer", "train"]


def test_both_branches_on_a_tensor_are_traced():
    seen = []

    @in_graph
    def f(x, training):
        if training:
            seen.append("train")
            x = x * 2
        else:
            seen.append("infer")
        return x

    assert f(i32(2), np.bool_(True)) == 4
    assert seen == ["train", "infer"]


def test_state_in_objects_and_lists():
    class Holder:
        pass

    @in_graph
    def f(x):
        holder, items = Holder(), [x, x]
        holder.value = x
        if x > 0:
            holder.value = x + 1
            items[0] = x + 2
        return holder.value, items

    assert f(i32(2)) == (3, [4, 2])
    assert f(i32(-2)) == (-2, [-2, -2])


def test_shapes_may_differ_between_branches():
    seen = []

    @in_graph
    def f(x):
        if x > 0:
            y = tf.ones([2])
        else:
            y = tf.ones([3])
        seen.append(y.shape.as_list())
        return y

    assert [len(f(i32(1))), len(f(i32(-1)))] == [2, 3]
    assert seen == [[None], [None]]


def undefined(x):
    if x > 0:
        y = x * 2
    return y


def undefined_attribute(x):
    class Holder:
        pass

    holder = Holder()
    if x > 0:
        holder.v = x
    return holder.v


def returns_in_one_branch(x):
    if x > 0:
        return x


def other_type(x):
    if x > 0:
        y = tf.constant(1)
    else:
        y = tf.constant(1.0)
    return y


def text_or_number(x):
    if x > 0:
        y = "a"
    else:
        y = 1
    return y


def other_structure(x):
    if x > 0:
        y = (x, x)
    else:
        y = x
    return y


def none_in_main(x):
    if x > 0:
        y = None
    else:
        y = x
    return y


def none_in_else(x):
    y = None
    if x > 0:
        y = x
    return y


def number_as_condition(x):
    if x:
        return 1
    return 2


def number_in_ternary(x):
    return 1 if x else 2


def number_in_and(x):
    return x and x


def other_type_in_and(x):
    return x > 0 and x


def list_in_one_branch(x):
    return [x] if x > 0 else x


ERRORS = {
    undefined: (ValueError, "'y' must also be initialized in the else branch"),
    undefined_attribute: (ValueError, "'holder.v' must also be initialized in the else branch"),
    returns_in_one_branch: (ValueError, "the else branch must also have a return statement."),
    other_type: (TypeError, "'y' has dtype int32 in the main branch, but dtype float32 in the else branch"),
    text_or_number: (TypeError, "'y' has dtype string in the main branch, but dtype int32 in the else branch"),
    other_structure: (TypeError, "'y' must have the same nested structure in the main and else branches"),
    none_in_main: (ValueError, "'y' is None at the end of the main branch."),
    none_in_else: (ValueError, "'y' is None at the end of the else branch."),
    number_as_condition: (ValueError, "condition of if statement expected to be `tf.bool` scalar"),
    number_in_ternary: (errors.InvalidArgumentError, "expected to be `tf.bool` scalar"),
    number_in_and: (errors.InvalidArgumentError, "expected to be `tf.bool` scalar"),
    other_type_in_and: (TypeError, "'and' has dtype int32 in the main branch, but dtype bool in the else branch"),
    list_in_one_branch: (TypeError, "must have the same nested structure"),
}


@pytest.mark.parametrize("function", ERRORS, ids=lambda f: f.__name__)
def test_branches_that_do_not_fit(function):
    kind, message = ERRORS[function]
    with pytest.raises(kind) as caught:
        in_graph(function)(i32(1))
    assert type(caught.value) is kind
    assert message in str(caught.value)
    assert "in user code:" in str(caught.value)


def test_an_undefined_variable_of_a_python_branch_fails_when_it_is_read():
    assert in_graph(undefined)(1) == 2
    with pytest.raises(UnboundLocalError):
        in_graph(undefined)(-1)


def test_a_variable_of_one_branch_need_not_be_defined_elsewhere():
    @in_graph
    def f(x):
        if x > 0:
            doubled = x * 2
            x = doubled + 1
        return x

    assert [f(i32(3)), f(i32(-3))] == [7, -3]


def test_a_condition_with_one_element_is_a_scalar():
    @in_graph
    def f(x):
        if x:
            return 1
        return 2

    assert f(np.array([True])) == 1
    with pytest.raises(ValueError, match=r"expected to be `tf\.bool` scalar"):
        f(np.array([True, False]))


def test_ternaries():
    @in_graph
    def f(x):
        y = x * 2 if x > 0 else -x
        return y + (1 if y > 5 else 0)

    assert [f(i32(v)) for v in (1, 3, -4)] == [2, 7, 4]


def test_a_ternary_keeps_a_list_of_one():
    @in_graph
    def f(x):
        return [x] if x > 0 else [-x]

    assert f(i32(-2)) == [2]


def test_and_or_not():
    @in_graph
    def f(a, b):
        r = 0
        if a > 0 and b > 0:
            r += 1
        if a > 0 or b > 0:
            r += 10
        if not a > 0:
            r += 100
        if a > 0 and (b > 0 or not a > 5):
            r += 1000
        return r

    pairs = [(1, 1), (1, -1), (-1, 1), (-1, -1), (9, -9)]
    assert [f(i32(a), i32(b)) for a, b in pairs] == [1011, 1010, 110, 100, 10]


def test_and_does_not_run_its_right_side_in_vain():
    @in_graph
    def f(x, i):
        return i < tf.size(x) and x[i] > 0

    assert [bool(f(i32([1, -1]), i32(v))) for v in (0, 1, 5)] == [True, False, False]


def test_and_on_a_vector_of_one_element():
    assert in_graph(number_in_and)(np.array([True])).tolist() == [True]


def test_chained_comparisons():
    @in_graph
    def f(x):
        if 0 < x < 10:
            return "in"
        return "out"

    assert [f(i32(v)) for v in (5, 0, 10)] == [b"in", b"out", b"out"]


def test_equality_by_value_is_a_feature():
    def f(a, b):
        r = 0
        if a == b:
            r += 1
        if a != b:
            r += 10
        return r

    by_value = in_graph(f, optional_features=Feature.EQUALITY_OPERATORS)
    assert [by_value(i32(1), i32(1)), by_value(i32(1), i32(2)), by_value(1, 1)] == [1, 10, 1]
    with pytest.raises(ValueError, match=r"expected to be `tf\.bool` scalar"):
        by_value(i32([1, 2]), i32([1, 2]))


def test_assert_is_converted_on_request():
    def f(x):
        assert x > 0, "must be positive"
        return x

    with pytest.raises(errors.OperatorNotAllowedInGraphError):
        in_graph(f)(i32(1))
    with pytest.raises(AssertionError):
        in_graph(f)(-1)
    with tf.Graph().as_default() as graph:
        tf.autograph.to_graph(f, experimental_optional_features=Feature.ASSERT_STATEMENTS)(tf.placeholder(tf.int32))
    assert "Assert" in {op.type for op in graph.get_operations()}
