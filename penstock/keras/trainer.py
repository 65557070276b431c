"""fit, evaluate and predict of models whose variables penstock holds. Keras' own loops serve all others."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from keras.src import tree
from keras.src.backend.jax.trainer import JAXTrainer
from keras.src.callbacks import CallbackList
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils
from keras.src.utils.python_utils import pythonify_logs

from penstock.graph import nest
from penstock.graph.operation import Tensor
from penstock.keras import steps
from penstock.keras.calls import has_tensors
from penstock.keras.engines import Coordinated, engine_for
from penstock.keras.inputs import DatasetCreator, Epochs, is_dataset
from penstock.keras.strategies import in_scope_of
from penstock.keras.variables import BackedVariable
from penstock.keras.worker_data import WorkerEpochs


def is_ours(model: Any, *data: Any) -> bool:
    """Tells if a model is trained by penstock: by its strategy, its variables, or its data."""
    if model._penstock_strategy is not None or any(is_dataset(d) for d in data):
        return True
    return has_tensors(*data) or any(isinstance(v, BackedVariable) for v in model.variables)


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Any = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Any = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int = 1,
) -> Any:
    """Trains a model; see `keras.Model.fit`."""
    model._assert_compile_called("fit")
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = array_slicing.train_validation_split(
            (x, y, sample_weight), validation_split=validation_split
        )
    data = _epochs(
        model,
        x,
        y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        shuffle=shuffle,
        class_weight=class_weight,
    )
    _build(model, data)
    callbacks = _callback_list(model, callbacks, verbose, data, epochs, add_history=True)
    model.stop_training = False
    callbacks.on_train_begin()
    logs: dict[str, Any] = {}
    for epoch in range(model._initial_epoch or initial_epoch, epochs):
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        _run(model, _step(model, "train_step"), data, callbacks, "train", lambda: model.stop_training)
        logs = _results(model, data.last)
        if validation_data is not None and model._should_eval(epoch, validation_freq):
            val_x, val_y, val_weight = data_adapter_utils.unpack_x_y_sample_weight(validation_data)
            found = evaluate(
                model,
                val_x,
                val_y,
                batch_size=validation_batch_size or batch_size,
                sample_weight=val_weight,
                steps=validation_steps,
                callbacks=callbacks,
                return_dict=True,
            )
            logs |= {f"val_{name}": value for name, value in found.items()}
        callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    if isinstance(model.optimizer, keras.optimizers.Optimizer) and epochs > 0:
        model.optimizer.finalize_variable_values(model.trainable_weights)
    callbacks.on_train_end(logs=logs)
    return model.history


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: Any = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
) -> Any:
    """Computes the loss and the metrics of a model; see `keras.Model.evaluate`. Each example is used once."""
    model._assert_compile_called("evaluate")
    data = _local_epochs(
        model, x, y, sample_weight=sample_weight, batch_size=batch_size, steps_per_epoch=steps, shuffle=False
    )
    _build(model, data)
    callbacks = _callback_list(model, callbacks, verbose, data, 1)
    model.stop_evaluating = False
    callbacks.on_test_begin()
    model.reset_metrics()
    _run(model, _step(model, "test_step"), data, callbacks, "test", lambda: model.stop_evaluating)
    logs = _results(model, data.last)
    callbacks.on_test_end(logs)
    return logs if return_dict else model._flatten_metrics_in_order(logs)


def predict(
    model: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """Computes the outputs of a model as NumPy arrays; see `keras.Model.predict`."""
    data = _local_epochs(model, x, batch_size=batch_size, steps_per_epoch=steps, shuffle=False, steps_per_execution=1)
    callbacks = _callback_list(model, callbacks, verbose, data, 1)
    model.stop_predicting = False
    callbacks.on_predict_begin()
    found: list[Any] = []

    def keep(outputs: Any) -> dict[str, Any]:
        found.append(tree.map_structure(_array, outputs))
        return {"outputs": found[-1]}

    _run(model, _step(model, "predict_step"), data, callbacks, "predict", lambda: model.stop_predicting, keep)
    callbacks.on_predict_end()
    if not found:
        raise ValueError("predict was given no data.")
    return tree.map_structure(lambda *parts: np.concatenate(parts, axis=0), *found)


def on_batch(model: Any, name: str, data: Any, return_dict: bool) -> Any:
    """Runs a step on one batch."""
    with in_scope_of(model._penstock_strategy):
        model._symbolic_build(data_batch=data)
    outputs = engine_for(model).start(_step(model, name), [data])()
    if name == "predict_step":
        return tree.map_structure(_array, outputs)
    logs = pythonify_logs(outputs)
    return logs if return_dict else model._flatten_metrics_in_order(logs)


# The loop


def _local_epochs(model: Any, x: Any, y: Any = None, **settings: Any) -> Epochs:
    settings.setdefault("steps_per_execution", model.steps_per_execution)
    return Epochs(x, y, **settings)


def _epochs(model: Any, x: Any, y: Any, **settings: Any) -> Any:
    engine = engine_for(model)
    if isinstance(engine, Coordinated) and is_dataset(x):
        return WorkerEpochs(engine, x, settings["steps_per_epoch"], model.steps_per_execution, settings["class_weight"])
    return _local_epochs(model, x, y, **settings)


def _build(model: Any, data: Any) -> None:
    """Makes all variables, in the scope of the model's strategy."""
    with in_scope_of(model._penstock_strategy):
        model._symbolic_build(iterator=data)
    data.reset()


