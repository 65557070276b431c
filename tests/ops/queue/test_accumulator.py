"""Accumulators of gradients."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from golden_programs import check, parameters
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.v1 as tf
from penstock.ops.queue.accumulator_resources import Accumulator, JointAccumulators
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


SHAPES = [tf.TensorShape([2, 3]), tf.TensorShape([]), tf.TensorShape([4])]


def accumulators(reduction: str = "MEAN") -> list[Accumulator]:
    return [Accumulator(f"a{i}", tf.float32, shape, reduction) for i, shape in enumerate(SHAPES)]


def vector(seed: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(11).astype(np.float32)


def split(joined: np.ndarray) -> list[np.ndarray]:
    return [joined[:6].reshape(2, 3), joined[6].reshape(()), joined[7:]]


ACTIONS = st.one_of(
    st.tuples(st.just("apply"), st.integers(0, 3)),
    st.tuples(st.just("apply to one"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("take"), st.integers(1, 2)),
    st.tuples(st.just("take from one"), st.integers(1, 2), st.integers(0, 2)),
    st.tuples(st.just("set step"), st.integers(0, 3), st.integers(0, 2)),
)


@settings(max_examples=200, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=20), reduction=st.sampled_from(["MEAN", "SUM"]), is_copied=st.booleans())
def test_joint_accumulators_are_the_same_as_each_by_itself(
    actions: list[tuple[Any, ...]], reduction: str, is_copied: bool
) -> None:
    """Whatever is done to all and to single ones, everybody sees what they would have by themselves."""
    alone, parts = accumulators(reduction), accumulators(reduction)
    joint, reordered = (
        JointAccumulators([parts[i] for i in o], [SHAPES[i] for i in o]) for o in ([0, 1, 2], [2, 0, 1])
    )
    step = Step(Cancellation())
    for number, (action, value, *which) in enumerate(actions):
        gradients = vector(number)
        gradients.flags.writeable = is_copied
        if action == "apply":
            for accumulator, gradient in zip(alone, split(gradients), strict=True):
                accumulator.apply(value, gradient)
            if number % 5:
                joint.apply(value, gradients)
            else:
                of_first, of_second, of_third = split(gradients)
                reordered.apply(value, np.concatenate([of_third, of_first, of_second], axis=None))
        elif action == "apply to one":
            for each in (alone, parts):
                each[which[0]].apply(value, split(gradients)[which[0]])
        elif action == "set step":
            for each in (alone, parts):
                each[which[0]].set_global_step(value)
        elif action == "take" and all(accumulator.count >= value for accumulator in alone):
            expected = np.concatenate([accumulator.take(value, step) for accumulator in alone], axis=None)
            np.testing.assert_allclose(joint.take(value, step), expected, 1e-6)
        elif action == "take from one" and alone[which[0]].count >= value:
            expected, received = (each[which[0]].take(value, step) for each in (alone, parts))
            np.testing.assert_allclose(received, expected, 1e-6)
        assert [(a.count, a.global_step) for a in parts] == [(a.count, a.global_step) for a in alone]
        np.testing.assert_array_equal(gradients, vector(number), err_msg="what was given is changed")


def test_joint_accumulators_wait_until_each_has_enough() -> None:
    parts = accumulators()
    joint, results = JointAccumulators(parts, SHAPES), []
    thread = threading.Thread(target=lambda: results.append(joint.take(1, Step(Cancellation()))), daemon=True)
    thread.start()
    for part, gradient in zip(parts, split(vector(0)), strict=True):
        assert not results
        part.apply(0, gradient)
    thread.join(60)
    np.testing.assert_array_equal(results[0], vector(0))


@pytest.mark.parametrize("end", ["closed", "cancelled", "late"])
def test_a_joint_wait_ends_like_that_of_one(end: str) -> None:
    parts = accumulators()
    step, errors = Step(Cancellation(), time.monotonic() + (0.05 if end == "late" else 60)), []

    def take() -> None:
        try:
            JointAccumulators(parts, SHAPES).take(1, step)
        except tf.errors.OpError as error:
            errors.append(error)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    while end != "late" and not step.cancelled._callbacks:  # until the step waits
        time.sleep(0.001)
    if end == "closed":
        parts[0].close()
    elif end == "cancelled":
        step.cancelled.set()
    thread.join(60)
    expected = tf.errors.DeadlineExceededError if end == "late" else tf.errors.CancelledError
    assert [type(error) for error in errors] == [expected]
    assert "ConditionalAccumulator 'a0'" in errors[0].message


def test_threads_that_use_accumulators_in_different_orders_do_not_block_each_other() -> None:
    parts, rounds = accumulators("SUM"), 200
    forwards = JointAccumulators(parts, SHAPES)
    backwards = JointAccumulators(parts[::-1], SHAPES[::-1])
    ones = np.ones(11, np.float32)
    acts = [
        lambda: forwards.apply(0, ones),
        lambda: backwards.apply(0, ones),
        lambda: [
            part.apply(0, np.ones(shape.as_list(), np.float32)) for part, shape in zip(parts, SHAPES, strict=True)
        ],
    ]
    threads = [threading.Thread(target=lambda act=act: [act() for _ in range(rounds)], daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    np.testing.assert_array_equal(forwards.take(3 * rounds, Step(Cancellation())), 3 * rounds * ones)


def test_joined_gradients_of_another_size_are_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'a0' and others take 11 numbers, received \[4\]"):
        JointAccumulators(accumulators(), SHAPES).apply(0, np.ones(4, np.float32))
