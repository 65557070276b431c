"""MonitoredSession: a session that recovers from failures, coordinates threads, and calls hooks.

It is a chain of three sessions. The outermost makes a new session when a task is lost (AbortedError, UnavailableError).
The next raises errors of other threads in the caller of `run`. The innermost adds the fetches and feeds of the hooks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import OutOfRangeError
from penstock.graph.graph import get_default_graph
from penstock.graph.typing import FeedDict
from penstock.train.coordinator import Coordinator
from penstock.train.queue_runner import start_queue_runners
from penstock.train.recovery import LOST
from penstock.train.scaffold import Scaffold
from penstock.train.session_chain import CoordinatedSession, HookedSession, RecoverableSession, StepContext
from penstock.train.session_creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from penstock.train.session_run_hook import SessionRunHook
from penstock.train.writing_hooks import CheckpointSaverHook, StepCounterHook, SummarySaverHook

_USE_DEFAULT: Any = object()


class _MonitoredSession:
    """The common base of MonitoredSession and SingularMonitoredSession."""

    def __init__(
        self,
        session_creator: SessionCreator | None,
        hooks: Sequence[SessionRunHook] | None,
        should_recover: bool,
        stop_grace_period_secs: float = 120,
    ) -> None:
        self._graph_was_finalized = get_default_graph().finalized
        self._hooks = list(hooks or [])
        for hook in self._hooks:
            hook.begin()
        self._coordinated_creator = self._CoordinatedSessionCreator(
            session_creator or ChiefSessionCreator(), self._hooks, stop_grace_period_secs, should_recover
        )
        self._sess: Any = (
            RecoverableSession(self._coordinated_creator, self._coordinated_creator.after_step)
            if should_recover
            else self._coordinated_creator.create_session()
        )

    class _CoordinatedSessionCreator(SessionCreator):
        """Makes the inner part of the chain, at first and again after each failure."""

        def __init__(
            self,
            session_creator: SessionCreator,
            hooks: list[SessionRunHook],
            stop_grace_period_secs: float,
            recovers: bool,
        ) -> None:
            self._session_creator = session_creator
            self._hooks = hooks
            self._stop_grace_period_secs = stop_grace_period_secs
            self._recovers = recovers
            self.coord: Coordinator | None = None
            self.tf_sess: Any = None

        def create_session(self) -> Any:
            self.tf_sess = self._session_creator.create_session()
            # A stopped coordinator stays stopped, so a new session gets a new one.
            self.coord = Coordinator(clean_stop_exception_types=())
            self.coord.recovers = self._recovers
            made = CoordinatedSession(
                HookedSession(self.tf_sess, self._hooks), self.coord, self._stop_grace_period_secs
            )
            try:
                if self.tf_sess.graph.get_collection("queue_runners"):
                    start_queue_runners(sess=self.tf_sess, coord=self.coord)
                for hook in self._hooks:
                    hook.after_create_session(self.tf_sess, self.coord)
            except BaseException as error:
                self.coord.lost = self.coord.lost or isinstance(error, LOST)
                with contextlib.suppress(*LOST):  # the threads may have met the same error
                    made.close()  # stops the threads
                raise
            return made

        def after_step(self) -> None:
            """Called after each step."""
            if isinstance(self._session_creator, ChiefSessionCreator):
                self._session_creator._after_step(self.tf_sess)

    @property
    def graph(self) -> Any:
        return None if self._coordinated_creator.tf_sess is None else self._coordinated_creator.tf_sess.graph

    def run(
        self, fetches: Any, feed_dict: FeedDict | None = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        """Runs a step and calls the hooks before and after it."""
        return self._sess.run(fetches, feed_dict=feed_dict, options=options, run_metadata=run_metadata)

    def run_step_fn(self, step_fn: Callable[[StepContext], Any]) -> Any:
        """Calls `step_fn(step_context)`, in which steps may run with hooks or without."""
        parameters = step_fn.__code__.co_varnames[: step_fn.__code__.co_argcount]
        if parameters != ("step_context",) and parameters[-1:] != ("step_context",):
            raise ValueError(
                "`step_fn` may either have one `step_context` argument, or `self` and `step_context` arguments if it's "
                f"an instance method. Got {parameters} instead."
            )
        return self._sess.run_step_fn(step_fn, self._coordinated_creator.tf_sess, run_with_hooks=None)

    def should_stop(self) -> bool:
        """True if the training is over."""
        return self._sess is None or bool(self._sess.should_stop())

    def close(self) -> None:
        """Ends the training: calls the hooks' `end`, stops threads and closes the session."""
        self._close_internal()

    def _is_closed(self) -> bool:
        return self._coordinated_creator.tf_sess is None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        if kind is not None and issubclass(kind, (OutOfRangeError, StopIteration)):
            kind = None
        self._close_internal(kind)
        return kind is None

    def _close_internal(self, exception_type: Any = None) -> None:
        try:
            if exception_type is None:
                for hook in self._hooks:
                    hook.end(self._coordinated_creator.tf_sess)
        except LOST:
            # The training continues when this program is started again, so its queues must stay open.
            if self._coordinated_creator.coord is not None:
                self._coordinated_creator.coord.lost = True
            raise
        finally:
            try:
                if self._sess is None:
                    raise RuntimeError("Session is already closed.")
                self._sess.close()
            finally:
                if isinstance(self._coordinated_creator._session_creator, ChiefSessionCreator):
                    self._coordinated_creator._session_creator._end()
                self._sess = None
                self._coordinated_creator.tf_sess = None
                self._coordinated_creator.coord = None
                if not self._graph_was_finalized:
                    get_default_graph()._unsafe_unfinalize()


