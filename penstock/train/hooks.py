"""The hooks that come with MonitoredSession: they save, log, count, watch and stop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto import config_pb2, event_pb2, summary_pb2

from penstock.checkpoint import files
from penstock.face import logging
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.summary.writer import FileWriterCache
from penstock.train.meta_graph import export_meta_graph
from penstock.train.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from penstock.variables.global_step import get_global_step
from penstock.worker.timeline import Timeline


class NanLossDuringTrainingError(RuntimeError):
    """The loss became NaN."""

    def __str__(self) -> str:
        return "NaN loss during training."


class SecondOrStepTimer:
    """Says when it is time again: every so many steps or seconds.

    >>> timer = tf.train.SecondOrStepTimer(every_steps=100)
    """

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if (every_secs is None) == (every_steps is None):
            raise ValueError("Exactly one of every_secs and every_steps should be provided.")
        self._every_secs = every_secs
        self._every_steps = every_steps
        self.reset()

    def reset(self) -> None:
        """Forgets when it was last time."""
        self._last_step: int | None = None
        self._last_time: float | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it is time at this step; the first time it always is."""
        if self._last_step is None:
            return True
        if self._last_step == step:
            return False
        if self._every_secs is not None:
            assert self._last_time is not None
            return time.time() >= self._last_time + self._every_secs
        assert self._every_steps is not None
        return step >= self._last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Notes that it was done at this step; seconds and steps since the time before."""
        now = time.time()
        since: tuple[float | None, int | None] = (None, None)
        if self._last_time is not None and self._last_step is not None:
            since = now - self._last_time, step - self._last_step
        self._last_time, self._last_step = now, step
        return since

    def last_triggered_step(self) -> int | None:
        """The step at which it was last done."""
        return self._last_step


class _NeverTriggerTimer(SecondOrStepTimer):
    def __init__(self) -> None:
        self.reset()

    def should_trigger_for_step(self, step: int) -> bool:
        return False


def _global_step(hook: str) -> Any:
    step = get_global_step()
    if step is None:
        raise RuntimeError(f"Global step should be created to use {hook}: call tf.train.get_or_create_global_step().")
    return step._ref() if hasattr(step, "_ref") and not hasattr(step, "handle") else step


class LoggingTensorHook(SessionRunHook):
    """Logs tensors every so many steps or seconds, or at the end.

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
        self._timer = _NeverTriggerTimer() if only_at_end else SecondOrStepTimer(every_n_secs, every_n_iter)
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
        text = ", ".join(f"{tag} = {values[tag]}" for tag in self._tag_order)
        logging.info(text if seconds is None else f"{text} ({seconds:.3f} sec)")


class StopAtStepHook(SessionRunHook):
    """Ends the training at a step, or after so many steps.

    >>> hook = tf.train.StopAtStepHook(last_step=10000)
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise ValueError("Exactly one of num_steps or last_step should be specified.")
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self) -> None:
        self._step = _global_step("StopAtStepHook")

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._last_step is None:
            assert self._num_steps is not None
            self._last_step = int(session.run(self._step)) + self._num_steps

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        assert self._last_step is not None
        # What came with the step may have been read before the step was counted.
        if run_values.results + 1 >= self._last_step:
            step = run_context.session.run(self._step)
            if step >= self._last_step:
                run_context.request_stop()


class CheckpointSaverListener:
    """Hears of the saves of a CheckpointSaverHook.

    >>> class Exporter(tf.train.CheckpointSaverListener):
    ...     def after_save(self, session, global_step_value):
    ...         export(session)
    """

    def begin(self) -> None:
        """Called before the session is made."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Called before each save."""

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        """Called after each save; True ends the training."""

    def end(self, session: Any, global_step_value: int) -> None:
        """Called at the end of the training."""


