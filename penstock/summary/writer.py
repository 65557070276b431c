"""FileWriter: writes event files in its own thread, so that a step does not wait for the disk."""

from __future__ import annotations

import atexit
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from tensorboard.compat.proto import event_pb2, meta_graph_pb2, summary_pb2

from penstock import logging
from penstock.errors import OpError
from penstock.graph.graph import Graph
from penstock.records import RecordWriter, read

_STOP = object()
_OPEN: weakref.WeakSet[EventFileWriter] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Many programs exit without closing their writer. Their events must still reach the file."""
    for writer in list(_OPEN):
        writer.close()


class EventFileWriter:
    """Appends events to a new file in a directory.

    >>> writer = EventFileWriter("/tmp/train"); writer.add_event(event); writer.close()
    """

    def __init__(self, logdir: Any, max_queue: int = 10, flush_secs: float = 120, filename_suffix: str | None = None):
        self._logdir: str = os.fspath(logdir)
        os.makedirs(self._logdir, exist_ok=True)
        self._queue: queue.Queue[Any] = queue.Queue(max(1, max_queue))
        self._flush_secs = flush_secs
        self._suffix = filename_suffix or ""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._path = ""
        self._open()

    def _open(self) -> None:
        stamp = time.time()
        name = f"events.out.tfevents.{int(stamp):010d}.{socket.gethostname()}{self._suffix}"
        self._path = os.path.join(self._logdir, name)
        number = 0
        while os.path.exists(self._path):
            number += 1
            self._path = os.path.join(self._logdir, f"{name}.{number}")
        self._records = RecordWriter(self._path)
        self._records.write(event_pb2.Event(wall_time=stamp, file_version="brain.Event:2").SerializeToString())
        self._records.flush()
        self._thread = threading.Thread(target=self._run, name="penstock-event-writer", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    def get_logdir(self) -> str:
        """The directory."""
        return self._logdir

    def add_event(self, event: Any) -> None:
        """Queues an event for writing; blocks while `max_queue` others are queued."""
        if self._thread is not None:
            self._queue.put(event)

    def flush(self) -> None:
        """Waits until all events are in the file."""
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done)
            done.wait()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Writes all queued events and closes the file. `reopen` starts a new one."""
        if self._thread is not None:
            self.flush()
            self._queue.put(_STOP)
            self._thread.join()
            self._thread = None
            _OPEN.discard(self)

    def reopen(self) -> None:
        """Starts a new file, if this one is closed."""
        if self._thread is None:
            self._open()

    def _run(self) -> None:
        due = time.monotonic() + self._flush_secs
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                item = None
            try:
                if isinstance(item, event_pb2.Event):
                    self._records.write(item.SerializeToString())
                if item is _STOP:
                    self._records.close()
                elif item is None or isinstance(item, threading.Event) or time.monotonic() >= due:
                    self._records.flush()
                    due = time.monotonic() + self._flush_secs
            except OpError as error:
                # `flush` raises the error; training continues.
                if self._error is None:
                    logging.error("Cannot write events to %s: %s", self._path, error)
                self._error = error
            if isinstance(item, threading.Event):
                item.set()
            if item is _STOP:
                return


