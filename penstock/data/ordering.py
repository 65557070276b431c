"""Ordering: iterators that select and reorder elements without looking at them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.data import batching, nodes
from penstock.data.node_iterators import CHUNK, Batch
from penstock.data.nodes import Element
from penstock.data.pipeline import Pipeline, Scope, iterate, opens
from penstock.errors import OpError


@opens(nodes.RandomNumbers)
def _random_numbers(node: nodes.RandomNumbers, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    return ((np.asarray(word, np.int64),) for word in node.epochs.words(node.seed, node.seed2))


def _words(node: nodes.Shuffled) -> Iterator[int]:
    """The random words for one iteration of a shuffle."""
    return node.epochs.words(node.seed, node.seed2, node.reshuffle)


@opens(nodes.Shuffled)
class _Shuffle(Iterator[Any]):
    """Returns a random one of `size` buffered elements. The first of them takes its place, and the next one that of it.

    This is TensorFlow's way, so that the order is the same for the same seeds.
    """

    def __init__(self, node: nodes.Shuffled, pipeline: Pipeline, scope: Scope) -> None:
        self._input = iterate(node.input, pipeline, scope)
        self._size, self._scope = node.size, scope
        self._words = _words(node)
        self._ring: list[Any] = []
        self._first = self._count = 0  # the place of the first element, and how many there are
        self._ended = False

    def __next__(self) -> Any:
        ring = self._ring
        if not self._ended:
            if ring:
                self._replace()
            else:
                self._fill()
        if not self._count:
            raise StopIteration
        at = (self._first + next(self._words) % self._count) % len(ring)
        chosen = ring[at]
        ring[at] = ring[self._first]
        self._first = (self._first + 1) % len(ring)
        self._count -= 1
        return chosen

    def _fill(self) -> None:
        ring = self._ring
        while not self._ended and len(ring) < self._size:
            self._scope.check()
            wanted = min(self._size - len(ring), CHUNK)
            before = len(ring)
            ring.extend(itertools.islice(self._input, wanted))
            self._ended = len(ring) - before < wanted
        self._count = len(ring)

    def _replace(self) -> None:
        """Puts the next element into the place that the last draw has left."""
        try:
            self._ring[self._first - 1] = next(self._input)
            self._count += 1
        except StopIteration:
            self._ended = True


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
        self._left, self._with_errors = node.count, node.with_errors

    def __next__(self) -> Any:
        if self._left < 0:
            raise StopIteration
        while self._left:
            self._scope.check()
            self._left -= 1
            try:
                next(self._input)
            except OpError:
                self._scope.check()
                if not self._with_errors:
                    raise
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
            return _shuffled_rows(rows, node.size, _words(node))
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


def _shuffled_rows(rows: Iterator[int], size: int, words: Iterator[int]) -> Iterator[int]:
    ring = list(itertools.islice(rows, size))
    room, first = len(ring), 0
    for row in rows:
        at = (first + next(words) % room) % room
        chosen, ring[at] = ring[at], ring[first]
        ring[first] = row
        first = (first + 1) % room
        yield chosen
    for count in range(room, 0, -1):
        at = (first + next(words) % count) % room
        chosen, ring[at] = ring[at], ring[first]
        first = (first + 1) % room
        yield chosen
