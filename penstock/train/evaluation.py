"""Evaluation: computes metrics for one checkpoint, or for each new checkpoint of a training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock import logging
from penstock.graph import dtype as dt
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies
from penstock.graph.typing import FeedDict
from penstock.ops.array.passthrough import identity
from penstock.ops.io import summary
from penstock.summary.writer import FileWriterCache
from penstock.train.checkpoint_state import latest_checkpoint
from penstock.train.hooks import FinalOpsHook
from penstock.train.monitored_session import MonitoredSession
from penstock.train.scaffold import Scaffold
from penstock.train.session_creators import ChiefSessionCreator
from penstock.train.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from penstock.variables.global_step import get_or_create_global_step
from penstock.variables.initializers import zeros_initializer
from penstock.variables.scope import get_variable
from penstock.variables.updates import assign_add

_ALL_SUMMARIES: Any = object()


def wait_for_new_checkpoint(
    checkpoint_dir: Any, last_checkpoint: str | None = None, seconds_to_sleep: float = 1, timeout: float | None = None
) -> str | None:
    """The next checkpoint in a directory; None if there is none within `timeout` seconds.

    >>> path = tf.contrib.training.wait_for_new_checkpoint("/tmp/train", timeout=60)
    """
    logging.info("Waiting for new checkpoint at %s", checkpoint_dir)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        found = latest_checkpoint(checkpoint_dir)
        if found is not None and found != last_checkpoint:
            logging.info("Found new checkpoint at %s", found)
            return found
        if deadline is not None and time.monotonic() + seconds_to_sleep > deadline:
            return None
        time.sleep(seconds_to_sleep)


def checkpoints_iterator(
    checkpoint_dir: Any,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yields checkpoints as they appear; ends if none appears for `timeout` seconds and `timeout_fn` returns True.

    >>> for path in tf.train.checkpoints_iterator("/tmp/train", timeout=600): evaluate(path)
    """
    last: str | None = None
    while True:
        found = wait_for_new_checkpoint(checkpoint_dir, last, timeout=timeout)
        if found is None:
            if timeout_fn is None:
                logging.info("Timed-out waiting for a checkpoint.")
            if timeout_fn is None or timeout_fn():
                return
            continue
        start, last = time.monotonic(), found
        yield found
        time.sleep(max(0.0, start + min_interval_secs - time.monotonic()))


def get_or_create_eval_step() -> Any:
    """The variable that counts evaluation steps."""
    found = get_default_graph().get_collection(GraphKeys.EVAL_STEP)
    if len(found) > 1:
        raise ValueError("Multiple tensors added to tf.GraphKeys.EVAL_STEP")
    if found:
        return found[0]
    return get_variable(
        "eval_step",
        shape=[],
        dtype=dt.int64,
        initializer=zeros_initializer(),
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.EVAL_STEP],
    )


class StopAfterNEvalsHook(SessionRunHook):
    """Ends an evaluation after `num_evals` steps: `tf.contrib.training.StopAfterNEvalsHook(100)`."""

    def __init__(self, num_evals: int | None, log_progress: bool = True) -> None:
        self._num_evals = num_evals
        self._log_progress = log_progress
        self._completed: Tensor | None = None

    def _set_evals_completed_tensor(self, updated_eval_step: Tensor) -> None:
        self._completed = updated_eval_step

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs({"evals_completed": self._completed})

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        completed = int(run_values.results["evals_completed"])
        if self._log_progress:
            logging.info("Evaluation [%d%s]", completed, "" if self._num_evals is None else f"/{self._num_evals}")
        if self._num_evals is not None and completed >= self._num_evals:
            run_context.request_stop()


class SummaryAtEndHook(SessionRunHook):
    """Writes summaries at the end of an evaluation: `tf.contrib.training.SummaryAtEndHook("/tmp/eval")`."""

    def __init__(
        self,
        log_dir: str | None = None,
        summary_writer: Any = None,
        summary_op: Any = _ALL_SUMMARIES,
        feed_dict: FeedDict | None = None,
    ) -> None:
        if log_dir is None and summary_writer is None:
            raise ValueError("log_dir and summary_writer cannot both be None.")
        self._log_dir = log_dir
        self._writer = summary_writer
        self._summary_op = summary_op
        self._feed_dict = feed_dict

    def begin(self) -> None:
        # In older versions None meant all summaries too.
        if self._summary_op is None or self._summary_op is _ALL_SUMMARIES:
            self._summary_op = summary.merge_all()
        self._step = get_or_create_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._writer is None and self._log_dir:
            self._writer = FileWriterCache.get(self._log_dir)

    def end(self, session: Any) -> None:
        if self._summary_op is None:
            return
        step, text = session.run((self._step, self._summary_op), self._feed_dict)
        if self._writer is not None:
            self._writer.add_summary(text, int(step))
            self._writer.flush()


