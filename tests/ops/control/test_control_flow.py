"""cond, case, while_loop, TensorArray and the loops built on them: compiled into segments, or run on the host."""

import numpy as np
import pytest

import penstock.v1 as tf


@pytest.fixture
def sess():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def gradient(y, x):
    (g,) = tf.gradients(y, x)
    return g


def test_cond_runs_one_branch(sess):
    x = tf.placeholder(tf.float32, [])
    y = tf.cond(x > 0, lambda: x * 2.0, lambda: -x)
    g = gradient(y, x)
    assert sess.run([y, g], {x: 3.0}) == [6.0, 2.0]
    assert sess.run([y, g], {x: -3.0}) == [3.0, -1.0]


def test_cond_structures_and_errors(sess):
    x = tf.placeholder(tf.float32, [])
    a, b = tf.cond(x > 0, lambda: (x, [x + 1.0]), lambda: (x, [x - 1.0]))
    assert sess.run([a, b], {x: 1.0}) == [1.0, [2.0]]
    with pytest.raises(TypeError):
        tf.cond(True, lambda: x, lambda: x)
    with pytest.raises(ValueError, match="same types"):
        tf.cond(x > 0, lambda: x, lambda: tf.constant(1))
    with pytest.raises(ValueError):
        tf.cond(x > 0, lambda: (x, x), lambda: x)


def test_cond_with_side_effects_and_other_shapes(sess):
    v = tf.Variable(0.0)
    x = tf.placeholder(tf.float32, [])
    update = tf.cond(x > 0, lambda: tf.assign_add(v, 1.0), lambda: tf.assign_sub(v, 10.0))
    op = tf.cond(x > 0, lambda: tf.group(tf.assign(v, 100.0)), lambda: tf.no_op())
    sess.run(v.initializer)
    assert sess.run(update, {x: 1.0}) == 1.0
    assert sess.run(update, {x: -1.0}) == -9.0
    sess.run(op, {x: -1.0})
    assert sess.run(v) == -9.0
    sess.run(op, {x: 1.0})
    assert sess.run(v) == 100.0
    grown = tf.cond(x > 0, lambda: tf.zeros([2]), lambda: tf.zeros([3])) + 1.0
    assert sess.run(grown, {x: 1.0}).shape == (2,) and sess.run(grown, {x: -1.0}).shape == (3,)


def test_cond_whose_other_branch_does_not_fit(sess):
    x = tf.placeholder(tf.float32, [None])
    y = tf.cond(tf.size(x) * 1 + tf.to_int32(x[0]) > 3, lambda: tf.reshape(x, [2, 2]), lambda: tf.zeros([2, 2]))
    np.testing.assert_array_equal(sess.run(y, {x: [0.0, 0.0, 0.0]}), np.zeros([2, 2]))
    np.testing.assert_array_equal(sess.run(y, {x: [1.0, 2.0, 3.0, 4.0]}), [[1, 2], [3, 4]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Reshape"):
        sess.run(y, {x: [5.0, 5.0, 5.0]})


def test_cond_reads_variables_of_both_kinds(sess):
    x = tf.placeholder(tf.bool, [])
    for use_resource in (False, True):
        v = tf.Variable(2.0, use_resource=use_resource)
        y = tf.cond(x, lambda v=v: v * 3.0, lambda v=v: v * v * v)
        g = gradient(y, v)
        sess.run(v.initializer)
        assert sess.run([y, g], {x: True}) == [6.0, 3.0]
        assert sess.run([y, g], {x: False}) == [8.0, 12.0]


def test_case(sess):
    x = tf.placeholder(tf.int32, [])
    y = tf.case([(x < 1, lambda: tf.constant(1)), (x > 5, lambda: tf.constant(2))], default=lambda: tf.constant(3))
    assert [sess.run(y, {x: v}) for v in (0, 9, 3)] == [1, 2, 3]


def test_while_and_its_gradient(sess):
    x = tf.placeholder(tf.float32, [])
    n = tf.placeholder(tf.int32, [])
    _, power = tf.while_loop(lambda i, a: i < n, lambda i, a: (i + 1, a * x), [0, 1.0])
    g = gradient(power, x)
    gg = gradient(g, x)
    assert sess.run([power, g], {x: 2.0, n: 5}) == [32.0, 80.0]
    assert sess.run(gg, {x: 2.0, n: 5}) == 160.0
    assert sess.run([power, g], {x: 2.0, n: 0}) == [1.0, 0.0]


def test_while_with_maximum_iterations(sess):
    x = tf.placeholder(tf.float32, [])
    out = tf.while_loop(lambda a: a < 100.0, lambda a: a * x, [1.0], maximum_iterations=3)
    assert sess.run([out, gradient(out, x)], {x: 2.0}) == [8.0, 12.0]


def test_while_nested(sess):
    def outer(i, total):
        _, inner = tf.while_loop(lambda j, s: j < i, lambda j, s: (j + 1, s + 1), [0, 0])
        return i + 1, total + inner

    _, total = tf.while_loop(lambda i, t: i < 5, outer, [0, 0])
    assert sess.run(total) == 10


def test_while_with_changing_shape_runs_on_the_host(sess):
    start = tf.constant([1.0])
    _, out = tf.while_loop(
        lambda i, a: i < 4,
        lambda i, a: (i + 1, tf.concat([a, a], 0)),
        [0, start],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )
    assert sess.run(out).shape == (16,)
    with pytest.raises(ValueError, match="shape_invariants"):
        tf.while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, tf.concat([a, a], 0)), [0, start])


