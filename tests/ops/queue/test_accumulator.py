"""Accumulators of gradients."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from golden_programs import check, parameters

import penstock.v1 as tf
from penstock.ops.queue.accumulator_resources import Accumulator
from penstock.worker.cancellation import Cancellation
from penstock.worker.step import Step


@pytest.mark.parametrize("row", parameters("semantics/accumulators.json", {}))
def test_as_tensorflow(row: dict[str, Any]) -> None:
    check(row, tf)


def test_closing_the_session_wakes_take_grad() -> None:
    with tf.Graph().as_default():
        accumulator = tf.ConditionalAccumulator(tf.float32, shape=[])
        take, add = accumulator.take_grad(2), accumulator.apply_grad(1.0)
        session = tf.Session()
    session.run(add)
    results: list[str] = []

    def run() -> None:
        try:
            session.run(take)
        except Exception as error:
            results.append(type(error).__name__)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    session.close()
    thread.join(60)
    # The session may be closed before the step has begun.
    assert results in (["CancelledError"], ["RuntimeError"])


def test_a_step_that_was_cancelled_takes_nothing_however_late_it_wakes() -> None:
    accumulator = Accumulator("a", tf.float32, tf.TensorShape([]), "MEAN")
    step, results = Step(Cancellation()), []

    def take() -> None:
        with pytest.raises(tf.errors.CancelledError, match="cancelled while it waited"):
            accumulator.take(1, step)
        results.append(accumulator.count)

    thread = threading.Thread(target=take)
    thread.start()
    while not step.cancelled._callbacks:  # until the step waits
        time.sleep(0.001)
    with accumulator._changed:  # the waiting step needs this lock to wake
        step.cancelled.is_set = True
        accumulator._changed.notify_all()
        accumulator._add(np.float32(1.0))
        accumulator.count += 1
    thread.join(60)
    assert results == [1] and accumulator.global_step == 0


def test_a_step_adds_and_takes() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        accumulator = tf.ConditionalAccumulator(tf.float32, shape=[2])
        take = accumulator.take_grad(1)
        assert session.run([take, accumulator.apply_grad([2.0, 4.0])])[0].tolist() == [2.0, 4.0]


def test_types_keep() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        for dtype in (tf.float64, tf.int32, tf.bfloat16):
            accumulator = tf.ConditionalAccumulator(dtype, shape=[2])
            for gradient in ([1, 2], [3, 5]):
                session.run(accumulator.apply_grad(tf.constant(gradient, dtype)))
            mean = session.run(accumulator.take_grad(2))
            assert mean.dtype == dtype.as_numpy_dtype
            np.testing.assert_array_equal(mean.astype(np.float64), [2, 3 if dtype == tf.int32 else 3.5])


@pytest.mark.parametrize(
    "shape, first, second, taken",
    [
        ([4, 1], [1, 3], [0, 3], ([0, 1, 3], [[3.0], [1.0], [3.0]], [4, 1])),
        ((), [1, 3], [0, 3], ([0, 1, 3], [[3.0], [1.0], [3.0]], [-1, 1])),
        # Rows are not sorted, and those of one gradient not added up: the optimizer does that.
        ([4, 1], [3, 3], [3, 1], ([3, 1, 3], [[2.0], [4.0], [2.0]], [4, 1])),
        ([4, 1], [3, 1], [1, 3], ([1, 3, 1], [[3.0], [2.5], [2.0]], [4, 1])),
    ],
)
def test_rows_of_sparse_gradients(shape: Any, first: list[int], second: list[int], taken: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        accumulator = tf.SparseConditionalAccumulator(tf.float32, shape=shape)
        session.run(accumulator.apply_grad(first, [[1.0], [2.0]]))
        session.run(accumulator.apply_grad(second, [[3.0], [4.0]]))
        assert tuple(part.tolist() for part in session.run(accumulator.take_grad(2))) == taken


def test_gradients_taken_in_a_branch_have_the_shape_of_the_accumulator() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        accumulator = tf.ConditionalAccumulator(tf.float32, shape=[2])
        add = accumulator.apply_grad([1.0, 3.0])
        wanted = tf.placeholder(tf.bool, [])
        taken = tf.cond(wanted, lambda: accumulator.take_grad(2), lambda: tf.zeros([2]))
        assert taken.shape.as_list() == [2]
        session.run(add)
        assert session.run(taken, {wanted: False}).tolist() == [0.0, 0.0]
        session.run(add)
        assert session.run(taken, {wanted: True}).tolist() == [1.0, 3.0]
