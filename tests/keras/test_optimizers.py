"""Keras optimizers on penstock variables give the numbers that Keras alone gives."""

from __future__ import annotations

from typing import Any

import keras_models
import numpy as np
import pytest
from keras_models import keras, one_device, tf

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5),
    "nadam": lambda: keras.optimizers.Nadam(0.1),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.05),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.1),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    "ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
}
STEPS = 5


def _values() -> list[np.ndarray]:
    generator = np.random.RandomState(0)
    return [generator.randn(6, 3).astype("f"), generator.randn(3).astype("f")]


def _gradients() -> list[list[np.ndarray]]:
    generator = np.random.RandomState(1)
    return [[generator.randn(6, 3).astype("f"), generator.randn(3).astype("f")] for _ in range(STEPS)]


def _alone(name: str, gradients: list[list[np.ndarray]]) -> list[np.ndarray]:
    variables = [keras.Variable(v, name=f"v{i}") for i, v in enumerate(_values())]
    optimizer = OPTIMIZERS[name]()
    for step in gradients:
        optimizer.apply_gradients(zip([keras.ops.convert_to_tensor(g) for g in step], variables, strict=True))
    return [v.numpy() for v in (*variables, *optimizer.variables)]


def _on_penstock(name: str, gradients: list[Any], in_function: bool) -> list[np.ndarray]:
    with one_device().scope():
        variables = [keras.Variable(v, name=f"v{i}") for i, v in enumerate(_values())]
        optimizer = OPTIMIZERS[name]()
        optimizer.build(variables)

    def step(first: Any, second: Any) -> None:
        optimizer.apply_gradients(zip([first, second], variables, strict=True))

    run = tf.function(step) if in_function else step
    for first, second in gradients:
        run(first if isinstance(first, tf.IndexedSlices) else tf.constant(first), tf.constant(second))
    return [v.numpy() for v in (*variables, *optimizer.variables)]


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dense_gradients_give_the_numbers_of_keras(name: str, in_function: bool) -> None:
    expected = _alone(name, _gradients())
    found = _on_penstock(name, _gradients(), in_function)
    for wanted, value in zip(expected, found, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "rmsprop"])
def test_sparse_gradients_give_the_numbers_of_dense_ones(name: str) -> None:
    ids = [[0, 2, 2], [5, 5, 5], [1, 0, 3], [2, 4, 0], [0, 0, 1]]
    rows = [np.random.RandomState(i).randn(3, 3).astype("f") for i in range(STEPS)]
    seconds = [step[1] for step in _gradients()]
    dense = []
    for at, values, second in zip(ids, rows, seconds, strict=True):
        whole = np.zeros([6, 3], "f")
        np.add.at(whole, at, values)
        dense.append([whole, second])
    sparse = [
        [tf.IndexedSlices(tf.constant(values), tf.constant(at), tf.constant([6, 3])), second]
        for at, values, second in zip(ids, rows, seconds, strict=True)
    ]
    for wanted, value in zip(_alone(name, dense), _on_penstock(name, sparse, False), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-6)


def test_a_learning_rate_can_be_changed() -> None:
    with one_device().scope():
        variable, optimizer = keras.Variable(1.0), keras.optimizers.SGD(1.0)

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.constant(1.0), variable)])

    step()
    optimizer.learning_rate = 0.25
    step()
    assert variable.numpy() == -0.25
    assert int(optimizer.iterations.numpy()) == 2


def test_an_optimizer_takes_variables_that_are_not_of_keras() -> None:
    variable = tf.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
    np.testing.assert_allclose(variable.numpy(), [1 - 0.5 - 0.95, 2 - 0.5 - 0.95], rtol=1e-6)


def test_slots_are_where_their_variables_are() -> None:
    with one_device().scope():
        variable, optimizer = keras.Variable([1.0]), keras.optimizers.Adam()
        optimizer.build([variable])
    assert keras_models.devices_of(optimizer.variables) == {variable.device}
