"""Keras code on tensors: what it changes, and what it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras_models import keras, one_device, tf


class Counts(keras.metrics.Metric):
    """Counts calls in each place of a vector, in two ways."""

    def __init__(self) -> None:
        super().__init__(name="counts")
        self.first = self.add_variable((3,), "zeros", name="first")
        self.second = self.add_variable((3,), "zeros", name="second")

    def update_state(self, x: Any) -> None:
        self.first.assign(self.first + 1)
        self.second.assign_sub(2)

    def result(self) -> Any:
        return self.first - self.second


def test_a_number_is_added_to_every_element() -> None:
    with one_device().scope():
        counts = Counts()
    step = tf.function(lambda x: counts.update_state(x))
    for _ in range(2):
        step(tf.constant(0.0))
    np.testing.assert_array_equal(counts.result().numpy(), [6.0, 6.0, 6.0])
    counts.reset_states()
    np.testing.assert_array_equal(counts.result().numpy(), [0.0, 0.0, 0.0])


def test_operations_of_keras_have_gradients() -> None:
    x = tf.constant([-1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = keras.ops.sum(keras.ops.relu(x) * 3.0)
    np.testing.assert_array_equal(tape.gradient(y, x).numpy(), [0.0, 3.0])


def test_variables_are_tensors_to_tapes() -> None:
    with one_device().scope():
        variable = keras.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * variable)
    np.testing.assert_array_equal(tape.gradient(loss, variable).numpy(), [2.0, 4.0])
