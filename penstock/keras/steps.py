"""The steps that models run on a batch of tensors. A model may override `train_step(data)` and the others."""

from __future__ import annotations

import warnings
from typing import Any

from keras.src import tree
from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight

from penstock.eager.tape import GradientTape
from penstock.graph.convert import convert_to_tensor
from penstock.ops.array.reshaping import shape


def _called(model: Any, x: Any, training: bool) -> Any:
    return model(x, training=training) if model._call_has_training_arg else model(x)


def _track(model: Any, loss: Any, x: Any) -> None:
    first = next(leaf for leaf in tree.flatten(x) if leaf is not None)
    dims: Any = shape(convert_to_tensor(first))
    model._loss_tracker.update_state(loss, sample_weight=dims[0])


def train_step(model: Any, data: Any) -> Any:
    """Calls the model, and applies the gradients of its loss. Returns the results of its metrics."""
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    with GradientTape() as tape:
        y_pred = _called(model, x, training=True)
        loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        scaled = loss if model.optimizer is None else model.optimizer.scale_loss(loss)
    _track(model, loss, x)
    weights = model.trainable_weights
    if weights:
        model.optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
    else:
        warnings.warn("The model does not have any trainable weights.")
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def test_step(model: Any, data: Any) -> Any:
    """Calls the model, and returns the results of its metrics."""
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    y_pred = _called(model, x, training=False)
    loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
    _track(model, loss, x)
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def predict_step(model: Any, data: Any) -> Any:
    """Returns the outputs of the model."""
    x, _, _ = unpack_x_y_sample_weight(data)
    return _called(model, x, training=False)
