"""Ragged tensors where no golden program reaches: specs as arguments, saved models, batches, errors."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as tf
from penstock.data.specs import decoded, encoded


def _rows() -> tf.RaggedTensor:
    return tf.ragged.constant([[3, 1], [], [5]])


def test_a_spec_stands_for_a_ragged_argument() -> None:
    f = tf.function(lambda x: x + 1.0)
    concrete = f.get_concrete_function(tf.RaggedTensorSpec([None, None, None], tf.float32))
    assert concrete(tf.ragged.constant([[[1.0]], []], ragged_rank=2)).to_list() == [[[2.0]], []]
    ((spec,), _) = concrete.structured_input_signature
    assert spec == tf.RaggedTensorSpec([None, None, None], tf.float32)


def test_an_input_signature_refuses_other_rows() -> None:
    f = tf.function(lambda x: x, input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    assert f(_rows()).to_list() == [[3, 1], [], [5]]
    with pytest.raises(TypeError, match="does not fit"):
        f(tf.cast(_rows(), tf.float32))


def test_a_saved_function_takes_and_gives_ragged_tensors(tmp_path: Path) -> None:
    class Doubler(tf.Module):
        @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
        def double(self, x: tf.RaggedTensor) -> tf.RaggedTensor:
            return x * 2

    tf.saved_model.save(Doubler(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.double(_rows()).to_list() == [[6, 2], [], [10]]
    assert loaded.double(tf.ragged.constant([[1, 2]])).to_list() == [[2, 4]]


def test_ragged_batches_of_several_components() -> None:
    dataset = tf.data.Dataset.range(1, 4).map(lambda n: {"n": n, "rows": tf.zeros(tf.stack([n, 2]))})
    (batch,) = dataset.ragged_batch(3, row_splits_dtype=tf.int32)
    assert batch["n"].numpy().tolist() == [1, 2, 3]
    assert [len(row) for row in batch["rows"].to_list()] == [1, 2, 3]
    assert batch["rows"].row_splits.dtype == tf.int32


def test_specs_can_be_written_and_read() -> None:
    spec = {"a": tf.RaggedTensorSpec([None, None, 3], tf.float32, 1, tf.int32)}
    assert decoded(encoded(spec)) == spec


def test_ops_for_dense_tensors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="to_tensor"):
        tf.linalg.inv(tf.cast(_rows(), tf.float32))
    with pytest.raises(ValueError, match="to_tensor"):
        tf.convert_to_tensor(_rows())


def test_operands_with_other_rows_are_refused() -> None:
    others = tf.ragged.constant([[1], [2], [3]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="same lengths"):
        _rows() + others
    with pytest.raises(tf.errors.InvalidArgumentError, match="same lengths"):
        tf.function(lambda x, y: x + y)(_rows(), others)
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not fit"):
        _rows() + [1, 2]
