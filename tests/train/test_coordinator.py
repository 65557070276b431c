"""Coordinator, LooperThread and QueueRunner behave as TensorFlow's, and leave no threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from golden_programs import check, load

import penstock.v1 as tf


@pytest.mark.parametrize("row", load("semantics/coordinator.json")["cases"], ids=lambda row: row["id"])
def test_as_tensorflow(row: dict[str, Any]) -> None:
    check(row, tf)


def _counting_queue(limit: int | None = None) -> tuple[Any, Any]:
    queue = tf.FIFOQueue(4, tf.int32)
    count = tf.Variable(0)
    with tf.control_dependencies([tf.assert_less(count, limit)] if limit else []):
        value = tf.identity(tf.assign_add(count, 1))
    return queue, queue.enqueue(value)


def test_runners_fill_a_queue_and_stop() -> None:
    before = threading.active_count()
    with tf.Graph().as_default(), tf.Session() as session:
        queue, enqueue = _counting_queue()
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [enqueue] * 2))
        session.run(tf.global_variables_initializer())
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coord)
        taken = [session.run(queue.dequeue()) for _ in range(10)]
        assert len(set(taken)) == 10
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=60)
    assert threading.active_count() == before


def test_the_end_of_input_closes_the_queue() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        source = tf.FIFOQueue(5, tf.int32)
        queue = tf.FIFOQueue(5, tf.int32)
        runner = tf.train.QueueRunner(queue, [queue.enqueue(source.dequeue())] * 2)
        session.run(source.enqueue_many([[1, 2, 3]]))
        session.run(source.close())
        coord = tf.train.Coordinator()
        threads = runner.create_threads(session, coord, daemon=True, start=True)
        value = queue.dequeue()
        assert sorted(session.run(value) for _ in range(3)) == [1, 2, 3]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(value)
        coord.request_stop()
        coord.join(threads)


def test_an_error_of_a_runner_reaches_the_one_who_joins() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        queue, enqueue = _counting_queue(limit=3)
        runner = tf.train.QueueRunner(queue, [enqueue])
        session.run(tf.global_variables_initializer())
        coord = tf.train.Coordinator()
        threads = runner.create_threads(session, coord, daemon=True, start=True)
        with pytest.raises(tf.errors.InvalidArgumentError):
            coord.join(threads, stop_grace_period_secs=60)


def test_what_is_refused() -> None:
    with tf.Graph().as_default():
        queue = tf.FIFOQueue(1, tf.int32)
        with pytest.raises(ValueError, match="queue and enqueue_ops"):
            tf.train.QueueRunner(queue, [])
        with pytest.raises(TypeError, match="queue_closed_exception_types"):
            tf.train.QueueRunner(queue, [queue.enqueue(1)], queue_closed_exception_types=ValueError)
        with pytest.raises(ValueError, match="no default session"):
            tf.train.start_queue_runners()
        with pytest.raises(ValueError, match="Coordinator"):
            tf.train.LooperThread("coord", 1.0)
