"""Ordering: iterators that select and reorder elements without looking at them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.data import batching, nodes, sources
from penstock.data.node_iterators import CHUNK, Batch
from penstock.data.nodes import Element
from penstock.data.pipeline import Pipeline, Scope, iterate, opens


def _generator(node: Any, pipeline: Pipeline, epoch: int = 0) -> np.random.Generator:
    """The random numbers of a node, from its seeds, or from the pipeline's own if it has none."""
    seeds = (node.seed, node.seed2) if (node.seed, node.seed2) != (0, 0) else (pipeline.entropy, id(node))
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([s & (2**64 - 1) for s in (*seeds, epoch)])))


@opens(nodes.RandomNumbers)
def _random_numbers(node: nodes.RandomNumbers, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    return sources.random_numbers(_generator(node, pipeline))


def _uniform_numbers(node: nodes.Shuffled, pipeline: Pipeline) -> Iterator[float]:
    """The random numbers for one iteration of a shuffle."""
    generator = _generator(node, pipeline, pipeline.epoch(node) if node.reshuffle else 0)
    return itertools.chain.from_iterable(generator.random(CHUNK).tolist() for _ in itertools.count())


@opens(nodes.Shuffled)
class _Shuffle(Iterator[Any]):
    """Returns a random one of `size` buffered elements, and replaces it by the next element."""

    def __init__(self, node: nodes.Shuffled, pipeline: Pipeline, scope: Scope) -> None:
        self._input = iterate(node.input, pipeline, scope)
        self._size, self._scope = node.size, scope
        self._numbers = _uniform_numbers(node, pipeline)
        self._buffer: list[Any] = []
        self._full = self._ended = False

    def __next__(self) -> Any:
        buffer = self._buffer
        if not self._full:
            while not self._ended and len(buffer) < self._size:
                self._scope.check()
                wanted = min(self._size - len(buffer), CHUNK)
                before = len(buffer)
                buffer.extend(itertools.islice(self._input, wanted))
                self._ended = len(buffer) - before < wanted
            self._full = True
        if not buffer:
            raise StopIteration
        at = int(next(self._numbers) * len(buffer))
        chosen = buffer[at]
        if not self._ended:
            try:
                buffer[at] = next(self._input)
                return chosen
            except StopIteration:
                self._ended = True
        last = buffer.pop()
        if at < len(buffer):
            buffer[at] = last
        return chosen


@opens(nodes.Repeated)
class _Repeat(Iterator[Any]):
    def __init__(self, node: nodes.Repeated, pipeline: Pipeline, scope: Scope) -> None:
        self._node, self._pipeline, self._scope = node, pipeline, scope
        self._left = node.count
        self._current: Iterator[Any] = iter(())
        self._empty = False  # True if the current round has returned nothing so far

    def __next__(self) -> Any:
        while True:
            for element in self._current:
                self._empty = False
                return element
            if self._left == 0 or (self._empty and self._left < 0):
                raise StopIteration
            self._left -= self._left > 0
            self._empty = True
            self._current = iterate(self._node.input, self._pipeline, self._scope)


@opens(nodes.Taken)
class _Take(Iterator[Any]):
    def __init__(self, node: nodes.Taken, pipeline: Pipeline, scope: Scope) -> None:
        self._input: Iterator[Any] | None = iterate(node.input, pipeline, scope)
        self._left = node.count

    def __next__(self) -> Any:
        if self._left == 0 or self._input is None:
            self._input = None  # stops the threads of the input
            raise StopIteration
        element = next(self._input)
        self._left -= 1
        return element


@opens(nodes.Skipped)
class _Skip(Iterator[Any]):
    def __init__(self, node: nodes.Skipped, pipeline: Pipeline, scope: Scope) -> None:
        self._input, self._scope = iterate(node.input, pipeline, scope), scope
        self._left = node.count

    def __next__(self) -> Any:
        if self._left < 0:
            raise StopIteration
        while self._left:
            self._scope.check()
            self._left -= 1
            next(self._input)
        return next(self._input)


@opens(nodes.Sharded)
class _Shard(Iterator[Any]):
    def __init__(self, node: nodes.Sharded, pipeline: Pipeline, scope: Scope) -> None:
        self._input = iterate(node.input, pipeline, scope)
        self._count, self._before = node.count, node.index

    def __next__(self) -> Any:
        while self._before:
            next(self._input)
            self._before -= 1
        element = next(self._input)
        self._before = self._count - 1
        return element


# Row numbers cannot fail and need no checks, so they get the same orders faster, with itertools.


@opens(nodes.BatchedRows)
def _batched_rows(node: nodes.BatchedRows, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    rows = row_numbers(node.input, pipeline)
    return Batch(rows, node.size, node.drop_remainder, batching.taking(node.components), scope)


def row_numbers(node: nodes.Node, pipeline: Pipeline) -> Iterator[int]:
    """The elements of a description that starts from RowNumbers."""
    if isinstance(node, nodes.RowNumbers):
        return iter(range(node.count))
    if isinstance(node, nodes.Repeated):
        return itertools.chain.from_iterable(_rounds(node, pipeline))
    assert isinstance(node, nodes.Derived)
    rows = row_numbers(node.input, pipeline)
    match node:
        case nodes.Shuffled():
            return _shuffled_rows(rows, node.size, _uniform_numbers(node, pipeline))
        case nodes.Taken():
            return rows if node.count < 0 else itertools.islice(rows, node.count)
        case nodes.Skipped():
            return iter(()) if node.count < 0 else itertools.islice(rows, node.count, None)
        case nodes.Sharded():
            return itertools.islice(rows, node.index, None, node.count)
    raise AssertionError(f"{node} is not an order of rows")


def _rounds(node: nodes.Repeated, pipeline: Pipeline) -> Iterator[Iterator[int]]:
    left = node.count
    while left:
        rows = row_numbers(node.input, pipeline)
        first = next(rows, None)
        if first is None:
            return
        yield itertools.chain((first,), rows)
        left -= 1


def _shuffled_rows(rows: Iterator[int], size: int, numbers: Iterator[float]) -> Iterator[int]:
    buffer = list(itertools.islice(rows, size))
    count = len(buffer)
    for row in rows:
        at = int(next(numbers) * count)
        yield buffer[at]
        buffer[at] = row
    while buffer:
        at = int(next(numbers) * len(buffer))
        chosen, last = buffer[at], buffer.pop()
        if at < len(buffer):
            buffer[at] = last
        yield chosen
