"""Hooks that write files: checkpoints, summaries, rates and timelines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tensorboard.compat.proto import config_pb2, event_pb2, summary_pb2

from penstock import logging
from penstock.checkpoint import files
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.summary.writer import FileWriterCache
from penstock.train.hook_timing import SecondOrStepTimer, required_global_step, step_if_due
from penstock.train.meta_graph import export_meta_graph
from penstock.train.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from penstock.variables.global_step import get_global_step
from penstock.worker.timeline import Timeline


class CheckpointSaverListener:
    """Is called before and after each save of a CheckpointSaverHook.

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
    """Saves checkpoints every N steps or seconds, at the start and at the end.

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
        self._step = required_global_step("CheckpointSaverHook")
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
        # A checkpoint at the start, to restore from after an early failure.
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = step_if_due(self._timer, self._step, run_context, run_values)
        if step is not None:
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
        """Saves a checkpoint. Returns True if a listener wants the training to end."""
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
        self._step = required_global_step("StepCounterHook")
        self._tag = f"{get_global_step().op.name}/sec"

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = step_if_due(self._timer, self._step, run_context, run_values)
        if step is not None:
            seconds, steps = self._timer.update_last_triggered_step(step)
            if seconds is not None and steps is not None:
                self._log_and_record(steps, seconds, step)

    def _log_and_record(self, elapsed_steps: int, elapsed_time: float, global_step: int) -> None:
        rate = elapsed_steps / max(elapsed_time, 1e-9)
        if self._writer is not None:
            value = summary_pb2.Summary.Value(tag=self._tag, simple_value=rate)
            self._writer.add_summary(summary_pb2.Summary(value=[value]), global_step)
        logging.info("%s: %g", self._tag, rate)


class SummarySaverHook(SessionRunHook):
    """Writes summaries every N steps or seconds.

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
        self._step = required_global_step("SummarySaverHook")

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


class ProfilerHook(SessionRunHook):
    """Writes the timeline of a step every N steps or seconds, for chrome://tracing.

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
        self._step = required_global_step("ProfilerHook")

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
