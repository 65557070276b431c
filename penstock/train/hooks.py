"""Hooks for MonitoredSession that log, watch, wait, feed and stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock import logging
from penstock.graph.graph import get_default_graph
from penstock.graph.typing import FeedDict, TensorLike
from penstock.train.coordinator import Coordinator
from penstock.train.hook_timing import NeverTriggerTimer, SecondOrStepTimer, required_global_step, wait_for_step
from penstock.train.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues


class NanLossDuringTrainingError(RuntimeError):
    """The loss became NaN."""

    def __str__(self) -> str:
        return "NaN loss during training."


class LoggingTensorHook(SessionRunHook):
    """Logs tensors every N steps or seconds, or at the end.

    >>> hook = tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=100)
    """

    def __init__(
        self,
        tensors: Any,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        if not at_end and (every_n_iter is None) == (every_n_secs is None):
            raise ValueError("either at_end and/or exactly one of every_n_iter and every_n_secs must be provided.")
        if every_n_iter is not None and every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}.")
        if not isinstance(tensors, Mapping):
            self._tag_order = [getattr(t, "name", t) for t in tensors]
            tensors = dict(zip(self._tag_order, tensors, strict=True))
        else:
            self._tag_order = sorted(tensors)
        self._tensors = tensors
        self._formatter = formatter
        self._at_end = at_end
        only_at_end = every_n_iter is None and every_n_secs is None
        self._timer = NeverTriggerTimer() if only_at_end else SecondOrStepTimer(every_n_secs, every_n_iter)
        self._iter_count = 0

    def begin(self) -> None:
        self._timer.reset()
        self._iter_count = 0
        graph = get_default_graph()
        self._current = {tag: graph.as_graph_element(tensor) for tag, tensor in self._tensors.items()}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        self._triggered = self._timer.should_trigger_for_step(self._iter_count)
        return SessionRunArgs(self._current) if self._triggered else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._triggered:
            self._log(run_values.results)
        self._iter_count += 1

    def end(self, session: Any) -> None:
        if self._at_end:
            self._log(session.run(self._current))

    def _log(self, values: dict[str, Any]) -> None:
        seconds, _ = self._timer.update_last_triggered_step(self._iter_count)
        if self._formatter:
            logging.info(self._formatter(values))
            return
        with np.printoptions(suppress=True):
            # str and not format, which would show a float32 with the digits of a float64.
            text = ", ".join(f"{tag} = {values[tag]!s}" for tag in self._tag_order)
        logging.info(text if seconds is None else f"{text} ({seconds:.3f} sec)")


class StopAtStepHook(SessionRunHook):
    """Ends the training at a step, or after a number of steps.

    >>> hook = tf.train.StopAtStepHook(last_step=10000)
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise ValueError("Exactly one of num_steps or last_step should be specified.")
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self) -> None:
        self._step = required_global_step("StopAtStepHook")

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._last_step is None:
            assert self._num_steps is not None
            self._last_step = int(session.run(self._step)) + self._num_steps

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        assert self._last_step is not None
        # The fetched value may be older than the step itself, so it is read again near the end.
        if run_values.results + 1 >= self._last_step:
            step = run_context.session.run(self._step)
            if step >= self._last_step:
                run_context.request_stop()


class NanTensorHook(SessionRunHook):
    """Ends the training, or fails, when a loss is NaN.

    >>> hook = tf.train.NanTensorHook(loss)
    """

    def __init__(self, loss_tensor: TensorLike, fail_on_nan_loss: bool = True) -> None:
        self._loss_tensor = loss_tensor
        self._fail_on_nan_loss = fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._loss_tensor)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if np.isnan(run_values.results):
            if self._fail_on_nan_loss:
                logging.error("Model diverged with loss = NaN.")
                raise NanLossDuringTrainingError
            logging.warning("Model diverged with loss = NaN.")
            run_context.request_stop()


class GlobalStepWaiterHook(SessionRunHook):
    """Makes a worker wait until the global step has reached a number.

    >>> hook = tf.train.GlobalStepWaiterHook(wait_until_step=1000)
    """

    def __init__(self, wait_until_step: int) -> None:
        self._wait_until_step = wait_until_step

    def begin(self) -> None:
        self._is_waiting = self._wait_until_step > 0
        self._step = required_global_step("GlobalStepWaiterHook")
        self._coord = Coordinator()  # used if the session has none

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._coord = coord or self._coord

    def before_run(self, run_context: SessionRunContext) -> None:
        if self._is_waiting:
            self._is_waiting = not wait_for_step(run_context.session, self._step, self._wait_until_step, self._coord)


class FinalOpsHook(SessionRunHook):
    """Evaluates tensors at the end of the training.

    >>> hook = tf.train.FinalOpsHook(accuracy); ...; hook.final_ops_values
    """

    def __init__(self, final_ops: Any, final_ops_feed_dict: FeedDict | None = None) -> None:
        self._final_ops = final_ops
        self._final_ops_feed_dict = final_ops_feed_dict
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        return self._values

    def end(self, session: Any) -> None:
        if self._final_ops is not None:
            self._values = session.run(self._final_ops, feed_dict=self._final_ops_feed_dict)


class FeedFnHook(SessionRunHook):
    """Calls a function before each step and feeds what it returns.

    >>> hook = tf.train.FeedFnHook(lambda: {x: next(batches)})
    """

    def __init__(self, feed_fn: Callable[[], dict[Any, Any]]) -> None:
        self.feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(fetches=None, feed_dict=self.feed_fn())
