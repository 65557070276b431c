"""Sessions that survive lost tasks, tested without tasks: what they retry, for how long, and which threads wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock.v1 as tf
from penstock import logging
from penstock.train import step_memory
from penstock.train.recovery import RecoveringSession, RetryLimit, retry_while_lost
from penstock.train.step_memory import StepMemory

LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)


@pytest.fixture(autouse=True)
def a_graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


class Losing(tf.Session):
    """A session that loses its cluster in some of its steps."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__()
        self._errors = errors

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self._check_open()
        if self._errors:
            raise self._errors.pop(0)
        return super().run(*args, **kwargs)


def _sessions(errors: list[Exception], again: list[bool]) -> Callable[[bool], tf.Session]:
    def make(recovers: bool) -> tf.Session:
        again.append(recovers)
        return Losing(errors)

    return make


@pytest.mark.parametrize("lost", LOST)
def test_a_step_is_run_again_in_a_new_session(lost: type[tf.errors.OpError]) -> None:
    made: list[bool] = []
    x = tf.placeholder(tf.float32)
    errors: list[Exception] = [lost(None, None, "gone"), lost(None, None, "gone again")]
    with RecoveringSession(_sessions(errors, made), lambda: True) as session:
        assert isinstance(session, tf.Session) and tf.get_default_session() is session
        assert session.graph is tf.get_default_graph() and session.sess_str == b""
        assert session.run(x * 2.0, {x: 3.0}) == (x * 2.0).eval({x: 3.0}) == 6.0
        assert session.make_callable(x + 1.0, [x])(1.0) == 2.0
        assert len(session.list_devices()) >= 1
        inner = session._inner
    assert made == [False, True, True]
    assert inner._closed
    with pytest.raises(RuntimeError, match="closed Session"):
        session.run(x, {x: 1.0})


def test_other_errors_and_steps_with_a_limit_are_the_callers_matter() -> None:
    made: list[bool] = []
    gone = tf.errors.UnavailableError(None, None, "gone")
    errors = [ValueError("mine"), tf.errors.CancelledError(None, None, "mine"), gone]
    with RecoveringSession(_sessions(errors, made), lambda: True) as session:
        one = tf.constant(1.0)
        for kind in (ValueError, tf.errors.CancelledError):
            with pytest.raises(kind, match="mine"):
                session.run(one)
        with pytest.raises(tf.errors.UnavailableError):
            session.run(one, options=tf.RunOptions(timeout_in_ms=1000))
        assert session.run(one) == 1.0
    assert made == [False]


def test_what_is_lost_is_tried_again() -> None:
    tries: list[int] = []

    def make() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise tf.errors.UnavailableError(None, None, "gone")
        return 7

    assert retry_while_lost(make) == 7 and len(tries) == 3


def test_nobody_recovers_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_START_TIMEOUT_SECS", "0.3")

    def make() -> None:
        raise tf.errors.UnavailableError(None, None, "gone")

    with pytest.raises(tf.errors.UnavailableError, match="gone"):
        retry_while_lost(make)
    # Once the training is to stop, nothing is retried.
    with pytest.raises(tf.errors.UnavailableError, match="gone"):
        retry_while_lost(make, RetryLimit(), lambda: False)

    def make_once(again: bool) -> tf.Session:
        if again:
            make()
        return Losing([tf.errors.AbortedError(None, None, "was restarted")])

    with RecoveringSession(make_once, lambda: True) as session:
        for _ in range(2):
            with pytest.raises(tf.errors.UnavailableError, match="gone"):
                session.run(tf.constant(1.0))


def test_threads_wait_while_one_of_them_recovers() -> None:
    queue = tf.FIFOQueue(1, tf.float32)
    wait, put = queue.dequeue(), queue.enqueue(7.0)
    errors: list[Exception] = []
    made: list[bool] = []
    got: list[Any] = []
    with RecoveringSession(_sessions(errors, made), lambda: True) as session:
        session.run(put)
        assert session.run(wait) == 7.0
        thread = threading.Thread(target=lambda: got.append(session.run(wait)))
        thread.start()
        while not session._inner._master.running:  # it waits in the queue, which is lost with its session
            threading.Event().wait(0.001)
        errors.append(tf.errors.AbortedError(None, None, "was restarted"))
        session.run(put)
        thread.join(60)
    assert got == [7.0] and made == [False, True]


