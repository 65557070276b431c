"""A partition becomes one segment if possible, and more if values or the host must come between."""

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.passes.optimize import optimize
from penstock.passes.place import place
from penstock.passes.prune import prune
from penstock.segments.plan import SegmentPlan, make_plan

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def plan_of(feeds, fetches, targets=()):
    return make_plan(place(optimize(prune(feeds, fetches, targets)), [DEVICE]))


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def test_a_train_step_is_one_segment():
    x = tf.placeholder(tf.float32, [None, 4])
    w = tf.Variable(tf.zeros([4, 3]))
    b = tf.Variable(tf.zeros([3]))
    y = tf.reshape(tf.matmul(x, w) + b, tf.stack([tf.shape(x)[0], 3]))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.argmax(y, 1), logits=y))
    train = tf.train.AdamOptimizer().minimize(loss)
    stages = plan_of([x], [loss], [train]).stages
    assert [type(s) for s in stages] == [SegmentPlan]
    assert not stages[0].static


def test_a_shape_known_only_at_run_time_cuts_the_segment():
    x = tf.placeholder(tf.float32, [None])
    n = tf.placeholder(tf.int32, [])
    rows = tf.reduce_max(n * 2)
    y = tf.reshape(x, tf.stack([rows, -1]))
    stages = plan_of([x, n], [y]).stages
    assert len(stages) == 2 and len(stages[1].static) == 1
    with tf.Session() as sess:
        for rows_wanted in (1, 2, 3):
            assert sess.run(y, {x: np.zeros(12), n: rows_wanted}).shape == (rows_wanted * 2, 6 // rows_wanted)


def test_host_ops_stand_between_segments():
    x = tf.placeholder(tf.float32, [None])
    picked = tf.boolean_mask(x * 2.0, x > 0) + 1.0
    kinds = [type(s).__name__ for s in plan_of([x], [picked]).stages]
    assert "Node" in kinds and kinds[0] == kinds[-1] == "SegmentPlan"
    with tf.Session() as sess:
        np.testing.assert_array_equal(sess.run(picked, {x: [1.0, -1.0, 3.0]}), [3.0, 7.0])


def test_light_work_runs_with_what_takes_it():
    x = tf.placeholder(tf.float32, [None])
    z = tf.placeholder(tf.float32, [2, 2])
    on_host = tf.unique(x)[0]
    light = on_host + tf.reshape(2.0 * z, [-1])
    stages = plan_of([x, z], [light]).stages
    assert [type(s).__name__ for s in stages] == ["Node", "SegmentPlan"]
    heavy = on_host + tf.reshape(tf.matmul(z, z), [-1])
    product, rest = [s for s in plan_of([x, z], [heavy]).stages if isinstance(s, SegmentPlan)]
    assert [n.op.name for n in product.nodes] == ["MatMul"]  # it could run while others are waited for
    assert "Reshape" in [n.op.name for n in rest.nodes]
    both = tf.reshape(z, [-1])
    fetched = plan_of([x, z], [both, on_host + both]).stages
    assert len(fetched) == 3, "what is also needed elsewhere stays where it was"
    with tf.Session() as sess:
        feeds = {x: [3.0, 1.0, 3.0, 5.0, 4.0], z: [[1.0, 2.0], [3.0, 4.0]]}
        np.testing.assert_array_equal(sess.run(light, feeds), [5.0, 5.0, 11.0, 12.0])
        np.testing.assert_array_equal(sess.run(heavy, feeds), [10.0, 11.0, 20.0, 26.0])


def test_slices_with_bounds_known_only_at_run_time():
    x = tf.placeholder(tf.float32, [None])
    i = tf.placeholder(tf.int32, [])
    j = tf.reduce_sum(i) + 1
    with tf.Session() as sess:
        values = np.arange(10.0)
        for start in (0, 3):
            feed = {x: values, i: start}
            np.testing.assert_array_equal(sess.run(x[i:], feed), values[start:])
            np.testing.assert_array_equal(sess.run(x[j : j + 2], feed), values[start + 1 : start + 3])
            assert sess.run(x[j], feed) == values[start + 1]


def test_constants_can_be_fetched_with_what_uses_them():
    c = tf.constant([1.0, 2.0])
    x = tf.placeholder(tf.float32, [2])
    with tf.Session() as sess:
        first, second = sess.run([c, c * x], {x: [3.0, 4.0]})
        np.testing.assert_array_equal(first, [1.0, 2.0])
        np.testing.assert_array_equal(second, [3.0, 8.0])


def test_equal_nodes_are_computed_once():
    x = tf.placeholder(tf.float32, [2])
    a, b = tf.exp(x), tf.exp(x)
    subgraph = optimize(prune([x], [a + b], []))
    assert [n.op.name for n in subgraph.nodes].count("Exp") == 1
    u, v = tf.random_uniform([2]), tf.random_uniform([2])
    with tf.Session() as sess:
        first, second = sess.run([u, v])
        assert (first != second).any()


def test_variables_are_read_and_written_in_order():
    v = tf.Variable(1.0)
    before = v.read_value()
    with tf.control_dependencies([before]):
        update = tf.assign_add(v, 10.0)
    with tf.control_dependencies([update]):
        after = v.read_value()
        again = tf.assign(v, after * 2.0)
    with tf.Session() as sess:
        sess.run(v.initializer)
        assert sess.run([before, after, again]) == [1.0, 11.0, 22.0]
        assert sess.run(v) == 22.0


def test_a_failed_check_leaves_variables_as_they_were():
    table = tf.Variable([1.0, 2.0])
    i = tf.placeholder(tf.int32, [1])
    loss = tf.reduce_sum(tf.gather(table * 2.0, i))
    train = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match="5"):
            sess.run([train, loss], {i: [5]})
        np.testing.assert_array_equal(sess.run(table), [1.0, 2.0])
        sess.run(train, {i: [1]})
        np.testing.assert_array_equal(sess.run(table), [1.0, 0.0])


