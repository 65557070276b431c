"""One program for all strategies: they differ in the line that makes the strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distribute.golden import clusters
from keras_models import keras, tf
from keras_twins import drawn

from penstock.keras.variables import BackedVariable

X = np.random.default_rng(0).uniform(-1, 1, [96, 6]).astype("float32")
Y = (X.sum(1) > 0).astype("int32")


def _program(strategy: Any, data: Callable[[], tuple[Any, ...]]) -> tuple[Any, dict[str, list[float]]]:
    with strategy.scope():
        layers = [keras.Input([6]), keras.layers.Dense(16, "relu", kernel_initializer=drawn(1, 0.5))]
        model = keras.Sequential([*layers, keras.layers.Dense(2, "softmax", kernel_initializer=drawn(2, 0.5))])
        model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(*data(), epochs=4, batch_size=None, shuffle=False, verbose=0, validation_data=(X, Y)).history
    return model, history


def _arrays() -> tuple[Any, ...]:
    return X, Y


def _dataset() -> tuple[Any, ...]:
    return (tf.data.Dataset.from_tensor_slices((X, Y)).batch(32),)


def _check(model: Any, history: dict[str, list[float]]) -> None:
    expected_model, expected = _program(tf.distribute.get_strategy(), _arrays)
    assert not any(isinstance(v, BackedVariable) for v in expected_model.variables)  # Keras' own loop
    assert history.keys() == expected.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, atol=1e-3)
    assert history["loss"][-1] < history["loss"][0]
    np.testing.assert_allclose(model.predict(X, verbose=0), expected_model.predict(X, verbose=0), atol=1e-3)


@pytest.mark.parametrize("data", [_arrays, pytest.param(_dataset, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
        lambda: tf.distribute.MirroredStrategy(["/cpu:0"]),
        lambda: tf.distribute.MirroredStrategy(tf.config.list_logical_devices()[-1:]),
    ],
    ids=["one device", "mirrored on the CPU", "mirrored on an accelerator if there is one"],
)
def test_one_device(make: Callable[[], Any], data: Callable[[], tuple[Any, ...]]) -> None:
    model, history = _program(make(), data)
    assert all(isinstance(v, BackedVariable) for v in model.variables)
    _check(model, history)


@pytest.mark.parametrize("data", [_arrays, _dataset])
def test_parameter_servers(data: Callable[[], tuple[Any, ...]]) -> None:
    with clusters() as known:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(known.spec(workers=1, servers=2))
        _check(*_program(tf.distribute.ParameterServerStrategy(resolver, synchronous=True), data))