def test_a_step_that_ends_well_while_another_thread_begins_to_recover() -> None:
    begun, end = threading.Event(), threading.Event()

    class Ending(Losing):
        """A session in which the step of a slow thread ends just as the session is closed."""

        def run(self, *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is slow:
                begun.set()
                assert end.wait(60)
                return 2.0
            return super().run(*args, **kwargs)

        def close(self) -> None:
            end.set()
            slow.join(60)
            super().close()

    one, got = tf.constant(1.0), []
    errors: list[Exception] = [tf.errors.UnavailableError(None, None, "gone")]
    with RecoveringSession(lambda again: Ending(errors), lambda: True) as session:
        slow = threading.Thread(target=lambda: got.append(session.run(one)))
        slow.start()
        assert begun.wait(60)
        assert session.run(one) == 1.0
    assert got == [2.0]


def test_a_session_that_is_closed_does_not_come_back() -> None:
    recovering, closed = threading.Event(), threading.Event()
    made = []

    def make(again: bool) -> tf.Session:
        if again:
            recovering.set()
            assert closed.wait(60)
        made.append(Losing([tf.errors.AbortedError(None, None, "was restarted")] * (not again)))
        return made[-1]

    def run() -> None:
        with pytest.raises(RuntimeError, match="closed Session"):
            session.run(one)

    one = tf.constant(1.0)
    session = RecoveringSession(make, lambda: True)
    thread = threading.Thread(target=run)
    thread.start()
    assert recovering.wait(60)
    session.close()
    closed.set()
    thread.join(60)
    assert [s._closed for s in made] == [True, True]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: said.append(text % args))
    return said


def _at(step: int) -> Losing:
    """A session whose global step is `step`."""
    session = Losing([])
    session.run(tf.assign(tf.train.get_or_create_global_step(), step))
    return session


@pytest.mark.parametrize("directory", [False, True])
def test_steps_that_are_lost_are_counted(
    directory: bool, tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_memory, "_EVERY", 3600.0)
    where = str(tmp_path) if directory else None
    memory = StepMemory(tf.train.get_or_create_global_step(), where)
    with _at(5) as session:
        memory.compare(session)
    for step in (0, 1208, 1300):  # the last one comes too soon to be read
        with _at(step) as session:
            memory.note(session)
    with _at(1208) as session:
        memory.compare(session)
    assert not warnings  # nothing is lost yet
    with _at(72) as session:
        memory.compare(session)
        memory.compare(session)
    (said,) = warnings
    missing = f"no checkpoint in {where} yet" if directory else "no checkpoint directory"
    assert "ALL TRAINING SO FAR IS LOST: at least 1136 steps" in said and missing in said and "at step 72" in said


def test_steps_after_the_last_checkpoint_are_counted(tmp_path: Path, warnings: list[str]) -> None:
    step = tf.train.get_or_create_global_step()
    memory = StepMemory(step, str(tmp_path))
    with _at(100) as session:
        path = tf.train.Saver().save(session, str(tmp_path / "model"))
    with _at(130) as session:
        memory.note(session)
    with _at(100) as session:
        memory.compare(session)
    (said,) = warnings
    assert said == f"The model is that of {path} again, at step 100: at least 30 steps that came after it are lost."


def test_looking_at_the_step_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> None:
    monkeypatch.setattr(step_memory, "_EVERY", 0.0)
    memory = StepMemory(tf.train.get_or_create_global_step(), None)
    with _at(7) as session:
        memory.note(session)
        session._errors.append(tf.errors.UnavailableError(None, None, "gone"))
        memory.note(session)
    memory.note(session)  # the session is closed
    with _at(6) as session:
        memory.compare(session)
    assert len(warnings) == 1
    StepMemory(None, None).note(session)  # a program that does not count its steps
    StepMemory(None, None).compare(session)
