"""py_func: its arguments, its results, and its errors."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), tf.errors.InvalidArgumentError),
        (TypeError("x"), tf.errors.InvalidArgumentError),
        (StopIteration("x"), tf.errors.OutOfRangeError),
        (MemoryError("x"), tf.errors.ResourceExhaustedError),
        (NotImplementedError("x"), tf.errors.UnimplementedError),
        (tf.errors.UnavailableError(None, None, "x"), tf.errors.UnavailableError),
        (tf.errors.NotFoundError(None, None, "x"), tf.errors.UnknownError),
        (RuntimeError("x"), tf.errors.UnknownError),
        (KeyError("x"), tf.errors.UnknownError),
    ],
    ids=repr,
)
def test_errors(error: Exception, expected: type[Exception]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        node = tf.py_func(lambda: _raise(error), [], tf.float32, name="f")
        with pytest.raises(expected, match=type(error).__name__) as caught:
            session.run(node)
    assert caught.value.op_name == "f"


@pytest.mark.parametrize(
    ("function", "types", "expected"),
    [
        (lambda v: (v, v + 1), [tf.float32, tf.float32], [2.0, 3.0]),
        (lambda v: v, [tf.float32], [2.0]),
        (lambda v: None, [], None),
        (lambda v: 3, tf.int64, 3),
        (lambda v: "abc", tf.string, b"abc"),
        (lambda v: np.array([["a", "bc"]]), tf.string, [[b"a", b"bc"]]),
        (lambda v: type(v).__name__, tf.string, b"float32"),
        (lambda v: v, [tf.float32, tf.float32], tf.errors.InvalidArgumentError),
        (lambda v: 3.5, tf.float32, tf.errors.InvalidArgumentError),
        (lambda v: [1.0, 2.0], tf.float64, tf.errors.InvalidArgumentError),
    ],
)
def test_results(function: Any, types: Any, expected: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        node = tf.py_func(function, [2.0], types)
        if isinstance(expected, type):
            with pytest.raises(expected):
                session.run(node)
            return
        result = session.run(node)
    assert expected == (result.tolist() if isinstance(result, np.ndarray) else result)


def test_strings_come_as_bytes_and_stateless_nodes_are_another_type() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        node = tf.py_func(lambda s, t: [s + b"!", t[0]], ["a", ["b"]], [tf.string, tf.string], stateful=False)
        assert node[0].op.type == "PyFuncStateless"
        assert session.run(node) == [b"a!", b"b"]
        assert tf.gradients(tf.py_func(lambda v: v, [x := tf.constant(1.0)], tf.float32), x) == [None]


def test_the_function_goes_with_its_graph() -> None:
    class Marker:
        def __call__(self) -> float:
            return 1.0

    graph, marker = tf.Graph(), Marker()
    with graph.as_default():
        tf.py_func(marker, [], tf.float64)
    seen = weakref.ref(marker)
    del marker
    gc.collect()
    assert seen() is not None
    del graph
    gc.collect()
    assert seen() is None
