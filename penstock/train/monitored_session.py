"""MonitoredSession: a session that recovers from failures, coordinates threads, and calls hooks.

It is a chain: the outermost part makes the session anew when a task has gone (AbortedError, UnavailableError), the next
brings errors of other threads to whoever runs steps, and the innermost runs a step together with what hooks want of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tensorboard.compat.proto import config_pb2

from penstock.errors import OutOfRangeError
from penstock.face import logging
from penstock.graph.graph import get_default_graph
from penstock.train import hooks as basic_hooks
from penstock.train.coordinator import Coordinator
from penstock.train.queue_runner import start_queue_runners
from penstock.train.recovery import LOST, Patience, WaitLog, is_synchronous, patiently
from penstock.train.scaffold import Scaffold
from penstock.train.session_manager import SessionManager
from penstock.train.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from penstock.train.training_mark import TrainingMark

_USE_DEFAULT: Any = object()


class SessionCreator:
    """Makes the sessions of a MonitoredSession."""

    def create_session(self) -> Any:
        """A session whose model is ready."""
        raise NotImplementedError("A SessionCreator must implement create_session().")


class _ScaffoldedCreator(SessionCreator):
    """What creators of a chief and of a worker share."""

    def __init__(self, scaffold: Scaffold | None, master: str, config: Any) -> None:
        self._scaffold = scaffold or Scaffold()
        self._master = master
        self._config = config
        self._session_manager: SessionManager | None = None

    def _manager(self) -> SessionManager:
        """The session manager, made when the scaffold is complete."""
        scaffold = self._scaffold.finalize()
        if self._session_manager is None:
            self._session_manager = SessionManager(
                local_init_op=scaffold.local_init_op,
                local_init_feed_dict=scaffold.local_init_feed_dict,
                ready_op=scaffold.ready_op,
                ready_for_local_init_op=scaffold.ready_for_local_init_op,
                graph=get_default_graph(),
            )
        return self._session_manager


class ChiefSessionCreator(_ScaffoldedCreator):
    """For the chief: restores the model from the last checkpoint, or initialises it.

    >>> creator = tf.train.ChiefSessionCreator(checkpoint_dir="/tmp/train")
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        super().__init__(scaffold, master, config)
        self._checkpoint_dir = checkpoint_dir
        self._checkpoint_filename_with_path = checkpoint_filename_with_path
        self._began = False
        self._mark: TrainingMark | None = None

    def create_session(self) -> Any:
        manager, scaffold = self._manager(), self._scaffold
        if self._mark is None:
            self._mark = TrainingMark(self._master, self._checkpoint_dir, get_default_graph(), self._config)
        # What a server holds at first may be of another training; later, or if it says so, it is ours.
        ours = self._began or self._mark.is_there()
        prepare = manager.rejoin_session if ours else manager.prepare_session
        session = prepare(
            self._master,
            saver=scaffold.saver,
            checkpoint_dir=self._checkpoint_dir,
            checkpoint_filename_with_path=self._checkpoint_filename_with_path,
            config=self._config,
            init_op=scaffold.init_op,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
        )
        self._began = True
        try:
            self._mark.put()
        except BaseException:
            session.close()
            raise
        return session

    def _end(self) -> None:
        """The training has ended, well or not."""
        if self._mark is not None:
            self._mark.take_away()


class WorkerSessionCreator(_ScaffoldedCreator):
    """For a worker: waits until the chief has initialised the model.

    >>> creator = tf.train.WorkerSessionCreator(master=server.target)
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        max_wait_secs: float = 30 * 60,
    ) -> None:
        super().__init__(scaffold, master, config)
        self._max_wait_secs = max_wait_secs

    def create_session(self) -> Any:
        return self._manager().wait_for_session(
            self._master, config=self._config, max_wait_secs=self._max_wait_secs
        )


class _WrappedSession:
    """A session with another one inside."""

    def __init__(self, sess: Any) -> None:
        self._sess = sess
        self._wrapped_is_stoppable = isinstance(sess, _WrappedSession)

    @property
    def graph(self) -> Any:
        return self._sess.graph

    @property
    def sess_str(self) -> Any:
        return self._sess.sess_str

    def should_stop(self) -> bool:
        """Whether the training is over."""
        if self._check_stop():
            return True
        if self._sess is not None and self._wrapped_is_stoppable:
            return bool(self._sess.should_stop())
        return self._sess is None

    def _check_stop(self) -> bool:
        return False

    def close(self) -> None:
        """Closes the session inside, which may have lost its cluster."""
        if self._sess is not None:
            try:
                self._sess.close()
            except LOST as error:
                logging.error("An error occurred when attempting to close the session: %s", error)
            finally:
                self._sess = None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step."""
        return self._sess.run(*args, **kwargs)

    def run_step_fn(self, step_fn: Callable[..., Any], raw_session: Any, run_with_hooks: Any) -> Any:
        """Calls a function that runs steps itself."""
        return step_fn(StepContext(raw_session, run_with_hooks or self.run))