def test_random_ops_are_fresh_on_every_run_and_the_same_in_a_new_session():
    tf.set_random_seed(7)
    x = tf.random_normal([3])
    with tf.Session() as sess:
        first, second = sess.run(x), sess.run(x)
    with tf.Session() as sess:
        np.testing.assert_array_equal(sess.run(x), first)
        np.testing.assert_array_equal(sess.run(x), second)
    assert (first != second).all()


def test_small_results_of_another_device_come_back_in_one_transfer(monkeypatch):
    """The path of a GPU, on the CPU: fetches and a failed check are transferred as one array of bytes."""
    from penstock.segments.segment import Segment

    monkeypatch.setattr(Segment, "platform", property(lambda self: "other", lambda self, value: None), raising=False)
    i = tf.placeholder(tf.int32, [1])
    row = tf.gather([[1.5, 2.5], [3.5, 4.5]], i)
    fetches = [row, tf.reduce_sum(row) > 4.0, i + 1, tf.to_double(row), tf.zeros([100, 100]) + tf.to_float(i)]
    with tf.Session() as sess:
        values = sess.run(fetches, {i: [1]})
        np.testing.assert_array_equal(values[0], [[3.5, 4.5]])
        assert values[1] and values[1].dtype == np.bool_
        assert values[2] == [2] and values[2].dtype == np.int32
        np.testing.assert_array_equal(values[3], [[3.5, 4.5]])
        assert values[4].sum() == 10000.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="7"):
            sess.run(fetches, {i: [7]})


def test_two_nodes_of_one_shared_name_are_one_variable():
    from penstock.ops.state.variable_ops import variable_v2

    first, second = (variable_v2(shape=[], dtype=tf.float32, shared_name="both", name=n) for n in "ab")
    both = tf.group(tf.assign_add(first, 1.0), tf.assign_add(second, 10.0))
    with tf.Session() as sess:
        sess.run(tf.assign(first, 5.0).op)
        sess.run(both)
        assert sess.run([first, second]) == [16.0, 16.0]


def test_a_failed_check_keeps_sparse_updates_away_too():
    table, other = tf.Variable(np.ones([4, 2], np.float32)), tf.Variable(np.ones([4, 2], np.float32))
    i, j = tf.placeholder(tf.int32, [1]), tf.placeholder(tf.int32, [1])
    first = tf.scatter_add(table, i, [[1.0, 1.0]])
    with tf.control_dependencies([first]):
        second = tf.scatter_add(other, j, [[1.0, 1.0]])  # its check comes after the first write
    loss = tf.reduce_sum(tf.gather(table, i)) + tf.reduce_sum(tf.gather(other, j))
    train = tf.train.MomentumOptimizer(0.5, 0.9).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for op in (second.op, train):
            for good, bad in ((i, j), (j, i)):
                with pytest.raises(tf.errors.InvalidArgumentError, match="9"):
                    sess.run(op, {good: [1], bad: [9]})
                assert [v.sum() for v in sess.run([table, other])] == [8.0, 8.0]
        sess.run([second.op], {i: [0], j: [3]})
        np.testing.assert_array_equal(sess.run(table)[:, 0], [2, 1, 1, 1])
        np.testing.assert_array_equal(sess.run(other)[:, 0], [1, 1, 1, 2])
