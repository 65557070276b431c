"""Large feeds: copied into aligned memory, whatever they look like, and not in use once `run` has returned."""

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.worker.staging import staged


def unaligned(shape, dtype=np.float32):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 128, np.uint8)
    start = (-memory.ctypes.data % 64) + 4
    return memory[start : start + size].view(dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(1 << 20,), (3, 1 << 19), (1 << 10, 257), (1, 1 << 20)])
def test_staged_copies_are_equal_and_aligned(shape):
    array = unaligned(shape)
    array[...] = np.random.RandomState(0).rand(*shape)
    for view in (array, array[::-1], array.T):
        copy = staged(view)
        assert copy.ctypes.data % 64 == 0 and copy.flags.c_contiguous
        np.testing.assert_array_equal(copy, view)


def test_a_fed_array_may_be_changed_after_the_run():
    with tf.Graph().as_default(), tf.Session() as sess:
        x = tf.placeholder(tf.float32, [1 << 20])
        total = tf.Variable(tf.zeros([1 << 20]))
        add = tf.assign_add(total, tf.sin(x) * 0.0 + x).op
        sess.run(total.initializer)
        aligned = staged(unaligned((1 << 20,)))
        for array in (aligned, unaligned((1 << 20,))):
            for value in range(5):
                array[...] = value
                sess.run(add, {x: array})
                array[...] = 1000.0
        np.testing.assert_array_equal(sess.run(total), np.full(1 << 20, 20.0))
