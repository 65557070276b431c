"""The program of the kill sweep: a task of a small training that reports its progress to its parent.

It is a separate module so that a fork server can import it once for all tasks.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock.v1 as tf

# These are loaded at their first use; importing them here does that before the forks.
LOADED = (tf.train.Server, tf.train.SyncReplicasOptimizer, tf.layers.dense)
SAVE_EVERY = 25  # steps; a Supervisor saves every second


@dataclass(frozen=True)
class Told:
    """A report of a task: "step" when one was acknowledged, "save" when a checkpoint begins, "end" when it is done."""

    what: str
    time: float  # by time.monotonic(), which all processes of a machine share
    step: int = 0


@dataclass(frozen=True)
class Training:
    """The settings of a task."""

    cluster: dict[str, list[str]]
    folder: str
    sync: bool
    supervised: bool
    pauses: tuple[float, ...]  # seconds, for each worker, after each of its steps

    @property
    def finish(self) -> int | None:
        """The step at which the training must end, once the parent has sent it."""
        try:
            return int(Path(self.folder, "finish").read_text())
        except FileNotFoundError:
            return None


def run_task(training: Training, job: str, index: int, pipe: Any) -> None:
    """Runs one task from its start to its end."""
    log = os.open(f"{training.folder}/{job}{index}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1, sys.stderr)  # the parent asks for it if a case hangs
    logging.basicConfig(format="%(asctime)s %(threadName)s %(message)s", level=logging.DEBUG)
    tf.logging.set_verbosity(tf.logging.DEBUG)
    logging.getLogger("jax").setLevel(logging.WARNING)
    server = tf.train.Server(training.cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()

    def tell(what: str, step: int = 0) -> None:
        pipe.send(Told(what, time.monotonic(), step))

    train, step, rule = _model(training, index)
    (_supervised if training.supervised else _monitored)(training, server, index, train, step, rule, tell)
    server.stop()


def _model(training: Training, index: int) -> tuple[Any, Any, Any]:
    """Builds a network with variables on all parameter servers: the train op, global step, and sync optimizer."""
    cluster = tf.train.ClusterSpec(training.cluster)
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")):
        step = tf.train.get_or_create_global_step()
        images = tf.random_normal([16, 8])
        hidden = tf.layers.dense(images, 16, tf.nn.relu)
        loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1)))
        optimizer: Any = tf.train.AdamOptimizer(1e-3)
        if training.sync:
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, 2, 2)
        return optimizer.minimize(loss, global_step=step), step, optimizer if training.sync else None


class _Watch(tf.train.SessionRunHook, tf.train.CheckpointSaverListener):
    """Reports steps and saves, and ends the training at the step that the parent has sent."""

    def __init__(self, training: Training, step: Any, tell: Any) -> None:
        self._training, self._step, self._tell = training, step, tell

    def before_run(self, run_context: Any) -> Any:
        return tf.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._tell("step", int(run_values.results))
        finish = self._training.finish
        if finish is not None and run_context.session.run(self._step) >= finish:
            run_context.request_stop()

    def before_save(self, session: Any, global_step_value: Any) -> None:
        self._tell("save", int(global_step_value))

    def end(self, session: Any, global_step_value: Any = None) -> None:
        if global_step_value is None:  # the hook's, not the listener's
            self._tell("end", int(session.run(self._step)))


def _monitored(training: Training, server: Any, index: int, train: Any, step: Any, rule: Any, tell: Any) -> None:
    is_chief = index == 0
    watch = _Watch(training, step, tell)
    hooks: list[Any] = [watch] if rule is None else [watch, rule.make_session_run_hook(is_chief)]
    if is_chief:  # first, as in MonitoredTrainingSession, which makes one without listeners
        saver = tf.train.CheckpointSaverHook(f"{training.folder}/train", save_steps=SAVE_EVERY, listeners=[watch])
        hooks.insert(0, saver)
    with tf.train.MonitoredTrainingSession(
        server.target,
        is_chief,
        f"{training.folder}/train",
        hooks=hooks,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
        config=_filters(server),
    ) as session:
        while not session.should_stop():
            session.run(train)
            time.sleep(training.pauses[index])


def _supervised(training: Training, server: Any, index: int, train: Any, step: Any, rule: Any, tell: Any) -> None:
    is_chief = index == 0
    settings: dict[str, Any] = {}
    if rule is not None:
        own = rule.chief_init_op if is_chief else rule.local_step_init_op
        settings["local_init_op"] = tf.group(own, tf.local_variables_initializer())
        settings["ready_for_local_init_op"] = rule.ready_for_local_init_op
        runner, tokens = rule.get_chief_queue_runner(), rule.get_init_tokens_op()

    class Saver(tf.train.Saver):
        """Reports saves."""

        def save(self, *args: Any, **kwargs: Any) -> Any:
            tell("save")
            return super().save(*args, **kwargs)

    supervisor = tf.train.Supervisor(
        saver=Saver(),
        is_chief=is_chief,
        logdir=f"{training.folder}/train",
        global_step=step,
        save_model_secs=1,
        save_summaries_secs=0,
        recovery_wait_secs=1,
        **settings,
    )
    session = supervisor.prepare_or_wait_for_session(server.target, config=_filters(server))
    if rule is not None and is_chief:
        supervisor.start_queue_runners(session, [runner])
        session.run(tokens)
    while not supervisor.should_stop():
        session.run(train)
        reached = int(session.run(step))
        tell("step", reached)
        if (finish := training.finish) is not None and reached >= finish:
            break
        time.sleep(training.pauses[index])
    tell("end", int(session.run(step)))
    supervisor.stop()
    session.close()


def _filters(server: Any) -> Any:
    """Device filters, so that workers need not wait for each other."""
    definition = server.server_def
    return tf.ConfigProto(device_filters=["/job:ps", f"/job:{definition.job_name}/task:{definition.task_index}"])
