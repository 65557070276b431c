"""tf.data.Shards in sessions of this process: loops, datasets, checkpoints, and what is refused."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.ops.queue.shard_resources import Shards as ShardsResource

DEADLINE = 60.0
_names = itertools.count()
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with tf.train.Server.create_local_server() as server:
        yield server.target


@pytest.fixture
def name() -> str:
    """A name that no other test on the same server has used."""
    return f"shards{next(_names)}"


class Worker:
    """A worker with a graph and a session of its own."""

    def __init__(self, target: str, *args: Any, **settings: Any) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.shards = tf.data.Shards(*args, **settings)
            self.session = tf.Session(target)
            self.init = tf.global_variables_initializer()
            self.saver = tf.train.Saver()

    def next(self) -> Any:
        return next(self.taken)

    def __enter__(self) -> Worker:
        self.taken = self.shards.taken(self.session)
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def progress(self) -> tuple[int, int, int]:
        return tuple(map(int, self.session.run(self.shards.progress())))  # type: ignore[return-value]


def train(make: Callable[[], Any], target: str = "", **settings: Any) -> list[Any]:
    """The values of all steps of a MonitoredTrainingSession; `make` returns shards and what a step fetches."""
    with tf.Graph().as_default():
        shards, fetches = make()
        found = []
        with tf.train.MonitoredTrainingSession(target, hooks=[shards.make_session_run_hook()], **settings) as session:
            while not session.should_stop():
                found.append(session.run(fetches))
        return found


def test_a_loop_gets_ranges_of_nearly_equal_length() -> None:
    with Worker("", 10, 3, epochs=2) as worker:
        worker.session.run(worker.init)
        first = [worker.next() for _ in range(4)]
        assert [(s.index, s.epoch, s.start, s.stop) for s in first] == [
            (0, 0, 0, 3),
            (1, 0, 3, 6),
            (2, 0, 6, 10),
            (0, 1, 0, 3),
        ]
        assert worker.progress() == (1, 0, 1)
        assert [s.index for s in worker.taken] == [1, 2]
        assert worker.progress() == (2, 3, 0)


def test_files_are_shards_or_are_dealt_to_shards() -> None:
    for count, files in ((None, [("a",), ("b",), ("c",)]), (2, [("a",), ("b", "c")])):
        with Worker("", ["a", "b", "c"], count) as worker:
            worker.session.run(worker.init)
            assert [s.files for s in worker.taken] == files


@pytest.mark.parametrize("on_server", [False, True])
def test_a_dataset_of_the_records_of_shards(on_server: bool, target: str, name: str) -> None:
    def make() -> Any:
        shards = tf.data.Shards(10, 3, epochs=2, name=name)
        dataset = shards.dataset(lambda start, stop: tf.data.Dataset.range(start, stop).batch(2))
        iterator = tf.data.make_initializable_iterator(dataset, shared_name=name)
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return shards, iterator.get_next()

    epoch = [[0, 1], [2], [3, 4], [5], [6, 7], [8, 9]]
    assert [batch.tolist() for batch in train(make, target if on_server else "")] == epoch * 2


def test_a_dataset_of_the_lines_of_files(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{i}.txt") for i in range(3)]
    for i, file in enumerate(files):
        Path(file).write_text("".join(f"{i}{line}\n" for line in "ab"[:i]))

    def make() -> Any:
        shards = tf.data.Shards(files)
        return shards, tf.data.make_one_shot_iterator(shards.dataset(tf.data.TextLineDataset)).get_next()

    assert train(make) == [b"1a", b"2a", b"2b"]  # the first file is empty


def test_several_elements_in_a_step() -> None:
    def make() -> Any:
        shards = tf.data.Shards(8, 4, epochs=2)
        iterator = tf.data.make_one_shot_iterator(shards.dataset(tf.data.Dataset.range))
        return shards, [iterator.get_next() for _ in range(2)]

    assert sorted(record for step in train(make) for record in step) == sorted([*range(8)] * 2)


def test_an_iterator_that_begins_again_gives_its_shard_back() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        shards = tf.data.Shards(4, 2)
        dataset = shards.dataset(tf.data.Dataset.range)
        iterator = tf.data.make_initializable_iterator(dataset)
        record = iterator.get_next()
        session.run(tf.global_variables_initializer())
        shards.attach(session)
        session.run(iterator.initializer)
        assert session.run(record) == 0
        session.run(iterator.initializer)
        assert [session.run(record) for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(record)


def test_what_a_session_has_not_done_goes_back_when_it_is_closed(target: str, name: str) -> None:
    with Worker(target, 9, 3, name=name) as first, Worker(target, 9, 3, name=name) as second:
        first.session.run(first.init)
        assert (first.next().index, second.next().index) == (0, 1)
        assert (first.next().index, second.progress()) == (2, (0, 1, 2))
        waits = threading.Thread(target=lambda: found.extend(s.index for s in second.taken))
        found: list[int] = []
        waits.start()  # it does shard 1, and waits for what becomes of shard 2
        first.session.close()
        waits.join(DEADLINE)
        assert found == [2] and second.progress() == (1, 3, 0)


def test_a_worker_that_stands_still_loses_its_shard_to_one_that_waits(
    target: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"lease_secs": 0.05, "name": name}
    with Worker(target, 2, 2, **settings) as idle, Worker(target, 2, 2, **settings) as busy:
        idle.session.run(idle.init)
        assert idle.next().index == 0
        assert [s.index for s in busy.taken] == [1, 0]
        assert list(idle.taken) == []
        assert "does not count as done" in caplog.text


def test_steps_keep_the_shard_of_a_worker() -> None:
    """With a time that passes between any two steps, the hook asks for more before each of them."""
    with tf.Graph().as_default(), tf.train.Server.create_local_server() as server:
        shards = tf.data.Shards(6, 2, lease_secs=1e-6)
        record = tf.data.make_one_shot_iterator(shards.dataset(tf.data.Dataset.range)).get_next()
        dues = []
        with tf.train.MonitoredTrainingSession(server.target, hooks=[shards.make_session_run_hook()]) as session:
            for expected in range(6):
                assert session.run(record) == expected
                resources = [r for device in server.worker.devices for _, r in device.resources.items()]
                (resource,) = (r for r in resources if isinstance(r, ShardsResource))
                dues.append(resource.leases.next_due())
        assert dues == sorted(set(dues))


def test_reports_that_are_refused(target: str, name: str) -> None:
    with Worker(target, 2, 2, name=name) as first, Worker(target, 2, 2, name=name) as second:
        first.session.run(first.init)
        mine, theirs = first.shards, second.shards
        lease, _, _ = first.session.run(mine._take)
        with pytest.raises(tf.errors.FailedPreconditionError, match="held by this process, and was reported done"):
            second.session.run(theirs._finish, {theirs._lease: lease})
        first.session.run(mine._finish, {mine._lease: lease})
        with pytest.raises(tf.errors.FailedPreconditionError, match="Its shard was reported done before"):
            first.session.run(mine._finish, {mine._lease: lease})
        lease, _, _ = first.session.run(mine._take)
        first.session.run(mine._take)
        with pytest.raises(tf.errors.FailedPreconditionError, match="or it went back"):
            first.session.run(mine._finish, {mine._lease: lease})
        with pytest.raises(tf.errors.InvalidArgumentError, match="at least 1, received -3"):
            first.session.run(mine._finish, {mine._lease: -3})
        assert first.progress() == (0, 1, 1)


def test_a_wait_that_takes_too_long_names_who_has_the_shards(target: str, name: str) -> None:
    settings = {"deadline_secs": 0.05, "name": name}
    with Worker(target, 2, 2, **settings) as first, Worker(target, 2, 2, **settings) as second:
        first.session.run(first.init)
        assert (first.next().index, second.next().index) == (0, 1)
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"shard 0 of epoch 0 \(this process\)"):
            second.next()
        assert [s.index for s in first.taken] == []  # and the iteration that has failed can be asked again
        with pytest.raises(StopIteration):
            second.next()


def test_a_checkpoint_keeps_what_is_done(tmp_path: Path) -> None:
    with Worker("", 6, 3, epochs=2, seed=1) as worker:
        worker.session.run(worker.init)
        before = [worker.next().index for _ in range(4)]
        path = worker.saver.save(worker.session, str(tmp_path / "model"))
    with Worker("", 6, 3, epochs=2, seed=1) as worker:
        worker.saver.restore(worker.session, path)
        after = [(s.epoch, s.index) for s in worker.taken]
    assert sorted(before[:3]) == [0, 1, 2]
    assert after[0] == (1, before[3]) and sorted(after) == [(1, 0), (1, 1), (1, 2)]


def test_a_restore_ends_leases_even_if_it_changes_no_count(tmp_path: Path) -> None:
    with Worker("", 4, 2) as worker:
        worker.session.run(worker.init)
        assert worker.next().index == 0
        path = worker.saver.save(worker.session, str(tmp_path / "model"))
        worker.saver.restore(worker.session, path)
        assert [s.index for s in worker.taken] == [0, 1]


def test_shards_that_nobody_has_initialised() -> None:
    with Worker("", 4, 2) as worker, pytest.raises(tf.errors.FailedPreconditionError, match=r"uninitialized.*done"):
        worker.next()


def test_workers_must_ask_for_the_same_shards(target: str, name: str) -> None:
    with Worker(target, 4, 2, name=name) as worker:
        worker.session.run(worker.init)
        worker.next()
    with Worker(target, 4, 2, epochs=3, seed=5, name=name) as other:
        message = "has 2 shards, epochs 1, seed None, lease_secs inf, received 2 shards, epochs 3, seed 5"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            other.next()


@pytest.mark.parametrize(
    ("args", "settings", "says"),
    [
        ((10,), {}, "num_shards must be given"),
        ((0, 1), {}, "records .* at least 1.* 0"),
        ((10, 0), {}, "num_shards .* at least 1.* 0"),
        ((10, 11), {}, "at most the number of records, 10, received 11"),
        (([],), {}, "records .* at least 1"),
        (("a.txt",), {}, "a list of files, received 'a.txt'"),
        ((10, 2), {"epochs": 0}, "epochs .* at least 1"),
        ((10, 2), {"seed": -1}, "seed .* at least 0"),
        ((10, 2), {"lease_secs": 0}, "lease_secs must be above 0"),
        ((10, 2), {"lease_secs": float("nan")}, "lease_secs must be above 0"),
        ((10, 2), {"deadline_secs": 0}, "deadline_secs"),
    ],
)
def test_bad_arguments(args: Any, settings: Any, says: str) -> None:
    with tf.Graph().as_default(), pytest.raises((ValueError, TypeError), match=says):
        tf.data.Shards(*args, **settings)


def test_a_dataset_without_a_session_says_what_to_add() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        shards = tf.data.Shards(4, 2)
        dataset = shards.dataset(tf.data.Dataset.range)
        with pytest.raises(tf.errors.UnknownError, match="make_session_run_hook"):
            session.run(tf.data.make_one_shot_iterator(dataset).get_next())


def test_shards_have_one_dataset_or_one_loop() -> None:
    with Worker("", 4, 2) as worker, worker.graph.as_default():
        worker.shards.dataset(tf.data.Dataset.range)
        with pytest.raises(ValueError, match="go to a dataset already"):
            worker.shards.dataset(tf.data.Dataset.range)
        with pytest.raises(ValueError, match="A loop needs shards of another name"):
            worker.shards.taken(worker.session)


def test_a_supervisor_and_a_dataset(target: str, name: str) -> None:
    with tf.Graph().as_default():
        shards = tf.data.Shards(4, 2, name=name)
        dataset = shards.dataset(tf.data.Dataset.range)
        iterator = tf.data.make_initializable_iterator(dataset, shared_name=name)
        record = iterator.get_next()
        supervisor = tf.train.Supervisor(local_init_op=iterator.initializer)
        found = []
        with supervisor.managed_session(target) as session:
            shards.attach(session)
            while not supervisor.should_stop():
                found.append(int(session.run(record)))
        assert np.array_equal(found, range(4))