def test_while_with_side_effects(sess):
    v = tf.Variable(0)
    loop = tf.while_loop(lambda i: i < 7, lambda i: tf.assign_add(v, 1), [0])
    sess.run(v.initializer)
    assert sess.run(loop) == 7 and sess.run(v) == 7


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: tf.while_loop(1, lambda i: i, [0]), TypeError),
        (lambda: tf.while_loop(lambda i: i < 1, 1, [0]), TypeError),
        (lambda: tf.while_loop(lambda: 1, lambda: 1, []), ValueError),
        (lambda: tf.while_loop(lambda i: i < 1, lambda i: tf.to_float(i), [0]), TypeError),
        (lambda: tf.while_loop(lambda i: i < 1, lambda i: (i, i), [0]), ValueError),
    ],
)
def test_while_errors(sess, call, error):
    with pytest.raises(error):
        call()


def test_tensor_array(sess):
    ta = tf.TensorArray(tf.float32, size=3)
    ta = ta.write(0, [1.0, 2.0]).write(2, [5.0, 6.0]).write(1, [3.0, 4.0])
    np.testing.assert_array_equal(sess.run(ta.stack()), [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(sess.run(ta.read(1)), [3, 4])
    np.testing.assert_array_equal(sess.run(ta.gather([2, 0])), [[5, 6], [1, 2]])
    np.testing.assert_array_equal(sess.run(ta.concat()), [1, 2, 3, 4, 5, 6])
    assert sess.run(ta.size()) == 3
    split = tf.TensorArray(tf.float32, size=2).split([1.0, 2.0, 3.0, 4.0], [2, 2])
    np.testing.assert_array_equal(sess.run(split.read(1)), [3, 4])
    grown = tf.TensorArray(tf.float32, size=0, dynamic_size=True).write(0, 1.0).write(3, 2.0)
    np.testing.assert_array_equal(sess.run(grown.stack()), [1, 0, 0, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="index 5"):
        sess.run(tf.TensorArray(tf.float32, 2).write(5, 1.0).stack())
    with pytest.raises(tf.errors.InvalidArgumentError):
        sess.run(tf.TensorArray(tf.float32, 2, element_shape=None).read(0))
    with pytest.raises(ValueError, match="Inconsistent"):
        tf.TensorArray(tf.float32, 2).write(0, [1.0]).write(1, [1.0, 2.0])


def test_tensor_array_gradient_through_a_loop(sess):
    x = tf.placeholder(tf.float32, [None])
    n = tf.shape(x)[0]
    inputs = tf.TensorArray(tf.float32, n).unstack(x)
    outputs = tf.TensorArray(tf.float32, n)
    _, outputs = tf.while_loop(
        lambda i, _: i < n,
        lambda i, ta: (i + 1, ta.write(i, inputs.read(i) ** 2.0)),
        [0, outputs],
        maximum_iterations=n,
    )
    y = tf.reduce_sum(outputs.stack())
    value, g = sess.run([y, gradient(y, x)], {x: [1.0, 2.0, 3.0]})
    assert value == 14.0
    np.testing.assert_allclose(g, [2.0, 4.0, 6.0])


def test_loops_over_elements(sess):
    x = tf.constant([1.0, 2.0, 3.0])
    mapped = tf.map_fn(lambda v: v * v, x)
    assert mapped.shape.as_list() == [3]
    np.testing.assert_array_equal(sess.run(mapped), [1, 4, 9])
    np.testing.assert_allclose(sess.run(gradient(mapped, x)), [2, 4, 6])
    np.testing.assert_array_equal(sess.run(tf.scan(lambda a, v: a + v, x)), [1, 3, 6])
    np.testing.assert_array_equal(sess.run(tf.scan(lambda a, v: a + v, x, initializer=10.0)), [11, 13, 16])
    np.testing.assert_array_equal(sess.run(tf.scan(lambda a, v: a + v, x, reverse=True)), [6, 5, 3])
    assert sess.run(tf.foldl(lambda a, v: a * 10.0 + v, x)) == 123.0
    assert sess.run(tf.foldr(lambda a, v: a * 10.0 + v, x)) == 321.0
    both = tf.map_fn(lambda t: (t[0] + t[1], t[0] > 1), (x, x), dtype=(tf.float32, tf.bool))
    np.testing.assert_array_equal(sess.run(both[1]), [False, True, True])
    fed = tf.placeholder(tf.float32, [None, 2])
    np.testing.assert_array_equal(sess.run(tf.map_fn(tf.reduce_sum, fed), {fed: np.ones([4, 2])}), [2, 2, 2, 2])


def test_random_numbers_differ_per_iteration_and_run(sess):
    tf.set_random_seed(1)
    numbers = tf.map_fn(lambda _: tf.random_uniform([]), tf.zeros([4]))
    first, second = sess.run(numbers), sess.run(numbers)
    assert len(set(first.tolist() + second.tolist())) == 8
    with tf.Session() as other:
        np.testing.assert_array_equal(other.run(numbers), first)


def test_gradient_sees_the_random_numbers_of_the_loop(sess):
    x = tf.constant([1.0, 1.0, 1.0, 1.0])
    y = tf.map_fn(lambda v: v * tf.random_uniform([]), x)
    value, g = sess.run([y, gradient(y, x)])
    np.testing.assert_allclose(value, g)


def test_check_inside_a_branch_is_reported(sess):
    i = tf.placeholder(tf.int32, [])
    y = tf.cond(i > 0, lambda: tf.gather([1.0, 2.0], [i]), lambda: tf.constant([0.0]))
    assert sess.run(y, {i: 1}) == [2.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="5"):
        sess.run(y, {i: 5})
    assert sess.run(y, {i: -5}) == [0.0]


@pytest.mark.parametrize("read", [lambda v: v + 1.0, lambda v: v.value() + 1.0], ids=["used", "value"])
def test_a_variable_is_read_in_a_branch_only_if_that_runs(read):
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("v", initializer=2.0, use_resource=True)
        go = tf.placeholder(tf.bool, [])
        result = tf.cond(go, lambda: read(variable), lambda: tf.constant(0.0))
        (slope,) = tf.gradients(result, [variable])
        assert session.run(result, {go: False}) == 0.0  # it holds nothing yet
        session.run(variable.initializer)
        assert session.run([result, slope], {go: True}) == [3.0, 1.0]
        assert session.run([result, slope], {go: False}) == [0.0, 0.0]
