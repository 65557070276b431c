"""Large feeds are read without a copy, at any alignment, and may change once `run` has returned."""

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.segments.borrowing import Borrowed, aligned, borrowed


def placed(shape, offset, dtype=np.float32, page=False):
    """An array whose address is `offset` bytes after a multiple of 64, or of a page."""
    block = 4096 if page else 64
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 2 * 4096, np.uint8)
    start = -memory.ctypes.data % block + 4096 - 4096 % block + offset
    return memory[start : start + size].view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.bool_, np.complex64])
@pytest.mark.parametrize("offset", [0, 16, 32, 48])
def test_borrowed_arrays_are_what_they_were(offset, dtype):
    array = placed((64, 50), offset, dtype)
    array[...] = np.random.RandomState(0).randint(0, 2, array.shape)
    window = borrowed(array)
    assert isinstance(window, Borrowed) or array.ctypes.data % 4096 == 0
    if isinstance(window, Borrowed):
        assert window.window.ctypes.data % 64 == 0
        np.testing.assert_array_equal(window.value(), array)


def test_what_cannot_be_borrowed_stays_as_it_is():
    whole = placed((64, 50), 16)
    for array in (placed((64, 50), 0, page=True), whole[:, ::2], placed((3, 5), 16)):
        assert borrowed(array) is array


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.bool_])
def test_aligned_arrays_are_what_they_were(dtype):
    for offset in (0, 16, 48):
        whole = placed((64, 50), offset, dtype)
        whole[...] = np.random.RandomState(0).randint(0, 2, whole.shape)
        assert (aligned(whole) is whole) == (offset == 0)
        for array in (whole, whole[:, ::2], whole.T):
            copy = aligned(array)
            assert copy.ctypes.data % 64 == 0
            assert copy.dtype == dtype
            np.testing.assert_array_equal(copy, array)


def test_a_fed_array_may_lie_anywhere_and_be_changed_after_the_run():
    with tf.Graph().as_default(), tf.Session() as sess:
        x = tf.placeholder(tf.float32, [512, 1024])
        total = tf.Variable(tf.zeros([512, 1024]))
        add = tf.assign_add(total, tf.sin(x) * 0.0 + x).op
        product = tf.matmul(x, x, transpose_b=True)
        sess.run(total.initializer)
        expected = 0.0
        for offset in (0, 16, 32, 48):
            array = placed((512, 1024), offset)
            for value in range(3):
                array[...] = value
                sess.run(add, {x: array})
                array[...] = 1000.0
                expected += value
            array[...] = 2.0
            assert (sess.run(product, {x: array}) == 4096.0).all()
            np.testing.assert_array_equal(sess.run(tf.identity(x), {x: array}), array)
        np.testing.assert_array_equal(sess.run(total), np.full([512, 1024], expected))