class _Evaluation:
    """The graph of an evaluation. It is made once and runs for any number of checkpoints."""

    def __init__(
        self,
        scaffold: Scaffold | None,
        eval_ops: Any,
        final_ops: Any,
        final_ops_feed_dict: Any,
        hooks: Sequence[SessionRunHook] | None,
    ) -> None:
        step = get_or_create_eval_step()
        self._eval_ops = eval_ops
        self._hooks = list(hooks or [])
        counted: list[Any] = []
        if eval_ops is not None:
            counted = [assign_add(step, 1, use_locking=True)]
            if isinstance(eval_ops, dict):
                self._eval_ops = {**eval_ops, "update_eval_step": counted[0]}
            else:
                self._eval_ops = [*(eval_ops if isinstance(eval_ops, (list, tuple)) else [eval_ops]), counted[0]]
        with control_dependencies(counted):
            completed = identity(step.read_value())
        for hook in self._hooks:
            if isinstance(hook, StopAfterNEvalsHook):
                hook._set_evals_completed_tensor(completed)
        self._scaffold = scaffold or Scaffold()
        self._final = FinalOpsHook(final_ops, final_ops_feed_dict)
        self._hooks.append(self._final)

    def run(self, checkpoint_path: str | None, master: str, feed_dict: Any, config: Any) -> Any:
        """Evaluates a checkpoint and returns the values of the final ops."""
        logging.info("Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        creator = ChiefSessionCreator(self._scaffold, master, config, checkpoint_filename_with_path=checkpoint_path)
        with MonitoredSession(creator, hooks=self._hooks) as session:
            while self._eval_ops is not None and not session.should_stop():
                session.run(self._eval_ops, feed_dict)
        logging.info("Finished evaluation at %s", time.strftime("%Y-%m-%d-%H:%M:%S", time.gmtime()))
        return self._final.final_ops_values


def evaluate_once(
    checkpoint_path: str | None,
    master: str = "",
    scaffold: Scaffold | None = None,
    eval_ops: Any = None,
    feed_dict: FeedDict | None = None,
    final_ops: Any = None,
    final_ops_feed_dict: FeedDict | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    config: Any = None,
) -> Any:
    """Restores a checkpoint, runs `eval_ops` until the input or a hook ends it, and returns the values of `final_ops`.

    >>> tf.contrib.training.evaluate_once(path, eval_ops=update, final_ops=accuracy,
    ...                                   hooks=[tf.contrib.training.StopAfterNEvalsHook(100)])
    """
    evaluation = _Evaluation(scaffold, eval_ops, final_ops, final_ops_feed_dict, hooks)
    return evaluation.run(checkpoint_path, master, feed_dict, config)


def evaluate_repeatedly(
    checkpoint_dir: Any,
    master: str = "",
    scaffold: Scaffold | None = None,
    eval_ops: Any = None,
    feed_dict: FeedDict | None = None,
    final_ops: Any = None,
    final_ops_feed_dict: FeedDict | None = None,
    eval_interval_secs: float = 60,
    hooks: Sequence[SessionRunHook] | None = None,
    config: Any = None,
    max_number_of_evaluations: int | None = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Any:
    """Runs `evaluate_once` for each new checkpoint of a training; returns the last values of `final_ops`."""
    evaluation = _Evaluation(scaffold, eval_ops, final_ops, final_ops_feed_dict, hooks)
    values = None
    paths = checkpoints_iterator(checkpoint_dir, eval_interval_secs, timeout, timeout_fn)
    for count, path in enumerate(paths, start=1):
        values = evaluation.run(path, master, feed_dict, config)
        if max_number_of_evaluations is not None and count >= max_number_of_evaluations:
            break
    return values
