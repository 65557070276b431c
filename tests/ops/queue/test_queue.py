"""Queues behave as TensorFlow's, and waiting ends when it should."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from golden_programs import check, parameters

import penstock.v1 as tf
from penstock.errors import CancelledError, InvalidArgumentError
from penstock.ops.queue.queue_resources import Queue
from penstock.ops.queue.staging import StagingArea
from penstock.worker.cancellation import Cancellation
from penstock.worker.step import Step


@pytest.mark.parametrize("row", parameters("semantics/queues.json", {}))
def test_as_tensorflow(row: dict[str, Any]) -> None:
    check(row, tf)


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Runs a blocking function in a thread; its result or error is in the list once the thread has ended."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(type(error).__name__)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """A semaphore that is released once for every wait of a queue."""
    begun = threading.Semaphore(0)
    wait = Queue._wait

    def noted(self: Queue, ready: Callable[[], bool], ctx: Any) -> None:
        if not ready():
            begun.release()
        wait(self, ready, ctx)

    monkeypatch.setattr(Queue, "_wait", noted)
    return begun


def test_closing_the_session_wakes_whoever_waits(waiting: threading.Semaphore) -> None:
    with tf.Graph().as_default():
        queue = tf.FIFOQueue(1, tf.float32, shapes=[[]])
        take, put = queue.dequeue(), tf.FIFOQueue(0, tf.float32).enqueue(1.0)
        session = tf.Session()
    blocked = [in_thread(lambda op=op: session.run(op)) for op in (take, put)]
    for _ in blocked:
        assert waiting.acquire(timeout=60)
    session.close()
    for thread, results in blocked:
        thread.join(60)
        assert results == ["CancelledError"]


def test_a_queue_that_is_gone_refuses() -> None:
    queue = Queue("q", [tf.float32], [], 1)
    queue.close()
    with pytest.raises(CancelledError, match="FIFOQueue 'q' was closed"):
        queue.dequeue(1, Step(Cancellation()))


def test_dequeue_in_a_branch() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        queue = tf.FIFOQueue(3, tf.float32, shapes=[[]])
        flag = tf.placeholder(tf.bool, [])
        taken = tf.cond(flag, queue.dequeue, lambda: tf.constant(-1.0))
        session.run(queue.enqueue_many([[1.0, 2.0]]))
        assert [session.run(taken, {flag: f}) for f in (True, False, True)] == [1.0, -1.0, 2.0]


def test_dequeue_in_a_loop() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        queues = [tf.FIFOQueue(3, tf.float32, shapes=[[]]) for _ in range(2)]
        chosen = tf.QueueBase.from_list(1, queues)
        total = tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s + chosen.dequeue()), (0, 0.0))[1]
        session.run(queues[1].enqueue_many([[1.0, 2.0, 4.0]]))
        assert session.run(total) == 7.0


def test_many_threads_lose_and_double_nothing() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        queue = tf.FIFOQueue(2, tf.int32, shapes=[[]])
        value = tf.placeholder(tf.int32, [])
        put, take, size = queue.enqueue(value), queue.dequeue(), queue.size()
        session.run(put, {value: 0})
        session.run(take)
        writers = [in_thread(lambda i=i: [session.run(put, {value: i * 10 + j}) for j in range(10)]) for i in range(3)]
        readers = [in_thread(lambda: [int(session.run(take)) for _ in range(15)]) for _ in range(2)]
        for thread, _ in writers + readers:
            thread.join(60)
        assert sorted(v for _, results in readers for v in results[0]) == list(range(30))
        assert session.run(size) == 0


def test_batches_may_be_larger_than_the_queue() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        queue = tf.FIFOQueue(2, tf.int32, shapes=[[]])
        put, take = queue.enqueue_many([[1, 2, 3, 4, 5]]), queue.dequeue_many(5)
        thread, results = in_thread(lambda: session.run(take).tolist())
        session.run(put)
        thread.join(60)
        assert results == [[1, 2, 3, 4, 5]]


def test_one_step_puts_in_and_takes_out() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        queue = tf.FIFOQueue(2, tf.float32, shapes=[[]])
        taken = queue.dequeue()
        put = queue.enqueue(3.0)
        assert session.run([taken, put]) == [3.0, None]


def test_what_was_fed_may_change_afterwards() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        queue = tf.FIFOQueue(2, tf.float32)
        value = tf.placeholder(tf.float32)
        array = np.array([1.0, 2.0], np.float32)
        session.run(queue.enqueue(value), {value: array})
        array[:] = 0
        assert session.run(queue.dequeue()).tolist() == [1.0, 2.0]


def test_random_order_repeats_with_a_seed() -> None:
    orders = []
    for _ in range(2):
        with tf.Graph().as_default(), tf.Session() as session:
            queue = tf.RandomShuffleQueue(20, 0, tf.int32, shapes=[[]], seed=7)
            session.run(queue.enqueue_many([list(range(20))]))
            orders.append(session.run(queue.dequeue_many(20)).tolist())
    assert orders[0] == orders[1] != list(range(20)) == sorted(orders[0])


def test_priority_and_strings() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        queue = tf.PriorityQueue(9, [tf.string], [[]])
        session.run(queue.enqueue_many(([2, 1, 2, 0], ["c", "b", "d", "a"])))
        priorities, values = session.run(queue.dequeue_many(4))
        assert (priorities.tolist(), values.tolist()) == ([0, 1, 2, 2], [b"a", b"b", b"c", b"d"])
        padding = tf.PaddingFIFOQueue(9, [tf.int32, tf.string], [[], [None]])
        session.run([padding.enqueue([1, ["x"]]), padding.enqueue([2, ["y", "z"]])])
        numbers, words = session.run(padding.dequeue_many(2))
        assert sorted(zip(numbers.tolist(), words.tolist(), strict=True)) == [(1, [b"x", b""]), (2, [b"y", b"z"])]


def test_one_name_two_kinds() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        first, second = (tf.FIFOQueue(1, dtype, shared_name="s") for dtype in (tf.float32, tf.int32))
        session.run(first.enqueue(1.0))
        with pytest.raises(InvalidArgumentError, match="'s' exists already"):
            session.run(second.size())
        with pytest.raises(InvalidArgumentError, match="without shapes"):
            session.run(first.dequeue_many(1))


def test_staging_area() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        area = StagingArea([tf.float32, tf.int32], shapes=[[2], []], names=["x", "n"])
        put, got = area.put({"x": [1.0, 2.0], "n": 3}), area.get()
        assert got["x"].shape.as_list() == [2]
        session.run([put])
        session.run([put])
        assert session.run(area.size()) == 2
        assert session.run(got["x"]).tolist() == [1.0, 2.0]
        session.run(area.clear())
        assert session.run(area.size()) == 0
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(got, options=tf.RunOptions(timeout_in_ms=50))
