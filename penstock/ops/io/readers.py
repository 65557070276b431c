"""Readers: they read the records of files whose names come from a queue, one after the other."""

from __future__ import annotations

import gzip
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock import records
from penstock.checkpoint import files
from penstock.errors import InvalidArgumentError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, from_handle

Record = tuple[bytes, bytes]  # key and value
Open = Callable[[str], Iterator[Record]]


class Reader:
    """Returns the records of one file after another. One step at a time reads."""

    kind = "Reader"

    def __init__(self, name: str, open_file: Open) -> None:
        self.name = name
        self._open_file = open_file
        self._lock = threading.Lock()
        self._records: Iterator[Record] | None = None
        self.produced = 0
        self.completed = 0

    def read(self, queue: Any, ctx: Any) -> Record:
        """The next record; takes names of files from `queue` when it needs them."""
        while True:
            with self._lock:
                record = self._next()
            if record is not None:
                return record
            self._begin(queue, ctx)

    def read_up_to(self, queue: Any, count: int, ctx: Any) -> list[Record]:
        """Up to `count` records of one file, at least one."""
        found = [self.read(queue, ctx)]
        with self._lock:
            while len(found) < count and (record := self._next()) is not None:
                found.append(record)
        return found

    def _next(self) -> Record | None:
        if self._records is None:
            return None
        record = next(self._records, None)
        if record is None:
            self._records = None
            self.completed += 1
            return None
        self.produced += 1
        return record

    def _begin(self, queue: Any, ctx: Any) -> None:
        # Outside the lock: a step that waits for the queue must not stop others from reading.
        (name,) = queue.dequeue(1, ctx)[0]
        path = np.asarray(name, object).reshape(-1)[0].decode()
        with self._lock:
            waiting = self._records
            opened = self._open_file(path)
            self._records = opened if waiting is None else _chained(waiting, opened)

    def reset(self) -> None:
        """Forgets the current file and the counts."""
        with self._lock:
            self._records = None
            self.produced = self.completed = 0

    def close(self) -> None:
        """Called when the session ends."""
        self.reset()


def _chained(*parts: Iterator[Record]) -> Iterator[Record]:
    for part in parts:
        yield from part


def _whole_file(path: str) -> Iterator[Record]:
    yield path.encode(), files.read(path)


def _identity(path: str) -> Iterator[Record]:
    yield path.encode(), path.encode()


def _lines(skip: int) -> Open:
    def read(path: str) -> Iterator[Record]:
        with files.named(path), open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number > skip:
                    yield f"{path}:{number}".encode(), line.rstrip(b"\n").rstrip(b"\r")

    return read


def _tf_records(compression: str) -> Open:
    def read(path: str) -> Iterator[Record]:
        at = 0
        for record in records.read(path, compression):
            yield f"{path}:{at}".encode(), record
            at += 16 + len(record)

    return read


def _fixed_length(header: int, size: int, footer: int, hop: int, encoding: str) -> Open:
    def read(path: str) -> Iterator[Record]:
        data = files.read(path)
        try:
            if encoding:
                data = gzip.decompress(data) if encoding == "GZIP" else zlib.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidArgumentError(f"'{path}' cannot be decompressed: {error}.") from error
        for number, at in enumerate(range(header, len(data) - footer - size + 1, hop or size)):
            yield f"{path}:{number}".encode(), data[at : at + size]

    return read


def _found(resource: Any, open_file: Open) -> np.ndarray:
    return as_handle(resource(lambda name: Reader(name, open_file)))


