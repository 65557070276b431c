"""The V2 face: functions under TensorFlow 2's parameters, and what programs see of shapes and equality."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import penstock as tf


def test_parameters_in_the_order_of_tensorflow_2() -> None:
    x = tf.constant([[1.0, 5.0, 3.0], [4.0, 2.0, 6.0]])
    assert tf.argmax(x, 1, tf.int32).dtype == tf.int32
    assert tf.transpose(x, [1, 0], False, "t").shape == (3, 2)
    assert tf.gather(x, [1], None, 1).numpy().tolist() == [[5.0], [2.0]]
    assert tf.pad(x, [[0, 0], [1, 0]], "CONSTANT", 7.0).numpy()[0, 0] == 7.0
    assert tf.shape(x, tf.int64).dtype == tf.int64
    assert tf.boolean_mask(x, [True, False], 0).shape == (1, 3)
    assert tf.math.count_nonzero(x, 1, True).shape == (2, 1)
    assert tf.nn.in_top_k([1, 0], x, 1).numpy().tolist() == [True, False]
    assert tf.nn.moments(x, [0], None, True)[0].shape == (1, 3)
    assert tf.strings.length(["héllo"], "UTF8_CHAR").numpy().tolist() == [5]
    assert tf.convert_to_tensor([1, 2], None, tf.float32).dtype == tf.float32


def test_dropout_takes_a_rate() -> None:
    kept = tf.nn.dropout(tf.ones([1000]), 0.25).numpy()
    assert set(np.unique(kept)) == {0.0, np.float32(1 / 0.75)} and 600 < np.count_nonzero(kept) < 900


def test_losses_have_gradients_for_labels() -> None:
    labels, logits = tf.constant([[0.0, 1.0]]), tf.constant([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch(labels)
        loss = tf.nn.softmax_cross_entropy_with_logits(labels, logits, -1)
    assert tape.gradient(loss, labels) is not None


def test_convolutions_name_their_filters() -> None:
    image, filters = tf.ones([1, 4, 4, 1]), tf.ones([2, 2, 1, 1])
    assert tf.nn.conv2d(image, filters=filters, strides=1, padding="VALID").numpy().max() == 4.0
    assert tf.nn.convolution(image, filters).shape == (1, 3, 3, 1)
    assert tf.nn.pool(image, [2, 2], "MAX").shape == (1, 3, 3, 1)


def test_resized_pixels_are_at_the_centres_of_squares() -> None:
    row = tf.reshape(tf.constant([0.0, 1.0, 2.0, 3.0]), [1, 1, 4, 1])
    assert tf.image.resize(row, [1, 2]).numpy().ravel().tolist() == [0.5, 2.5]
    assert tf.image.resize(row, [1, 2], method="nearest").numpy().ravel().tolist() == [1.0, 3.0]
    assert tf.compat.v1.image.resize(row, [1, 2]).numpy().ravel().tolist() == [0.0, 2.0]
    with pytest.raises(NotImplementedError, match="antialias"):
        tf.image.resize(row, [1, 2], antialias=True)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: tf.argmax(axis=1), "needs the arguments"),
        (lambda: tf.argmax([1], axis=0, dimension=0), "unexpected keyword argument 'dimension'"),
        (lambda: tf.argmax([1], 0, tf.int32, "a", "b"), "takes 4 arguments"),
        (lambda: tf.argmax([1], input=[2]), "multiple values"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call()


def test_what_penstock_does_not_have_is_not_ignored() -> None:
    assert tf.zeros([2], layout=None).shape == (2,)
    with pytest.raises(NotImplementedError, match="no layout='x'"):
        tf.zeros([2], layout="x")


def test_equality_in_functions_and_in_graphs() -> None:
    @tf.function
    def same(x: Any) -> Any:
        return x == 1

    assert same(tf.constant([1, 2])).numpy().tolist() == [True, False]
    with tf.Graph().as_default():
        a, b = tf.constant(1), tf.constant(1)
        assert (a == a) is True and (a == b) is False and (a != b) is True


def test_shapes_that_do_not_fit_are_unequal_in_a_function() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)] * 2)
    def same(x: Any, y: Any) -> Any:
        return x == y

    assert same(tf.constant([1, 2]), tf.constant([1, 3])).numpy().tolist() == [True, False]
    assert same(tf.constant([1, 2]), tf.constant([1, 2, 3])).numpy() == np.False_


def test_tensors_and_variables_are_no_keys() -> None:
    tensor, variable = tf.constant(1), tf.Variable(1)
    for unhashable in (tensor, variable):
        with pytest.raises(TypeError, match=r"use (tensor|variable)\.ref\(\)"):
            hash(unhashable)
    assert {tensor.ref(): "a", variable.ref(): "b"}[tensor.ref()] == "a"


def test_shapes_hold_ints() -> None:
    shape = tf.TensorShape([None, 3])
    assert (shape[1], list(shape), repr(shape)) == (3, [None, 3], "TensorShape([None, 3])")
    tf.compat.v1.disable_v2_tensorshape()
    try:
        assert shape[1].value == 3
    finally:
        tf.compat.v1.enable_v2_tensorshape()


def test_a_tensor_array_goes_on_inside_of_a_function() -> None:
    array = tf.TensorArray(tf.float32, 3).write(0, 1.0)

    @tf.function
    def filled() -> Any:
        return array.write(1, 2.0).write(2, 3.0).stack()

    assert filled().numpy().tolist() == [1.0, 2.0, 3.0]
    with tf.GradientTape() as tape:
        x = tf.constant(2.0)
        tape.watch(x)
        y = tf.reduce_sum(tf.TensorArray(tf.float32, 2).write(0, x).write(1, x * x).stack())
    assert tape.gradient(y, x).numpy() == 5.0


def test_an_assigned_slice_and_a_copy_of_a_variable() -> None:
    v = tf.Variable([1.0, 2.0, 3.0])
    twin = copy.deepcopy(v)
    v[1:].assign([8.0, 9.0])
    assert (v.numpy().tolist(), twin.numpy().tolist()) == ([1.0, 8.0, 9.0], [1.0, 2.0, 3.0])
    with pytest.raises(RuntimeError, match="assign_add"):
        v += 1.0


def test_initializers_repeat_their_seed() -> None:
    make = tf.random_normal_initializer(stddev=2.0, seed=3)
    assert make([4]).numpy().tolist() == make([4]).numpy().tolist()
    assert tf.random_uniform_initializer()([100]).numpy().max() <= 0.05
    assert tf.ones_initializer()([4, 2], partition_shape=[2, 2]).shape == (2, 2)
    with pytest.raises(ValueError, match="support_partition"):
        tf.constant_initializer(1.0)([4], partition_shape=[2])


def test_gradients_by_differences() -> None:
    theoretical, numerical = tf.test.compute_gradient(lambda x, y: x * y, [tf.constant([1.0, 2.0]), tf.constant(3.0)])
    assert [t.shape for t in theoretical] == [(2, 2), (2, 1)]
    np.testing.assert_allclose(theoretical[0], numerical[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(theoretical[1], numerical[1], rtol=1e-3, atol=1e-3)


def test_the_devices_of_this_process() -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    assert tf.config.list_logical_devices("CPU")[0] == ("/device:CPU:0", "CPU")
    assert cpu in tf.config.get_visible_devices()
    with pytest.raises(RuntimeError, match="cannot be modified after"):
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with pytest.raises(ValueError, match="Unrecognized device"):
        tf.config.set_visible_devices(["x"])
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        tf.config.experimental.enable_tensor_float_32_execution(not before)
        assert tf.config.experimental.tensor_float_32_execution_enabled() is not before
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def test_placeholders_are_for_graphs() -> None:
    with pytest.raises(RuntimeError, match="not compatible with eager execution"):
        tf.compat.v1.placeholder(tf.float32)
    assert tf.compat.v2.constant is tf.constant
