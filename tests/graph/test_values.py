"""Values that NumPy can convert to arrays become tensors, also in lists and mixed with other values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf


class Given:
    """An object that converts to an array, as a data frame does."""

    def __init__(self, value: Any) -> None:
        self.value = np.array(value)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.value if dtype is None else self.value.astype(dtype)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (range(5), "int32", [0, 1, 2, 3, 4]),
        (range(5, 2), "int32", []),
        (range(2**31, 2**31 + 1), "int64", [2**31]),
        ([range(2), [5, 6]], "int32", [[0, 1], [5, 6]]),
        ([Given([1.0, 2.0]), [3.0, 4.0]], "float32", [[1.0, 2.0], [3.0, 4.0]]),
        ([[np.arange(2)], [(7, 8)]], "int32", [[[0, 1]], [[7, 8]]]),
        ([Given(["a", "b"]), np.array([b"c", b"d"])], "string", [[b"a", b"b"], [b"c", b"d"]]),
        ([memoryview(b"ab"), bytearray(b"cd")], "uint8", [[97, 98], [99, 100]]),
        ([-1, tf.Dimension(3136)], "int32", [-1, 3136]),
        (tf.Dimension(7), "int32", 7),
    ],
)
def test_a_constant_of_it(value: Any, dtype: str, expected: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        tensor = tf.constant(value)
        assert tensor.dtype.name == dtype
        assert session.run(tensor).tolist() == expected


def test_a_dimension_is_no_float() -> None:
    with tf.Graph().as_default(), pytest.raises(TypeError, match="Expected int32"):
        tf.constant([tf.Dimension(2), 0.5])


def test_sizes_of_slices_and_splits_may_be_dimensions() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 6])
        width = x.shape[1]
        assert tf.slice(x, [0, width // 3], [-1, width // 2]).shape.as_list() == [None, 3]
        assert tf.split(x, [width // 3, 4], 1)[0].shape.as_list() == [None, 2]


def test_the_parts_of_a_nested_feed_must_match() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
        state = tf.nn.rnn_cell.LSTMStateTuple(a, b)
        assert session.run(a - b, {state: tf.nn.rnn_cell.LSTMStateTuple(3.0, 1.0)}) == 2.0
        with pytest.raises(ValueError, match="2 elements"):
            session.run(a - b, {state: (1.0, 2.0, 3.0)})
        with pytest.raises(ValueError, match="twice"):
            session.run(a - b, {state: (1.0, 2.0), a: 3.0})