class FileWriter:
    """Writes summaries, graphs and other events for TensorBoard.

    >>> writer = tf.summary.FileWriter("/tmp/train", sess.graph)
    >>> writer.add_summary(sess.run(merged), step)
    """

    def __init__(
        self,
        logdir: Any,
        graph: Graph | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: Any = None,
        filename_suffix: str | None = None,
        session: Any = None,
    ) -> None:
        self.event_writer = EventFileWriter(logdir, max_queue, flush_secs, filename_suffix)
        self._closed = False
        self._described: set[str] = set()  # tags with metadata in the file
        if graph is not None or graph_def is not None:
            self.add_graph(graph=graph, graph_def=graph_def)
            if isinstance(graph, Graph):
                meta = meta_graph_pb2.MetaGraphDef(graph_def=graph.as_graph_def(add_shapes=True))
                self.add_meta_graph(meta)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def get_logdir(self) -> str:
        """The directory of the event files."""
        return self.event_writer.get_logdir()

    def add_summary(self, summary: Any, global_step: Any = None) -> None:
        """Adds a Summary message, either as an object or as the bytes that a summary op returns."""
        if isinstance(summary, bytes):
            summary = summary_pb2.Summary.FromString(summary)
        # The metadata that a plugin needs for a tag is kept with the first value only.
        kept = summary_pb2.Summary()
        kept.CopyFrom(summary)
        for value in kept.value:
            if value.HasField("metadata"):
                if value.tag in self._described:
                    value.ClearField("metadata")
                self._described.add(value.tag)
        self._add(event_pb2.Event(summary=kept), global_step)

    def add_session_log(self, session_log: Any, global_step: Any = None) -> None:
        """Adds a SessionLog message, such as the start of a run."""
        self._add(event_pb2.Event(session_log=session_log), global_step)

    def add_graph(self, graph: Any = None, global_step: Any = None, graph_def: Any = None) -> None:
        """Adds a graph."""
        if graph is not None and graph_def is not None:
            raise ValueError("Please pass only graph, or graph_def (deprecated), but not both.")
        if isinstance(graph, Graph):
            proto = graph.as_graph_def(add_shapes=True)
        elif graph_def is not None or hasattr(graph, "SerializeToString"):
            proto = graph_def if graph_def is not None else graph
        else:
            raise TypeError(f"The passed graph must be an instance of `Graph` or `GraphDef`, received {graph!r}.")
        self._add(event_pb2.Event(graph_def=proto.SerializeToString()), global_step)

    def add_meta_graph(self, meta_graph_def: Any, global_step: Any = None) -> None:
        """Adds a meta graph."""
        if not isinstance(meta_graph_def, meta_graph_pb2.MetaGraphDef):
            raise TypeError(f"meta_graph_def must be type MetaGraphDef, saw type: {type(meta_graph_def)}")
        self._add(event_pb2.Event(meta_graph_def=meta_graph_def.SerializeToString()), global_step)

    def add_run_metadata(self, run_metadata: Any, tag: str, global_step: Any = None) -> None:
        """Adds the cost of one traced step, under a tag that no other step has."""
        key = f"run metadata {tag}"
        if key in self._described:
            raise ValueError(f"The provided tag was already used for this event type: '{tag}'")
        self._described.add(key)
        tagged = event_pb2.TaggedRunMetadata(tag=tag, run_metadata=run_metadata.SerializeToString())
        self._add(event_pb2.Event(tagged_run_metadata=tagged), global_step)

    def add_event(self, event: Any) -> None:
        """Adds an event unchanged."""
        self._warn_if_closed()
        self.event_writer.add_event(event)

    def _add(self, event: Any, step: Any) -> None:
        event.wall_time = time.time()
        if step is not None:
            event.step = int(step)
        self.add_event(event)

    def _warn_if_closed(self) -> None:
        if self._closed:
            logging.warning("Attempting to use a closed FileWriter: %s", self.get_logdir())

    def flush(self) -> None:
        """Waits until all events are in the file."""
        self._warn_if_closed()
        self.event_writer.flush()

    def close(self) -> None:
        """Writes all queued events and closes the file."""
        if not self._closed:
            self._closed = True
            self.event_writer.close()

    def reopen(self) -> None:
        """Continues in a new file, after `close`."""
        self.event_writer.reopen()
        self._closed = False


class FileWriterCache:
    """Keeps one FileWriter per directory, shared by all that write there."""

    _cache: dict[str, FileWriter] = {}
    _lock = threading.RLock()

    @staticmethod
    def get(logdir: Any) -> FileWriter:
        """The writer of a directory, made if there is none."""
        with FileWriterCache._lock:
            path = os.fspath(logdir)
            if path not in FileWriterCache._cache:
                FileWriterCache._cache[path] = FileWriter(path)
            return FileWriterCache._cache[path]

    @staticmethod
    def clear() -> None:
        """Closes all writers and forgets them."""
        with FileWriterCache._lock:
            for writer in FileWriterCache._cache.values():
                writer.close()
            FileWriterCache._cache = {}


def summary_iterator(path: Any) -> Iterator[Any]:
    """The events of an event file.

    >>> for event in tf.train.summary_iterator(path):
    ...     print(event.step, [value.tag for value in event.summary.value])
    """
    return map(event_pb2.Event.FromString, read(path))
