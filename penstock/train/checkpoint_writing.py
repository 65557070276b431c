"""Writes the values of objects as a checkpoint: at once, by a thread, or by an op of a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock import logging
from penstock.checkpoint.bundle import BundleWriter
from penstock.graph.convert import convert_to_tensor
from penstock.ops.io import save_restore
from penstock.train.object_graph import GRAPH_KEY, Entry, ObjectGraph


@dataclass
class CheckpointOptions:
    """Options of writing: `tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)`.

    With `enable_async`, or its older name, a thread writes the files. The other options of TensorFlow are accepted, and
    the process that saves writes all files.
    """

    experimental_io_device: str | None = None
    experimental_enable_async_checkpoint: bool = False
    experimental_write_callbacks: Sequence[Callable[..., Any]] | None = None
    enable_async: bool = False
    experimental_skip_slot_variables: bool = False
    experimental_sharding_callback: Any = None

    @property
    def is_async(self) -> bool:
        """Tells if a thread writes the files."""
        return self.enable_async or self.experimental_enable_async_checkpoint


def entries_of(graph: ObjectGraph) -> list[Entry]:
    """All that is saved of a graph of objects, the graph itself among it."""
    found = [entry for node in graph.nodes for entry in graph.entries(node)]
    message = graph.proto().SerializeToString()
    return [*found, Entry(GRAPH_KEY, lambda: np.array(message, object))]


def write(prefix: str, entries: Sequence[Entry]) -> None:
    """Writes a checkpoint. Values are read one at a time, so that no copy of all of them is needed."""
    with BundleWriter(prefix) as writer:
        for entry in entries:
            value = _array(entry.read())
            if entry.slice is None:
                writer.add(entry.key, value)
            else:
                writer.add_slice(entry.key, tuple(entry.slice.full_shape), entry.part, value)


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "SU" else array


def write_in_function(prefix: Any, entries: Sequence[Entry]) -> Any:
    """Adds the operation that writes a checkpoint to the graph of a function. Returns it."""
    tensors = [convert_to_tensor(entry.read()) for entry in entries]
    specs = ["" if entry.slice is None else entry.slice.spec for entry in entries]
    return save_restore.save_v2(prefix, [entry.key for entry in entries], specs, tensors)


class AsyncWriter:
    """Runs one job at a time in a thread. An error is raised by the next call.

    >>> writer = AsyncWriter(); writer.start(lambda: write(prefix, entries)); writer.sync()
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], None]) -> None:
        """Starts a job, when the last one is done."""
        self.sync()
        # The interpreter waits for this thread at exit: a checkpoint that was asked for is written.
        self._thread = threading.Thread(target=self._run, args=(job,), name="penstock-checkpoint-writer", daemon=False)
        self._thread.start()

    def sync(self) -> None:
        """Waits for the job, and raises its error if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # raised by the next call of sync, in the thread of the program
            logging.error("A checkpoint could not be written: %s", error)
            self._error = error


def snapshot(entries: Sequence[Entry]) -> list[Entry]:
    """The same entries with the values of now: variables are replaced, never changed in place."""
    return [Entry(entry.key, _held(entry.read()), entry.slice) for entry in entries]


def _held(value: Any) -> Callable[[], Any]:
    return lambda: value
