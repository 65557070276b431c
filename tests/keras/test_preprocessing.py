"""Preprocessing layers give what those of TensorFlow's Keras gave (TensorFlow 2.21)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_models import keras, one_device, tf

ROWS = json.loads((Path(__file__).parents[1] / "golden/keras/preprocessing.json").read_text())


def _id(row: dict[str, Any]) -> str:
    return f"{row['layer']}-{ROWS.index(row)}"


def _layer(row: dict[str, Any]) -> Any:
    layer = getattr(tf.keras.layers, row["layer"])(**row["settings"])
    if row["adapt"] is not None:
        layer.adapt(np.array(row["adapt"]))
    return layer


def _check(row: dict[str, Any], found: np.ndarray) -> None:
    assert list(found.shape) == row["shape"]
    assert str(found.dtype) == row["dtype"]
    if found.dtype == object:
        assert [[x.decode() for x in line] for line in found.tolist()] == row["output"]
    else:
        np.testing.assert_allclose(found, row["output"], rtol=1e-5)


@pytest.mark.parametrize("row", ROWS, ids=_id)
def test_layers_agree_with_tensorflow(row: dict[str, Any]) -> None:
    layer = _layer(row)
    _check(row, layer(tf.constant(row["inputs"])).numpy())
    if row["vocabulary"] is not None:
        assert layer.get_vocabulary() == row["vocabulary"]


@pytest.mark.parametrize("row", [row for row in ROWS if row["layer"] != "Normalization"], ids=_id)
def test_layers_run_in_datasets_and_come_back_from_their_configs(row: dict[str, Any]) -> None:
    layer = _layer(row)
    again = type(layer).from_config(layer.get_config())
    dataset = tf.data.Dataset.from_tensors(tf.constant(row["inputs"])).map(again)
    (found,) = [element.numpy() for element in dataset]
    _check(row, found)


def test_adapt_takes_datasets() -> None:
    words = tf.data.Dataset.from_tensor_slices(["b", "a", "b", "c", "b", "a"]).batch(2)
    layer = tf.keras.layers.StringLookup()
    layer.adapt(words)
    assert layer.get_vocabulary() == ["[UNK]", "b", "a", "c"]
    numbers = tf.keras.layers.Normalization(axis=None)
    numbers.adapt(tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]).batch(2))
    np.testing.assert_allclose(numbers(tf.constant([2.0])).numpy(), [0.0], atol=1e-6)


def test_unknown_tokens_are_an_error_without_an_index_for_them() -> None:
    layer = tf.keras.layers.StringLookup(vocabulary=["a"], num_oov_indices=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="should be in vocabulary"):
        layer(tf.constant(["z"]))


def test_a_model_of_lookups_runs_in_a_dataset() -> None:
    with one_device().scope():
        lookup = tf.keras.layers.StringLookup(vocabulary=["yes", "no"], num_oov_indices=0, mask_token=None)
        raw = tf.keras.layers.Input(shape=(1,), dtype=tf.string, name="label")
        stage = tf.keras.Model({"label": raw}, lookup(raw))
    examples = {"label": [["yes"], ["no"], ["no"]], "x": [1.0, 2.0, 3.0]}
    dataset = tf.data.Dataset.from_tensor_slices(examples).map(lambda e: (e["x"], stage({"label": e["label"]})))
    assert [y.numpy().tolist() for _, y in dataset.batch(3)] == [[[[0]], [[1]], [[1]]]]  # as Keras expands them


def test_ops_of_penstock_are_parts_of_models(tmp_path: Path) -> None:
    with one_device().scope():
        ids = tf.keras.layers.Input(shape=(3,), dtype=tf.int64, name="features")
        table = tf.keras.layers.Embedding(8, 4)
        mean = tf.reduce_mean(table(ids), axis=1)
        assert isinstance(mean, keras.KerasTensor)
        assert mean.shape == (None, 4)
        model = tf.keras.Model({"features": ids}, tf.keras.layers.Dense(1)(mean))
    x = np.array([[1, 2, 3], [4, 4, 4]])
    rows = table.get_weights()[0][x].mean(1)
    kernel, bias = model.layers[-1].get_weights()
    found = model({"features": tf.constant(x)})
    np.testing.assert_allclose(found.numpy(), rows @ kernel + bias, rtol=1e-5)
    model.save(str(tmp_path / "m.keras"))
    again = keras.models.load_model(str(tmp_path / "m.keras"))
    np.testing.assert_allclose(again({"features": tf.constant(x)}).numpy(), found.numpy(), rtol=1e-6)


def test_layers_may_call_ops_of_penstock() -> None:
    class Doubled(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x: Any) -> Any:
            return tf.nn.relu(self.dense(x)) * 2.0

    with one_device().scope():
        model = keras.Sequential([Doubled(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.RandomState(0).rand(8, 3).astype("f")
    history = model.fit(x, x.sum(1, keepdims=True), epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