_MonitoredSession.StepContext = StepContext  # type: ignore[attr-defined]  # programs write MonitoredSession.StepContext


class MonitoredSession(_MonitoredSession):
    """A session that initialises itself, recovers from failures of its cluster and calls hooks.

    OutOfRangeError and StopIteration end it normally; after any other error the hooks' `end` is not called.

    >>> with tf.train.MonitoredSession(hooks=[tf.train.StopAtStepHook(last_step=1000)]) as sess:
    ...     while not sess.should_stop():
    ...         sess.run(train)
    """

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
    ) -> None:
        super().__init__(session_creator, hooks, True, stop_grace_period_secs)


class SingularMonitoredSession(_MonitoredSession):
    """A MonitoredSession that does not recover: an AbortedError or UnavailableError is raised.

    >>> with tf.train.SingularMonitoredSession(checkpoint_dir="/tmp/train") as sess:
    ...     sess.run(train)
    """

    def __init__(
        self,
        hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        creator = ChiefSessionCreator(
            scaffold=scaffold,
            master=master,
            config=config,
            checkpoint_dir=checkpoint_dir,
            checkpoint_filename_with_path=checkpoint_filename_with_path,
        )
        super().__init__(creator, hooks, False, stop_grace_period_secs)

    def raw_session(self) -> Any:
        """The plain session inside."""
        return self._coordinated_creator.tf_sess


def MonitoredTrainingSession(
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: str | None = None,
    scaffold: Scaffold | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    chief_only_hooks: Sequence[SessionRunHook] | None = None,
    save_checkpoint_secs: Any = _USE_DEFAULT,
    save_summaries_steps: Any = _USE_DEFAULT,
    save_summaries_secs: Any = _USE_DEFAULT,
    config: Any = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: Any = _USE_DEFAULT,
    summary_dir: str | None = None,
    save_graph_def: bool = True,
) -> MonitoredSession:
    """A MonitoredSession with the usual hooks: the chief saves checkpoints and summaries and counts steps.

    >>> with tf.train.MonitoredTrainingSession(server.target, is_chief, "/tmp/train", hooks=hooks) as sess:
    ...     while not sess.should_stop():
    ...         sess.run(train)
    """
    if save_summaries_steps is _USE_DEFAULT and save_summaries_secs is _USE_DEFAULT:
        save_summaries_steps, save_summaries_secs = 100, None
    elif save_summaries_secs is _USE_DEFAULT:
        save_summaries_secs = None
    elif save_summaries_steps is _USE_DEFAULT:
        save_summaries_steps = None
    if save_checkpoint_steps is _USE_DEFAULT and save_checkpoint_secs is _USE_DEFAULT:
        save_checkpoint_steps, save_checkpoint_secs = None, 600
    elif save_checkpoint_secs is _USE_DEFAULT:
        save_checkpoint_secs = None
    elif save_checkpoint_steps is _USE_DEFAULT:
        save_checkpoint_steps = None
    scaffold = scaffold or Scaffold()
    all_hooks: list[SessionRunHook] = []
    creator: SessionCreator
    if not is_chief:
        creator = WorkerSessionCreator(scaffold=scaffold, master=master, config=config, max_wait_secs=max_wait_secs)
        return MonitoredSession(creator, list(hooks or []), stop_grace_period_secs)
    creator = ChiefSessionCreator(scaffold=scaffold, checkpoint_dir=checkpoint_dir, master=master, config=config)
    summary_dir = summary_dir or checkpoint_dir
    if summary_dir:
        if log_step_count_steps and log_step_count_steps > 0:
            all_hooks.append(StepCounterHook(log_step_count_steps, output_dir=summary_dir))
        if (save_summaries_steps and save_summaries_steps > 0) or (save_summaries_secs and save_summaries_secs > 0):
            all_hooks.append(
                SummarySaverHook(
                    save_steps=save_summaries_steps,
                    save_secs=save_summaries_secs,
                    scaffold=scaffold,
                    output_dir=summary_dir,
                )
            )
    if checkpoint_dir and (
        (save_checkpoint_secs and save_checkpoint_secs > 0) or (save_checkpoint_steps and save_checkpoint_steps > 0)
    ):
        all_hooks.append(
            CheckpointSaverHook(
                checkpoint_dir,
                save_steps=save_checkpoint_steps,
                save_secs=save_checkpoint_secs,
                scaffold=scaffold,
                save_graph_def=save_graph_def,
            )
        )
    return MonitoredSession(creator, [*all_hooks, *(hooks or []), *(chief_only_hooks or [])], stop_grace_period_secs)