class CheckpointSaverHook(SessionRunHook):
    """Saves checkpoints every so many steps or seconds, at the start and at the end.

    >>> hook = tf.train.CheckpointSaverHook("/tmp/train", save_secs=600)
    """

    def __init__(
        self,
        checkpoint_dir: str,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Any = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Any = None,
        listeners: Sequence[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise ValueError("You cannot provide both saver and scaffold.")
        self._saver = saver
        self._checkpoint_dir = checkpoint_dir
        self._save_path = os.path.join(checkpoint_dir, checkpoint_basename)
        self._scaffold = scaffold
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)
        self._listeners = list(listeners or [])
        self._save_graph_def = save_graph_def

    def begin(self) -> None:
        self._writer = FileWriterCache.get(self._checkpoint_dir)
        self._step = _global_step("CheckpointSaverHook")
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        step = int(session.run(self._step))
        graph = get_default_graph()
        if self._save_graph_def:
            text = str(graph.as_graph_def(add_shapes=True)).encode()
            files.write_whole(os.path.join(self._checkpoint_dir, "graph.pbtxt"), text)
        saver_def = self._get_saver().saver_def if self._get_saver() else None
        self._writer.add_graph(graph)
        self._writer.add_meta_graph(export_meta_graph(graph=graph, saver_def=saver_def))
        # A checkpoint at the start, so that a failure soon after has something to come back to.
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._timer.should_trigger_for_step(int(run_values.results) + 1):
            step = int(run_context.session.run(self._step))
            if self._timer.should_trigger_for_step(step):
                self._timer.update_last_triggered_step(step)
                if self._save(run_context.session, step):
                    run_context.request_stop()

    def end(self, session: Any) -> None:
        step = int(session.run(self._step))
        if step != self._timer.last_triggered_step():
            self._save(session, step)
        for listener in self._listeners:
            listener.end(session, step)

    def _save(self, session: Any, step: int) -> bool:
        """Saves, and whether a listener wants the training to end."""
        logging.info("Saving checkpoints for %d into %s.", step, self._save_path)
        for listener in self._listeners:
            listener.before_save(session, step)
        self._get_saver().save(session, self._save_path, global_step=step, write_meta_graph=self._save_graph_def)
        self._writer.add_session_log(
            event_pb2.SessionLog(status=event_pb2.SessionLog.CHECKPOINT, checkpoint_path=self._save_path), step
        )
        stop = False
        for listener in self._listeners:
            if listener.after_save(session, step):
                logging.info("A CheckpointSaverListener requested that training be stopped: %s", listener)
                stop = True
        return stop

    def _get_saver(self) -> Any:
        if self._saver is None:
            if self._scaffold is not None:
                return self._scaffold.saver
            savers = get_default_graph().get_collection(GraphKeys.SAVERS)
            if len(savers) != 1:
                raise RuntimeError(
                    f"There are {len(savers)} items in collection {GraphKeys.SAVERS}. Pass a saver or a scaffold to "
                    "CheckpointSaverHook."
                )
            self._saver = savers[0]
        return self._saver


class StepCounterHook(SessionRunHook):
    """Counts steps per second, and writes them as a summary.

    >>> hook = tf.train.StepCounterHook(every_n_steps=100, output_dir="/tmp/train")
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
    ) -> None:
        if (every_n_steps is None) == (every_n_secs is None):
            raise ValueError("exactly one of every_n_steps and every_n_secs should be provided.")
        self._timer = SecondOrStepTimer(every_secs=every_n_secs, every_steps=every_n_steps)
        self._writer = summary_writer
        self._output_dir = output_dir

    def begin(self) -> None:
        if self._writer is None and self._output_dir:
            self._writer = FileWriterCache.get(self._output_dir)
        self._step = _global_step("StepCounterHook")
        self._tag = f"{get_global_step().op.name}/sec"

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._timer.should_trigger_for_step(int(run_values.results) + 1):
            step = int(run_context.session.run(self._step))
            if self._timer.should_trigger_for_step(step):
                seconds, steps = self._timer.update_last_triggered_step(step)
                if seconds is not None and steps is not None:
                    self._log_and_record(steps, seconds, step)

    def _log_and_record(self, elapsed_steps: int, elapsed_time: float, global_step: int) -> None:
        rate = elapsed_steps / max(elapsed_time, 1e-9)
        if self._writer is not None:
            value = summary_pb2.Summary.Value(tag=self._tag, simple_value=rate)
            self._writer.add_summary(summary_pb2.Summary(value=[value]), global_step)
        logging.info("%s: %g", self._tag, rate)


class NanTensorHook(SessionRunHook):
    """Ends the training, or fails, when a loss is NaN.

    >>> hook = tf.train.NanTensorHook(loss)
    """

    def __init__(self, loss_tensor: Any, fail_on_nan_loss: bool = True) -> None:
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


class SummarySaverHook(SessionRunHook):
    """Writes summaries every so many steps or seconds.

    >>> hook = tf.train.SummarySaverHook(save_steps=100, output_dir="/tmp/train", summary_op=merged)
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
        scaffold: Any = None,
        summary_op: Any = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise ValueError("Exactly one of scaffold or summary_op must be provided.")
        self._summary_op = summary_op
        self._writer = summary_writer
        self._output_dir = output_dir
        self._scaffold = scaffold
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)

    def begin(self) -> None:
        if self._writer is None and self._output_dir:
            self._writer = FileWriterCache.get(self._output_dir)
        self._next_step: int | None = None
        self._step = _global_step("SummarySaverHook")

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        self._wanted = self._next_step is None or self._timer.should_trigger_for_step(self._next_step)
        requests: dict[str, Any] = {"global_step": self._step}
        operations = self._summary_ops()
        if self._wanted and operations:
            requests["summary"] = operations
        return SessionRunArgs(requests)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._writer is None:
            return
        step = int(run_values.results["global_step"])
        if self._next_step is None or self._wanted:
            step = int(run_context.session.run(self._step))
        if self._next_step is None:
            log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.add_session_log(log, step)
        if self._wanted:
            self._timer.update_last_triggered_step(step)
            for summary in run_values.results.get("summary", ()):
                self._writer.add_summary(summary, step)
        self._next_step = step + 1

    def end(self, session: Any = None) -> None:
        if self._writer is not None:
            self._writer.flush()

    def _summary_ops(self) -> list[Any]:
        operation = self._summary_op if self._summary_op is not None else self._scaffold.summary_op
        if operation is None:
            return []
        return list(operation) if isinstance(operation, (list, tuple)) else [operation]


