"""Makes iterators for nodes: each gives the elements of a description as tuples of arrays.

An iterator continues after an error, as in TensorFlow: the next call asks for the next element. So they are classes
with a `__next__`, not generators, which end with their first error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.data import batching, caching, nodes, sources
from penstock.data.fuse import fuse
from penstock.data.nodes import Element, Node
from penstock.data.parallel import InParallel
from penstock.data.pipeline import Function, Pipeline, Prefetched, Scope, called, iterate, opens, workers
from penstock.errors import FailedPreconditionError, InternalError, InvalidArgumentError, OpError
from penstock.kernel.waiting import as_handle, from_handle
from penstock.ops.ragged.row_ops import Rows

_AUTOMATIC_PREFETCH = 4
CHUNK = 256  # elements between two checks for cancellation

opens(nodes.Tensors)(lambda node, pipeline, scope: iter([node.components]))
opens(nodes.Slices)(lambda node, pipeline, scope: sources.slices(node.components))
opens(nodes.Listed)(lambda node, pipeline, scope: iter(node.elements))
opens(nodes.Saved)(lambda node, pipeline, scope: caching.read(node.prefix))
opens(nodes.Range)(lambda node, pipeline, scope: sources.numbers(node))
opens(nodes.Lines)(lambda node, pipeline, scope: sources.lines(node))
opens(nodes.Records)(lambda node, pipeline, scope: sources.tf_records(node))
opens(nodes.FixedLengthRecords)(lambda node, pipeline, scope: sources.fixed_length_records(node))
opens(nodes.Generated)(lambda node, pipeline, scope: sources.Generator(node, pipeline))
opens(nodes.Zipped)(lambda node, pipeline, scope: _Zip([iterate(n, pipeline, scope) for n in node.inputs]))


@opens(nodes.Mapped)
def _mapped(node: nodes.Mapped, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    function = called(pipeline.function(node.function))
    if node.parallel:
        return InParallel(pipeline, scope, lambda s: iterate(node.input, pipeline, s), function, node.parallel)
    return _Map(function, iterate(node.input, pipeline, scope), scope)


class _Map(Iterator[Element]):
    def __init__(self, function: Callable[[Element], Element], elements: Iterator[Element], scope: Scope) -> None:
        self._function, self._elements, self._scope = function, elements, scope

    def __next__(self) -> Element:
        self._scope.check()
        return self._function(next(self._elements))


class _Zip(Iterator[Element]):
    def __init__(self, inputs: list[Iterator[Element]]) -> None:
        self._inputs = inputs

    def __next__(self) -> Element:
        return tuple(itertools.chain.from_iterable([next(i) for i in self._inputs]))


@opens(nodes.Concatenated)
class _Concatenated(Iterator[Element]):
    def __init__(self, node: nodes.Concatenated, pipeline: Pipeline, scope: Scope) -> None:
        self._rest = list(node.inputs)
        self._pipeline, self._scope = pipeline, scope
        self._current: Iterator[Element] = iter(())

    def __next__(self) -> Element:
        while True:
            try:
                return next(self._current)
            except StopIteration:
                if not self._rest:
                    raise
                self._current = iterate(self._rest.pop(0), self._pipeline, self._scope)


@opens(nodes.FlatMapped)
def _flat_mapped(node: nodes.FlatMapped, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    return _Interleave(nodes.Interleaved(node.input, node.function, 1, 1), pipeline, scope)


def dataset_of(function: Function, element: Element) -> Node:
    """The dataset that a function of an element returns."""
    return fuse(from_handle(function(element)[0]))


@opens(nodes.Interleaved)
class _Interleave(Iterator[Element]):
    def __init__(self, node: nodes.Interleaved, pipeline: Pipeline, scope: Scope) -> None:
        self._pipeline, self._scope = pipeline, scope
        self._function = pipeline.function(node.function)
        self._input = iterate(node.input, pipeline, scope)
        self._open: list[Iterator[Element] | None] = [None] * (workers(-1) if node.cycle < 0 else node.cycle)
        self._block, self._ahead = node.block, node.ahead
        self._at = self._in_block = 0
        self._input_ended = False

    def _advance(self) -> None:
        self._at = (self._at + 1) % len(self._open)
        self._in_block = 0

    def __next__(self) -> Element:
        while True:
            current = self._open[self._at]
            if current is not None:
                try:
                    element = next(current)
                except StopIteration:
                    self._open[self._at] = None
                    self._advance()
                    continue
                self._in_block += 1
                if self._in_block == self._block:
                    self._advance()
                return element
            self._scope.check()
            if not self._input_ended:
                try:
                    element = next(self._input)
                except StopIteration:
                    self._input_ended = True
                else:
                    self._open[self._at] = self._opened(element)
            elif any(o is not None for o in self._open):
                self._advance()
            else:
                raise StopIteration

    def _opened(self, element: Element) -> Iterator[Element]:
        dataset, pipeline = dataset_of(self._function, element), self._pipeline
        if self._ahead:
            return Prefetched(pipeline, self._scope, lambda s: iterate(dataset, pipeline, s), self._ahead)
        return iterate(dataset, pipeline, self._scope)


@opens(nodes.Filtered)
class _Filter(Iterator[Element]):
    def __init__(self, node: nodes.Filtered, pipeline: Pipeline, scope: Scope) -> None:
        self._predicate = pipeline.function(node.predicate)
        self._input = iterate(node.input, pipeline, scope)
        self._scope = scope

    def __next__(self) -> Element:
        while True:
            self._scope.check()
            element = next(self._input)
            if bool(self._predicate(element)[0]):
                return element


@opens(nodes.TakenWhile)
class _TakeWhile(Iterator[Element]):
    def __init__(self, node: nodes.TakenWhile, pipeline: Pipeline, scope: Scope) -> None:
        self._predicate = pipeline.function(node.predicate)
        self._input = iterate(node.input, pipeline, scope)
        self._ended = False

    def __next__(self) -> Element:
        if not self._ended:
            element = next(self._input)
            if bool(self._predicate(element)[0]):
                return element
            self._ended = True
        raise StopIteration


@opens(nodes.Scanned)
class _Scan(Iterator[Element]):
    def __init__(self, node: nodes.Scanned, pipeline: Pipeline, scope: Scope) -> None:
        self._function = called(pipeline.function(node.function))
        self._input = iterate(node.input, pipeline, scope)
        self._state = node.state

    def __next__(self) -> Element:
        results = self._function((*self._state, *next(self._input)))
        self._state = results[: len(self._state)]
        return results[len(self._state) :]


@opens(nodes.Batched)
def _batched(node: nodes.Batched, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    return Batch(iterate(node.input, pipeline, scope), node.size, node.drop_remainder, batching.stacked, scope)


@opens(nodes.PaddedBatched)
def _padded(node: nodes.PaddedBatched, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    join = batching.padding(node.shapes, node.values)
    return Batch(iterate(node.input, pipeline, scope), node.size, node.drop_remainder, join, scope)


class Batch(Iterator[Element]):
    def __init__(
        self,
        elements: Iterator[Any],
        size: int,
        drop_remainder: bool,
        join: Callable[[list[Any]], Element],
        scope: Scope,
    ) -> None:
        self._input, self._size, self._drop_remainder = elements, size, drop_remainder
        self._join, self._scope = join, scope

    def __next__(self) -> Element:
        taken = next_of(self._input, self._size, self._scope)
        if not taken or (self._drop_remainder and len(taken) < self._size):
            raise StopIteration
        return self._join(taken)


def next_of(elements: Iterator[Any], count: int, scope: Scope) -> list[Any]:
    """The next `count` elements, fewer at the end."""
    taken: list[Any] = []
    while len(taken) < count:
        scope.check()
        wanted = min(count - len(taken), CHUNK)
        before = len(taken)
        if isinstance(elements, InParallel):
            taken += elements.several(wanted)
        else:
            taken.extend(itertools.islice(elements, wanted))
        if len(taken) - before < wanted:
            break
    return taken


def _unpacked(component: Any) -> Any:
    """A component as an array of its rows: one handle may carry the rows of a ragged tensor."""
    carried = component.item() if component.ndim == 0 and component.dtype == object else None
    return carried.rows() if isinstance(carried, Rows) else component


@opens(nodes.Unbatched)
class _Unbatch(Iterator[Element]):
    def __init__(self, node: nodes.Unbatched, pipeline: Pipeline, scope: Scope) -> None:
        self._input = iterate(node.input, pipeline, scope)
        self._rows: Iterator[Element] = iter(())

    def __next__(self) -> Element:
        while True:
            row = next(self._rows, None)
            if row is not None:
                return row
            components = tuple([_unpacked(c) for c in next(self._input)])
            if len({len(c) for c in components}) > 1:
                found = ", ".join(str(c.shape) for c in components)
                raise InvalidArgumentError(f"Unbatch: all components need as many rows, received {found}.")
            self._rows = sources.slices(components)


@opens(nodes.Rebatched)
class _Rebatch(Iterator[Element]):
    def __init__(self, node: nodes.Rebatched, pipeline: Pipeline, scope: Scope) -> None:
        self._rows = _Unbatch(nodes.Unbatched(node.input), pipeline, scope)
        self._sizes, self._drop_remainder = itertools.cycle(node.sizes), node.drop_remainder
        self._scope = scope

    def __next__(self) -> Element:
        size = next(self._sizes)
        taken = next_of(self._rows, size, self._scope)
        if not taken or (self._drop_remainder and len(taken) < size):
            raise StopIteration
        return batching.stacked(taken)


@opens(nodes.SparseBatched)
def _sparse_batched(node: nodes.SparseBatched, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    join = batching.sparse(node.row_shape)
    return Batch(iterate(node.input, pipeline, scope), node.size, False, join, scope)


@opens(nodes.Counted)
class _Counted(Iterator[Element]):
    def __init__(self, node: nodes.Counted, pipeline: Pipeline, scope: Scope) -> None:
        self._input = iterate(node.input, pipeline, scope)
        self._said, self._found = node.count, 0

    def __next__(self) -> Element:
        try:
            element = next(self._input)
        except StopIteration:
            if self._said != self._found and self._said >= 0:
                raise self._wrong(f"{self._found}") from None
            raise
        self._found += 1
        if 0 <= self._said < self._found:
            raise self._wrong(f"at least {self._found}")
        return element

    def _wrong(self, found: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"Input dataset was expected to contain {self._said} elements but contained {found} elements."
        )


@opens(nodes.Windowed)
class _Window(Iterator[Element]):
    def __init__(self, node: nodes.Windowed, pipeline: Pipeline, scope: Scope) -> None:
        self._input = iterate(node.input, pipeline, scope)
        self._node, self._scope = node, scope
        self._buffer: list[Element] = []
        self._skip = 0

    def __next__(self) -> Element:
        node = self._node
        span = (node.size - 1) * node.stride + 1
        if self._skip:
            next_of(self._input, self._skip, self._scope)
            self._skip = 0
        self._buffer += next_of(self._input, span - len(self._buffer), self._scope)
        if not self._buffer or (node.drop_remainder and len(self._buffer) < span):
            raise StopIteration
        window = self._buffer[:: node.stride]
        self._skip = max(0, node.shift - len(self._buffer))
        self._buffer = self._buffer[node.shift :]
        return tuple(as_handle(nodes.Listed(tuple((c,) for c in column))) for column in zip(*window, strict=True))


@opens(nodes.Cached)
def _cached(node: nodes.Cached, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    if node.path:
        return caching.in_file(node.path, lambda: iterate(node.input, pipeline, scope))
    return caching.in_memory(node.memory, lambda: iterate(node.input, pipeline, scope))


@opens(nodes.Prefetched)
def _prefetched(node: nodes.Prefetched, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    if node.size == 0:
        return iterate(node.input, pipeline, scope)
    size = _AUTOMATIC_PREFETCH if node.size < 0 else node.size
    return Prefetched(pipeline, scope, lambda s: iterate(node.input, pipeline, s), size)


@opens(nodes.WithoutErrors)
class _WithoutErrors(Iterator[Element]):
    def __init__(self, node: nodes.WithoutErrors, pipeline: Pipeline, scope: Scope) -> None:
        self._input, self._scope = iterate(node.input, pipeline, scope), scope

    def __next__(self) -> Element:
        while True:
            self._scope.check()
            try:
                return next(self._input)
            except OpError:
                self._scope.check()


@opens(nodes.Distinct)
class _Distinct(Iterator[Element]):
    def __init__(self, node: nodes.Distinct, pipeline: Pipeline, scope: Scope) -> None:
        self._input, self._scope = iterate(node.input, pipeline, scope), scope
        self._seen: set[Any] = set()

    def __next__(self) -> Element:
        while True:
            self._scope.check()
            element = next(self._input)
            key = tuple(c.tobytes() if c.dtype != object else tuple(c.reshape(-1)) for c in element)
            if key not in self._seen:
                self._seen.add(key)
                return element


@opens(nodes.Selected)
class _Select(Iterator[Element]):
    def __init__(self, node: nodes.Selected, pipeline: Pipeline, scope: Scope) -> None:
        self._selector = iterate(node.selector, pipeline, scope)
        self._inputs: list[Iterator[Element] | None] = [iterate(n, pipeline, scope) for n in node.inputs]
        self._scope, self._stop_on_empty = scope, node.stop_on_empty

    def __next__(self) -> Element:
        while any(i is not None for i in self._inputs):
            self._scope.check()
            at = int(next(self._selector)[0])
            if not 0 <= at < len(self._inputs):
                count = len(self._inputs)
                raise InvalidArgumentError(f"There are {count} datasets, received the index {at}.")
            chosen = self._inputs[at]
            if chosen is not None:
                try:
                    return next(chosen)
                except StopIteration:
                    self._inputs[at] = None
            if self._stop_on_empty:
                break
        raise StopIteration


def _internal(function: Function) -> Function:
    """A function whose errors about arguments become internal ones, as TensorFlow has it for groups."""

    def call(arguments: Sequence[Any]) -> list[Any]:
        try:
            return function(arguments)
        except InvalidArgumentError as error:
            raise InternalError(f"Got error code INVALID_ARGUMENT and message: {error.message}") from error

    return call


@opens(nodes.GroupedByWindow)
class _GroupByWindow(Iterator[Element]):
    def __init__(self, node: nodes.GroupedByWindow, pipeline: Pipeline, scope: Scope) -> None:
        self._input, self._scope, self._pipeline = iterate(node.input, pipeline, scope), scope, pipeline
        functions = (_internal(pipeline.function(f)) for f in (node.key, node.reduce, node.size))
        self._key, self._reduce, self._size = functions
        self._groups: dict[int, list[Element]] = {}
        self._sizes: dict[int, int] = {}
        self._current: Iterator[Element] = iter(())
        self._ended = False

    def __next__(self) -> Element:
        while True:
            for element in self._current:
                return element
            self._scope.check()
            key = self._full_group()
            if key is None:
                raise StopIteration
            window = as_handle(nodes.Listed(tuple(self._groups.pop(key))))
            dataset = dataset_of(self._reduce, (np.asarray(key, np.int64), window))
            self._current = iterate(dataset, self._pipeline, self._scope)

    def _full_group(self) -> int | None:
        while not self._ended:
            self._scope.check()
            try:
                element = next(self._input)
            except StopIteration:
                self._ended = True
                break
            key = int(self._key(element)[0])
            if key not in self._groups:
                size = int(self._size((np.asarray(key, np.int64),))[0])
                if size <= 0:
                    raise InvalidArgumentError(f"The size of a window must be positive, received {size}.")
                self._sizes[key] = size
            group = self._groups.setdefault(key, [])
            group.append(element)
            if len(group) == self._sizes[key]:
                return key
        return min(self._groups, default=None)
