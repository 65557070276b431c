"""Iterators: their state in a session, their errors, and how they end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.segments.segment import Segment

D = tf.data.Dataset


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    with tf.Graph().as_default():
        yield
    ending = set(threading.enumerate()) - before
    for thread in ending:
        thread.join(60)
    left = [t for t in ending if t.is_alive()]
    assert not left, f"threads are left over: {left}"


def test_initializable() -> None:
    count = tf.placeholder(tf.int64, [])
    iterator = D.range(count).make_initializable_iterator()
    following = iterator.get_next()
    with tf.Session() as sess:
        with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
            sess.run(following)
        for n in (2, 3):
            sess.run(iterator.initializer, {count: n})
            assert [sess.run(following) for _ in range(n)] == list(range(n))
            for _ in range(2):
                with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
                    sess.run(following)


def test_reinitializable() -> None:
    first, second = D.range(3), D.range(10, 13)
    iterator = tf.data.Iterator.from_structure(first.output_types, first.output_shapes)
    following = iterator.get_next()
    use = [iterator.make_initializer(d, name=n) for d, n in ((first, "one"), (second, "two"))]
    assert [op.name for op in use] == ["one", "two"]
    with pytest.raises(TypeError, match="types"):
        iterator.make_initializer(D.from_tensors(1.0))
    with pytest.raises(ValueError, match="initializer"):
        _ = iterator.initializer
    with tf.Session() as sess:
        for op, expected in zip(use + use, (0, 10, 0, 10), strict=True):
            sess.run(op)
            assert sess.run(following) == expected


def test_string_handles() -> None:
    handle = tf.placeholder(tf.string, [])
    following = tf.data.Iterator.from_string_handle(handle, tf.int64, []).get_next()
    one, two = D.range(3).make_one_shot_iterator(), D.range(10, 13).make_initializable_iterator()
    other = D.from_tensors(1.0).make_one_shot_iterator()
    with tf.Session() as sess:
        names = sess.run([one.string_handle(), two.string_handle(), other.string_handle()])
        sess.run(two.initializer)
        assert [sess.run(following, {handle: names[i]}) for i in (0, 1, 0, 1)] == [0, 10, 1, 11]
        with pytest.raises(tf.errors.InvalidArgumentError, match="float32"):
            sess.run(following, {handle: names[2]})
        with pytest.raises(tf.errors.NotFoundError):
            sess.run(following, {handle: "no such thing"})


def test_each_session_has_its_own_state() -> None:
    following = D.range(3).make_one_shot_iterator().get_next()
    with tf.Session() as one, tf.Session() as two:
        assert [s.run(following) for s in (one, one, two)] == [0, 1, 0]


def test_one_step_takes_one_element() -> None:
    following = D.range(9).make_one_shot_iterator().get_next()
    with tf.Session() as sess:
        assert sess.run([following, following + 1, following * 2]) == [0, 1, 0]
        assert sess.run(following) == 1


def test_what_functions_capture() -> None:
    variable = tf.get_variable("v", initializer=np.int64(10), use_resource=True)
    table = tf.contrib.lookup.index_table_from_tensor(tf.constant(["a", "b"]))
    fed = tf.placeholder(tf.int64, [])
    dataset = D.range(9).map(lambda n: (n + variable, table.lookup(tf.constant("b")), n * fed))
    with pytest.raises(ValueError, match="make_initializable_iterator"):
        dataset.make_one_shot_iterator()
    iterator = dataset.make_initializable_iterator()
    following = iterator.get_next()
    double = tf.assign(variable, 20)
    with tf.Session() as sess:
        sess.run([variable.initializer, tf.tables_initializer()])
        sess.run(iterator.initializer, {fed: 5})
        assert sess.run(following) == (10, 1, 0)
        sess.run(double)  # the handle was captured, so the new value is seen
        assert sess.run(following) == (21, 1, 5)


def test_random_numbers_in_a_function_differ_and_repeat() -> None:
    tf.set_random_seed(1)
    following = D.range(9).map(lambda _: tf.random_uniform([])).make_one_shot_iterator().get_next()

    def run() -> list[Any]:
        with tf.Session() as sess:
            return [sess.run(following) for _ in range(3)]

    first = run()
    assert run() == first and len(set(first)) == 3


@pytest.mark.parametrize("parallel", [None, 3])
def test_errors_name_the_op_and_the_iteration_goes_on(parallel: int | None) -> None:
    dataset = D.from_tensor_slices([1.0, 0.0, 2.0])
    dataset = dataset.map(lambda v: tf.check_numerics(1 / v, "bad", name="look"), num_parallel_calls=parallel)
    following = dataset.prefetch(1).make_one_shot_iterator().get_next()
    with tf.Session() as sess:
        assert sess.run(following) == 1.0
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"bad.*look.*IteratorGetNext"):
            sess.run(following)
        assert sess.run(following) == 0.5


ERRORS = {
    "batch_size": (lambda: D.range(3).batch(0), tf.errors.InvalidArgumentError),
    "buffer_size": (lambda: D.range(3).shuffle(0), tf.errors.InvalidArgumentError),
    "unequal shapes": (lambda: D.range(3).map(lambda n: tf.fill([n], n)).batch(3), tf.errors.InvalidArgumentError),
    "padded too small": (
        lambda: D.range(5).map(lambda n: tf.fill([n], n)).padded_batch(5, [2]),
        tf.errors.DataLossError,
    ),
    "no such file": (lambda: tf.data.TFRecordDataset("/no/such/file"), tf.errors.NotFoundError),
    "no match": (lambda: D.list_files("/no/such/*"), tf.errors.InvalidArgumentError),
    "generator of another type": (
        lambda: D.from_generator(lambda: iter(["a"]), tf.int64),
        tf.errors.InvalidArgumentError,
    ),
    "generator of another shape": (
        lambda: D.from_generator(lambda: iter([[1, 2]]), tf.int64, [3]),
        tf.errors.InvalidArgumentError,
    ),
    "generator that fails": (lambda: D.from_generator(lambda: (1 / 0 for _ in "a"), tf.int64), tf.errors.UnknownError),
    "index of a shard": (lambda: D.range(3).shard(2, 2), tf.errors.InvalidArgumentError),
    "step of a range": (lambda: D.range(0, 5, 0), tf.errors.InvalidArgumentError),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    make, kind = ERRORS[name]
    following = make().make_one_shot_iterator().get_next()
    with tf.Session() as sess, pytest.raises(kind):
        sess.run(following)


MISTAKES = {
    "flat_map": (lambda: D.range(3).flat_map(lambda n: n), AttributeError, "must return a `Dataset`"),
    "filter": (lambda: D.range(3).filter(lambda n: n), ValueError, "boolean"),
    "zip of a list": (lambda: D.zip([D.range(3)]), TypeError, "tuple"),
    "slices of a scalar": (lambda: D.from_tensor_slices(1), ValueError, "scalar"),
    "slices of different lengths": (lambda: D.from_tensor_slices(([1], [1, 2])), ValueError, "not compatible"),
    "iter": (lambda: iter(D.range(3)), RuntimeError, "eager"),
    "apply": (lambda: D.range(3).apply(lambda d: 1), TypeError, "Dataset"),
    "concatenate": (lambda: D.range(3).concatenate(D.from_tensors(1.0)), TypeError, "types"),
    "an option": (lambda: setattr(tf.data.Options(), "no_such", 1), AttributeError, "no_such"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    make, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message):
        make()


class Slow:
    """A dataset whose elements come when the test says so."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.dataset = D.from_generator(self._elements, tf.int64, [])

    def _elements(self) -> Iterator[int]:
        self.begun.set()
        assert self.go.wait(60)
        yield from range(9)