class GlobalStepWaiterHook(SessionRunHook):
    """Has a worker wait until others have made so many steps.

    >>> hook = tf.train.GlobalStepWaiterHook(wait_until_step=1000)
    """

    def __init__(self, wait_until_step: int) -> None:
        self._wait_until_step = wait_until_step

    def begin(self) -> None:
        self._is_waiting = self._wait_until_step > 0
        self._step = _global_step("GlobalStepWaiterHook")

    def before_run(self, run_context: SessionRunContext) -> None:
        logged = None
        while self._is_waiting:
            step = int(run_context.session.run(self._step))
            if step >= self._wait_until_step:
                self._is_waiting = False
                return
            if logged is None or step - logged > 1000:
                logging.info("Waiting for global step %d before starting training. Current step is %d.",
                             self._wait_until_step, step)  # fmt: skip
                logged = step
            time.sleep(0.5)


class FinalOpsHook(SessionRunHook):
    """Evaluates tensors at the end of the training.

    >>> hook = tf.train.FinalOpsHook(accuracy); ...; hook.final_ops_values
    """

    def __init__(self, final_ops: Any, final_ops_feed_dict: Any = None) -> None:
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
    """Feeds what a function gives, anew for each step.

    >>> hook = tf.train.FeedFnHook(lambda: {x: next(batches)})
    """

    def __init__(self, feed_fn: Callable[[], dict[Any, Any]]) -> None:
        self.feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(fetches=None, feed_dict=self.feed_fn())


class ProfilerHook(SessionRunHook):
    """Writes the timeline of a step every so many steps or seconds, for chrome://tracing.

    >>> hook = tf.train.ProfilerHook(save_steps=1000, output_dir="/tmp/profile")
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ) -> None:
        self._output_file = os.path.join(output_dir, "timeline-{}.json")
        self._show_dataflow = show_dataflow
        self._show_memory = show_memory
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)

    def begin(self) -> None:
        self._next_step: int | None = None
        self._step = _global_step("ProfilerHook")

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        self._wanted = self._next_step is not None and self._timer.should_trigger_for_step(self._next_step)
        trace = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE) if self._wanted else None
        return SessionRunArgs({"global_step": self._step}, options=trace)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = int(run_values.results["global_step"])
        if self._next_step is None:
            self._timer.update_last_triggered_step(step)
        if self._wanted:
            step = int(run_context.session.run(self._step))
            self._timer.update_last_triggered_step(step)
            path = self._output_file.format(step)
            logging.info("Saving timeline for %d into '%s'.", step, path)
            trace = Timeline(run_values.run_metadata.step_stats).generate_chrome_trace_format(
                self._show_dataflow, self._show_memory
            )
            files.write_whole(path, trace.encode())
        self._next_step = step + 1


