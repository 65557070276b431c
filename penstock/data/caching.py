"""Caching: keeps elements in memory or in a file after the first iteration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from tensorboard.compat.proto.tensor_pb2 import TensorProto

from penstock import records
from penstock.checkpoint import files
from penstock.data.nodes import Element
from penstock.errors import DataLossError
from penstock.graph.dtype import as_dtype
from penstock.graph.tensor_proto import make_ndarray, tensor_proto


def in_memory(
    caches: dict[int, list[Element]], key: int, open_input: Callable[[], Iterator[Element]]
) -> Iterator[Element]:
    """The elements of `open_input()`, or of the cache once an iteration over them is complete."""
    kept = caches.get(key)
    return _CacheInMemory(open_input(), lambda whole: caches.setdefault(key, whole)) if kept is None else iter(kept)


class _CacheInMemory(Iterator[Element]):
    """Passes elements through, and gives all of them to `keep` at the end."""

    def __init__(self, elements: Iterator[Element], keep: Callable[[list[Element]], object]) -> None:
        self._input, self._keep = elements, keep
        self._seen: list[Element] = []

    def __next__(self) -> Element:
        try:
            element = next(self._input)
        except StopIteration:
            self._keep(self._seen)
            raise
        for component in element:
            component.setflags(write=False)  # it is returned more than once
        self._seen.append(element)
        return element


def in_file(path: str, open_input: Callable[[], Iterator[Element]]) -> Iterator[Element]:
    """Like `in_memory`, but in a file of records, which later programs can use."""
    whole = f"{path}.cache"
    return _read(whole) if os.path.exists(whole) else _CacheInFile(whole, open_input())


class _CacheInFile(Iterator[Element]):
    """Passes elements through and writes them to a temporary file, which is renamed when it is complete."""

    def __init__(self, path: str, elements: Iterator[Element]) -> None:
        self._path, self._temporary_path = path, f"{path}.{os.getpid()}.{id(self)}.tmp"
        self._input = elements
        self._writer: records.RecordWriter | None = None

    def __next__(self) -> Element:
        if self._writer is None:
            self._writer = records.RecordWriter(self._temporary_path)
        try:
            element = next(self._input)
        except StopIteration:
            self._writer.close()
            if os.path.exists(self._temporary_path):
                files.rename(self._temporary_path, self._path)
            raise
        self._writer.write(len(element).to_bytes(4, "little"))
        for component in element:
            self._writer.write(tensor_proto(component, as_dtype(component.dtype)).SerializeToString())
        return element

    def __del__(self) -> None:
        if self._writer is not None:
            self._writer.close()
            files.remove(self._temporary_path)


def _read(path: str) -> Iterator[Element]:
    found = records.read(path)
    for head in found:
        if len(head) != 4:
            raise DataLossError(f"'{path}' is not a cache of a dataset.")
        parts = [next(found, None) for _ in range(int.from_bytes(head, "little"))]
        try:
            yield tuple(make_ndarray(TensorProto.FromString(p or b"")) for p in parts)
        except Exception as error:
            raise DataLossError(f"'{path}' is damaged: {error}.") from error
