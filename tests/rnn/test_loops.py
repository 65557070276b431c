"""dynamic_rnn, static_rnn, bidirectional and raw: lengths, gradients, shapes."""

from __future__ import annotations

import numpy as np
import pytest

import penstock.v1 as tf

BATCH, TIME, DEPTH, UNITS = 3, 4, 5, 4
LENGTHS = [4, 2, 3]
X = np.random.RandomState(1).randn(BATCH, TIME, DEPTH).astype(np.float32)


@pytest.fixture
def sess():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def initialised(sess):
    for i, variable in enumerate(tf.global_variables()):
        sess.run(variable.initializer)
        variable.load(np.random.RandomState(i).uniform(-1, 1, variable.shape.as_list()), sess)


def cell():
    return tf.nn.rnn_cell.BasicLSTMCell(UNITS)


def loss_of(outputs, state):
    weights = tf.constant(np.random.RandomState(9).randn(UNITS), tf.float32)
    return sum(tf.reduce_sum(tf.sin(t) * weights) for t in [outputs, *state])


def dynamic(x, lengths):
    return tf.nn.dynamic_rnn(cell(), x, lengths, dtype=tf.float32)


def time_major(x, lengths):
    outputs, state = tf.nn.dynamic_rnn(cell(), tf.transpose(x, [1, 0, 2]), lengths, dtype=tf.float32, time_major=True)
    return tf.transpose(outputs, [1, 0, 2]), state


def raw(x, lengths):
    inputs = tf.TensorArray(tf.float32, size=TIME).unstack(tf.transpose(x, [1, 0, 2]))
    inner = cell()

    def loop_fn(time, output, state, loop_state):
        finished = time >= lengths
        following = inputs.read(tf.minimum(time, TIME - 1))
        if output is None:
            return finished, following, inner.zero_state(BATCH, tf.float32), None, None
        return finished, following, state, output, None

    outputs, state, _ = tf.nn.raw_rnn(inner, loop_fn)
    return tf.transpose(outputs.stack(), [1, 0, 2]), state


def unrolled(x, lengths):
    steps = tf.unstack(x, num=TIME, axis=1)
    outputs, state = tf.nn.static_rnn(cell(), steps, sequence_length=lengths, dtype=tf.float32)
    return tf.stack(outputs, axis=1), state


def values_and_gradients(build, sess, time):
    x = tf.placeholder(tf.float32, [BATCH, time, DEPTH])
    lengths = tf.placeholder(tf.int32, [BATCH])
    outputs, state = build(x, lengths)
    initialised(sess)
    gradients = tf.gradients(loss_of(outputs, state), [*tf.global_variables(), x])
    feed = {x: X, lengths: LENGTHS}
    return sess.run([outputs, *state, *gradients], feed), lambda: sess.run(gradients, feed)


@pytest.fixture(scope="module")
def expected():
    with tf.Graph().as_default(), tf.Session() as session:
        return values_and_gradients(unrolled, session, TIME)[0]


@pytest.mark.parametrize("way", [dynamic, time_major, raw])
def test_like_the_unrolled_loop(way, expected, sess):
    """Values and gradients of the loops equal those of a graph without loops."""
    got, gradients_alone = values_and_gradients(way, sess, None)
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert not got[0][1, 2:].any() and got[0][0].all()  # zero past the length, and only there
    if way is dynamic:
        for one, other in zip(expected[3:], gradients_alone(), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_bidirectional(sess):
    x = tf.constant(X)
    outputs, states = tf.nn.bidirectional_dynamic_rnn(cell(), cell(), x, LENGTHS, dtype=tf.float32)
    with tf.variable_scope("s"):
        steps, fw, bw = tf.nn.static_bidirectional_rnn(
            cell(), cell(), tf.unstack(x, axis=1), dtype=tf.float32, sequence_length=LENGTHS
        )
    names = [v.op.name for v in tf.global_variables()]
    both = [f"bidirectional_rnn/{d}/basic_lstm_cell/{n}" for d in ("fw", "bw") for n in ("kernel", "bias")]
    assert names == [*both, *(f"s/{n}" for n in both)]
    initialised(sess)
    for a, b in zip(tf.global_variables()[:4], tf.global_variables()[4:], strict=True):
        sess.run(b.assign(a))
    joined, stacked, one, other = sess.run([tf.concat(outputs, 2), tf.stack(steps, 1), states, (fw, bw)])
    np.testing.assert_allclose(joined, stacked, atol=1e-5)
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_shapes_and_empty_input(sess):
    x = tf.placeholder(tf.float32, [None, None, DEPTH])
    outputs, state = dynamic(x, None)
    assert outputs.shape.as_list() == [None, None, UNITS] and state.c.shape.as_list() == [None, UNITS]
    gradient = tf.gradients(outputs, tf.trainable_variables())[0]
    initialised(sess)
    for batch, time in ((2, 0), (0, 3), (1, 1), (2, 5)):
        got, last, change = sess.run([outputs, state, gradient], {x: np.ones([batch, time, DEPTH])})
        assert got.shape == (batch, time, UNITS) and last.h.shape == (batch, UNITS)
        assert change.any() == (batch * time > 0)


def test_wrong_lengths(sess):
    lengths = tf.placeholder(tf.int32, [None])
    outputs, _ = dynamic(tf.constant(X), lengths)
    initialised(sess)
    with pytest.raises(tf.errors.InvalidArgumentError):
        sess.run(outputs, {lengths: [1, 2]})


def test_training_reaches_the_target(sess):
    """The gradient of a loop whose length is known only when it runs."""
    x, n = tf.placeholder(tf.float32, [None, None, 1]), tf.placeholder(tf.int32, [None])
    _, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(8), x, n, dtype=tf.float32)
    w = tf.get_variable("w", [8, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(state, w)[:, 0] - tf.reduce_sum(x, [1, 2])))
    step = tf.train.AdamOptimizer(0.02).minimize(loss)
    sess.run(tf.global_variables_initializer())
    data = np.random.RandomState(0).uniform(-0.5, 0.5, [16, 5, 1])
    first = sess.run(loss, {x: data, n: [5] * 16})
    for _ in range(150):
        sess.run(step, {x: data, n: [5] * 16})
    assert sess.run(loss, {x: data, n: [5] * 16}) < 0.05 * first


