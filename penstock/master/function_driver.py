"""A function driver runs whole functions for a client on this task, one after the other, with a master of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock import logging
from penstock.errors import CancelledError, InternalError, OpError
from penstock.master.master import Master
from penstock.master.signature import Signature
from penstock.master.tasks import Tasks
from penstock.passes.ir import Subgraph
from penstock.wire.messages import RunGraph
from penstock.worker.cancellation import Cancellation
from penstock.worker.commits import ClosureId
from penstock.worker.step import Step

OnDone = Callable[[list[Any] | None, OpError | None, Step], None]


class FunctionDriver:
    """Runs the functions that one client has registered here, in the order in which it asks."""

    def __init__(self, tasks: Tasks) -> None:
        tasks.is_driven = True
        self._master = Master(tasks, soft_placement=True)
        self._queue = ThreadPoolExecutor(1, "penstock-driver")
        self._lock = threading.Lock()
        self._waiting: dict[int, Cancellation] = {}  # by step: those that wait or run
        self._closed = False

    def add(self, subgraph: Subgraph) -> Signature:
        """Compiles a function for this task and those that it names."""
        return self._master.compiled(subgraph)

    def forget(self, function: Signature) -> None:
        """Frees a function that will not be asked for again. Other tasks hear of it before their next step."""
        self._master.forget(function)

    def start(self, function: Signature, request: RunGraph, on_done: OnDone) -> None:
        """Runs a function when those before it have ended."""
        cancelled = Cancellation()
        with self._lock:
            if self._closed:
                raise CancelledError("The client has closed its session on this task.")
            self._waiting[request.step] = cancelled
            self._queue.submit(self._run, function, request, on_done, cancelled)

    def _run(self, function: Signature, request: RunGraph, on_done: OnDone, cancelled: Cancellation) -> None:
        values: list[Any] | None = None
        failure: OpError | None = None
        closure = ClosureId(request.writer, request.number, request.settled) if request.number else None
        try:
            if cancelled.is_set:
                raise CancelledError("The closure was cancelled before it ran.")
            values = self._master.run(function, request.values, closure=closure, cancelled=cancelled)[0]
        except OpError as error:
            failure = error
        except Exception as error:
            logging.error("penstock: a function failed", exc_info=error)
            failure = InternalError(f"{type(error).__name__}: {error}")
        with self._lock:
            self._waiting.pop(request.step, None)
        try:
            on_done(values, failure, Step(cancelled))
        except OpError as gone:  # the client has gone
            logging.debug("The result of a function could not be delivered: %s", gone.message)

    def cancel(self, step: int) -> None:
        """Cancels a function that waits or runs."""
        with self._lock:
            cancelled = self._waiting.get(step)
        if cancelled is not None:
            cancelled.set()

    def close(self) -> None:
        """Cancels what waits and runs."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting.values())
        for cancelled in waiting:
            cancelled.set()
        self._master.close()
        self._queue.shutdown(wait=False)