class _RecoverableSession(_WrappedSession):
    """Makes the session anew when a task of its cluster has gone, and runs the step again."""

    def __init__(self, creator: Any) -> None:
        self._creator = creator
        self._wait_log = WaitLog() if is_synchronous(get_default_graph()) else None
        super().__init__(self._create(None))

    def _create(self, patience: Patience | None) -> Any:
        return patiently(self._creator.create_session, patience)

    def _check_stop(self) -> bool:
        try:
            return bool(self._sess is not None and self._sess._check_stop())
        except LOST as error:
            logging.warning("A task was lost: %s. The session will be made anew.", error.message)
            self._abandon()
            self._sess = self._create(None)
            return False

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self._recovering(lambda: self._sess.run(*args, **kwargs))

    def run_step_fn(self, step_fn: Callable[..., Any], raw_session: Any, run_with_hooks: Any) -> Any:
        return self._recovering(lambda: self._sess.run_step_fn(step_fn, self._creator.tf_sess, run_with_hooks))

    def _recovering(self, call: Callable[[], Any]) -> Any:
        patience: Patience | None = None
        while True:
            if self._sess is None:
                self._sess = self._create(patience)
            try:
                if self._wait_log is None:
                    return call()
                with self._wait_log:
                    return call()
            except LOST as error:
                self._abandon()
                patience = patience or Patience()
                patience.spend(error)

    def _abandon(self) -> None:
        """Closes the session to make another. Its threads can see in the coordinator that it is not the end."""
        if isinstance(self._sess, _CoordinatedSession):
            self._sess._coord.lost = True
        super().close()

    def close(self) -> None:
        if self._wait_log is not None:
            self._wait_log.close()
        super().close()


class _CoordinatedSession(_WrappedSession):
    """Brings errors of the coordinator's threads to whoever runs steps, and stops the threads at the end."""

    def __init__(self, sess: Any, coord: Coordinator, stop_grace_period_secs: float = 120) -> None:
        super().__init__(sess)
        self._coord = coord
        self._stop_grace_period_secs = stop_grace_period_secs

    def _check_stop(self) -> bool:
        self._coord.raise_requested_exception()
        return self._coord.should_stop()

    def close(self) -> None:
        self._coord.request_stop()
        if self._coord.lost and self._coord.recovers:
            # The threads' queues stay open, for the next session, so it is the end of this one that wakes them.
            super().close()
        try:
            self._coord.join(stop_grace_period_secs=self._stop_grace_period_secs, ignore_live_threads=True)
        finally:
            try:
                super().close()
            except Exception as error:  # the error of the training is what matters then
                logging.vlog(1, "Ignored while closing: %s", error)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._sess.run(*args, **kwargs)
        except LOST:
            raise
        except Exception as error:
            # An error of another thread came first, and this one may only follow from it.
            original = error
            try:
                self._coord.raise_requested_exception()
            except LOST:
                raise
            except Exception as first:
                raise first from original
            raise


class _HookedSession(_WrappedSession):
    """Runs each step together with what hooks want of it."""

    def __init__(self, sess: Any, hooks: Sequence[SessionRunHook]) -> None:
        super().__init__(sess)
        self._hooks = hooks
        self._should_stop = False

    def _check_stop(self) -> bool:
        return self._should_stop

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        if self.should_stop():
            raise RuntimeError("Run called even after should_stop requested.")
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict, options), self._sess)
        wanted: dict[Any, Any] = {"caller": fetches}
        feeds = dict(feed_dict or {})
        options = options or config_pb2.RunOptions()
        for hook in self._hooks:
            request = hook.before_run(context)
            if request is not None:
                if request.fetches is not None:
                    wanted[hook] = request.fetches
                _add_feeds(feeds, feed_dict, request.feed_dict)
                options = _merged(options, request.options)
        traced = options != config_pb2.RunOptions()
        metadata = (run_metadata or config_pb2.RunMetadata()) if traced or run_metadata is not None else None
        keys = list(wanted)
        values = self._sess.run(
            [wanted[key] for key in keys], feed_dict=feeds, options=options if traced else None, run_metadata=metadata
        )
        results = dict(zip(keys, values, strict=True))
        for hook in self._hooks:
            hook.after_run(
                context, SessionRunValues(results.get(hook), options, metadata or config_pb2.RunMetadata())
            )
        self._should_stop = self._should_stop or context.stop_requested
        return results["caller"]


