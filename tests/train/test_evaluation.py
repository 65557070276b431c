"""Evaluation of checkpoints as they appear, and basic_train_loop."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import penstock.v1 as tf

training = tf.contrib.training


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Any:
    before = set(threading.enumerate())
    with tf.Graph().as_default():
        yield
    tf.summary.FileWriterCache.clear()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread.name


def _save(folder: Path, *values: float) -> list[str]:
    with tf.Graph().as_default(), tf.Session() as session:
        v, step = tf.Variable(0.0, name="v"), tf.train.create_global_step()
        saver = tf.train.Saver()
        paths = []
        for i, value in enumerate(values):
            session.run([v.initializer, step.initializer])
            session.run([v.assign(value), step.assign(i)])
            paths.append(saver.save(session, str(folder / "m"), global_step=i, write_meta_graph=False))
    return paths


def test_once(tmp_path: Path) -> None:
    (path,) = _save(tmp_path, 3.0)
    v = tf.Variable(0.0, name="v")
    tf.train.create_global_step()
    tf.summary.scalar("value", v)
    mean, update = tf.metrics.mean(v)
    hooks = [training.StopAfterNEvalsHook(4), training.SummaryAtEndHook(str(tmp_path / "eval"))]
    value, steps = training.evaluate_once(
        path, eval_ops=update, final_ops=[mean, training.get_or_create_eval_step()], hooks=hooks
    )
    assert (value, steps) == (3.0, 4)
    (event,) = (tmp_path / "eval").iterdir()
    written = [v.simple_value for e in tf.train.summary_iterator(str(event)) for v in e.summary.value]
    assert written == [3.0]


def test_for_each_checkpoint(tmp_path: Path) -> None:
    _save(tmp_path, 1.0)
    v = tf.Variable(0.0, name="v")
    tf.train.create_global_step()
    seen = []

    class Next(tf.train.SessionRunHook):
        def end(self, session: Any) -> None:
            seen.append(float(session.run(v)))
            if len(seen) == 1:
                _save(tmp_path, 1.0, 2.0)

    last = training.evaluate_repeatedly(
        tmp_path,
        eval_ops={"v": v},
        final_ops=v,
        hooks=[training.StopAfterNEvalsHook(2), Next()],
        eval_interval_secs=0,
        max_number_of_evaluations=2,
        timeout=60,
    )
    assert seen == [1.0, 2.0] and last == 2.0


def test_no_checkpoint_in_time(tmp_path: Path) -> None:
    asked: list[int] = []
    found = tf.train.checkpoints_iterator(tmp_path, timeout=0, timeout_fn=lambda: asked.append(1) or len(asked) > 1)
    assert list(found) == [] and len(asked) == 2
    assert training.wait_for_new_checkpoint(tmp_path, timeout=0) is None


def test_basic_train_loop(tmp_path: Path) -> None:
    step = tf.train.create_global_step()
    train = tf.assign_add(step, 1)
    supervisor = tf.train.Supervisor(logdir=str(tmp_path), save_summaries_secs=0, save_model_secs=0)
    calls = []

    def train_step(session: Any, limit: int, lost_at: int) -> None:
        calls.append(int(session.run(train)))
        if len(calls) == lost_at:
            raise tf.errors.AbortedError(None, None, "a task is gone")
        if calls[-1] >= limit:
            supervisor.request_stop()

    tf.train.basic_train_loop(supervisor, train_step, args=(5,), kwargs={"lost_at": 3})
    assert len(calls) == 3 + 5 and calls[-1] == 5
