"""Parts of contrib and of TensorFlow's internals that few programs use."""

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.contrib.defun import Defun
from penstock.ops.array.indexed_slices import _as_indexed_slices_list
from penstock.ops.io.record_input import RecordInput


@pytest.fixture
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def test_prefetch_queue(session):
    counter = tf.Variable(0, name="counter")
    batch = {"x": tf.assign_add(counter, 1), "y": tf.constant([1.0, 2.0])}
    queue = tf.contrib.slim.prefetch_queue.prefetch_queue(batch, capacity=4)
    taken = queue.dequeue()
    assert taken["x"].shape == () and taken["y"].shape == (2,) and queue.name == "prefetch_queue/fifo_queue"
    session.run(tf.global_variables_initializer())
    coordinator = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(session, coordinator)
    assert [int(session.run(taken)["x"]) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    coordinator.request_stop()
    coordinator.join(threads)
    assert [s.op.name for s in tf.get_collection(tf.GraphKeys.SUMMARIES)] == ["prefetch_queue/fraction_of_4_full"]


def test_record_input(session, tmp_path):
    for part in range(2):
        with tf.python_io.TFRecordWriter(str(tmp_path / f"part-{part}")) as writer:
            for number in range(5):
                writer.write(f"{part}{number}")
    whole = RecordInput(str(tmp_path / "part-*"), batch_size=5, buffer_size=4, seed=3).get_yield_op()
    assert whole.shape == (5,)
    epoch = np.concatenate([session.run(whole) for _ in range(2)])
    assert len(set(epoch)) >= 8  # the buffer may keep some, and return others of the next epoch
    parts = RecordInput(str(tmp_path / "part-*"), batch_size=2, batches=3).get_yield_op()
    assert [len(part) for part in parts] == [2, 2, 2] and parts[0][0].shape == ()
    nothing = RecordInput(str(tmp_path / "none-*")).get_yield_op()
    with pytest.raises(tf.errors.NotFoundError, match="no record in the files"):
        session.run(nothing)


def test_hsv_in_yiq(session):
    image = np.random.RandomState(0).rand(2, 4, 4, 3).astype(np.float32)
    adjust, distort = tf.contrib.image.adjust_hsv_in_yiq, tf.contrib.image.random_hsv_in_yiq
    np.testing.assert_allclose(session.run(adjust(image)), image, atol=1e-3)
    np.testing.assert_allclose(session.run(adjust(image, scale_value=2.0)), 2 * image, atol=1e-3)
    gray = session.run(adjust(image, scale_saturation=0.0))
    np.testing.assert_allclose(gray, np.repeat(gray[..., :1], 3, axis=-1), atol=1e-3)
    np.testing.assert_allclose(session.run(adjust(image, delta_hue=2 * np.pi)), image, atol=1e-3)
    changed = distort(image, 0.3, 0.5, 1.5, 0.8, 1.2, seed=1)
    assert changed.shape == (2, 4, 4, 3) and np.abs(session.run(changed) - image).max() > 0.01
    with pytest.raises(ValueError, match="lower_saturation <= upper_saturation"):
        distort(image, 0.1, 1.5, 0.5)


def test_defun(session):
    @Defun(tf.float32, tf.float32)
    def product(x, y):
        return x * y

    @Defun(tf.float32, tf.float32, func_name="twice")
    def negative(x, dy):
        return -dy

    @Defun(tf.float32, grad_func=negative)
    def square(x):
        return x * x

    @Defun(tf.float32, python_grad_func=lambda op, dy: dy * 10.0 * op.inputs[0])
    def cube(x):
        return x**3

    x = tf.constant(3.0)
    assert session.run([product(x, 2), *tf.gradients(product(x, x), x)]) == [6, 6]
    assert session.run([square(x), *tf.gradients(square(x), x)]) == [9, -1]
    assert session.run([cube(x), *tf.gradients(cube(x), x)]) == [27, 30]
    with pytest.raises(ValueError, match="takes 2 arguments, received 1"):
        product(x)


def test_xla_compile(session):
    v = tf.Variable(1.0)
    session.run(v.initializer)
    (total,) = tf.xla.experimental.compile(lambda a, b: a + b, [1.0, 2.0])
    first, second = tf.xla.experimental.compile(lambda: (v * 2, v * 3))
    assert session.run([total, first, second]) == [3, 2, 3]
    session.run(tf.xla.experimental.compile(lambda: v.assign_add(1.0).op))
    assert session.run(v) == 2


def test_indexed_slices_of_tensors(session):
    sparse = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2], tf.int64), tf.constant([3, 2], tf.int64))
    both = _as_indexed_slices_list([sparse, tf.zeros([3, 2])])
    assert {each.indices.dtype for each in both} == {tf.int64}
    assert session.run(both[1].indices).tolist() == [0, 1, 2]


def test_strings_are_shuffled(session):
    tf.set_random_seed(1)
    names = tf.random_shuffle(tf.constant(list("abcdefgh")))
    first, second = session.run(names), session.run(names)
    assert sorted(first) == sorted(second) and first.tolist() != second.tolist()


def test_the_gradient_of_a_sum_whose_shape_is_unknown(session):
    x = tf.placeholder(tf.float32)
    gradient = tf.gradients(tf.reduce_sum(x * x), x)[0]
    assert session.run(gradient, {x: 3.0}) == 6  # a scalar: nothing is divided by its rank of zero
    assert session.run(gradient, {x: [[1.0, 2.0]]}).tolist() == [[2, 4]]
