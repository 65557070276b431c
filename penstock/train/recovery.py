"""Recovery: how sessions survive tasks that die and come back.

A step that loses a task fails with UnavailableError. A task that came back without its state answers AbortedError.
Neither is the program's fault, and a retry helps: a new session finds the task again, or waits for it. It keeps the
state of the parameter servers. If any of it is lost, the chief restores the last checkpoint, or initialises, and the
other workers wait for that. Then the failed step runs again, so an update may count twice if only its answer was lost.
If a task stays away for PENSTOCK_START_TIMEOUT_SECS, the error is raised.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from penstock import logging
from penstock.errors import AbortedError, CancelledError, OpError, UnavailableError
from penstock.graph.graph import Graph
from penstock.session import DeviceAttributes, Session

LOST = (AbortedError, UnavailableError)
_WARN_EVERY = 10.0  # seconds
_LONGEST_PAUSE = 2.0

T = TypeVar("T")


class RetryLimit:
    """Limits retries to PENSTOCK_START_TIMEOUT_SECS from now on.

    >>> retries.wait(error)  # waits a moment, or raises the error if the time is over
    """

    def __init__(self) -> None:
        from penstock.master.remote import start_timeout  # start-up: a program without a cluster does not load gRPC

        self._limit = start_timeout()
        self._began = time.monotonic()
        self._last_warning = -_WARN_EVERY
        self._pause = 0.05

    def wait(self, error: OpError, may_retry: Callable[[], bool] = lambda: True) -> None:
        """Warns now and then, and waits a moment before the next try. Raises `error` if there is none."""
        spent = time.monotonic() - self._began
        if spent >= self._limit or not may_retry():
            raise error
        if spent - self._last_warning >= _WARN_EVERY:
            self._last_warning = spent
            logging.warning(
                "A task of the cluster is lost; a new session is being made (for %.0f s; gives up after %.0f s): %s",
                spent,
                self._limit,
                error.message,
            )
        time.sleep(min(self._pause, self._limit))
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE)


def retry_while_lost(
    make: Callable[[], T], retries: RetryLimit | None = None, may_retry: Callable[[], bool] = lambda: True
) -> T:
    """Returns what `make` returns. Calls it again while a task is lost."""
    retries = retries or RetryLimit()
    while True:
        try:
            return make()
        except LOST as error:
            retries.wait(error, may_retry)


# Graphs of synchronous replicas, each with the name of the op that puts out new tokens, since tokens are lost with
# their queue. It is a name because the operation itself would keep its graph alive.
_synchronous: weakref.WeakKeyDictionary[Graph, str] = weakref.WeakKeyDictionary()


def note_synchronous(graph: Graph, chief_op: Any = None) -> None:
    """Records that the steps of a graph wait for other replicas, and which op the chief runs after a recovery."""
    _synchronous.setdefault(graph, "")
    if chief_op is not None:
        _synchronous[graph] = chief_op.name


def is_synchronous(graph: Graph) -> bool:
    """True if the steps of a graph wait for other replicas."""
    return graph in _synchronous


def chief_recovery_op(graph: Graph) -> Any:
    """The operation that the chief must run after a recovery, or None."""
    name = _synchronous.get(graph)
    return graph.get_operation_by_name(name) if name else None


# Graphs whose workers must join the others again after a recovery, each with the name of the op that does it.
_rejoining: weakref.WeakKeyDictionary[Graph, str] = weakref.WeakKeyDictionary()


def note_rejoin(graph: Graph, op: Any) -> None:
    """Records the op that a worker runs after a recovery, before its next step."""
    _rejoining[graph] = op.name


def rejoin_op(graph: Graph) -> Any:
    """The operation that a worker must run after a recovery, or None."""
    name = _rejoining.get(graph)
    return graph.get_operation_by_name(name) if name else None


class WaitLog:
    """Warns now and then while a step waits for long.

    >>> with wait_log: sess.run(train)
    """

    def __init__(self) -> None:
        from penstock.wire.channel import keepalive_secs  # start-up

        self._every = keepalive_secs()
        self._steps: dict[int, list[float]] = {}  # thread -> when its step began, and when to warn
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        now = time.monotonic()
        self._steps[threading.get_ident()] = [now, now + self._every]
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="penstock-waiting", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._steps.pop(threading.get_ident(), None)

    def _watch(self) -> None:
        while not self._closed.wait(self._every):
            now = time.monotonic()
            for step in list(self._steps.values()):
                if now >= step[1]:
                    step[1] = now + (now - step[0])  # the longer the wait, the rarer the warnings
                    logging.warning(
                        "A step has been waiting for %.0f s. In synchronous training it ends when the gradients of "
                        "enough replicas are there and the chief has applied them: are all of them running?",
                        now - step[0],
                    )

    def close(self) -> None:
        """Ends the thread that warns."""
        self._closed.set()


class RecoveringSession(Session):
    """A session of a cluster that survives lost tasks: it makes a new session inside, and runs the step again.

    Threads that share it wait while one of them recovers. `make(again)` returns a plain session whose model is ready.
    `may_retry` tells if recovery still makes sense. `after_step` is called after each step. A step with a time limit of
    its own fails instead, as does every step once the training is to stop.
    """

    def __init__(
        self,
        make: Callable[[bool], Session],
        may_retry: Callable[[], bool],
        after_step: Callable[[Session], None] = lambda session: None,
    ) -> None:
        # No super().__init__: the session inside makes the connection.
        self._make = make
        self._may_retry = may_retry
        self._after_step = after_step
        self._contexts = []
        self._closed = False
        self._lost: Session | None = None  # closed for recovery, which cancelled its steps
        self._recovery = threading.RLock()
        self._retries: RetryLimit | None = None
        self._final_error: OpError | None = None  # recovery has failed
        self._inner = retry_while_lost(lambda: make(False), may_retry=self._may_recover)
        self._target, self._config = self._inner._target, self._inner._config
        self._graph, self._timeout_ms = self._inner._graph, self._inner._timeout_ms
        self._wait_log = WaitLog() if is_synchronous(self._graph) else None

    def _may_recover(self) -> bool:
        return not self._closed and self._may_retry()

    def run(
        self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None, *, _times: int = 1
    ) -> Any:
        """Runs a step, in a new session if necessary."""
        if self._wait_log is None or _times > 1:
            return self._run(fetches, feed_dict, options, run_metadata, _times)
        with self._wait_log:
            return self._run(fetches, feed_dict, options, run_metadata)

    def _run(self, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any, times: int = 1) -> Any:
        while True:
            self._check_open()
            session = self._inner
            try:
                values = session.run(fetches, feed_dict, options, run_metadata, _times=times)
            except LOST as error:
                if (options is not None and options.timeout_in_ms) or self._timeout_ms or not self._may_recover():
                    raise
                self._recover(session, error)
            except (CancelledError, RuntimeError) as error:
                # Another thread may have closed the session to make a new one.
                if self._closed or (session is self._inner and session is not self._lost):
                    if self._final_error is not None:
                        raise self._final_error from None
                    raise
                with self._recovery:
                    if session is self._inner:  # recovery has failed
                        raise self._final_error or error from None
            else:
                self._retries = None
                self._after_step(session)
                return values

    def _recover(self, session: Session, error: OpError) -> None:
        """Replaces `session`, unless another thread has done so. Raises the last error if retries do not help."""
        with self._recovery:
            if session is not self._inner:
                return
            if self._final_error is not None:
                raise self._final_error
            # A local name too: a step of another thread that began before may succeed meanwhile and reset the field.
            retries = self._retries = self._retries or RetryLimit()
            self._lost = session
            session.close()
            try:
                retries.wait(error, self._may_recover)
                fresh = retry_while_lost(lambda: self._make(True), retries, self._may_recover)
            except OpError as last:
                self._final_error = last
                raise
            self._inner = fresh
            if self._closed:
                fresh.close()
        logging.warning("The session is back.")

    def list_devices(self) -> list[DeviceAttributes]:
        """The devices that this session may use."""
        self._check_open()
        return self._inner.list_devices()

    def close(self) -> None:
        """Closes the session and cancels its running steps."""
        if not self._closed:
            self._closed = True
            self._inner.close()
            if self._wait_log is not None:
                self._wait_log.close()
