"""Recovery: how sessions get over tasks that die and come back.

A step that loses a task fails with UnavailableError. A task that has come back without what it held gives AbortedError.
Neither is the program's fault, and both pass: a new session finds the task again, or waits for it. What the parameter
servers still hold is kept; if any of it is gone the chief restores the last checkpoint, or initialises, and the others
wait until it has. The step that failed is then run again, so an update may count twice if only the answer to it was
lost. A task that stays away for PENSTOCK_START_TIMEOUT_SECS is given up, with the error.
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
_SAY_EVERY = 10.0  # seconds
_LONGEST_PAUSE = 2.0

T = TypeVar("T")


class Patience:
    """How long to go on trying: from now on for PENSTOCK_START_TIMEOUT_SECS.

    >>> patience.spend(error)  # waits a moment, or raises the error if the time is over
    """

    def __init__(self) -> None:
        from penstock.master.remote import start_timeout  # start-up: a program without a cluster does not load gRPC

        self._limit = start_timeout()
        self._began = time.monotonic()
        self._said = -_SAY_EVERY
        self._pause = 0.05

    def spend(self, error: OpError, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Says what is waited for, and waits a little. Raises `error` when it is time to give up."""
        spent = time.monotonic() - self._began
        if spent >= self._limit or not goes_on():
            raise error
        if spent - self._said >= _SAY_EVERY:
            self._said = spent
            logging.warning(
                "A task of the cluster is lost; a new session is being made (for %.0f s; gives up after %.0f s): %s",
                spent,
                self._limit,
                error.message,
            )
        time.sleep(min(self._pause, self._limit))
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE)


def patiently(make: Callable[[], T], patience: Patience | None = None, goes_on: Callable[[], bool] = lambda: True) -> T:
    """What `make` makes, tried again while a task is lost."""
    patience = patience or Patience()
    while True:
        try:
            return make()
        except LOST as error:
            patience.spend(error, goes_on)


# Graphs whose replicas go in step, with the name of the op that puts out tokens, which went with their queue. The
# operation itself would keep its graph alive.
_synchronous: weakref.WeakKeyDictionary[Graph, str] = weakref.WeakKeyDictionary()


def note_synchronous(graph: Graph, chief_op: Any = None) -> None:
    """Notes that the steps of a graph wait for other replicas, and what the chief runs after it has recovered."""
    _synchronous.setdefault(graph, "")
    if chief_op is not None:
        _synchronous[graph] = chief_op.name


def is_synchronous(graph: Graph) -> bool:
    """Whether the steps of a graph wait for other replicas."""
    return graph in _synchronous


def chief_recovery_op(graph: Graph) -> Any:
    """What the chief must run after it has recovered, if anything."""
    name = _synchronous.get(graph)
    return graph.get_operation_by_name(name) if name else None


class WaitLog:
    """Says now and then that a step waits, if it does so for long.

    >>> with wait_log: sess.run(train)
    """

    def __init__(self) -> None:
        from penstock.wire.channel import keepalive_secs  # start-up

        self._every = keepalive_secs()
        self._steps: dict[int, list[float]] = {}  # by thread: when they began, and when to speak of them
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
                    step[1] = now + (now - step[0])  # the longer it takes, the less news it is
                    logging.warning(
                        "A step has been waiting for %.0f s. In synchronous training it ends when the gradients of "
                        "enough replicas are there and the chief has applied them: are all of them running?",
                        now - step[0],
                    )

    def close(self) -> None:
        """Ends its thread."""
        self._closed.set()


class RecoveringSession(Session):
    """A session of a cluster that gets over lost tasks: it makes a new session inside, and runs the step again.

    Threads that share it wait while one of them does so. `make(again)` gives a plain session whose model is ready;
    `goes_on` says whether recovery still makes sense; `ran` is told of steps that have run. A step with a time limit of
    its own fails instead, as does every step once the training is to stop.
    """

    def __init__(
        self,
        make: Callable[[bool], Session],
        goes_on: Callable[[], bool],
        ran: Callable[[Session], None] = lambda session: None,
    ) -> None:
        # No super().__init__: the session inside is the one that connects.
        self._make = make
        self._goes_on = goes_on
        self._ran = ran
        self._contexts = []
        self._closed = False
        self._lost: Session | None = None  # its steps were cancelled for the sake of recovery
        self._recovery = threading.RLock()
        self._patience: Patience | None = None
        self._given_up: OpError | None = None
        self._inner = patiently(lambda: make(False), goes_on=self._may_recover)
        self._target, self._config = self._inner._target, self._inner._config
        self._graph, self._timeout_ms = self._inner._graph, self._inner._timeout_ms
        self._wait_log = WaitLog() if is_synchronous(self._graph) else None

    def _may_recover(self) -> bool:
        return not self._closed and self._goes_on()

    def run(
        self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None, *, _times: int = 1
    ) -> Any:
        """Runs what `fetches` needs, if need be in a new session."""
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
                    if self._given_up is not None:
                        raise self._given_up from None
                    raise
                with self._recovery:
                    if session is self._inner:  # which did not work out
                        raise self._given_up or error from None
            else:
                self._patience = None
                self._ran(session)
                return values

    def _recover(self, session: Session, error: OpError) -> None:
        """Replaces `session`, unless another thread has done so. Raises an error when it gives up."""
        with self._recovery:
            if session is not self._inner:
                return
            if self._given_up is not None:
                raise self._given_up
            # Kept here, too: a step of another thread may end well meanwhile, though it began before.
            patience = self._patience = self._patience or Patience()
            self._lost = session
            session.close()
            try:
                patience.spend(error, self._may_recover)
                fresh = patiently(lambda: self._make(True), patience, self._may_recover)
            except OpError as last:
                self._given_up = last
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
        """Ends the session: steps in flight are cancelled."""
        if not self._closed:
            self._closed = True
            self._inner.close()
            if self._wait_log is not None:
                self._wait_log.close()
