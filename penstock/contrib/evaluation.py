"""slim.evaluation: computes metrics over a checkpoint, once or for each new one."""

from __future__ import annotations

from typing import Any

from penstock.graph.typing import FeedDict
from penstock.ops.io import summary
from penstock.train import evaluation
from penstock.train.evaluation import checkpoints_iterator, wait_for_new_checkpoint
from penstock.train.saver import Saver
from penstock.train.scaffold import Scaffold

__all__ = ["checkpoints_iterator", "evaluate_once", "evaluation_loop", "wait_for_new_checkpoint"]

_DEFAULT = 0


def _parts(
    initial_op: Any,
    initial_op_feed_dict: Any,
    init_fn: Any,
    logdir: str | None,
    num_evals: int,
    summary_op: Any,
    summary_op_feed_dict: Any,
    variables_to_restore: Any,
    hooks: Any,
) -> dict[str, Any]:
    """The scaffold and the hooks of an evaluation."""
    if summary_op is _DEFAULT:
        summary_op = summary.merge_all()
    all_hooks: list[Any] = [evaluation.StopAfterNEvalsHook(num_evals)]
    if summary_op is not None and logdir is not None:
        all_hooks.append(evaluation.SummaryAtEndHook(logdir, summary_op=summary_op, feed_dict=summary_op_feed_dict))
    saver = None if variables_to_restore is None else Saver(variables_to_restore)
    scaffold = Scaffold(init_op=initial_op, init_feed_dict=initial_op_feed_dict, init_fn=init_fn, saver=saver)
    return {"scaffold": scaffold, "hooks": all_hooks + list(hooks or ())}


def evaluate_once(
    master: str,
    checkpoint_path: str,
    logdir: str | None,
    num_evals: int = 1,
    initial_op: Any = None,
    initial_op_feed_dict: FeedDict | None = None,
    eval_op: Any = None,
    eval_op_feed_dict: FeedDict | None = None,
    final_op: Any = None,
    final_op_feed_dict: FeedDict | None = None,
    summary_op: Any = _DEFAULT,
    summary_op_feed_dict: FeedDict | None = None,
    variables_to_restore: Any = None,
    session_config: Any = None,
    hooks: Any = None,
) -> Any:
    """Restores a checkpoint, runs `eval_op` `num_evals` times, and returns the value of `final_op`.

    >>> slim.evaluation.evaluate_once("", path, logdir, num_evals=10, eval_op=list(updates.values()), final_op=values)
    """
    parts = _parts(
        initial_op,
        initial_op_feed_dict,
        None,
        logdir,
        num_evals,
        summary_op,
        summary_op_feed_dict,
        variables_to_restore,
        hooks,
    )
    return evaluation.evaluate_once(
        checkpoint_path,
        master,
        eval_ops=eval_op,
        feed_dict=eval_op_feed_dict,
        final_ops=final_op,
        final_ops_feed_dict=final_op_feed_dict,
        config=session_config,
        **parts,
    )


def evaluation_loop(
    master: str,
    checkpoint_dir: str,
    logdir: str | None,
    num_evals: int = 1,
    initial_op: Any = None,
    initial_op_feed_dict: FeedDict | None = None,
    init_fn: Any = None,
    eval_op: Any = None,
    eval_op_feed_dict: FeedDict | None = None,
    final_op: Any = None,
    final_op_feed_dict: FeedDict | None = None,
    summary_op: Any = _DEFAULT,
    summary_op_feed_dict: FeedDict | None = None,
    variables_to_restore: Any = None,
    eval_interval_secs: float = 60,
    max_number_of_evaluations: int | None = None,
    session_config: Any = None,
    timeout: float | None = None,
    timeout_fn: Any = None,
    hooks: Any = None,
) -> Any:
    """Calls `evaluate_once` for each new checkpoint, and returns the last value of `final_op`."""
    parts = _parts(
        initial_op,
        initial_op_feed_dict,
        init_fn,
        logdir,
        num_evals,
        summary_op,
        summary_op_feed_dict,
        variables_to_restore,
        hooks,
    )
    return evaluation.evaluate_repeatedly(
        checkpoint_dir,
        master,
        eval_ops=eval_op,
        feed_dict=eval_op_feed_dict,
        final_ops=final_op,
        final_ops_feed_dict=final_op_feed_dict,
        eval_interval_secs=eval_interval_secs,
        config=session_config,
        max_number_of_evaluations=max_number_of_evaluations,
        timeout=timeout,
        timeout_fn=timeout_fn,
        **parts,
    )
