"""QueueRunner: threads that fill a queue while a session runs steps that empty it."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from penstock import logging
from penstock.checkpoint.messages import QueueRunnerDef
from penstock.errors import OpError, OutOfRangeError, error_code_from_exception_type, exception_type_from_error_code
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import control_dependencies
from penstock.graph.sessions import get_default_session
from penstock.train.coordinator import Coordinator

TIMES = 64  # how often another task runs an op before this one checks for a request to stop


class QueueRunner:
    """Runs the enqueue operations of a queue, each in its own thread, until the queue is closed.

    >>> runner = tf.train.QueueRunner(queue, [enqueue] * 4)
    >>> tf.train.add_queue_runner(runner)
    """

    _coordinator_waits = True  # for the threads, which end when their queue is closed

    def __init__(
        self,
        queue: Any = None,
        enqueue_ops: Sequence[Any] | None = None,
        close_op: Any = None,
        cancel_op: Any = None,
        queue_closed_exception_types: tuple[type[BaseException], ...] | None = None,
        queue_runner_def: Any = None,
        import_scope: str | None = None,
    ) -> None:
        if queue_runner_def is not None:
            if queue is not None or enqueue_ops:
                raise ValueError("queue_runner_def and queue are mutually exclusive.")
            queue, enqueue_ops, close_op, cancel_op, queue_closed_exception_types = _from_def(
                queue_runner_def, import_scope
            )
        if queue is None or not enqueue_ops:
            raise ValueError("Must provide queue and enqueue_ops.")
        closed_by = (OutOfRangeError,) if queue_closed_exception_types is None else queue_closed_exception_types
        if (
            not isinstance(closed_by, tuple)
            or not closed_by
            or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in closed_by)
        ):
            raise TypeError(f"queue_closed_exception_types must be a tuple of exception types: {closed_by!r}.")
        self._queue = queue
        self._enqueue_ops = list(enqueue_ops)
        with control_dependencies(None):  # closing must work when nothing else does
            self._close_op = queue.close() if close_op is None else close_op
            self._cancel_op = queue.close(cancel_pending_enqueues=True) if cancel_op is None else cancel_op
        self._closed_by = closed_by
        self._lock = threading.Lock()
        self._runs: weakref.WeakKeyDictionary[Any, int] = (
            weakref.WeakKeyDictionary()
        )  # session -> number of running threads
        self._exceptions_raised: list[BaseException] = []

    @property
    def queue(self) -> Any:
        return self._queue

    @property
    def enqueue_ops(self) -> list[Any]:
        return self._enqueue_ops

    @property
    def close_op(self) -> Any:
        return self._close_op

    @property
    def cancel_op(self) -> Any:
        return self._cancel_op

    @property
    def queue_closed_exception_types(self) -> tuple[type[BaseException], ...]:
        return self._closed_by

    @property
    def exceptions_raised(self) -> list[BaseException]:
        """Errors of threads that had no coordinator to report them to."""
        return self._exceptions_raised

    @property
    def name(self) -> str:
        return str(self._queue.name)

    def to_proto(self, export_scope: str | None = None) -> Any:
        """The names of its operations as a QueueRunnerDef; None if the queue is not below `export_scope`."""
        prefix = f"{export_scope}/" if export_scope else ""
        if not self.name.startswith(prefix):
            return None
        return QueueRunnerDef(
            queue_name=self.name.removeprefix(prefix),
            enqueue_op_name=[op.name.removeprefix(prefix) for op in self._enqueue_ops],
            close_op_name=self._close_op.name.removeprefix(prefix),
            cancel_op_name=self._cancel_op.name.removeprefix(prefix),
            queue_closed_exception_types=[_code(kind) for kind in self._closed_by],
        )

    @staticmethod
    def from_proto(queue_runner_def: Any, import_scope: str | None = None) -> QueueRunner:
        """The runner of operations that are in the default graph already."""
        return QueueRunner(queue_runner_def=queue_runner_def, import_scope=import_scope)

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        """One thread per enqueue operation, and one that cancels pending enqueues when the coordinator stops.

        The list is empty if the threads of this session still run.
        """
        with self._lock:
            if self._runs.get(sess, 0) > 0:
                return []
            self._runs[sess] = len(self._enqueue_ops)
            self._exceptions_raised = []
        threads = [
            threading.Thread(target=self._run, args=(sess, op, coord), name=f"QueueRunnerThread-{self.name}-{op.name}")
            for op in self._enqueue_ops
        ]
        if coord is not None:
            threads.append(
                threading.Thread(target=self._close_on_stop, args=(sess, coord), name=f"QueueRunnerClose-{self.name}")
            )
            for thread in threads if self._coordinator_waits else threads[-1:]:
                coord.register_thread(thread)
        for thread in threads:
            thread.daemon = daemon
            if start:
                thread.start()
        return threads

    def _run(self, sess: Any, enqueue_op: Any, coord: Coordinator | None) -> None:
        counted = True
        # If all of an op runs in one other task, that task repeats it: a request per run would cost more than the run.
        repeat = {"_times": TIMES} if "_times" in inspect.signature(sess.run).parameters else {}
        try:
            while coord is None or not coord.should_stop():
                try:
                    sess.run(enqueue_op, **repeat)
                except self._closed_by:
                    counted = False
                    self._thread_ended(sess)
                    return
        except Exception as error:
            if coord is None:
                logging.error("Exception in QueueRunner: %s", error)
                with self._lock:
                    self._exceptions_raised.append(error)
                raise
            if coord.joined:  # no one reads the error any more: the session was closed while this thread ran
                logging.vlog(1, "Ignored exception: %s", error)
            else:
                coord.request_stop(error)
        finally:
            if counted:
                with self._lock:
                    self._runs[sess] -= 1

    def _thread_ended(self, sess: Any) -> None:
        """Called by a thread at the end of its input. The last thread closes the queue."""
        with self._lock:
            self._runs[sess] -= 1
            last = self._runs[sess] == 0
        if last:
            self._run_ignoring_errors(sess, self._close_op)

    def _close_on_stop(self, sess: Any, coord: Coordinator) -> None:
        coord.wait_for_stop()
        if coord.lost and coord.recovers:
            sess.close()  # wakes the waiting threads and leaves the queue open for the next session
        else:
            self._run_ignoring_errors(sess, self._cancel_op)

    def _run_ignoring_errors(self, sess: Any, operation: Any) -> None:
        """Runs an operation; the session may be closed already, or its cluster may be gone."""
        try:
            sess.run(operation)
        except (OpError, RuntimeError) as error:
            logging.vlog(1, "Ignored exception: %s", error)


def _code(kind: type[BaseException]) -> int:
    if not issubclass(kind, OpError):
        raise ValueError(f"{kind.__name__} is not the exception of a status code, so it cannot be written")
    return error_code_from_exception_type(kind)


def _from_def(proto: Any, scope: str | None) -> tuple[Any, list[Any], Any, Any, tuple[type[BaseException], ...] | None]:
    """The operations that a QueueRunnerDef names in the default graph; the queue is given by its operation."""
    if not isinstance(proto, QueueRunnerDef):
        raise TypeError(f"queue_runner_def must be a QueueRunnerDef, received {proto!r}.")
    graph, prefix = get_default_graph(), f"{scope}/" if scope else ""
    queue, close, cancel, *enqueue = (
        graph.as_graph_element(prefix + name)
        for name in (proto.queue_name, proto.close_op_name, proto.cancel_op_name, *proto.enqueue_op_name)
    )
    try:
        kinds = tuple(exception_type_from_error_code(code) for code in proto.queue_closed_exception_types)
    except KeyError as error:
        raise ValueError(f"The runner of queue '{proto.queue_name}' has an unknown status code: {error}.") from None
    return queue, enqueue, close, cancel, kinds or None


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Adds a runner to those that `start_queue_runners` starts."""
    get_default_graph().add_to_collection(collection, qr)


def start_queue_runners(
    sess: Any = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """Starts the threads of all queue runners of the graph.

    >>> threads = tf.train.start_queue_runners(sess=sess, coord=coord)
    """
    if sess is None:
        sess = get_default_session()
        if sess is None:
            raise ValueError(
                "Cannot start queue runners: no default session is registered. Use `with sess.as_default()` or pass "
                "an explicit session to tf.train.start_queue_runners(sess=sess)."
            )
    if not hasattr(sess, "run"):
        raise TypeError(f"sess must be a `tf.Session` object. Given class: {type(sess)}")
    runners: Iterable[QueueRunner] = sess.graph.get_collection(collection)
    return [t for runner in runners for t in runner.create_threads(sess, coord=coord, daemon=daemon, start=start)]
