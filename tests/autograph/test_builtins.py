"""Python's builtin functions on tensors and datasets, lists as a feature, and loops over datasets."""

import numpy as np
import pytest
from graph_functions import i32, in_graph

import penstock.v1 as tf
from penstock import errors

Feature = tf.autograph.experimental.Feature


def test_builtins_of_tensors():
    @in_graph
    def f(x):
        return len(x), abs(x), int(x[0]), float(x[1]), sum([x[0], x[1]]), sorted(x)

    length, absolute, whole, real, total, ordered = f(i32([3, -4]))
    assert (length, absolute.tolist(), whole, real, total, ordered.tolist()) == (2, [3, 4], 3, -4.0, -1, [-4, 3])
    assert isinstance(real, np.float32)


def test_builtins_of_python_values():
    @in_graph
    def f():
        return (
            len("abc"),
            abs(-2),
            int("11", 2),
            int("11", base=3),
            float("1.5"),
            list(range(1, 7, 2)),
            sorted([1, 3, 2], key=lambda v: -v, reverse=True),
            list(zip([1], [2], strict=True)),
            list(enumerate([5], 1)),
            list(map(abs, filter(None, [0, -1]))),
            any([False, True]),
            all([]),
        )

    assert f() == (3, 2, 3, 4, 1.5, [1, 3, 5], [1, 2, 3], [(1, 2)], [(1, 5)], [1], True, True)


def test_text_as_numbers():
    assert in_graph(lambda x: (int(x), float(x)))(np.array(b"12")) == (12, 12.0)
    with pytest.raises(NotImplementedError, match="base 10"):
        in_graph(lambda x: int(x, 2))(np.array(b"12"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: max(x[0], x[1]),
        lambda x: max(x),
        lambda x: sum(x),
        lambda x: all([x[0] > 0]),
        lambda x: [v for _, v in enumerate(x)],
    ],
)
def test_builtins_without_a_meaning_for_tensors(function):
    with pytest.raises(errors.OperatorNotAllowedInGraphError):
        in_graph(function)(i32([3, 4]))


def test_print_runs_while_tracing_unless_asked_for(capsys):
    def f(x):
        print("v", x, sep="=")
        return x

    in_graph(f)(i32(7))
    assert capsys.readouterr().out == 'v=Tensor("Placeholder:0", shape=(), dtype=int32)\n'
    with tf.Graph().as_default(), tf.Session() as session:
        tf.autograph.to_graph(f, experimental_optional_features=Feature.BUILTIN_FUNCTIONS)(tf.constant([1, 2]))
        assert capsys.readouterr().out == ""
        session.run(next(op for op in tf.get_default_graph().get_operations() if op.type == "PrintV2"))
    assert capsys.readouterr().out == "v=[1 2]\n"


def test_lists_as_a_feature():
    def f(n):
        kept = tf.TensorArray(tf.int32, 0, dynamic_size=True)
        for i in tf.range(n):
            kept.append(i * i)
        plain = [1, 2]
        plain.append(3)
        last = plain.pop()
        x = tf.constant([1, 2, 3])
        x[1] = 20
        x[0] += 4
        return kept.stack(), kept[2], plain, last, x, tf.stack(plain)

    squares, third, plain, last, x, stacked = in_graph(f, optional_features=Feature.LISTS)(i32(3))
    assert (squares.tolist(), third, plain, last, x.tolist()) == ([0, 1, 4], 4, [1, 2], 3, [5, 20, 3])
    assert stacked.tolist() == [1, 2]


def test_items_of_tensors_cannot_be_assigned_otherwise():
    def f(x):
        x[0] = 5
        return x

    with pytest.raises(TypeError):
        in_graph(f)(i32([1, 2]))


# Datasets


def test_for_over_a_dataset():
    @in_graph
    def f():
        s = tf.constant(0, tf.int64)
        for a, b in tf.data.Dataset.zip((tf.data.Dataset.range(4), tf.data.Dataset.range(10, 14))):
            s += a * b
        return s

    assert f() == 74


def test_break_and_continue_in_a_dataset():
    @in_graph
    def f():
        s = tf.constant(0, tf.int64)
        for v in tf.data.Dataset.range(2**40):
            if v > 4:
                break
            if tf.equal(v % 2, 1):
                continue
            s += v
        return s

    assert f() == 6


def test_a_loop_over_a_dataset_does_not_define_variables():
    @in_graph
    def f():
        for v in tf.data.Dataset.range(3):
            last = v
        return last

    with pytest.raises(ValueError, match="'last' must be defined before the loop"):
        f()


def test_builtins_of_datasets():
    @in_graph
    def f(x, y):
        s = 0
        pairs = zip(tf.data.Dataset.from_tensor_slices(x), tf.data.Dataset.from_tensor_slices(y), strict=False)
        for i, (a, b) in enumerate(pairs):
            s += tf.cast(i, tf.int32) * a * b
        flags = map(lambda v: v > 2, tf.data.Dataset.from_tensor_slices(x))
        small = 0
        for v in filter(lambda v: v < 3, tf.data.Dataset.from_tensor_slices(x)):
            small += v
        return s, any(flags), all(flags), small

    assert f(i32([1, 2, 3]), i32([4, 5, 6])) == (46, True, False, 3)


def test_any_of_a_dataset_needs_bools():
    with pytest.raises(ValueError, match="bool scalars"):
        in_graph(lambda: any(tf.data.Dataset.range(3)))()
