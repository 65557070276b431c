"""Steps for other tasks: quick ones run in the thread that receives them, slow ones in another."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.passes.place import place
from penstock.passes.prune import prune
from penstock.wire.messages import RunGraph
from penstock.worker.devices import local_devices
from penstock.worker.worker import Worker

_DEADLINE = 60.0
_MANY = 50_000  # elements: a slow machine may take many before a step is quick
_numbers = itertools.count(1)  # step numbers


class Asking:
    """Asks a worker for steps of one graph, as a channel would."""

    def __init__(self, worker: Worker, feed: Any, fetches: tuple[Any, ...], targets: tuple[Any, ...] = ()) -> None:
        subgraph = prune((feed,), fetches, targets)
        subgraph = place(subgraph, worker.device_names)
        self.worker = worker
        self.handle = worker.register_graph(subgraph)

    def __call__(self, value: Any) -> tuple[list[Any], bool]:
        """Returns the fetches, and True if they were computed in the calling thread."""
        over = threading.Event()
        answer: list[Any] = []

        def done(values: Any, error: Any, step: Any) -> None:
            answer.extend((values, error, threading.current_thread()))
            over.set()

        fed = np.asarray(value, np.float32)
        self.worker.start_graph(RunGraph(next(_numbers), self.handle, fed=1, keys=[0], values=[fed]), done)
        assert over.wait(_DEADLINE)
        values, error, thread = answer
        if error is not None:
            raise error
        return values, thread is threading.current_thread()

    def until_quick(self, value: Any) -> None:
        """Asks until the graph is known to be quick."""
        end = time.monotonic() + _DEADLINE
        while not self(value)[1]:
            assert time.monotonic() < end, "still not quick"


@pytest.fixture
def worker(exact_tier: None) -> Iterator[Worker]:
    made = Worker(local_devices("ps"))
    with tf.Graph().as_default():
        yield made
    made.close()


def _asking(worker: Worker, build: Callable[[Any], Any]) -> Asking:
    x = tf.placeholder(tf.float32, [None])
    return Asking(worker, x, (build(x),))


def test_a_new_shape_is_compiled_in_another_thread(worker: Worker) -> None:
    double = _asking(worker, lambda x: x * 2.0)
    double.until_quick([1.0, 2.0])
    (values,), here = double([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(values, [2.0, 4.0, 6.0])
    assert not here
    double.until_quick([1.0, 2.0, 3.0])


def test_what_ran_before_is_not_run_again(worker: Worker) -> None:
    """The step continues in the other thread at the same place: it has taken one element from the queue, not two."""
    queue = tf.FIFOQueue(_MANY, tf.float32, shapes=[()])
    x = tf.placeholder(tf.float32, [None])
    Asking(worker, x, (), (queue.enqueue_many((x,)),))(range(_MANY))
    step = _asking(worker, lambda x: x + queue.dequeue())
    step.until_quick([0.0])
    (before,), _ = step([0.0])
    (values,), here = step([0.0, 100.0])
    assert not here
    np.testing.assert_array_equal(values, np.asarray(before) + [1.0, 101.0])


@pytest.mark.parametrize(
    ("build", "in_pieces"),
    [
        (lambda x: tf.zeros([tf.cast(x[0], tf.int32)]) + x[1], False),
        (lambda x: x[: tf.cast(x[0], tf.int32)] * 1.0, True),
    ],
    ids=["compiled for sizes", "in pieces"],
)
def test_a_new_size_is_compiled_in_another_thread(worker: Worker, build: Callable[[Any], Any], in_pieces: bool) -> None:
    """Pieces compile for each new value and cannot start again, so none of them starts in the calling thread."""
    step = _asking(worker, build)
    before = [step([2.0, 2.0, 2.0])[1] for _ in range(20)]
    assert not in_pieces or not any(before)
    (values,), here = step([3.0, 3.0, 3.0])
    np.testing.assert_array_equal(values, [3.0] * 3)
    assert not here


def test_errors_are_those_of_the_step(worker: Worker) -> None:
    v = tf.Variable(1.0)
    step = _asking(worker, lambda x: x + v)
    initialize = Asking(worker, tf.placeholder(tf.float32, []), (), (v.initializer,))
    with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized"):
        step([1.0])
    initialize(0.0)
    step.until_quick([1.0])
    worker.reset()
    with pytest.raises(tf.errors.AbortedError, match="not registered"):
        step([1.0])
