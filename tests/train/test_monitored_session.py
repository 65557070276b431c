"""Monitored sessions: initialising, restoring, hooks, recovery after failures, and a clean end."""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event

import penstock.v1 as tf
from penstock import records
from penstock.summary.writer import FileWriterCache


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Checks that every thread of a test has ended when the test is over."""
    before = set(threading.enumerate())
    with tf.Graph().as_default():
        yield
    FileWriterCache.clear()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread.name


def _counter() -> tuple[Any, Any]:
    step = tf.train.get_or_create_global_step()
    return step, tf.assign_add(step, 1).op


class _Log(tf.train.SessionRunHook):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append("create")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.calls.append("run")

    def end(self, session: Any) -> None:
        self.calls.append("end")


def _events(directory: Path) -> list[Event]:
    return [Event.FromString(r) for path in glob.glob(f"{directory}/events.*") for r in records.read(path)]


def test_training_is_saved_summarised_counted_and_goes_on(tmp_path: Path) -> None:
    def train(last: int) -> list[int]:
        with tf.Graph().as_default():
            step, op = _counter()
            tf.summary.scalar("twice", step * 2)
            hooks = [tf.train.StopAtStepHook(last_step=last)]
            seen = []
            with tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path),
                hooks=hooks,
                save_checkpoint_steps=4,
                save_summaries_steps=2,
                log_step_count_steps=3,
            ) as session:
                while not session.should_stop():
                    session.run(op)
                    seen.append(int(session.run(step)) if not session.should_stop() else last)
            return seen

    assert train(6)[-1] == 6
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "model.ckpt-6")
    assert train(9)[0] == 7
    FileWriterCache.clear()
    events = _events(tmp_path)
    tags = {value.tag for event in events for value in event.summary.value}
    assert {"twice", "global_step/sec"} <= tags
    assert any(event.graph_def for event in events) and any(event.HasField("session_log") for event in events)
    assert (tmp_path / "graph.pbtxt").exists()


@pytest.mark.parametrize("error", [tf.errors.AbortedError, tf.errors.UnavailableError])
def test_a_lost_task_makes_a_new_session(tmp_path: Path, error: type[tf.errors.OpError]) -> None:
    step, op = _counter()
    fail_at = [3, 5]

    class Failing(tf.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            return tf.train.SessionRunArgs(step)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if fail_at and run_values.results >= fail_at[0]:
                fail_at.pop(0)
                raise error(None, None, "the task is gone")

    log = _Log()
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path),
        save_checkpoint_steps=1,
        hooks=[tf.train.StopAtStepHook(last_step=8), Failing(), log],
    ) as session:
        while not session.should_stop():
            session.run(op)
    assert log.calls.count("create") == 3 and log.calls[-1] == "end"
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "model.ckpt-8")


def test_errors_skip_end_and_the_end_of_input_does_not() -> None:
    for error, calls in ((ValueError("x"), []), (tf.errors.OutOfRangeError(None, None, "x"), ["end"])):
        with tf.Graph().as_default():
            op = _counter()[1]
            log = _Log()
            try:
                with tf.train.MonitoredSession(hooks=[log]) as session:
                    session.run(op)
                    raise error
            except ValueError:
                pass
            assert log.calls == ["begin", "create", "run", *calls]


def test_a_hook_that_raises_closes_everything() -> None:
    op = _counter()[1]
    queue = tf.FIFOQueue(2, tf.int32)
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(1)]))

    class Bad(tf.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), tf.train.MonitoredSession(hooks=[Bad()]) as session:
        session.run(op)


def test_an_error_of_a_queue_runner_reaches_the_training() -> None:
    queue = tf.FIFOQueue(2, tf.float32)
    bad = tf.placeholder_with_default(np.float32(-1.0), [])
    with tf.control_dependencies([tf.assert_positive(bad)]):
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(bad)]))
    value = queue.dequeue()
    with pytest.raises(tf.errors.InvalidArgumentError), tf.train.MonitoredSession() as session:
        session.run(value)


def test_hooks() -> None:
    step, op = _counter()
    x = tf.placeholder(tf.float32, [])
    loss = x * 2.0
    values = iter([1.0, 2.0, np.nan, 4.0])
    feed = tf.train.FeedFnHook(lambda: {x: next(values)})
    final = tf.train.FinalOpsHook(step * 10)
    lines: list[str] = []

    def note(values: dict[str, Any]) -> str:
        lines.append(str(values["loss"]))
        return ""

    hooks = [
        feed,
        final,
        tf.train.NanTensorHook(loss, fail_on_nan_loss=False),
        tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=1, formatter=note),
    ]
    with tf.train.MonitoredSession(hooks=hooks) as session:
        while not session.should_stop():
            session.run(op)
    assert lines == ["2.0", "4.0", "nan"] and final.final_ops_values == 30
    with tf.Graph().as_default():
        op = _counter()[1]
        nan = tf.constant(np.nan)
        with (
            pytest.raises(tf.train.NanLossDuringTrainingError),
            tf.train.MonitoredSession(hooks=[tf.train.NanTensorHook(nan)]) as session,
        ):
            session.run(op)


def test_profiler_and_step_fn(tmp_path: Path) -> None:
    step, op = _counter()
    hooks = [tf.train.ProfilerHook(save_steps=1, output_dir=str(tmp_path)), tf.train.StopAtStepHook(num_steps=3)]

    def step_fn(step_context: Any) -> Any:
        before = step_context.session.run(step)
        step_context.run_with_hooks(op)
        return before

    with tf.train.MonitoredSession(hooks=hooks) as session:
        seen = []
        while not session.should_stop():
            seen.append(session.run_step_fn(step_fn))
    assert seen == [0, 1, 2] and len(os.listdir(tmp_path)) == 2


def test_scaffold_and_init_fn(tmp_path: Path) -> None:
    v = tf.Variable(1.0, name="v")
    local = tf.Variable(v.initialized_value() + 1.0, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    scaffold = tf.train.Scaffold(init_fn=lambda scaffold, session: v.load(5.0, session))
    with tf.train.SingularMonitoredSession(scaffold=scaffold) as session:
        assert session.run([v, local]) == [5.0, 6.0]
        assert session.raw_session().graph is v.graph
    with tf.Graph().as_default():
        for _ in range(2):
            tf.add_to_collection(tf.GraphKeys.INIT_OP, tf.no_op())
        with pytest.raises(RuntimeError, match="More than one item"):
            tf.train.Scaffold().finalize()


def test_a_worker_that_waits_says_for_what() -> None:
    tf.Variable(1.0, name="w")
    ready = tf.report_uninitialized_variables()
    manager = tf.train.SessionManager(ready_op=ready, recovery_wait_secs=0.05)
    with pytest.raises(tf.errors.DeadlineExceededError, match="not initialized: w"):
        manager.wait_for_session("", max_wait_secs=0.2)
    with pytest.raises(RuntimeError, match="did not make model ready"):
        manager.prepare_session("", init_op=tf.no_op())
    with pytest.raises(RuntimeError, match="no init_op"):
        manager.prepare_session("")


def test_supervisor(tmp_path: Path) -> None:
    step, op = _counter()
    tf.summary.scalar("step", step)
    sv = tf.train.Supervisor(logdir=str(tmp_path), save_model_secs=0.1, save_summaries_secs=0.1, global_step=step)
    calls = []
    with sv.managed_session() as session:
        sv.loop(0.05, lambda: calls.append(1))
        saved = threading.Event()
        while not sv.should_stop():
            session.run(op)
            if not (tf.train.latest_checkpoint(tmp_path) or "-0").endswith("-0") and len(calls) > 1:
                sv.summary_writer.flush()
                if any(v.tag == "step" for event in _events(tmp_path) for v in event.summary.value):
                    saved.set()
                    sv.request_stop()
    assert saved.is_set() and sv.should_stop()
    with tf.Graph().as_default():
        step, op = _counter()
        again = tf.train.Supervisor(logdir=str(tmp_path), summary_op=None)
        with again.managed_session() as session:
            assert session.run(step) >= 1


def test_an_error_in_a_managed_session_comes_out() -> None:
    _counter()
    sv = tf.train.Supervisor(logdir=None)
    with pytest.raises(ValueError, match="mine"), sv.managed_session() as session:
        assert session.run(tf.train.get_global_step()) == 0
        raise ValueError("mine")
    with tf.Graph().as_default():
        _counter()
        sv = tf.train.Supervisor()
        with sv.managed_session():
            raise tf.errors.OutOfRangeError(None, None, "the end of input")


def test_logged_values_have_the_digits_of_their_type(caplog):
    with tf.Graph().as_default():
        values = {"loss": tf.constant(0.1) * 0.1, "small": tf.constant([1e-5, 1.0]), "step": tf.constant(3)}
        hook = tf.train.LoggingTensorHook(values, every_n_iter=1)
        with caplog.at_level("INFO", "penstock"), tf.train.MonitoredSession(hooks=[hook]) as session:
            session.run(values["step"])
    assert caplog.messages[-1] == "loss = 0.010000001, small = [0.00001 1.     ], step = 3"


def test_a_worker_waits_for_a_step_or_for_the_end() -> None:
    step = tf.train.get_or_create_global_step()
    forward = tf.assign_add(step, 5)
    coord, reached = tf.train.Coordinator(), []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())

        def wait(hook: Any) -> threading.Thread:
            hook.begin()
            hook.after_create_session(session, coord)
            context = tf.train.SessionRunContext(tf.train.SessionRunArgs(None), session)
            thread = threading.Thread(target=lambda: reached.append(hook.before_run(context)))
            thread.start()
            return thread

        first, second = (wait(tf.train.GlobalStepWaiterHook(wanted)) for wanted in (5, 6))
        session.run(forward)
        first.join(30)
        assert len(reached) == 1 and second.is_alive()
        coord.request_stop()
        second.join(30)
        assert len(reached) == 2