def test_a_deadline_ends_the_wait() -> None:
    slow = Slow()
    following = slow.dataset.prefetch(1).make_one_shot_iterator().get_next()
    with tf.Session() as sess:
        with pytest.raises(tf.errors.DeadlineExceededError):
            sess.run(following, options=tf.RunOptions(timeout_in_ms=50))
        slow.go.set()
        assert sess.run(following) == 0


def test_closing_the_session_ends_the_wait() -> None:
    slow = Slow()
    following = slow.dataset.prefetch(1).make_one_shot_iterator().get_next()
    sess = tf.Session()

    def close() -> None:
        assert slow.begun.wait(60)
        sess.close()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(tf.errors.CancelledError):
        sess.run(following)
    slow.go.set()
    closing.join()


def test_closing_the_session_stops_all_threads() -> None:
    dataset = D.range(1000).map(lambda n: n * 2, num_parallel_calls=3).prefetch(4)
    dataset = dataset.interleave(lambda n: D.range(n).prefetch(2), 4, num_parallel_calls=4).shuffle(8).prefetch(2)
    following = dataset.make_one_shot_iterator().get_next()
    with tf.Session() as sess:
        sess.run(following)
        assert any(t.name == "penstock-data" for t in threading.enumerate())


def test_abandoned_datasets_stop_their_threads() -> None:
    dataset = D.range(50).flat_map(lambda _: D.range(10**9).prefetch(2).take(1))
    following = dataset.make_one_shot_iterator().get_next()
    with tf.Session() as sess:
        for _ in range(50):
            sess.run(following)
        late = time.monotonic() + 60
        while (count := sum(t.name == "penstock-data" for t in threading.enumerate())) > 2 and time.monotonic() < late:
            time.sleep(0.01)
        assert count <= 2


