"""Summaries of the 2.x API: a default writer, a default step, and a condition, all of this thread."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies, init_scope, name_scope
from penstock.ops.array.creation import constant
from penstock.ops.array.passthrough import identity
from penstock.ops.control.flow import cond
from penstock.ops.io import summary_writers as ops
from penstock.ops.math.casting import cast


class _State(threading.local):
    writer: SummaryWriter | None = None
    step: Any = None
    recording: Any = True  # a bool, a tensor, or a function that gives one


_state = _State()


class SummaryWriter:
    """Writes summaries to a file: `tf.summary.create_file_writer` makes it.

    >>> writer = tf.summary.create_file_writer("/tmp/train")
    >>> with writer.as_default(step=3):
    ...     tf.summary.scalar("loss", 0.5)
    """

    def __init__(self, handle: Tensor, logdir: str) -> None:
        self._handle = handle
        self._logdir = logdir
        self._closed = False

    @contextmanager
    def as_default(self, step: Any = None) -> Iterator[SummaryWriter]:
        """A context in which summaries go to this writer, at `step` if it is given."""
        self._require_open()
        before = _state.writer, _state.step
        _state.writer = self
        if step is not None:
            _state.step = step
        try:
            yield self
            self.flush()
        finally:
            _state.writer, _state.step = before

    def set_as_default(self, step: Any = None) -> None:
        """Makes summaries of this thread go to this writer from now on."""
        self._require_open()
        _state.writer = self
        if step is not None:
            _state.step = step

    def init(self) -> None:
        """Does nothing: the file is there."""

    def flush(self) -> Operation | None:
        """Writes all summaries to the file."""
        return None if self._closed else _done(ops.flush_summary_writer(self._handle))

    def close(self) -> Operation | None:
        """Writes all summaries and closes the file."""
        if self._closed:
            return None
        if get_default_graph().is_eager:
            self._closed = True
        return _done(ops.close_summary_writer(self._handle))

    def _write(self, step: Any, tensor: Any, tag: str, metadata: bytes) -> Any:
        self._require_open()
        return ops.write_summary(self._handle, step, tensor, tag, metadata)

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"SummaryWriter is already closed: that of '{self._logdir}'.")

    def __repr__(self) -> str:
        return f"<SummaryWriter of {self._logdir!r}>"


class _NoopWriter(SummaryWriter):
    """Writes nothing."""

    def __init__(self) -> None:
        self._logdir, self._closed = "nowhere", False

    def flush(self) -> None:
        return None

    close = flush

    @contextmanager
    def as_default(self, step: Any = None) -> Iterator[SummaryWriter]:
        before = _state.writer
        _state.writer = None
        try:
            yield self
        finally:
            _state.writer = before

    def set_as_default(self, step: Any = None) -> None:
        _state.writer = None


def _done(op: Any) -> Operation | None:
    return None if get_default_graph().is_eager else op


def create_file_writer(
    logdir: Any,
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
    experimental_trackable: bool = False,
) -> SummaryWriter:
    """A writer with a new event file in a directory.

    >>> writer = tf.summary.create_file_writer("/tmp/train")
    """
    path = logdir.decode() if isinstance(logdir, bytes) else str(logdir)
    with init_scope():
        handle = ops.summary_writer(shared_name=f"logdir:{path}", name=name or "create_file_writer")
        ops.create_summary_file_writer(
            handle,
            path,
            10 if max_queue is None else max_queue,
            120_000 if flush_millis is None else flush_millis,
            ".v2" if filename_suffix is None else filename_suffix,
        )
    return SummaryWriter(handle, path)


def create_noop_writer() -> SummaryWriter:
    """A writer that writes nothing: for tasks that shall not write."""
    return _NoopWriter()


def get_step() -> Any:
    """The default step of summaries in this thread, or None."""
    return _state.step


def set_step(step: Any) -> None:
    """Sets the default step of summaries in this thread: a number, or a variable that is read for each summary.

    >>> tf.summary.experimental.set_step(optimizer.iterations)
    """
    _state.step = step


def should_record_summaries() -> Tensor:
    """A tensor that tells if summaries are recorded here: there is a writer, and the condition holds."""
    return _condition_tensor(_condition())


def _condition() -> Any:
    if _state.writer is None:
        return False
    found = _state.recording() if callable(_state.recording) else _state.recording
    return True if found is None else found


def _condition_tensor(found: Any) -> Tensor:
    return convert_to_tensor(found, dtype=dt.bool)


@contextmanager
def record_if(condition: Any) -> Iterator[None]:
    """A context in which summaries are recorded only if a condition holds: a bool, a tensor, or a function.

    >>> with tf.summary.record_if(lambda: tf.equal(step % 100, 0)):
    ...     train_step()
    """
    before, _state.recording = _state.recording, condition
    try:
        yield
    finally:
        _state.recording = before


@contextmanager
def summary_scope(name: str | None, default_name: str = "summary", values: Any = None) -> Iterator[tuple[str, str]]:
    """A name scope for the ops of a summary. Gives its tag, which has the names of the scopes around, and the scope.

    >>> with tf.summary.experimental.summary_scope("loss") as (tag, scope):
    ...     tf.summary.write(tag, value, step=1)
    """
    given = name or default_name
    around = get_default_graph().get_name_scope()
    cleaned = re.sub(r"[^A-Za-z0-9_.\-/]", "", given).lstrip("/_-.") or default_name
    with name_scope(cleaned) as scope:
        yield f"{around}/{given}" if around else given, scope


def write(tag: str, tensor: Any, step: Any = None, metadata: Any = None, name: str | None = None) -> Tensor:
    """Writes a tensor as a summary to the default writer. Returns a tensor that tells if it was recorded.

    `tensor` may be a function that gives the tensor: it is called only if summaries are recorded.

    >>> tf.summary.write("weights", w, step=10)
    """
    writer = _state.writer
    at = step if step is not None else _state.step
    if writer is None:
        return constant(False)
    if hasattr(metadata, "SerializeToString"):
        metadata = metadata.SerializeToString()

    def record(value: Any) -> Any:
        return writer._write(_as_step(at), value, tag, metadata or b"")

    return _recorded(lambda: record(tensor() if callable(tensor) else identity(tensor)))


def write_raw_pb(tensor: Any, step: Any = None, name: str | None = None) -> Tensor:
    """Writes serialized Summary messages to the default writer."""
    writer = _state.writer
    at = step if step is not None else _state.step
    if writer is None:
        return constant(False)
    return _recorded(lambda: ops.write_raw_proto_summary(writer._handle, _as_step(at), tensor))


def _as_step(step: Any) -> Tensor:
    if step is None:
        raise ValueError(
            "No step set. Please specify one either through the `step` argument or through "
            "tf.summary.experimental.set_step()"
        )
    tensor: Tensor = cast(convert_to_tensor(step), dt.int64)
    return tensor


def _recorded(record: Callable[[], Any]) -> Tensor:
    """Records if the condition holds. Where it is known only when a function runs, the function decides."""

    def recorded() -> Tensor:
        op = record()
        if get_default_graph().is_eager:
            return constant(True)
        with control_dependencies([op]):
            return identity(constant(True))

    condition = _condition()
    if isinstance(condition, Tensor) and not get_default_graph().is_eager:
        result: Tensor = cond(condition, recorded, lambda: constant(False))
        return result
    return recorded() if bool(condition) else constant(False)


def graph(graph_data: Any) -> Tensor:
    """Writes a graph, or a GraphDef, to the default writer: `tf.summary.graph(concrete.graph)`."""
    writer = _state.writer
    if not get_default_graph().is_eager:
        raise ValueError("tf.summary.graph must be called outside of tf.function, while executing eagerly.")
    if writer is None:
        return constant(False)
    if hasattr(graph_data, "as_graph_def"):
        graph_data = graph_data.as_graph_def(add_shapes=True)
    if not hasattr(graph_data, "SerializeToString"):
        raise TypeError(f"tf.summary.graph takes a graph or a GraphDef, received {graph_data!r:.200}.")
    serialized = graph_data.SerializeToString()
    return _recorded(lambda: ops.write_graph_summary(writer._handle, _as_step(0), serialized))


def flush(writer: SummaryWriter | None = None, name: str | None = None) -> Operation | None:
    """Writes all summaries of a writer, or of the default one, to its file."""
    found = writer or _state.writer
    return None if found is None else found.flush()
