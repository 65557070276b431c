"""Faults in a training lead to the right exception and a helpful message; nothing is lost, and no thread is left."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.checkpoint import files


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Checks that every thread of a test ends soon after the test."""
    before = set(threading.enumerate())
    with tf.Graph().as_default():
        yield
    tf.summary.FileWriterCache.clear()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread.name


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A checkpoint of w (two floats), s (strings) and large (5 MB)."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.Variable([1.0, 2.0], name="w")
        tf.Variable(["a", "b"], name="s")
        tf.Variable(tf.ones([5 << 18]), name="large")
        session.run(tf.global_variables_initializer())
        return str(tf.train.Saver().save(session, str(tmp_path / "m"), global_step=1))


# Restoring


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize(
    ("value", "name", "kind", "message"),
    [
        ([1.0, 2.0], "other", tf.errors.NotFoundError, "check their names with tf.train.list_variables.*Key other not"),
        ([1.0, 2.0, 3.0], "w", tf.errors.InvalidArgumentError, r"another shape.*'w' has shape \(3,\).*\(2,\)"),
        ([1, 2], "w", tf.errors.InvalidArgumentError, "'w' is float32 in checkpoint .*, but int32 in the graph"),
    ],
    ids=["unknown", "other shape", "other type"],
)
def test_what_does_not_fit(
    saved: str, value: list[Any], name: str, kind: type[Exception], message: str, use_resource: bool
) -> None:
    v = tf.Variable(value, name=name, use_resource=use_resource)
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(v.initializer)
        with pytest.raises(kind, match=message) as caught:
            saver.restore(session, saved)
        assert saved in str(caught.value)
        assert session.run(v).tolist() == value


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "gone"])
def test_damaged_files(saved: str, ending: str, damage: str) -> None:
    w, s = tf.Variable([0.0, 0.0], name="w"), tf.Variable(["", ""], name="s")
    large = tf.Variable(tf.zeros([5 << 18]), name="large")
    saver = tf.train.Saver([w, s, large])
    path = Path(f"{saved}.{ending}")
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 3] ^= 1
        path.write_bytes({"cut": data[: len(data) // 2], "flipped": data, "empty": b""}[damage])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        if damage == "gone" and ending == "index":
            with pytest.raises(ValueError, match=f"not a valid checkpoint: {saved}"):
                saver.restore(session, saved)
            return
        with pytest.raises(tf.errors.DataLossError) as caught:
            saver.restore(session, saved)
        assert str(path) in str(caught.value)
        assert ending == "index" or "large" in str(caught.value)
        assert session.run(w).tolist() == [0.0, 0.0]


# Saving


def _fail(code: int) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize(
    ("where", "name", "code", "kind", "remedy"),
    [
        (files, "open", errno.EACCES, tf.errors.PermissionDeniedError, "Check who may write there"),
        (files.os, "write", errno.ENOSPC, tf.errors.ResourceExhaustedError, "Free some space and save again"),
        (files.os, "fsync", errno.ENOSPC, tf.errors.ResourceExhaustedError, "Free some space and save again"),
        (files.os, "replace", errno.EIO, tf.errors.UnknownError, "Input/output error"),
    ],
    ids=["unwritable", "full", "full at the end", "broken"],
)
def test_saves_that_fail(
    saved: str, monkeypatch: Any, where: Any, name: str, code: int, kind: type[Exception], remedy: str
) -> None:
    folder = Path(saved).parent
    there = sorted(os.listdir(folder))
    w = tf.Variable(tf.zeros([5 << 18]), name="large")
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(w.initializer)
        with monkeypatch.context() as patch:
            patch.setattr(where, name, _fail(code), raising=False)
            with pytest.raises(kind, match=remedy) as caught:
                saver.save(session, str(folder / "m"), global_step=2)
            assert str(folder) in str(caught.value)
        assert sorted(os.listdir(folder)) == there
        assert tf.train.latest_checkpoint(folder) == saved
        saver.restore(session, saved)
        assert session.run(w)[0] == 1.0
        assert saver.save(session, str(folder / "m"), global_step=2) == str(folder / "m-2")


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is unwritable to root")
def test_unwritable_directory(tmp_path: Path) -> None:
    v = tf.Variable(1.0)
    tmp_path.chmod(0o500)
    with tf.Session() as session, pytest.raises(tf.errors.PermissionDeniedError, match=str(tmp_path)):
        session.run(v.initializer)
        tf.train.Saver().save(session, str(tmp_path / "m"))


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    v = tf.Variable(1.0)
    (tmp_path / "file").write_text("")
    with tf.Session() as session, pytest.raises(tf.errors.OpError, match=f"{tmp_path}/file"):
        session.run(v.initializer)
        tf.train.Saver().save(session, str(tmp_path / "file" / "m"))


# Hooks


class _Raises(tf.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, where: str) -> None:
        self.calls: list[str] = []
        for name in ("begin", "after_create_session", "before_run", "after_run", "end"):
            setattr(self, name, self._called(name, name == where))

    def _called(self, name: str, fails: bool) -> Callable[..., None]:
        def call(*args: Any) -> None:
            self.calls.append(name)
            if fails:
                raise KeyError(f"in {name}")

        return call


@pytest.mark.parametrize("where", ["begin", "after_create_session", "before_run", "after_run", "end"])
def test_hooks_that_raise(where: str, tmp_path: Path) -> None:
    item = tf.train.range_input_producer(10).dequeue()
    step = tf.train.create_global_step()
    train = tf.group(tf.assign_add(step, 1), item)
    hook, other = _Raises(where), _Raises("")
    hooks = [other, hook, tf.train.StopAtStepHook(last_step=3)]
    with (
        pytest.raises(KeyError, match=f"in {where}"),
        tf.train.MonitoredTrainingSession(hooks=hooks, checkpoint_dir=str(tmp_path)) as session,
    ):
        while not session.should_stop():
            session.run(train)
    assert hook.calls[-1] == where
    assert ("end" in other.calls) == (where == "end")
    if where in ("before_run", "after_run", "end"):  # the training so far is not lost
        assert tf.train.latest_checkpoint(tmp_path) is not None


# Queues and files of records


@pytest.mark.parametrize("cancel", [False, True])
def test_a_queue_closed_under_a_waiting_step(cancel: bool) -> None:
    queue = tf.FIFOQueue(1, tf.int32)
    put, taken, close = queue.enqueue(1), queue.dequeue(), queue.close(cancel_pending_enqueues=cancel)
    raised: list[BaseException] = []
    with tf.Session() as session:
        if cancel:
            session.run(put)

        def wait() -> None:
            try:
                session.run(put if cancel else taken)
            except tf.errors.OpError as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        session.run(close)
        thread.join(60)
    assert [type(error) for error in raised] == [tf.errors.CancelledError if cancel else tf.errors.OutOfRangeError]
    assert "fifo_queue" in str(raised[0])


def test_a_queue_closed_under_a_training(tmp_path: Path) -> None:
    queue = tf.FIFOQueue(10, tf.int64, shapes=[[]])
    fill, close, batch = queue.enqueue_many(([1, 2, 3],)), queue.close(), queue.dequeue()
    step = tf.train.create_global_step()
    train = tf.assign_add(step, batch)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
        session.run_step_fn(lambda step_context: step_context.session.run(fill))
        session.run_step_fn(lambda step_context: step_context.session.run(close))
        for _ in range(10):
            session.run(train)
        raise AssertionError("the end of the input was not seen")
    assert int(tf.train.load_variable(tmp_path, "global_step")) == 6


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_file_of_records(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "examples.tfrecord"
    with tf.python_io.TFRecordWriter(str(path)) as writer:
        for i in range(8):
            writer.write(np.full(100, i, np.uint8).tobytes())
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data if damage == "flipped" else data[: len(data) // 2 - 5])
    names = tf.train.string_input_producer([str(path)], num_epochs=1, shuffle=False)
    _, record = tf.TFRecordReader().read(names)
    pixels = tf.train.batch([tf.reshape(tf.decode_raw(record, tf.uint8), [100])], 2)
    step = tf.train.create_global_step()
    train = tf.group(tf.assign_add(step, 1), tf.reduce_sum(pixels))
    kind = tf.errors.NotFoundError if damage == "missing" else tf.errors.DataLossError
    with (
        pytest.raises(kind, match=r"examples\.tfrecord"),
        tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path / "train")) as session,
    ):
        while not session.should_stop():
            session.run(train)
    assert tf.train.latest_checkpoint(tmp_path / "train") is not None