# The gradient of loops in general


def test_rows_written_twice(sess):
    x = tf.placeholder(tf.float32, [3])

    def body(i, array, total):
        array = array.write(i % 2, x[i] * x[i])
        return i + 1, array, total + x[i]

    array = tf.TensorArray(tf.float32, size=2)
    _, array, total = tf.while_loop(lambda i, *_: i < 3, body, (0, array, 0.0), maximum_iterations=3)
    gradient = tf.gradients(tf.reduce_sum(array.stack() * [10.0, 1.0]) + total, x)
    # Row 0 was written by steps 0 and 2: the first value is gone.
    np.testing.assert_allclose(sess.run(gradient, {x: [1.0, 2.0, 3.0]}), [[1.0, 5.0, 61.0]])


def test_lists_read_twice_and_written_twice(sess):
    x, w = tf.placeholder(tf.float32, [4, 2]), tf.placeholder(tf.float32, [2, 2])
    rows = tf.TensorArray(tf.float32, size=4).unstack(x)

    def body(i, state, one, two):
        state = tf.matmul(state + rows.read(i)[None] * rows.read(3 - i)[None], w)
        return i + 1, state, one.write(i, state), two.write(3 - i, tf.matmul(state, w))

    start = (0, tf.zeros([1, 2]), tf.TensorArray(tf.float32, 4), tf.TensorArray(tf.float32, 4))
    _, _, one, two = tf.while_loop(lambda i, *_: i < 4, body, start, maximum_iterations=4)
    weights = np.random.RandomState(0).randn(4, 1, 2)
    loss = tf.reduce_sum(one.stack() * weights) + tf.reduce_sum(two.stack() ** 2.0 * weights[::-1])
    values = {x: np.random.RandomState(1).randn(4, 2), w: np.random.RandomState(2).randn(2, 2)}
    gradients = sess.run(tf.gradients(loss, [x, w]), values)
    for variable, gradient in zip((x, w), gradients, strict=True):
        for at in np.ndindex(*gradient.shape):
            shifted = []
            for step in (1e-2, -1e-2):
                moved = values[variable].copy()
                moved[at] += step
                shifted.append(sess.run(loss, {**values, variable: moved}))
            np.testing.assert_allclose(gradient[at], (shifted[0] - shifted[1]) / 2e-2, rtol=2e-2, atol=2e-2)


def test_lookup_in_a_loop_and_second_derivative(sess):
    table = tf.placeholder(tf.float32, [5])

    def body(i, total):
        return i + 1, total + tf.gather(table, i % 3) ** 3.0

    _, total = tf.while_loop(lambda i, _: i < 4, body, (0, 0.0), maximum_iterations=10)
    (first,) = tf.gradients(total, table)
    assert isinstance(first, tf.IndexedSlices)
    first = tf.convert_to_tensor(first)
    (second,) = tf.gradients(tf.reduce_sum(first), table)
    one, two = sess.run([first, tf.convert_to_tensor(second)], {table: [1.0, 2.0, 3.0, 4.0, 5.0]})
    np.testing.assert_allclose(one, [6.0, 12.0, 27.0, 0.0, 0.0])
    np.testing.assert_allclose(two, [12.0, 12.0, 18.0, 0.0, 0.0])
