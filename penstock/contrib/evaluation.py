"""slim.evaluation: metrics over a checkpoint, once or for each new one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from penstock.face.logging import info
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import get_collection
from penstock.ops import summary
from penstock.ops.control import group
from penstock.session import Session
from penstock.summary.writer import FileWriter
from penstock.train.checkpoint_state import latest_checkpoint
from penstock.train.coordinator import Coordinator
from penstock.train.queue_runner import start_queue_runners
from penstock.train.saver import Saver
from penstock.variables.global_step import get_or_create_global_step
from penstock.variables.initialize import local_variables_initializer, tables_initializer

_DEFAULT = 0


def wait_for_new_checkpoint(
    checkpoint_dir: str, last_checkpoint: str | None = None, seconds_to_sleep: float = 1, timeout: float | None = None
) -> str | None:
    """The next checkpoint in a folder; None if there is none within `timeout` seconds."""
    end = None if timeout is None else time.time() + timeout
    while True:
        found: str | None = latest_checkpoint(checkpoint_dir)
        if found is not None and found != last_checkpoint:
            return found
        if end is not None and time.time() + seconds_to_sleep > end:
            return None
        time.sleep(seconds_to_sleep)


def checkpoints_iterator(
    checkpoint_dir: str, min_interval_secs: float = 0, timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:  # fmt: skip
    """Checkpoints as they appear in a folder, until there is none for `timeout` seconds."""
    last = None
    while True:
        found = wait_for_new_checkpoint(checkpoint_dir, last, timeout=timeout)
        if found is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        start, last = time.time(), found
        yield found
        time.sleep(max(0.0, start + min_interval_secs - time.time()))


def evaluate_once(
    master: str, checkpoint_path: str, logdir: str | None, num_evals: int = 1, initial_op: Any = None,
    initial_op_feed_dict: Any = None, eval_op: Any = None, eval_op_feed_dict: Any = None, final_op: Any = None,
    final_op_feed_dict: Any = None, summary_op: Any = _DEFAULT, summary_op_feed_dict: Any = None,
    variables_to_restore: Any = None, session_config: Any = None, hooks: Any = None,
) -> Any:  # fmt: skip
    """Restores a checkpoint, runs `eval_op` `num_evals` times, and gives the value of `final_op`.

    >>> slim.evaluation.evaluate_once("", path, logdir, num_evals=10, eval_op=list(updates.values()), final_op=values)
    """
    if hooks:
        raise NotImplementedError("evaluate_once: hooks are not supported; use initial_op, eval_op and final_op.")
    step = get_or_create_global_step()
    if summary_op is _DEFAULT:
        summary_op = summary.merge_all() if get_collection(GraphKeys.SUMMARIES) else None
    start = group(local_variables_initializer(), tables_initializer())
    saver = Saver(variables_to_restore)
    with Session(master, config=session_config) as sess:
        saver.restore(sess, checkpoint_path)
        sess.run(start)
        coordinator = Coordinator()
        threads = start_queue_runners(sess, coordinator)
        try:
            if initial_op is not None:
                sess.run(initial_op, initial_op_feed_dict)
            for i in range(num_evals if eval_op is not None else 0):
                info("Evaluation [%d/%d]", i + 1, num_evals)
                sess.run(eval_op, eval_op_feed_dict)
            value = None if final_op is None else sess.run(final_op, final_op_feed_dict)
            if summary_op is not None and logdir is not None:
                _write(sess, logdir, summary_op, summary_op_feed_dict, step)
            return value
        finally:
            coordinator.request_stop()
            coordinator.join(threads, ignore_live_threads=True)


def _write(sess: Any, logdir: str, summary_op: Any, feed: Any, step: Any) -> None:
    with FileWriter(logdir) as writer:
        writer.add_summary(sess.run(summary_op, feed), int(sess.run(step)))


def evaluation_loop(
    master: str, checkpoint_dir: str, logdir: str | None, num_evals: int = 1, initial_op: Any = None,
    initial_op_feed_dict: Any = None, init_fn: Any = None, eval_op: Any = None, eval_op_feed_dict: Any = None,
    final_op: Any = None, final_op_feed_dict: Any = None, summary_op: Any = _DEFAULT,
    summary_op_feed_dict: Any = None, variables_to_restore: Any = None, eval_interval_secs: float = 60,
    max_number_of_evaluations: int | None = None, session_config: Any = None, timeout: float | None = None,
    timeout_fn: Any = None, hooks: Any = None,
) -> Any:  # fmt: skip
    """`evaluate_once` for each new checkpoint, and the last value of `final_op`."""
    value = None
    found = checkpoints_iterator(checkpoint_dir, eval_interval_secs, timeout, timeout_fn)
    for count, path in enumerate(found, start=1):
        value = evaluate_once(
            master, path, logdir, num_evals, initial_op, initial_op_feed_dict, eval_op, eval_op_feed_dict, final_op,
            final_op_feed_dict, summary_op, summary_op_feed_dict, variables_to_restore, session_config, hooks,
        )  # fmt: skip
        if max_number_of_evaluations is not None and count >= max_number_of_evaluations:
            break
    return value
