"""Gradients of eager execution: tapes, custom gradients, functions, Python functions, forward mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as tf


def gradient(f: Any, *xs: Any) -> Any:
    tensors = [tf.constant(x) for x in xs]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = f(*tensors)
    return [None if g is None else tf.convert_to_tensor(g).numpy().tolist() for g in tape.gradient(y, tensors)]


def test_custom_gradients_take_keywords_and_nest() -> None:
    @tf.custom_gradient
    def scaled(x: Any, factor: float = 1.0) -> Any:
        return x * factor, lambda dy: dy * 10.0 * factor

    @tf.custom_gradient
    def twice(x: Any) -> Any:
        return scaled(scaled(x)), lambda dy: dy * 7.0

    assert gradient(lambda x: scaled(x, factor=3.0), 2.0) == [30.0]
    assert gradient(twice, 2.0) == [7.0]
    assert gradient(tf.function(twice), 2.0) == [7.0]
    with pytest.raises(ValueError, match="keyword"):
        tf.function(lambda x: scaled(x, factor=3.0))(tf.constant(1.0))


def test_custom_gradients_of_structures_and_unused_results() -> None:
    @tf.custom_gradient
    def parts(pair: Any) -> Any:
        a, b = pair
        return {"sum": a + b, "product": a * b}, lambda d_product, d_sum: (d_product * 2.0, d_sum * 3.0)

    for f in (parts, tf.function(parts)):
        assert gradient(lambda a, b, f=f: f((a, b))["sum"], 2.0, 5.0) == [0.0, 3.0]


def test_custom_gradients_with_variables_in_functions() -> None:
    v = tf.Variable(3.0)

    @tf.custom_gradient
    def times(x: Any) -> Any:
        def grad(dy: Any, variables: Any = None) -> Any:
            return dy * 7.0, [dy * 11.0 for _ in variables]

        return x * v, grad

    @tf.function
    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = times(x)
        return tape.gradient(y, [x, v])

    assert [float(g) for g in run(tf.constant(2.0))] == [7.0, 11.0]
    f = tf.function(times)
    with tf.GradientTape() as tape:
        y = f(tf.constant(2.0))
    assert float(tape.gradient(y, v)) == 11.0


def test_recompute_grad_with_variables_and_in_functions() -> None:
    v = tf.Variable(2.0)
    f = tf.recompute_grad(lambda x: tf.sin(x) * v)
    x = tf.constant(0.5)
    for call in (f, tf.function(f)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        grads = tape.gradient(y, [x, v])
        np.testing.assert_allclose([float(g) for g in grads], [2.0 * np.cos(0.5), np.sin(0.5)], rtol=1e-6)


def test_indexed_slices_through_functions() -> None:
    v = tf.Variable(np.arange(6, dtype=np.float32).reshape(3, 2))
    f = tf.function(lambda i: tf.reduce_sum(tf.gather(v, i) ** 2))
    with tf.GradientTape() as tape:
        y = f(tf.constant([2, 0]))
    found = tape.gradient(y, v)
    assert isinstance(found, tf.IndexedSlices) and found.indices.numpy().tolist() == [2, 0]
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = f(tf.constant([2, 0]))
        g = tf.reduce_sum(tf.convert_to_tensor(inner.gradient(y, v)))
    assert tf.convert_to_tensor(outer.gradient(g, v)).numpy().tolist() == [[2.0, 2.0], [0.0, 0.0], [2.0, 2.0]]


def test_third_order_through_functions() -> None:
    f = tf.function(lambda x: x**4)
    x = tf.constant(2.0)
    with tf.GradientTape() as a:
        a.watch(x)
        with tf.GradientTape() as b:
            b.watch(x)
            with tf.GradientTape() as c:
                c.watch(x)
                y = f(x)
            first = c.gradient(y, x)
        second = b.gradient(first, x)
    assert [float(first), float(second), float(a.gradient(second, x))] == [32.0, 48.0, 48.0]


def test_a_persistent_tape_through_a_function() -> None:
    f = tf.function(lambda x: (x * x, x**3))
    x = tf.constant(2.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        a, b = f(x)
        c = a * b
    assert [float(tape.gradient(y, x)) for y in (a, b, c)] == [4.0, 12.0, 80.0]


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_a_persistent_tape_records_its_own_gradients(wrap: Any) -> None:
    x, count = tf.constant(2.0), tf.Variable(0)

    def cube(x: Any) -> Any:
        count.assign_add(1)
        return tf.sin(x) ** 3

    f = wrap(cube)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = f(x)
        first = tape.gradient(y, x)
        second = tape.gradient(first, x)
    s, c = np.sin(2.0), np.cos(2.0)
    np.testing.assert_allclose([first, second], [3 * s**2 * c, 6 * s * c**2 - 3 * s**3], rtol=1e-5)
    assert int(count) == 1


def test_functions_without_a_way_to_the_source() -> None:
    f = tf.function(lambda x, y: (tf.stop_gradient(x) * y, tf.cast(x, tf.int32)))
    x, y = tf.constant(2.0), tf.constant(3.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        a, b = f(x, y)
    assert tape.gradient(a, x) is None and float(tape.gradient(a, y)) == 2.0 and tape.gradient(b, x) is None


def test_python_functions_in_functions_have_gradients() -> None:
    calls = []

    def host(x: Any, n: Any) -> Any:
        calls.append(type(x).__name__)
        return x ** int(n)

    f = tf.function(lambda x, n: tf.py_function(host, [x, n], tf.float32))
    x = tf.constant(2.0)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x, tf.constant(3))
        g = tape.gradient(y, x)
    assert float(y) == 8.0 and float(g) == 12.0 and set(calls) == {"EagerTensor"}
    assert float(outer.gradient(g, x)) == 12.0


def test_errors_of_python_functions() -> None:
    def fail(x: Any) -> Any:
        raise ValueError("nope")

    f = tf.function(lambda x: tf.py_function(fail, [x], tf.float32))
    for call in (f, lambda x: tf.py_function(fail, [x], tf.float32)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="nope"):
            call(tf.constant(1.0))
    assert tf.py_function(lambda: None, [], []) == []


def test_jacobians_in_functions() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def full(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * tf.reduce_sum(x)
        return tape.jacobian(y, x)

    assert full(tf.constant([1.0, 2.0])).numpy().tolist() == [[4.0, 1.0], [2.0, 5.0]]
    assert full(tf.constant([3.0])).numpy().tolist() == [[6.0]]

    @tf.function
    def of_batch(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x[:, :1]
        return tape.batch_jacobian(y, x)

    assert of_batch(tf.constant([[1.0, 2.0]])).numpy().tolist() == [[[2.0, 0.0], [2.0, 1.0]]]


def test_jacobians_of_structures_and_indexed_slices() -> None:
    v, w = tf.Variable([[1.0], [2.0], [3.0]]), tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        y = tf.reshape(tf.gather(v, [2, 0]), [2])
    found = tape.jacobian(y, {"v": v, "w": w})
    assert found["w"] is None and found["v"].numpy().reshape(2, 3).tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    assert tape.jacobian(y, w, unconnected_gradients="zero").numpy().tolist() == [0.0, 0.0]


def test_forward_mode() -> None:
    x, v = tf.constant([2.0, 3.0]), tf.Variable(4.0)
    f = tf.function(lambda x: x * x * v)
    with tf.autodiff.ForwardAccumulator([x, v], [tf.constant([1.0, 0.0]), tf.constant(1.0)]) as acc:
        y = f(x)
        z = tf.reduce_sum(y)
    assert acc.jvp(y).numpy().tolist() == [20.0, 9.0] and float(acc.jvp(z)) == 29.0
    with tf.autodiff.ForwardAccumulator(x, tf.ones([2])) as outer:
        with tf.autodiff.ForwardAccumulator(x, tf.ones([2])) as inner:
            y = x**3
        second = outer.jvp(inner.jvp(y))
    assert second.numpy().tolist() == [12.0, 18.0]


def test_forward_over_reverse() -> None:
    x = tf.constant([1.0, 2.0])
    with tf.autodiff.ForwardAccumulator(x, tf.constant([1.0, 0.0])) as acc:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x[0] ** 2 * x[1]
        g = tape.gradient(y, x)
    assert acc.jvp(g).numpy().tolist() == [4.0, 2.0]


def test_control_flow_in_functions_and_outside() -> None:
    def power(x: Any, n: Any) -> Any:
        return tf.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y * x), (0, tf.constant(1.0)))[1]

    def sign(x: Any) -> Any:
        return tf.cond(x > 0.0, lambda: x * x, lambda: -x)

    for wrap in (lambda f: f, tf.function):
        to_the = wrap(power)
        assert gradient(lambda x, f=to_the: f(x, tf.constant(3)), 2.0) == [12.0]
        assert gradient(wrap(sign), 3.0) == [6.0] and gradient(wrap(sign), -3.0) == [-1.0]


def test_unsupported_operations_are_named() -> None:
    x = tf.constant([[1.0], [2.0], [3.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.raw_ops.AudioSpectrogram(input=x, window_size=2, stride=1)
    with pytest.raises(LookupError, match="AudioSpectrogram"):
        tape.gradient(y, x)


def test_tapes_record_operations_that_run_again() -> None:
    x = tf.constant([1.0, 2.0])
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.nn.relu(x * 3.0 - 4.0))
        assert tape.gradient(y, x).numpy().tolist() == [0.0, 3.0]


def test_tapes_of_other_threads_record_nothing() -> None:
    import threading

    v, found = tf.Variable(2.0), []

    def work() -> None:
        with tf.GradientTape() as tape:
            y = v * v
        found.append(float(tape.gradient(y, v)))

    with tf.GradientTape() as tape:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        y = v * 3.0
    assert found == [4.0] and float(tape.gradient(y, v)) == 3.0
