"""Ragged tensors in sessions: fetched, fed, and as components of datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def test_fetched() -> None:
    words = tf.ragged.constant([[["a"], []], []])
    with tf.Session() as sess:
        found, (values, same) = sess.run([words, (words.flat_values, words)])
    assert isinstance(found, tf.ragged.RaggedTensorValue)
    assert found.to_list() == same.to_list() == [[[b"a"], []], []]
    assert found.ragged_rank == 2 and found.shape == (2, None, None) and found.dtype == object
    assert [s.tolist() for s in found.nested_row_splits] == [[0, 2, 2], [0, 1, 1]]
    assert found.flat_values.tolist() == values.tolist() == [b"a"]
    assert str(found) == "<tf.RaggedTensorValue [[[b'a'], []], []]>"


def test_fed() -> None:
    rows = tf.ragged.placeholder(tf.float32, 1, value_shape=[])
    with tf.Session() as sess:
        found = sess.run(rows * 2, {rows: tf.ragged.constant_value([[1.0], [], [2.0, 3.0]], np.float32)})
        assert found.to_list() == [[2.0], [], [4.0, 6.0]]
        for wrong in ([[1.0]], tf.ragged.constant_value([[[1.0]]])):
            with pytest.raises(TypeError, match=r"RaggedTensorValue of as many.*constant_value"):
                sess.run(rows * 2, {rows: wrong})


def test_values_that_are_refused() -> None:
    with pytest.raises(TypeError, match="row_splits must be a vector"):
        tf.ragged.RaggedTensorValue(np.array([1]), np.array([0, 1], np.int8))
    with pytest.raises(TypeError, match="values must be a NumPy array"):
        tf.ragged.RaggedTensorValue([1], np.array([0, 1]))  # type: ignore[arg-type]


def _from_structure(dataset: Any) -> tuple[Any, Any]:
    parts = tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset)
    iterator = tf.data.Iterator.from_structure(*parts, output_classes=tf.data.get_output_classes(dataset))
    return iterator, iterator.make_initializer(dataset)


def _from_handle(dataset: Any) -> tuple[Any, Any]:
    handle = tf.data.make_one_shot_iterator(dataset).string_handle()
    parts = tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset)
    return tf.data.Iterator.from_string_handle(handle, *parts, tf.data.get_output_classes(dataset)), tf.no_op()


def _initializable(dataset: Any) -> tuple[Any, Any]:
    iterator = tf.data.make_initializable_iterator(dataset)
    return iterator, iterator.initializer


ITERATORS: list[Callable[[Any], tuple[Any, Any]]] = [
    _from_structure,
    _from_handle,
    _initializable,
    lambda dataset: (tf.data.make_one_shot_iterator(dataset), tf.no_op()),
]


@pytest.mark.parametrize("made", ITERATORS)
def test_iterators(made: Callable[[Any], tuple[Any, Any]]) -> None:
    value = tf.ragged.constant_value([[[1], []], [], [[2, 3]]], np.int32)
    dataset = tf.data.Dataset.from_tensor_slices({"w": value, "n": [1, 2, 3]}).batch(2)
    assert tf.data.get_output_classes(dataset)["w"] == tf.RaggedTensorSpec([None, None, None], tf.int32)
    iterator, initializer = made(dataset)
    following = iterator.get_next()
    assert isinstance(following["w"], tf.RaggedTensor) and following["w"].shape.as_list() == [None, None, None]
    with tf.Session() as sess:
        sess.run(initializer)
        found = [sess.run(following) for _ in range(2)]
    assert [e["w"].to_list() for e in found] == [[[[1], []], []], [[[2, 3]]]]
    assert [e["n"].tolist() for e in found] == [[1, 2], [3]]
