"""Writers of event files as resources: the ops that `tf.summary` of the 2.x API consists of."""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import threading
import time
import weakref
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2, graph_pb2, summary_pb2

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.tensor_proto import tensor_proto
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, from_handle
from penstock.records import RecordWriter

_MAX_QUEUE, _FLUSH_MILLIS = 10, 120_000  # events, and time, after which they go to the file
_numbers = itertools.count()


class EventFile:
    """Appends events to a file of its own in a directory, some at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._records: RecordWriter | None = None
        self._queue: list[Any] = []
        self._max_queue, self._flush_secs = _MAX_QUEUE, _FLUSH_MILLIS / 1000
        self._flushed = time.monotonic()

    def open(self, logdir: str, max_queue: int, flush_millis: int, suffix: str) -> None:
        """Starts the file, unless it is there already."""
        with self._lock:
            if self._records is not None:
                return
            now = time.time()
            number = f"{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
            self._max_queue, self._flush_secs = max_queue, flush_millis / 1000
            self._records = RecordWriter(os.path.join(logdir, f"events.out.tfevents.{number}{suffix}"))
            start = event_pb2.Event(wall_time=now, file_version="brain.Event:2")
            start.source_metadata.writer = "tensorflow.core.util.events_writer"
            self._queue.append(start)
            _OPEN.add(self)
        self.flush()

    def add(self, event: Any) -> None:
        """Queues an event; the file gets it when enough are queued, or after some time."""
        with self._lock:
            if self._records is None:
                raise FailedPreconditionError(f"The summary writer '{self.name}' is closed, or was never opened.")
            event.wall_time = time.time()
            self._queue.append(event)
            is_due = len(self._queue) > self._max_queue or time.monotonic() - self._flushed > self._flush_secs
        if is_due:
            self.flush()

    def flush(self) -> None:
        """Writes all queued events to the file."""
        with self._lock:
            if self._records is not None:
                queued, self._queue = self._queue, []
                for event in queued:
                    self._records.write(event.SerializeToString())
                self._records.flush()
                self._flushed = time.monotonic()

    def close(self) -> None:
        """Writes all queued events and closes the file."""
        self.flush()
        with self._lock:
            if self._records is not None:
                self._records.close()
                self._records = None
        _OPEN.discard(self)


_OPEN: weakref.WeakSet[EventFile] = weakref.WeakSet()


@atexit.register
def _flush_all() -> None:
    """Many programs exit without closing their writer. Their events must still reach the file."""
    for writer in list(_OPEN):
        writer.flush()


def _text(value: Any) -> str:
    item = np.asarray(value, object).reshape(-1)[0]
    return item.decode() if isinstance(item, bytes) else str(item)


def _bytes(value: Any) -> bytes:
    item = np.asarray(value, object).reshape(-1)[0]
    return item if isinstance(item, bytes) else str(item).encode()


@op("SummaryWriter", "-> writer: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def summary_writer(*, shared_name: str = "", container: str = "", resource: Any) -> Any:
    return as_handle(resource(EventFile))


@op("CreateSummaryFileWriter", "resource, string, int32, int32, string ->", host=True, stateful=True, no_gradient=True)
def create_summary_file_writer(
    writer: Any, logdir: Any, max_queue: Any, flush_millis: Any, filename_suffix: Any
) -> None:
    from_handle(writer).open(_text(logdir), int(max_queue), int(flush_millis), _text(filename_suffix))


@op("WriteSummary", "resource, int64, T, string, string ->", host=True, stateful=True, no_gradient=True)
def write_summary(writer: Any, step: Any, tensor: Any, tag: Any, summary_metadata: Any, *, T: DType) -> None:
    event = event_pb2.Event(step=int(step))
    value = event.summary.value.add(tag=_text(tag))
    metadata = _bytes(summary_metadata)
    if metadata:
        value.metadata.CopyFrom(summary_pb2.SummaryMetadata.FromString(metadata))
    value.tensor.CopyFrom(tensor_proto(np.asarray(tensor), T))
    from_handle(writer).add(event)


@op("WriteRawProtoSummary", "resource, int64, string ->", host=True, stateful=True, no_gradient=True)
def write_raw_proto_summary(writer: Any, step: Any, tensor: Any) -> None:
    event = event_pb2.Event(step=int(step))
    for part in np.asarray(tensor, object).reshape(-1):
        try:
            event.summary.MergeFrom(summary_pb2.Summary.FromString(part))
        except Exception as error:
            raise InvalidArgumentError("WriteRawProtoSummary: the tensor is no serialized Summary.") from error
    from_handle(writer).add(event)


@op("WriteGraphSummary", "resource, int64, string ->", host=True, stateful=True, no_gradient=True)
def write_graph_summary(writer: Any, step: Any, tensor: Any) -> None:
    serialized = _bytes(tensor)
    try:
        graph_pb2.GraphDef.FromString(serialized)
    except Exception as error:
        raise InvalidArgumentError("WriteGraphSummary: the tensor is no serialized GraphDef.") from error
    from_handle(writer).add(event_pb2.Event(step=int(step), graph_def=serialized))


@op("FlushSummaryWriter", "resource ->", host=True, stateful=True, no_gradient=True)
def flush_summary_writer(writer: Any) -> None:
    from_handle(writer).flush()


@op("CloseSummaryWriter", "resource ->", host=True, stateful=True, no_gradient=True)
def close_summary_writer(writer: Any) -> None:
    from_handle(writer).close()
