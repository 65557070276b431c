"""Caching: keeps elements in memory or in a file after the first iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.checkpoint import bundle
from penstock.data.nodes import Element, MemoryCache
from penstock.data.stored import restored, stored
from penstock.errors import DataLossError

_NUMBER_WIDTH = 7  # of the keys in a file: up to 10 million elements sort by number, as in TensorFlow


def in_memory(cache: MemoryCache, open_input: Callable[[], Iterator[Element]]) -> Iterator[Element]:
    """The elements of `open_input()`, or of the cache once an iteration over them is complete."""
    return _CacheInMemory(open_input(), cache) if cache.elements is None else iter(cache.elements)


class _CacheInMemory(Iterator[Element]):
    """Passes elements through, and puts all of them into the cache at the end."""

    def __init__(self, elements: Iterator[Element], cache: MemoryCache) -> None:
        self._input, self._cache = elements, cache
        self._seen: list[Element] = []

    def __next__(self) -> Element:
        try:
            element = next(self._input)
        except StopIteration:
            if self._cache.elements is None:
                self._cache.elements = self._seen
            raise
        for component in element:
            component.setflags(write=False)  # it is returned more than once
        self._seen.append(element)
        return element


def in_file(path: str, open_input: Callable[[], Iterator[Element]]) -> Iterator[Element]:
    """Like `in_memory`, but in files of a checkpoint, which later programs can use."""
    return read(path) if bundle.exists(path) else _CacheInFile(path, open_input())


class _CacheInFile(Iterator[Element]):
    """Passes elements through and writes them to a checkpoint, which is there when it is complete."""

    def __init__(self, path: str, elements: Iterator[Element]) -> None:
        self._path, self._input = path, elements
        self._writer: Writer | None = None

    def __next__(self) -> Element:
        if self._writer is None:
            self._writer = Writer(self._path)
        try:
            element = next(self._input)
        except StopIteration:
            self._writer.finish()
            raise
        self._writer.add(element)
        return element

    def __del__(self) -> None:
        if self._writer is not None:
            self._writer.discard()


class Writer:
    """Writes elements to a checkpoint, under their numbers."""

    def __init__(self, prefix: str) -> None:
        self._bundle: bundle.BundleWriter | None = bundle.BundleWriter(prefix)
        self.count = 0

    def add(self, element: Element) -> None:
        """Appends an element."""
        assert self._bundle is not None
        for i, component in enumerate(element):
            self._bundle.add(_key(self.count, i, len(element)), stored(component))
        self.count += 1

    def finish(self) -> None:
        """Makes the checkpoint visible, once."""
        if self._bundle is not None:
            writer, self._bundle = self._bundle, None
            writer.finish()

    def discard(self) -> None:
        """Removes the files of a checkpoint that is not finished."""
        if self._bundle is not None:
            writer, self._bundle = self._bundle, None
            writer.discard()


def read(prefix: str) -> Iterator[Element]:
    """The elements of a checkpoint that a Writer has written."""
    reader = bundle.BundleReader(prefix)
    names = reader.names()
    if not names:
        return
    parts = 1 + max(_number(name.partition("_")[2], prefix) for name in names)
    for number in range(len(names) // parts):
        yield tuple(restored(reader.read(_key(number, i, parts))) for i in range(parts))


def _number(text: str, prefix: str) -> int:
    if not text.strip().isdigit():
        raise DataLossError(f"'{prefix}' is a checkpoint, but not a cache of a dataset.")
    return int(text)


def _key(number: int, component: int, parts: int) -> str:
    return f"{number:{_NUMBER_WIDTH}d}_{component:{len(str(parts - 1))}d}"
