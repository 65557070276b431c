"""Sources of elements: arrays, numbers, files, and Python generators."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock import records
from penstock.checkpoint import files
from penstock.data.nodes import Element, FixedLengthRecords, Generated, Lines, Range, Records
from penstock.data.pipeline import Pipeline, called
from penstock.errors import DataLossError, InvalidArgumentError, OutOfRangeError

_CHUNK = 1 << 18


def slices(components: Sequence[Any]) -> Iterator[Element]:
    """The rows of arrays, which share their memory."""
    if len(components) == 1:
        (only,) = components
        return ((only[i, ...],) for i in range(len(only)))
    return (tuple([c[i, ...] for c in components]) for i in range(len(components[0])))


def numbers(node: Range) -> Iterator[Element]:
    """The integers of a range."""
    dtype = node.dtype
    return ((np.array(n, dtype),) for n in range(node.start, node.stop, node.step))


def _text(data: bytes) -> Element:
    return (np.array(data, object),)


@contextlib.contextmanager
def _opened(path: str, compression: str) -> Iterator[Any]:
    if compression not in records.COMPRESSIONS:
        raise InvalidArgumentError(f"Unsupported compression_type: {compression}.")
    with files.named(path), open(path, "rb", buffering=_CHUNK) as raw:
        try:
            if compression == "GZIP":
                with gzip.open(raw) as file:
                    yield file
            else:
                yield records._Inflated(raw) if compression else raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataLossError(f"'{path}' cannot be decompressed: {error}.") from error


def lines(node: Lines) -> Iterator[Element]:
    """The lines of text files, without line ends."""
    for path in node.files:
        with _opened(path, node.compression) as file:
            for line in _split(file) if node.compression == "ZLIB" else file:
                yield _text(line.removesuffix(b"\n").removesuffix(b"\r"))


def _split(file: Any) -> Iterator[bytes]:
    rest = b""
    while piece := file.read(_CHUNK):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def tf_records(node: Records) -> Iterator[Element]:
    """The records of TFRecord files."""
    for path in node.files:
        for record in records.read(path, node.compression):
            yield _text(record)


def fixed_length_records(node: FixedLengthRecords) -> Iterator[Element]:
    """Records of one length, between a header and a footer of each file."""
    for path in node.files:
        with _opened(path, node.compression) as file:
            if len(file.read(node.header)) < node.header:
                raise InvalidArgumentError(f"'{path}' is shorter than its header of {node.header} bytes.")
            held = b""
            while True:
                piece = file.read(max(_CHUNK // node.size, 1) * node.size)
                held += piece
                usable = (len(held) - node.footer) // node.size if piece else 0
                for i in range(max(usable, 0)):
                    yield _text(held[i * node.size : (i + 1) * node.size])
                held = held[max(usable, 0) * node.size :]
                if not piece:
                    break
            if len(held) != node.footer:
                raise InvalidArgumentError(
                    f"Excess bytes at the end of '{path}': the body must be a multiple of the record length "
                    f"{node.size}, {len(held) - node.footer} bytes are left over."
                )


class Generator(Iterator[Element]):
    """The elements that a Python generator yields; it starts when the first element is requested."""

    def __init__(self, node: Generated, pipeline: Pipeline) -> None:
        self._start, self._advance, self._finish = (
            called(pipeline.function(c)) for c in (node.start, node.advance, node.finish)
        )
        self._state: Element | None = None
        self._ended = False

    def __next__(self) -> Element:
        if self._ended:
            raise StopIteration
        if self._state is None:
            self._state = self._start(())
        try:
            return self._advance(self._state)
        except OutOfRangeError:
            self._close()
            raise StopIteration from None

    def _close(self) -> None:
        state, self._state, self._ended = self._state, None, True
        if state is not None:
            self._finish(state)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._close()


def flattened(paths: Any) -> tuple[str, ...]:
    """File names in a tensor, as text."""
    names = np.asarray(paths, object).reshape(-1)
    return tuple(n.decode("utf-8", "surrogateescape") if isinstance(n, bytes) else str(n) for n in names)