@op("WholeFileReaderV2", "-> reader_handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def whole_file_reader_v2(*, container: str = "", shared_name: str = "", resource: Any) -> np.ndarray:
    return _found(resource, _whole_file)


@op("IdentityReaderV2", "-> reader_handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def identity_reader_v2(*, container: str = "", shared_name: str = "", resource: Any) -> np.ndarray:
    return _found(resource, _identity)


@op("TextLineReaderV2", "-> reader_handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def text_line_reader_v2(
    *, skip_header_lines: int = 0, container: str = "", shared_name: str = "", resource: Any
) -> np.ndarray:
    return _found(resource, _lines(skip_header_lines))


@op("TFRecordReaderV2", "-> reader_handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def tf_record_reader_v2(
    *, container: str = "", shared_name: str = "", compression_type: str = "", resource: Any
) -> np.ndarray:
    return _found(resource, _tf_records(compression_type))


@op(
    "FixedLengthRecordReaderV2",
    "-> reader_handle: resource",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def fixed_length_record_reader_v2(
    *,
    header_bytes: int = 0,
    record_bytes: int,
    footer_bytes: int = 0,
    hop_bytes: int = 0,
    container: str = "",
    shared_name: str = "",
    encoding: str = "",
    resource: Any,
) -> np.ndarray:
    if record_bytes <= 0 or min(header_bytes, footer_bytes, hop_bytes) < 0:
        raise InvalidArgumentError(
            f"record_bytes must be positive and the others not negative, received {record_bytes}, {header_bytes}, "
            f"{footer_bytes}, {hop_bytes}."
        )
    return _found(resource, _fixed_length(header_bytes, record_bytes, footer_bytes, hop_bytes, encoding))


def _scalars(node: Operation) -> list[TensorShape]:
    return [TensorShape([])] * len(node.outputs)


def _vectors(node: Operation) -> list[TensorShape]:
    return [TensorShape([None])] * len(node.outputs)


def _bytes_array(items: list[bytes]) -> np.ndarray:
    array = np.empty(len(items), object)
    array[:] = items
    return array


@op(
    "ReaderReadV2",
    "resource, resource -> key: string, value: string",
    host=True,
    stateful=True,
    blocking=True,
    no_gradient=True,
    shape=_scalars,
)
def reader_read_v2(reader_handle: Any, queue_handle: Any, *, ctx: Any) -> Any:
    key, value = from_handle(reader_handle).read(from_handle(queue_handle), ctx)
    return np.asarray(key, object), np.asarray(value, object)


@op(
    "ReaderReadUpToV2",
    "resource, resource, int64 -> keys: string, values: string",
    host=True,
    stateful=True,
    blocking=True,
    no_gradient=True,
    shape=_vectors,
)
def reader_read_up_to_v2(reader_handle: Any, queue_handle: Any, num_records: Any, *, ctx: Any) -> Any:
    if int(num_records) <= 0:
        raise InvalidArgumentError(f"num_records must be positive, received {int(num_records)}.")
    found = from_handle(reader_handle).read_up_to(from_handle(queue_handle), int(num_records), ctx)
    return _bytes_array([key for key, _ in found]), _bytes_array([value for _, value in found])


@op(
    "ReaderNumRecordsProducedV2",
    "resource -> records_produced: int64",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def reader_num_records_produced_v2(reader_handle: Any) -> np.ndarray:
    return np.asarray(from_handle(reader_handle).produced, np.int64)


@op(
    "ReaderNumWorkUnitsCompletedV2",
    "resource -> units_completed: int64",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def reader_num_work_units_completed_v2(reader_handle: Any) -> np.ndarray:
    return np.asarray(from_handle(reader_handle).completed, np.int64)


@op("ReaderResetV2", "resource ->", host=True, stateful=True, no_gradient=True)
def reader_reset_v2(reader_handle: Any) -> None:
    from_handle(reader_handle).reset()


class ReaderBase:
    """Base class of readers: `read(queue)` returns the key and the value of the next record.

    >>> key, value = tf.TFRecordReader().read(tf.train.string_input_producer(["data.tfrecord"]))
    """

    def __init__(self, reader_ref: Tensor, supports_serialize: bool = False) -> None:
        self._reader_ref = reader_ref
        self._supports_serialize = supports_serialize

    @property
    def reader_ref(self) -> Tensor:
        return self._reader_ref

    @property
    def supports_serialize(self) -> bool:
        return self._supports_serialize

    def read(self, queue: Any, name: str | None = None) -> Any:
        """Key and value of the next record; `queue` has the names of the files."""
        return reader_read_v2(self._reader_ref, _queue_of(queue), name=name)

    def read_up_to(self, queue: Any, num_records: TensorLike, name: str | None = None) -> Any:
        """Keys and values of up to `num_records` records."""
        return reader_read_up_to_v2(self._reader_ref, _queue_of(queue), num_records, name=name)

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """The number of records that were read."""
        return reader_num_records_produced_v2(self._reader_ref, name=name)  # type: ignore[no-any-return]

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """The number of files that were read to their end."""
        return reader_num_work_units_completed_v2(self._reader_ref, name=name)  # type: ignore[no-any-return]

    def reset(self, name: str | None = None) -> Operation:
        """An operation that resets the reader to its initial state."""
        return reader_reset_v2(self._reader_ref, name=name)  # type: ignore[no-any-return]


def _queue_of(queue: Any) -> Tensor:
    return queue if isinstance(queue, Tensor) else convert_to_tensor(queue.queue_ref)


class WholeFileReader(ReaderBase):
    """Each file is one record: its name and its contents."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(whole_file_reader_v2(name=name), supports_serialize=True)


class IdentityReader(ReaderBase):
    """Each name is one record, both key and value."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(identity_reader_v2(name=name), supports_serialize=True)


class TextLineReader(ReaderBase):
    """Each line is one record; the key is `file:line`.

    >>> key, line = tf.TextLineReader(skip_header_lines=1).read(queue)
    """

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        super().__init__(text_line_reader_v2(skip_header_lines=skip_header_lines or 0, name=name))


class FixedLengthRecordReader(ReaderBase):
    """Every `record_bytes` bytes are one record, after a header and before a footer.

    >>> key, image = tf.FixedLengthRecordReader(record_bytes=3073).read(queue)
    """

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
        encoding: str | None = None,
    ) -> None:
        super().__init__(
            fixed_length_record_reader_v2(
                record_bytes=record_bytes,
                header_bytes=header_bytes or 0,
                footer_bytes=footer_bytes or 0,
                hop_bytes=hop_bytes or 0,
                encoding=encoding or "",
                name=name,
            )
        )


class TFRecordReader(ReaderBase):
    """Each record of a TFRecord file, which may be compressed: `TFRecordOptions(TFRecordCompressionType.GZIP)`."""

    def __init__(self, name: str | None = None, options: Any = None) -> None:
        super().__init__(tf_record_reader_v2(compression_type=compression_of(options), name=name))


class TFRecordCompressionType:
    """Names of compressions."""

    NONE = 0
    ZLIB = 1
    GZIP = 2


class TFRecordOptions:
    """The compression of a TFRecord file.

    >>> options = tf.python_io.TFRecordOptions("GZIP")
    """

    def __init__(self, compression_type: Any = None, **ignored: Any) -> None:
        known = {None: "", "": "", 0: "", 1: "ZLIB", 2: "GZIP", "ZLIB": "ZLIB", "GZIP": "GZIP"}
        if compression_type not in known:
            raise ValueError(f"Not a valid compression_type: {compression_type!r}")
        self.compression_type = known[compression_type]


def compression_of(options: Any) -> str:
    """The name of a compression, given as options, a name or nothing."""
    return (
        TFRecordOptions(options).compression_type
        if not isinstance(options, TFRecordOptions)
        else (options.compression_type)
    )


class TFRecordWriter(records.RecordWriter):
    """Writes TFRecord files.

    >>> with tf.python_io.TFRecordWriter("data.tfrecord") as writer:
    ...     writer.write(example.SerializeToString())
    """

    def __init__(self, path: Any, options: Any = None) -> None:
        super().__init__(os.fspath(path), compression_of(options))


def tf_record_iterator(path: Any, options: Any = None) -> Iterator[bytes]:
    """The records of a TFRecord file.

    >>> for record in tf.python_io.tf_record_iterator("data.tfrecord"): ...
    """
    return records.read(path, compression_of(options))
