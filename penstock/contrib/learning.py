"""slim.learning.train: a training loop under a Supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock.errors import OutOfRangeError
from penstock.graph import dtype as dt
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import name_scope
from penstock.graph.typing import FeedDict, TensorLike
from penstock.logging import info
from penstock.ops.control.grouping import group
from penstock.ops.math import casting, compare
from penstock.train.hook_timing import wait_for_step
from penstock.train.supervisor import Supervisor
from penstock.variables.global_step import get_global_step
from penstock.variables.initialize import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
    tables_initializer,
)

_DEFAULT = 0


def train_step(
    sess: Any, train_op: Any, global_step: TensorLike, train_step_kwargs: dict[str, Any]
) -> tuple[Any, bool]:
    """Runs one training step; returns the loss, and if training should stop."""
    start = time.time()
    total_loss, step = sess.run([train_op, global_step])
    if train_step_kwargs.get("should_log") is not None and sess.run(train_step_kwargs["should_log"]):
        info("global step %d: loss = %.4f (%.3f sec/step)", step, total_loss, time.time() - start)
    should_stop = train_step_kwargs.get("should_stop")
    return total_loss, bool(sess.run(should_stop)) if should_stop is not None else False


def train(
    train_op: Any,
    logdir: str | None,
    train_step_fn: Callable[..., Any] = train_step,
    train_step_kwargs: Any = _DEFAULT,
    log_every_n_steps: int = 1,
    graph: Graph | None = None,
    master: str = "",
    is_chief: bool = True,
    global_step: TensorLike = None,
    number_of_steps: int | None = None,
    init_op: Any = _DEFAULT,
    init_feed_dict: FeedDict | None = None,
    local_init_op: Any = _DEFAULT,
    init_fn: Any = None,
    ready_op: Any = _DEFAULT,
    summary_op: Any = _DEFAULT,
    save_summaries_secs: float = 600,
    summary_writer: Any = _DEFAULT,
    startup_delay_steps: int = 0,
    saver: Any = None,
    save_interval_secs: float = 600,
    sync_optimizer: Any = None,
    session_config: Any = None,
    session_wrapper: Any = None,
    trace_every_n_steps: int | None = None,
    ignore_live_threads: bool = False,
) -> Any:
    """Trains until `number_of_steps`, the end of the data, or a request to stop; returns the last loss.

    Saves checkpoints and summaries to `logdir`, and continues from the last checkpoint there.

    >>> slim.learning.train(train_op, "/tmp/model", number_of_steps=1000)
    """
    if train_op is None:
        raise ValueError("train_op cannot be None.")
    if logdir is None and (summary_op not in (_DEFAULT, None) or trace_every_n_steps is not None or saver is not None):
        raise ValueError("Cannot save summaries, traces or checkpoints: logdir is None.")
    if sync_optimizer is not None and startup_delay_steps > 0:
        raise ValueError("startup_delay_steps must be zero when sync_optimizer is supplied.")
    if number_of_steps is not None and number_of_steps <= 0:
        raise ValueError("`number_of_steps` must be either None or a positive number.")
    graph = graph or get_default_graph()
    with graph.as_default():
        step = get_global_step() if global_step is None else global_step
        if step is None:
            raise ValueError("train needs a global step: make one with tf.train.get_or_create_global_step().")
        settings: dict[str, Any] = {}
        # Arguments that are not given get the defaults of Supervisor itself.
        for key, value in (("ready_op", ready_op), ("summary_op", summary_op), ("summary_writer", summary_writer)):
            if value is not _DEFAULT:
                settings[key] = value
        if saver is not None:
            settings["saver"] = saver
        with name_scope("init_ops"):
            if init_op is _DEFAULT:
                init_op = global_variables_initializer()
            if local_init_op is _DEFAULT:
                local_init_op = group(local_variables_initializer(), tables_initializer())
        rules = [] if sync_optimizer is None else sync_optimizer
        rules = rules if isinstance(rules, (list, tuple)) else [rules]
        if rules:
            own = [each.chief_init_op if is_chief else each.local_step_init_op for each in rules]
            with name_scope("init_ops"):
                local_init_op = group(*own, *([] if local_init_op is None else [local_init_op]))
            settings["ready_for_local_init_op"] = report_uninitialized_variables(global_variables())
        runners = [each.get_chief_queue_runner() for each in rules] if is_chief else []
        tokens = [each.get_init_tokens_op() for each in rules] if is_chief else []
        if train_step_kwargs is _DEFAULT:
            train_step_kwargs = _decisions(step, number_of_steps, log_every_n_steps)
    if logdir is None:
        settings.update(summary_op=None, summary_writer=None)
    supervisor = Supervisor(
        graph=graph,
        is_chief=is_chief,
        logdir=logdir,
        init_op=init_op,
        init_feed_dict=init_feed_dict,
        local_init_op=local_init_op,
        global_step=step,
        init_fn=init_fn,
        save_summaries_secs=save_summaries_secs,
        save_model_secs=save_interval_secs,
        **settings,
    )
    with supervisor.managed_session(master, start_standard_services=False, config=session_config) as sess:
        if session_wrapper is not None:
            sess = session_wrapper(sess)
        if is_chief and logdir:
            supervisor.start_standard_services(sess)
        elif not is_chief and startup_delay_steps > 0:
            delay = min(startup_delay_steps, number_of_steps or startup_delay_steps)
            wait_for_step(sess, step, delay, supervisor.coord)
        supervisor.start_queue_runners(sess, [*graph.get_collection(GraphKeys.QUEUE_RUNNERS), *runners])
        for put in tokens:
            sess.run(put)
        total_loss = None
        try:
            stop = False
            while not supervisor.should_stop() and not stop:
                total_loss, stop = train_step_fn(sess, train_op, step, train_step_kwargs)
        except OutOfRangeError:
            info("Caught OutOfRangeError: the data is at its end. Stopping training.")
        if is_chief and logdir and supervisor.saver is not None:
            supervisor.saver.save(sess, supervisor.save_path, global_step=supervisor.global_step)
        supervisor.request_stop()
    return total_loss


def _decisions(step: Any, number_of_steps: int | None, log_every_n_steps: int) -> dict[str, Any]:
    """Tensors that decide when to stop and when to log."""
    with name_scope("train_step"):
        made: dict[str, Any] = {}
        if number_of_steps:
            made["should_stop"] = compare.greater_equal(casting.cast(step, dt.int64), number_of_steps)
        if log_every_n_steps > 0:
            made["should_log"] = compare.equal(casting.cast(step, dt.int64) % log_every_n_steps, 0)
        return made
