"""The chain of sessions in a MonitoredSession: each wraps the next one and adds one thing to `run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from tensorboard.compat.proto import config_pb2

from penstock import logging
from penstock.graph.graph import get_default_graph
from penstock.train.coordinator import Coordinator
from penstock.train.recovery import LOST, RetryLimit, WaitLog, is_synchronous, retry_while_lost
from penstock.train.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues


class WrappedSession:
    """A session with another one inside."""

    def __init__(self, sess: Any) -> None:
        self._sess = sess
        self._wrapped_is_stoppable = isinstance(sess, WrappedSession)

    @property
    def graph(self) -> Any:
        return self._sess.graph

    @property
    def sess_str(self) -> Any:
        return self._sess.sess_str

    def should_stop(self) -> bool:
        """True if the training is over."""
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


class RecoverableSession(WrappedSession):
    """Makes a new session when a task of its cluster is lost, and runs the step again."""

    def __init__(self, creator: Any, after_step: Callable[[], None] = lambda: None) -> None:
        self._creator = creator
        self._after_step = after_step
        self._wait_log = WaitLog() if is_synchronous(get_default_graph()) else None
        super().__init__(self._create(None))

    def _create(self, retries: RetryLimit | None) -> Any:
        return retry_while_lost(self._creator.create_session, retries)

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
        retries: RetryLimit | None = None
        while True:
            if self._sess is None:
                self._sess = self._create(retries)
            try:
                with self._wait_log or nullcontext():
                    result = call()
                self._after_step()
                return result
            except LOST as error:
                self._abandon()
                retries = retries or RetryLimit()
                retries.wait(error)

    def _abandon(self) -> None:
        """Closes the session before a new one is made. The coordinator tells its threads that it is not the end."""
        lost, self._sess = self._sess, None
        if isinstance(lost, CoordinatedSession):
            lost._coord.lost = True
        if lost is not None:
            with suppress(*LOST):  # a thread may have met the same error
                lost.close()

    def close(self) -> None:
        if self._wait_log is not None:
            self._wait_log.close()
        super().close()


class CoordinatedSession(WrappedSession):
    """Raises errors of the coordinator's threads in the caller of `run`, and stops the threads at the end."""

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
            # The threads' queues stay open for the next session, so closing this one must wake the threads.
            super().close()
        try:
            self._coord.join(stop_grace_period_secs=self._stop_grace_period_secs, ignore_live_threads=True)
        finally:
            try:
                super().close()
            except Exception as error:  # must not hide the error of the training
                logging.vlog(1, "Ignored while closing: %s", error)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._sess.run(*args, **kwargs)
        except LOST:
            raise
        except Exception as error:
            # If another thread failed first, this error may only be its consequence.
            original = error
            try:
                self._coord.raise_requested_exception()
            except LOST:
                raise
            except Exception as first:
                raise first from original
            raise


class HookedSession(WrappedSession):
    """Runs each step with the fetches and feeds of the hooks, and calls the hooks."""

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
            hook.after_run(context, SessionRunValues(results.get(hook), options, metadata or config_pb2.RunMetadata()))
        self._should_stop = self._should_stop or context.stop_requested
        return results["caller"]


def _add_feeds(feeds: dict[Any, Any], of_caller: Any, of_hook: Any) -> None:
    for key, value in (of_hook or {}).items():
        if key in feeds:
            who = "the caller of run" if key in (of_caller or {}) else "another hook"
            raise RuntimeError(f"A hook feeds '{getattr(key, 'name', key)}', which {who} feeds too.")
        feeds[key] = value


def _merged(options: Any, more: Any) -> Any:
    """Two sets of options merged: the more demanding value of each."""
    if more is None:
        return options
    merged = config_pb2.RunOptions()
    merged.CopyFrom(options)
    merged.trace_level = max(options.trace_level, more.trace_level)
    merged.timeout_in_ms = max(options.timeout_in_ms, more.timeout_in_ms)
    merged.output_partition_graphs = options.output_partition_graphs or more.output_partition_graphs
    return merged


class StepContext:
    """The argument that `run_step_fn` passes to its function.

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