def _callback_list(model: Any, callbacks: Any, verbose: Any, data: Any, epochs: int, add_history: bool = False) -> Any:
    if isinstance(callbacks, CallbackList):
        return callbacks
    return CallbackList(
        callbacks,
        add_history=add_history,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=data.num_batches,
        model=model,
    )


def _step(model: Any, name: str) -> Callable[[Any], Any]:
    """The step of a model: its own if it overrides it, else penstock's."""
    kept = engine_for(model).steps
    if name not in kept:
        kept[name] = (
            functools.partial(getattr(steps, name), model) if _is_default(model, name) else getattr(model, name)
        )
    return kept[name]


def _is_default(model: Any, name: str) -> bool:
    return getattr(type(model), name) is getattr(JAXTrainer, name)


def _run(
    model: Any,
    step: Callable[[Any], Any],
    data: Any,
    callbacks: Any,
    kind: str,
    stopped: Callable[[], bool],
    convert: Callable[[Any], Any] = pythonify_logs,
) -> None:
    """Runs the steps of an epoch. Callbacks are called in the order of the steps, as results arrive."""
    engine = engine_for(model)
    begin, end = (getattr(callbacks, f"on_{kind}_batch_{when}") for when in ("begin", "end"))
    pending: deque[tuple[int, Any]] = deque()
    data.last = {}

    def finish() -> None:
        last_step, result = pending.popleft()
        data.last = convert(result())
        end(last_step, data.last)

    for begin_step, end_step, batches in data:
        begin(begin_step)
        if isinstance(data, WorkerEpochs):
            result = data.start(step, end_step - begin_step + 1)
        else:
            result = engine.start(step, batches)
        pending.append((end_step, result))
        while len(pending) > engine.window:
            finish()
        if stopped():
            break
    while pending:
        finish()
    engine.wait()


def _results(model: Any, last: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pythonify_logs(dict(model._get_metrics_result_or_logs(last)))
    return found


def _array(output: Any) -> Any:
    return np.asarray(output)


# Keras' classes


def install() -> None:
    """Has Keras models train by penstock where their variables are penstock's."""
    for name, ours in (("fit", fit), ("evaluate", evaluate), ("predict", predict)):
        setattr(JAXTrainer, name, _either(getattr(JAXTrainer, name), ours))
    for name in ("train_step", "test_step", "predict_step"):
        setattr(JAXTrainer, name, _step_of_either(getattr(JAXTrainer, name), getattr(steps, name)))
    _install_on_batch()


def _either(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        if is_ours(self, x, *tree.flatten((args, kwargs.get("validation_data"))), kwargs.get("y")):
            return ours(self, x, *args, **kwargs)
        with jax.enable_x64(False):  # as if penstock had not turned 64 bits on: Keras' random numbers depend on it
            return original(self, x, *args, **kwargs)

    return call


def _step_of_either(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Takes Keras' arguments of the JAX backend, state and data, or the data alone, which means a step on tensors."""

    @functools.wraps(original)
    def call(self: Any, *args: Any) -> Any:
        return ours(self, *args) if len(args) == 1 else original(self, *args)

    return call


def _install_on_batch() -> None:
    train, test, predict_one = JAXTrainer.train_on_batch, JAXTrainer.test_on_batch, JAXTrainer.predict_on_batch

    @functools.wraps(train)
    def train_on_batch(
        self: Any, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, return_dict: bool = False
    ) -> Any:
        if not is_ours(self, x, y):
            return train(self, x, y, sample_weight, class_weight, return_dict)
        if class_weight is not None:
            sample_weight = data_adapter_utils.class_weight_to_sample_weights(y, class_weight)
        return on_batch(self, "train_step", _packed(x, y, sample_weight), return_dict)

    @functools.wraps(test)
    def test_on_batch(self: Any, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        if not is_ours(self, x, y):
            return test(self, x, y, sample_weight, return_dict)
        return on_batch(self, "test_step", _packed(x, y, sample_weight), return_dict)

    @functools.wraps(predict_one)
    def predict_on_batch(self: Any, x: Any) -> Any:
        return on_batch(self, "predict_step", _packed(x), True) if is_ours(self, x) else predict_one(self, x)

    JAXTrainer.train_on_batch, JAXTrainer.test_on_batch = train_on_batch, test_on_batch
    JAXTrainer.predict_on_batch = predict_on_batch


def _packed(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    whole = (x, y, sample_weight)
    return nest.map_structure(
        lambda leaf: leaf if leaf is None or isinstance(leaf, Tensor) else np.asarray(leaf), whole
    )


__all__ = ["DatasetCreator", "evaluate", "fit", "install", "predict"]
