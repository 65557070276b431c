"""SessionRunHook: an object that a MonitoredSession calls at its start, at its end, and around each step."""

from __future__ import annotations

from typing import Any, NamedTuple


class SessionRunArgs(NamedTuple):
    """The fetches, feeds and options that a hook adds to a step."""

    fetches: Any
    feed_dict: Any = None
    options: Any = None


class SessionRunValues(NamedTuple):
    """The results that a hook receives: the values of its fetches, and how the step was run."""

    results: Any
    options: Any
    run_metadata: Any


class SessionRunContext:
    """Describes the current step to a hook, and lets the hook end the training.

    >>> def after_run(self, run_context, run_values):
    ...     if run_values.results > 10.0:
    ...         run_context.request_stop()
    """

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self._original_args = original_args
        self._session = session
        self._stop_requested = False

    @property
    def original_args(self) -> SessionRunArgs:
        return self._original_args

    @property
    def session(self) -> Any:
        return self._session

    @property
    def stop_requested(self) -> bool:
        return self._stop_requested

    def request_stop(self) -> None:
        """Ends the training after this step."""
        self._stop_requested = True


class SessionRunHook:
    """Base class of hooks.

    `begin` may still add to the graph. `before_run` may return a SessionRunArgs. `end` is called only if the training
    ended normally.

    >>> class Printer(tf.train.SessionRunHook):
    ...     def before_run(self, run_context):
    ...         return tf.train.SessionRunArgs(loss)
    ...     def after_run(self, run_context, run_values):
    ...         print(run_values.results)
    """

    def begin(self) -> None:
        """Called once, before the session is made."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Called when the session is made, and when it is made again after a failure."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each step."""

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each step that did not fail."""

    def end(self, session: Any) -> None:
        """Called when the training has ended without an error."""
