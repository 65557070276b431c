"""Callbacks that write files, and the face of Keras."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_models import keras, one_device, tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from penstock.passes.prune import prune

_POINTS = np.random.RandomState(0).rand(16, 3).astype("f")
_SUMS = _POINTS.sum(1, keepdims=True)


def _model(seed: int = 0) -> Any:
    keras.utils.set_random_seed(seed)
    with one_device().scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def test_checkpoints_are_those_of_tensorflow(tmp_path: Path) -> None:
    model = _model()
    saver = tf.keras.callbacks.ModelCheckpoint(str(tmp_path / "ckpt-{epoch}"), save_weights_only=True)
    model.fit(_POINTS, _SUMS, epochs=2, verbose=0, callbacks=[saver])
    path = str(tmp_path / "ckpt-2")
    names = dict(tf.train.list_variables(path))
    assert any(name.endswith("kernel/.ATTRIBUTES/VARIABLE_VALUE") for name in names)
    other = _model(seed=1)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(path)
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
    assert int(other.optimizer.iterations.numpy()) == 2
    # Both go on in the same way: the slots were read too.
    for each in (model, other):
        each.fit(_POINTS, _SUMS, shuffle=False, verbose=0)
    np.testing.assert_allclose(other.get_weights()[0], model.get_weights()[0], rtol=1e-6)


@pytest.mark.long
def test_checkpoints_of_the_best_epochs_only(tmp_path: Path) -> None:
    saver = tf.keras.callbacks.ModelCheckpoint(str(tmp_path / "best-{epoch}"), monitor="loss", save_best_only=True)
    history = _model().fit(_POINTS, _SUMS, epochs=3, verbose=0, callbacks=[saver]).history["loss"]
    best = [i + 1 for i, loss in enumerate(history) if all(loss < before for before in history[:i])]
    written = sorted(int(p.stem.rpartition("-")[2]) for p in tmp_path.glob("best-*.index"))
    assert written == best


def test_tensorboard_gets_losses(tmp_path: Path) -> None:
    callback = tf.keras.callbacks.TensorBoard(str(tmp_path), histogram_freq=1)
    history = (
        _model()
        .fit(_POINTS, _SUMS, epochs=2, verbose=0, validation_data=(_POINTS, _SUMS), callbacks=[callback])
        .history
    )
    for folder, name in (("train", "loss"), ("validation", "val_loss")):
        events = EventAccumulator(str(tmp_path / folder))
        events.Reload()
        values = [float(e.tensor_proto.float_val[0]) for e in events.Tensors("epoch_loss")]
        assert values == pytest.approx(history[name])


def test_steps_that_only_partly_fill_an_execution(recwarn: pytest.WarningsRecorder) -> None:
    seen: list[int] = []
    model = _model()
    model.steps_per_execution = 3
    notes = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    model.fit(_POINTS, _SUMS, batch_size=4, epochs=2, verbose=0, callbacks=[notes])
    assert seen == [2, 3] * 2
    assert not recwarn.list


def test_names_of_keras_are_in_the_face() -> None:
    assert tf.keras.layers.Dense is keras.layers.Dense
    assert tf.keras.optimizers.schedules.CosineDecay is keras.optimizers.schedules.CosineDecay
    assert tf.keras.callbacks.experimental.BackupAndRestore is keras.callbacks.BackupAndRestore
    assert tf.keras.losses.Reduction.NONE == "none"
    assert importlib.import_module("penstock.v2.keras.models").Sequential is keras.Sequential
    assert importlib.import_module("penstock.v2.keras.optimizers.schedules").CosineDecay is not None
    with pytest.raises(AttributeError, match="Dense"):
        tf.keras.layers.Dens  # noqa: B018


def test_an_error_says_how_to_get_keras() -> None:
    code = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "keras" else find(name, package)
import penstock as tf
try:
    tf.keras
except ImportError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    assert "pip install penstock[keras]" in found.stdout


def test_large_tables_stay_where_they_are() -> None:
    with one_device().scope():
        words = keras.Input([4], dtype="int32")
        rows = keras.layers.Embedding(1_000_000, 2)(words)
        model = keras.Model(words, keras.layers.Dense(1)(keras.ops.mean(rows, axis=1)))
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
    table = model.layers[1].weights[0].backing

    @tf.function
    def step(ids: Any, labels: Any) -> Any:
        return model.train_step((ids, labels))

    ids, labels = tf.constant([[0, 999_999, 7, 7]]), tf.constant([[1.0]])
    model.optimizer.build(model.trainable_variables)
    graph = step.get_concrete_function(ids, labels).graph
    names = {v.handle.op.attrs["shared_name"] for v in (table, *_slots(model))}
    # What a step runs: the value that a change of a variable returns is not needed.
    run = prune(graph.inputs, graph.outputs, graph.targets)
    users = {n.op.name for n in run.nodes for source, _ in n.inputs if source.attrs.get("shared_name") in names}
    assert users == {"ResourceGather", "ResourceScatterAdd"}
    before = table.numpy()
    step(ids, labels)
    assert np.flatnonzero((table.numpy() != before).any(1)).tolist() == [0, 7, 999_999]


def _slots(model: Any) -> list[Any]:
    return [v.backing for v in model.optimizer.variables if v.shape == (1_000_000, 2)]
