"""RecordInput: batches of records from many TFRecord files, in a new random order for each epoch."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock import gfile, records
from penstock.errors import NotFoundError
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.ops.array import reshaping
from penstock.ops.array.joining import split
from penstock.ops.io.readers import compression_of


class _Yielder:
    """Returns records without end, shuffled in a buffer."""

    kind = "RecordInput"

    def __init__(self, pattern: str, seed: int, shift: float, buffer: int, compression: str) -> None:
        self._pattern, self._shift, self._compression = pattern, shift, compression
        self._random = random.Random(seed)
        self._least = max(1, buffer)
        self._buffer: list[bytes] = []
        self._lock = threading.Lock()
        self._records = self._endless()

    @property
    def capacity(self) -> int:
        return self._least

    def size(self) -> int:
        """The current number of records in the buffer."""
        return len(self._buffer)

    def take(self, count: int) -> list[bytes]:
        with self._lock:
            return [self._next() for _ in range(count)]

    def _next(self) -> bytes:
        while len(self._buffer) < self._least:
            self._buffer.append(next(self._records))
        chosen = self._random.randrange(len(self._buffer))
        self._buffer[chosen], self._buffer[-1] = self._buffer[-1], self._buffer[chosen]
        return self._buffer.pop()

    def _endless(self) -> Iterator[bytes]:
        epoch = 0
        while True:
            names = sorted(gfile.glob(self._pattern))
            self._random.shuffle(names)
            start = int(epoch * self._shift * len(names)) % max(1, len(names))
            found = False
            for name in (*names[start:], *names[:start]):
                for record in records.read(name, self._compression):
                    found = True
                    yield record
            if not found:
                raise NotFoundError(f"There is no record in the files that match '{self._pattern}'.")
            epoch += 1


def _rows(node: Operation) -> list[TensorShape]:
    return [TensorShape([node.attrs["batch_size"]])]


@op("RecordInput", "-> records: string", host=True, stateful=True, no_gradient=True, shape=_rows)
def record_input(
    *,
    file_pattern: str,
    file_random_seed: int = 301,
    file_shuffle_shift_ratio: float = 0.0,
    file_buffer_size: int = 10000,
    file_parallelism: int = 16,
    batch_size: int = 32,
    compression_type: str = "",
    resource: Any,
) -> np.ndarray:
    source: _Yielder = resource(
        lambda name: _Yielder(
            file_pattern, file_random_seed, file_shuffle_shift_ratio, file_buffer_size, compression_type
        )
    )
    batch = np.empty(batch_size, object)
    batch[:] = source.take(batch_size)
    return batch


class RecordInput:
    """Batches of serialized records of the files that match a pattern.

    >>> serialized = data_flow_ops.RecordInput("train-*", batch_size=64, buffer_size=10000).get_yield_op()
    """

    def __init__(
        self,
        file_pattern: str,
        batch_size: int = 1,
        buffer_size: int = 1,
        parallelism: int = 1,
        shift_ratio: float = 0,
        seed: int = 0,
        name: str | None = None,
        batches: int | None = None,
        compression_type: Any = None,
    ) -> None:
        self._batch_size, self._batches, self._name = batch_size, batches, name
        # One op returns `batches` batches of `batch_size` each.
        self._attrs: dict[str, Any] = {
            "file_pattern": file_pattern,
            "file_buffer_size": buffer_size,
            "file_parallelism": parallelism,
            "file_shuffle_shift_ratio": float(shift_ratio),
            "file_random_seed": seed,
            "batch_size": batch_size * (batches or 1),
            "compression_type": compression_of(compression_type),
        }

    def get_yield_op(self) -> Any:
        """A tensor of `batch_size` records, or with `batches` a list of that many lists of scalars."""
        found = record_input(name=self._name, **self._attrs)
        if self._batches is None:
            return found
        with name_scope(self._name):
            each = split(found, self._attrs["batch_size"], 0)
            scalars = [reshaping.reshape(record, []) for record in each]
        return [scalars[i :: self._batches] for i in range(self._batches)]
