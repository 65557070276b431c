"""Supervisor: a training helper for older programs. It makes a ready session, and saves, summarises and counts."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tensorboard.compat.proto import event_pb2

from penstock import logging
from penstock.checkpoint import files
from penstock.graph import dtype as dt
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.typing import FeedDict
from penstock.ops.control.grouping import group
from penstock.ops.io.summary import merge_all
from penstock.session import Session
from penstock.summary.writer import FileWriter
from penstock.train.chief_sessions import ChiefSessions
from penstock.train.coordinator import Coordinator, LooperThread
from penstock.train.meta_graph import export_meta_graph
from penstock.train.recovery import RecoveringSession, chief_recovery_op, rejoin_op
from penstock.train.saver import Saver
from penstock.train.session_manager import SessionManager
from penstock.train.supervisor_services import SVStepCounterThread, SVSummaryThread, SVTimerCheckpointThread
from penstock.train.sync_replicas import Departure
from penstock.variables.global_step import get_global_step
from penstock.variables.initialize import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
    tables_initializer,
)


class Supervisor:
    """Prepares a session, and saves checkpoints and summaries into `logdir` while it runs.

    Services run on the chief only: summaries every `save_summaries_secs`, checkpoints every `save_model_secs`, and
    steps per second.

    >>> sv = tf.train.Supervisor(logdir="/tmp/train", global_step=step)
    >>> with sv.managed_session() as sess:
    ...     while not sv.should_stop():
    ...         sess.run(train)
    """

    USE_DEFAULT = 0

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Any = USE_DEFAULT,
        ready_for_local_init_op: Any = USE_DEFAULT,
        is_chief: bool = True,
        init_op: Any = USE_DEFAULT,
        init_feed_dict: FeedDict | None = None,
        local_init_op: Any = USE_DEFAULT,
        logdir: str | None = None,
        summary_op: Any = USE_DEFAULT,
        saver: Any = USE_DEFAULT,
        global_step: Any = USE_DEFAULT,
        save_summaries_secs: float = 120,
        save_model_secs: float = 600,
        recovery_wait_secs: float = 30,
        stop_grace_secs: float = 120,
        checkpoint_basename: str = "model.ckpt",
        session_manager: SessionManager | None = None,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Callable[[Any], Any] | None = None,
        local_init_run_options: Any = None,
    ) -> None:
        self._graph = graph or get_default_graph()
        self._is_chief = is_chief
        self._logdir = logdir
        self._save_summaries_secs = save_summaries_secs
        self._save_model_secs = save_model_secs
        self._recovery_wait_secs = recovery_wait_secs
        self._stop_grace_secs = stop_grace_secs
        self._coord = Coordinator()
        self._sessions: ChiefSessions | None = None
        self._started_threads: list[threading.Thread] = []
        self._init_feed_dict = init_feed_dict
        self._init_fn = init_fn
        with self._graph.as_default():
            self._ready_op = self._op(ready_op, GraphKeys.READY_OP, report_uninitialized_variables)
            self._ready_for_local_init_op = self._op(
                ready_for_local_init_op,
                GraphKeys.READY_FOR_LOCAL_INIT_OP,
                (lambda: report_uninitialized_variables(global_variables()))
                if ready_op is Supervisor.USE_DEFAULT
                else (lambda: None),
            )
            self._init_op = self._op(init_op, GraphKeys.INIT_OP, global_variables_initializer)
            self._local_init_op = self._op(local_init_op, GraphKeys.LOCAL_INIT_OP, _local_initializer)
            self._saver = self._op(saver, GraphKeys.SAVERS, lambda: Saver() if global_variables() else None)
            self._summary_op = self._op(summary_op, GraphKeys.SUMMARY_OP, merge_all)
            self._global_step = self._op(global_step, GraphKeys.GLOBAL_STEP, _global_step_tensor)
            self._departure = None if self._graph.finalized else Departure(self._graph, is_chief)
        self._save_path = os.path.join(logdir, checkpoint_basename) if logdir and is_chief else None
        if not is_chief:
            self._summary_writer = None
        elif summary_writer is Supervisor.USE_DEFAULT:
            self._summary_writer = FileWriter(logdir) if logdir else None
        else:
            self._summary_writer = summary_writer
        if self._ready_for_local_init_op is not None and self._local_init_op is None:
            self._ready_for_local_init_op = None
        self._session_manager = session_manager or SessionManager(
            local_init_op=self._local_init_op,
            ready_op=self._ready_op,
            ready_for_local_init_op=self._ready_for_local_init_op,
            graph=self._graph,
            recovery_wait_secs=recovery_wait_secs,
            local_init_run_options=local_init_run_options,
        )
        self._verify_setup()
        self._graph.finalize()

    def _op(self, given: Any, key: str, make: Callable[[], Any]) -> Any:
        """Returns `given`, or the first element of a collection, or a new one that `make` returns."""
        if given is not Supervisor.USE_DEFAULT:
            return given
        found = self._graph.get_collection(key)
        if found:
            return found[0]
        made = make()
        if made is not None:
            self._graph.add_to_collection(key, made)
        return made

    def _verify_setup(self) -> None:
        if not self._is_chief:
            for op in self._graph.get_operations():
                if op.type in ("Variable", "VariableV2") and not op.device:
                    raise ValueError(
                        "When using replicas, all Variables must have their device set: "
                        f'name: "{op.name}" op: "{op.type}"'
                    )

    # Sessions

    def prepare_or_wait_for_session(
        self,
        master: str = "",
        config: Any = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Any:
        """A session whose model is ready; the chief initialises it, the others wait.

        A session of a cluster survives tasks that die and come back: see penstock/train/recovery.py.
        """
        self._coord.clear_stop()
        if self._summary_writer is not None:
            self._summary_writer.reopen()

        def make(again: bool) -> Session:
            return self._make_session(master, config, wait_for_checkpoint, max_wait_secs, again)

        def after_step(session: Session) -> None:
            if self._sessions is not None:
                self._sessions.after_step(session)

        session = RecoveringSession(make, lambda: not self._coord.should_stop(), after_step) if master else make(False)
        if self._departure is not None:
            self._departure.begin(session)
        if self._is_chief:
            self._write_graph()
            if start_standard_services:
                logging.info("Starting standard services.")
                self.start_standard_services(session)
        if start_standard_services:
            logging.info("Starting queue runners.")
            self.start_queue_runners(session)
        return session

    def _make_session(
        self, master: str, config: Any, wait_for_checkpoint: bool, max_wait_secs: float, again: bool
    ) -> Session:
        manager = self._session_manager
        if not self._is_chief:
            session = manager.wait_for_session(master, config=config, max_wait_secs=max_wait_secs)
            return self._recovered(session, rejoin_op(self._graph)) if again else session
        if self._sessions is None:
            self._sessions = ChiefSessions(manager, self._graph, master, config, self._logdir, self._global_step)
        session = self._sessions.make(
            master,
            again,
            config=config,
            wait={"wait_for_checkpoint": wait_for_checkpoint, "max_wait_secs": max_wait_secs},
            init_op=self._init_op,
            saver=self._saver,
            init_feed_dict=self._init_feed_dict,
            init_fn=self._init_fn,
        )
        if again:
            self._recovered(session, chief_recovery_op(self._graph), rejoin_op(self._graph))
        return session

    def _recovered(self, session: Session, *operations: Any) -> Session:
        """Runs the operations that are not None, in a session that replaces another."""
        try:
            for operation in operations:
                if operation is not None:
                    session.run(operation)
        except BaseException:
            session.close()
            raise
        return session

    def _write_graph(self) -> None:
        if self._logdir:
            text = str(self._graph.as_graph_def(add_shapes=True)).encode()
            files.write_whole(os.path.join(self._logdir, "graph.pbtxt"), text)
        if self._summary_writer is not None:
            saver_def = self._saver.saver_def if self._saver is not None else None
            self._summary_writer.add_graph(self._graph)
            self._summary_writer.add_meta_graph(export_meta_graph(graph=self._graph, saver_def=saver_def))

    @contextlib.contextmanager
    def managed_session(
        self,
        master: str = "",
        config: Any = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Iterator[Any]:
        """A context with a session. Its end stops the services, closes the session, and raises errors of threads."""
        try:
            session = self.prepare_or_wait_for_session(
                master=master, config=config, start_standard_services=start_standard_services
            )
            with session.as_default():
                yield session
        except Exception as error:
            self.request_stop(error)
        finally:
            try:
                # Waits for the threads, and raises the first error of a thread or of the caller.
                self.stop(close_summary_writer=close_summary_writer)
            finally:
                with contextlib.suppress(Exception):  # a session that failed may not close cleanly
                    session.close()

    # Services

    def start_standard_services(self, sess: Any) -> list[threading.Thread]:
        """Starts the services of the chief: summaries, steps per second, checkpoints."""
        if not self._is_chief:
            raise RuntimeError("Only chief supervisor can start standard services because only chief can write events.")
        if not self._logdir:
            logging.warning("Standard services need a 'logdir' passed to the SessionManager")
            return []
        threads: list[threading.Thread] = []
        if self._summary_writer is not None:
            current = None if self._global_step is None else int(sess.run(self._global_step))
            log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._summary_writer.add_session_log(log, current)
        if self._save_summaries_secs and self._summary_writer is not None:
            if self._summary_op is not None:
                threads.append(SVSummaryThread(self, sess))
            if self._global_step is not None:
                threads.append(SVStepCounterThread(self, sess))
        if self._saver is not None and self._save_model_secs:
            threads.append(SVTimerCheckpointThread(self, sess))
        for thread in threads:
            thread.start()
        self._started_threads += threads
        return threads

    def start_queue_runners(self, sess: Any, queue_runners: Sequence[Any] | None = None) -> list[threading.Thread]:
        """Starts the threads of queue runners, those of the graph by default."""
        runners = self._graph.get_collection(GraphKeys.QUEUE_RUNNERS) if queue_runners is None else queue_runners
        threads = [t for r in runners for t in r.create_threads(sess, coord=self._coord, daemon=True, start=True)]
        self._started_threads += threads
        return threads

    def loop(
        self,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """Calls a function at a fixed interval, in a thread, until the supervisor stops."""
        looper = LooperThread(self._coord, timer_interval_secs, target=target, args=args, kwargs=kwargs)
        looper.start()
        self._started_threads.append(looper)
        return looper

    def summary_computed(self, sess: Any, summary: Any, global_step: Any = None) -> None:
        """Writes a summary that the program has computed itself."""
        if self._summary_writer is None:
            raise RuntimeError("Writing a summary requires a summary writer.")
        if global_step is None and self._global_step is not None:
            global_step = int(sess.run(self._global_step))
        self._summary_writer.add_summary(summary, global_step)

    # Stopping

    def stop(
        self,
        threads: Sequence[threading.Thread] | None = None,
        close_summary_writer: bool = True,
        ignore_live_threads: bool = False,
    ) -> None:
        """Stops the threads, waits for them, and raises the first error of any."""
        if self._departure is not None:
            self._departure.end()
        self._coord.request_stop()
        try:
            self._coord.join(
                threads, stop_grace_period_secs=self._stop_grace_secs, ignore_live_threads=ignore_live_threads
            )
        finally:
            if close_summary_writer and self._summary_writer is not None:
                log = event_pb2.SessionLog(status=event_pb2.SessionLog.STOP)
                self._summary_writer.add_session_log(log)
                self._summary_writer.close()
            self._started_threads = []
            if self._sessions is not None:
                self._sessions.end()

    def request_stop(self, ex: Any = None) -> None:
        """Asks the threads to stop."""
        self._coord.request_stop(ex)

    def should_stop(self) -> bool:
        """True if a stop was requested."""
        return self._coord.should_stop()

    def stop_on_exception(self) -> Any:
        """A context that turns an exception raised in it into a request to stop."""
        return self._coord.stop_on_exception()

    def wait_for_stop(self) -> None:
        """Waits until a stop is requested."""
        self._coord.wait_for_stop()

    # Attributes

    @property
    def is_chief(self) -> bool:
        return self._is_chief

    @property
    def session_manager(self) -> SessionManager:
        return self._session_manager

    @property
    def coord(self) -> Coordinator:
        return self._coord

    @property
    def init_op(self) -> Any:
        return self._init_op

    @property
    def init_feed_dict(self) -> Any:
        return self._init_feed_dict

    @property
    def ready_op(self) -> Any:
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Any:
        return self._ready_for_local_init_op

    @property
    def summary_writer(self) -> Any:
        return self._summary_writer

    @property
    def summary_op(self) -> Any:
        return self._summary_op

    @property
    def save_summaries_secs(self) -> float:
        return self._save_summaries_secs

    @property
    def global_step(self) -> Any:
        return self._global_step

    @property
    def saver(self) -> Any:
        return self._saver

    @property
    def save_model_secs(self) -> float:
        return self._save_model_secs

    @property
    def save_path(self) -> str | None:
        return self._save_path

    # Names of old programs

    PrepareSession = prepare_or_wait_for_session
    StartQueueRunners = start_queue_runners
    StartStandardServices = start_standard_services
    Stop = stop
    RequestStop = request_stop
    Loop = loop
    ShouldStop = should_stop
    StopOnException = stop_on_exception
    WaitForStop = wait_for_stop
    SummaryComputed = summary_computed


def _local_initializer() -> Any:
    return group(local_variables_initializer(), tables_initializer())


def _global_step_tensor() -> Any:
    step = get_global_step()
    if step is not None and step.dtype.base_dtype not in (dt.int32, dt.int64):
        return None
    return step
