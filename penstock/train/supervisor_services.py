"""The services of a Supervisor: threads that write summaries, count steps and save checkpoints."""

from __future__ import annotations

import time
from typing import Any, Protocol

from tensorboard.compat.proto import event_pb2, summary_pb2

from penstock import logging
from penstock.train.coordinator import Coordinator, LooperThread


class Supervised(Protocol):
    """The part of a Supervisor that its services use."""

    @property
    def coord(self) -> Coordinator: ...
    @property
    def global_step(self) -> Any: ...
    @property
    def saver(self) -> Any: ...
    @property
    def save_model_secs(self) -> float: ...
    @property
    def save_path(self) -> str | None: ...
    @property
    def save_summaries_secs(self) -> float: ...
    @property
    def summary_op(self) -> Any: ...
    @property
    def summary_writer(self) -> Any: ...


class SVSummaryThread(LooperThread):
    """Writes summaries."""

    def __init__(self, sv: Supervised, sess: Any) -> None:
        super().__init__(sv.coord, sv.save_summaries_secs)
        self._sv, self._sess = sv, sess

    def run_loop(self) -> None:
        if self._sv.global_step is not None:
            summary, step = self._sess.run([self._sv.summary_op, self._sv.global_step])
        else:
            summary, step = self._sess.run(self._sv.summary_op), None
        if self._sv.summary_writer is not None:
            logging.info("Recording summary at step %s.", step)
            self._sv.summary_writer.add_summary(summary, step)


class SVStepCounterThread(LooperThread):
    """Writes steps per second."""

    def __init__(self, sv: Supervised, sess: Any) -> None:
        super().__init__(sv.coord, sv.save_summaries_secs)
        self._sv, self._sess = sv, sess
        self._last_time, self._last_step = 0.0, 0
        self._tag = f"{sv.global_step.op.name}/sec"

    def start_loop(self) -> None:
        self._last_time = time.time()
        self._last_step = int(self._sess.run(self._sv.global_step))

    def run_loop(self) -> None:
        step, now = int(self._sess.run(self._sv.global_step)), time.time()
        steps, seconds = step - self._last_step, now - self._last_time
        self._last_step, self._last_time = step, now
        rate = steps / seconds if seconds > 0 else float("inf")
        value = summary_pb2.Summary.Value(tag=self._tag, simple_value=rate)
        if self._sv.summary_writer is not None:
            self._sv.summary_writer.add_summary(summary_pb2.Summary(value=[value]), step)
        logging.log_first_n(logging.INFO, "%s: %g", 10, self._tag, rate)


class SVTimerCheckpointThread(LooperThread):
    """Saves checkpoints."""

    def __init__(self, sv: Supervised, sess: Any) -> None:
        super().__init__(sv.coord, sv.save_model_secs)
        self._sv, self._sess = sv, sess

    def run_loop(self) -> None:
        logging.info("Saving checkpoint to path %s", self._sv.save_path)
        self._sv.saver.save(self._sess, self._sv.save_path, global_step=self._sv.global_step)
        if self._sv.summary_writer is not None and self._sv.global_step is not None:
            current = int(self._sess.run(self._sv.global_step))
            log = event_pb2.SessionLog(status=event_pb2.SessionLog.CHECKPOINT, checkpoint_path=self._sv.save_path)
            self._sv.summary_writer.add_session_log(log, current)
