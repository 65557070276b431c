"""RemoteWorker: a worker as the coordinator sees it: functions are registered there once, then run by number."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from penstock.distribute.coordinator.closures import Closure, SentFunction
from penstock.errors import OpError, UnavailableError
from penstock.graph.graph import executing_eagerly
from penstock.graph.operation import Tensor
from penstock.master.remote import start_timeout
from penstock.ops.engine.current_task import current_task
from penstock.wire.messages import Done, RunGraph

_steps = itertools.count(secrets.randbits(62))


class RemoteWorker:
    """One worker of the cluster."""

    def __init__(self, number: int, session: str, task: Callable[[threading.Event], Any]) -> None:
        self.number = number
        self.is_leaving = False  # it is no member of the job any more: it gets nothing to run
        self._session = session
        self._connect = task
        self._task: Any = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        # The handles of functions there. A function that no closure uses, and that the program has dropped, is freed.
        self._functions: weakref.WeakKeyDictionary[SentFunction, Any] = weakref.WeakKeyDictionary()

    @property
    def is_connected(self) -> bool:
        """Tells if the worker can be sent to without waiting."""
        return self._task is not None and self._task.is_connected

    def answers(self) -> bool:
        """Asks the worker for a sign of life: a connection may be lost without anyone having noticed."""
        return self._task is not None and bool(self._task.answers())

    def renew(self, session: str = "") -> None:
        """Registers functions anew: in another session, if other tasks were restarted, or where variables are now."""
        self._session = session or self._session
        known, self._functions = self._functions, weakref.WeakKeyDictionary()
        for handle in known.values():
            self._task.free(handle)

    def connect(self) -> None:
        """Connects to the worker, which may be another process than before: then it knows no function."""
        self._functions = weakref.WeakKeyDictionary()
        self._task = self._connect(self._closed)

    def knows(self, function: SentFunction) -> bool:
        """Tells if a function is registered there."""
        return function in self._functions

    def register(self, function: SentFunction) -> Any:
        """Registers a function, unless it is known; this may take as long as compiling it."""
        with self._lock:
            known = self._functions  # it may be renewed meanwhile
            handle = known.get(function)
            if handle is None:
                handle = known[function] = self._task.register(function.subgraph, self._session, is_function=True)
                weakref.finalize(function, self._task.free, handle).atexit = False
            return handle

    def start(
        self, closure: Closure, writer: int, settled: int, done: Callable[[Closure, Done | OpError], None]
    ) -> None:
        """Sends a closure whose function is registered. `done` is called from another thread when it has ended."""
        self._start(self._functions[closure.function], closure, writer, settled, done)

    def _start(
        self, handle: Any, closure: Closure, writer: int, settled: int, done: Callable[[Closure, Done | OpError], None]
    ) -> None:
        values = closure.values_for(self.number)
        count = len(values)
        closure.step, closure.sent_at = next(_steps), time.monotonic()
        request = RunGraph(
            closure.step,
            0,
            writer=writer,
            number=closure.number,
            settled=settled,
            fed=count,
            keys=range(count),
            values=values,
        )
        self._task.start(handle, request, lambda result: done(closure, result))

    def run(self, closure: Closure) -> None:
        """Runs a closure that is in no queue, and waits for it."""
        ended = threading.Event()
        results: list[Done | OpError] = []

        def answer(_: Closure, result: Done | OpError) -> None:
            results.append(result)
            ended.set()

        self._start(self.register(closure.function), closure, 0, 0, answer)
        if not ended.wait(start_timeout()):
            raise UnavailableError(f"Worker {self.number} did not make its resources in {start_timeout():g} s.")
        if isinstance(results[0], OpError):
            raise results[0]

    def cancel(self, closure: Closure, why: OpError) -> None:
        """Cancels a closure that was sent: if it has not begun, it will not."""
        if self.is_connected:
            self._task.cancel(closure.step, why)

    def leave(self) -> None:
        """Notes that the worker is no member any more, and stops waiting for it if it is not up."""
        self.is_leaving = True
        if not self.is_connected:
            self._closed.set()

    def close(self) -> None:
        """Has the worker forget the functions, and stops waiting for it if it is not up."""
        self._closed.set()
        if self._task is not None:
            self._task.close_session(self._session)


def experimental_get_current_worker_index() -> Tensor:
    """The number of the worker that runs a scheduled function, as a tensor of that function.

    >>> @tf.function
    ... def where():
    ...     return tf.distribute.coordinator.experimental_get_current_worker_index()
    """
    if executing_eagerly():
        raise RuntimeError("Only a function that is given to ClusterCoordinator.schedule has a worker that runs it.")
    index: Tensor = current_task()
    return index