def _add_feeds(feeds: dict[Any, Any], of_caller: Any, of_hook: Any) -> None:
    for key, value in (of_hook or {}).items():
        if key in feeds:
            who = "the caller of run" if key in (of_caller or {}) else "another hook"
            raise RuntimeError(f"A hook feeds '{getattr(key, 'name', key)}', which {who} feeds too.")
        feeds[key] = value


def _merged(options: Any, more: Any) -> Any:
    """The wider of two sets of options."""
    if more is None:
        return options
    merged = config_pb2.RunOptions()
    merged.CopyFrom(options)
    merged.trace_level = max(options.trace_level, more.trace_level)
    merged.timeout_in_ms = max(options.timeout_in_ms, more.timeout_in_ms)
    merged.output_partition_graphs = options.output_partition_graphs or more.output_partition_graphs
    return merged


class StepContext:
    """What `run_step_fn` gives to its function.

    >>> def step_fn(step_context):
    ...     batch = step_context.session.run(next_batch)
    ...     return step_context.run_with_hooks(train, {x: batch})
    """

    def __init__(self, session: Any, run_with_hooks_fn: Callable[..., Any]) -> None:
        self._session = session
        self._run_with_hooks_fn = run_with_hooks_fn

    @property
    def session(self) -> Any:
        return self._session

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step as `MonitoredSession.run` does."""
        return self._run_with_hooks_fn(*args, **kwargs)

    def request_stop(self) -> None:
        """Ends the training after this step."""
        raise StopIteration("step_fn has requested the iterations to stop.")


class _MonitoredSession:
    """What MonitoredSession and SingularMonitoredSession share."""

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
            _RecoverableSession(self._coordinated_creator)
            if should_recover
            else self._coordinated_creator.create_session()
        )

    class _CoordinatedSessionCreator(SessionCreator):
        """Makes the inner part of the chain, anew after each failure."""

        def __init__(
            self, session_creator: SessionCreator, hooks: list[SessionRunHook], stop_grace_period_secs: float,
            recovers: bool,
        ) -> None:  # fmt: skip
            self._session_creator = session_creator
            self._hooks = hooks
            self._stop_grace_period_secs = stop_grace_period_secs
            self._recovers = recovers
            self.coord: Coordinator | None = None
            self.tf_sess: Any = None

        def create_session(self) -> Any:
            self.tf_sess = self._session_creator.create_session()
            # A coordinator that was stopped stays stopped: a new session has a new one.
            self.coord = Coordinator(clean_stop_exception_types=())
            self.coord.recovers = self._recovers
            made = _CoordinatedSession(
                _HookedSession(self.tf_sess, self._hooks), self.coord, self._stop_grace_period_secs
            )
            try:
                if self.tf_sess.graph.get_collection("queue_runners"):
                    start_queue_runners(sess=self.tf_sess, coord=self.coord)
                for hook in self._hooks:
                    hook.after_create_session(self.tf_sess, self.coord)
            except BaseException as error:
                self.coord.lost = self.coord.lost or isinstance(error, LOST)
                with contextlib.suppress(*LOST):  # which its threads may have met too
                    made.close()  # or its threads would go on
                raise
            return made

    @property
    def graph(self) -> Any:
        return None if self._coordinated_creator.tf_sess is None else self._coordinated_creator.tf_sess.graph

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Runs a step, with the hooks around it."""
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
        """Whether the training is over."""
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
            scaffold=scaffold, master=master, config=config, checkpoint_dir=checkpoint_dir,
            checkpoint_filename_with_path=checkpoint_filename_with_path,
        )  # fmt: skip
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
            all_hooks.append(basic_hooks.StepCounterHook(log_step_count_steps, output_dir=summary_dir))
        if (save_summaries_steps and save_summaries_steps > 0) or (save_summaries_secs and save_summaries_secs > 0):
            all_hooks.append(
                basic_hooks.SummarySaverHook(
                    save_steps=save_summaries_steps, save_secs=save_summaries_secs, scaffold=scaffold,
                    output_dir=summary_dir,
                )
            )  # fmt: skip
    if checkpoint_dir and (
        (save_checkpoint_secs and save_checkpoint_secs > 0) or (save_checkpoint_steps and save_checkpoint_steps > 0)
    ):
        all_hooks.append(
            basic_hooks.CheckpointSaverHook(
                checkpoint_dir, save_steps=save_checkpoint_steps, save_secs=save_checkpoint_secs, scaffold=scaffold,
                save_graph_def=save_graph_def,
            )
        )  # fmt: skip
    return MonitoredSession(
        creator, [*all_hooks, *(hooks or []), *(chief_only_hooks or [])], stop_grace_period_secs
    )