def test_steps_in_many_threads_share_the_elements() -> None:
    following = D.range(200).map(lambda n: n + 1, num_parallel_calls=2).make_one_shot_iterator().get_next()
    found: list[int] = []

    def take() -> None:
        try:
            while True:
                found.append(sess.run(following))
        except tf.errors.OutOfRangeError:
            pass

    with tf.Session() as sess:
        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == list(range(1, 201))


def test_reduce_and_single_elements() -> None:
    total = D.range(5).reduce(np.int64(0), lambda s, n: s + n)
    growing = D.range(3).reduce(np.zeros(0, np.int64), lambda s, n: tf.concat([s, [n]], 0))
    assert growing.shape.as_list() == [None]
    only = tf.data.experimental.get_single_element(D.range(3).batch(9))
    none = tf.data.experimental.get_single_element(D.range(0))
    with tf.Session() as sess:
        assert sess.run(total) == 10 and sess.run(growing).tolist() == sess.run(only).tolist()[:0] + [0, 1, 2]
        with pytest.raises(tf.errors.InvalidArgumentError, match="empty"):
            sess.run(none)


def test_cardinality() -> None:
    base = D.range(10)
    counts = {
        10: base.shuffle(3).map(lambda n: n),
        3: base.batch(4),
        2: base.batch(4, True),
        20: base.repeat(2),
        -1: base.repeat(),
        7: base.repeat().take(7),
        4: base.shard(3, 0).skip(2).concatenate(D.range(2)),
        -2: base.filter(lambda n: n > 1),
        5: D.zip((base, D.range(5))),
    }
    tensors = {n: tf.data.experimental.cardinality(d) for n, d in counts.items()}
    with tf.Session() as sess:
        assert sess.run(tensors) == {n: n for n in counts}


def test_a_graph_with_datasets_travels() -> None:
    dataset = D.range(6).map(lambda n: n * 3).filter(lambda n: n > 4).flat_map(lambda n: D.range(n).take(1)).batch(2)
    dataset.make_one_shot_iterator().get_next(name="one")
    dataset.make_initializable_iterator().get_next(name="two")
    message = tf.get_default_graph().as_graph_def().SerializeToString()
    with tf.Graph().as_default():
        tf.import_graph_def(tf.GraphDef.FromString(message), name="")
        with tf.Session() as sess:
            sess.run("MakeIterator")
            assert [v.tolist() for v in sess.run(["one:0", "two:0"])] == [[0, 0], [0, 0]]


def test_what_is_fetched_belongs_to_the_caller() -> None:
    following = D.from_tensors(np.zeros(3)).repeat().make_one_shot_iterator().get_next()
    with tf.Session() as sess:
        sess.run(following)[:] = 1
        assert sess.run(following).tolist() == [0, 0, 0]


def test_elements_of_many_shapes_are_not_compiled_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    trace = Segment._trace
    monkeypatch.setattr(Segment, "_trace", lambda self, *args: traced.append(self.name) or trace(self, *args))
    dataset = D.range(1, 60).map(lambda n: tf.fill([n], n))
    dataset = dataset.map(lambda v: (tf.reduce_sum(v * 2), v[:-1] / 0, tf.size(v)))
    following = dataset.make_one_shot_iterator().get_next()
    with tf.Session() as sess:
        for n in range(1, 60):
            total, divided, size = sess.run(following)
            assert (total, size, np.isinf(divided).all()) == (2 * n * n, n, True)
            assert (total.dtype, divided.dtype, size.dtype) == (np.int64, np.float64, np.int32)
    assert len(traced) < 20, "each takes 0.1 s to compile"


def test_a_session_that_is_left_open_does_not_disturb_the_end_of_the_program() -> None:
    program = """
import numpy as np, penstock.v1 as tf
rows = tf.data.Dataset.from_tensor_slices(np.ones((9, 50000), np.float32)).repeat()
rows = rows.map(lambda v: tf.nn.relu(v) / 255, num_parallel_calls=3).batch(4).prefetch(2)
following, sess = rows.make_one_shot_iterator().get_next(), tf.Session()
print(sess.run(following).shape)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "(4, 50000)\n"), ended.stderr
