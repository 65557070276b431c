"""Keras' callbacks, where they need TensorFlow or could not write what TensorFlow's wrote."""

from __future__ import annotations

import functools
import os
from types import SimpleNamespace
from typing import Any

import keras
from keras.src.models.functional import Functional
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata

from penstock.keras.checkpoints import is_checkpoint_path, save_checkpoint
from penstock.summary import plugins, recording, tracing


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the model or its weights as it trains.

    A path that ends in `.keras` or `.weights.h5` gets a file of Keras, any other a TensorFlow checkpoint of the weights
    and of the optimizer's state, which `model.load_weights(path)` takes.

    >>> tf.keras.callbacks.ModelCheckpoint("/tmp/run/ckpt-{epoch}")
    """

    def __init__(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        path = os.fspath(filepath)
        self._writes_checkpoint = is_checkpoint_path(path)
        if not self._writes_checkpoint:
            super().__init__(filepath, *args, **kwargs)
            return
        ending = ".weights.h5" if kwargs.get("save_weights_only") else ".keras"
        super().__init__(path + ending, *args, **kwargs)  # Keras refuses paths without an ending
        self.filepath = path

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        if not self._writes_checkpoint:
            super()._save_model(epoch, batch, logs)
            return
        logs = logs or {}
        path = self._get_file_path(epoch, batch, logs)
        if self._should_save_model(epoch, batch, logs, path):
            save_checkpoint(self.model, path)


class TensorBoard(keras.callbacks.TensorBoard):
    """Writes losses and metrics to event files, for TensorBoard.

    >>> model.fit(data, callbacks=[tf.keras.callbacks.TensorBoard(log_dir="/tmp/run/log")])
    """

    @property
    def summary(self) -> Any:
        return _summary()

    def _write_keras_model_summary(self) -> None:
        if not isinstance(self.model, (keras.Sequential, Functional)):
            return
        metadata = SummaryMetadata()
        metadata.plugin_data.plugin_name = "graph_keras_model"
        metadata.plugin_data.content = b"1"  # the version of its form
        with self._train_writer.as_default():
            recording.write("keras", self.model.to_json(), step=0, metadata=metadata)


@functools.cache
def _summary() -> SimpleNamespace:
    """The part of tf.summary that Keras uses."""
    modules = (tracing, recording, plugins)
    return SimpleNamespace(**{k: v for m in modules for k, v in vars(m).items() if not k.startswith("_")})
