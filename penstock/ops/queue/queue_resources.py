"""The queues that queue ops use: elements in order, at random, padded, or by priority, shared by all steps.

Enqueues wait in one line and dequeues in another, so that each is served in the order in which it came. A batch is put
in and taken out element by element, so it may be larger than the queue.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.errors import CancelledError, InvalidArgumentError, OpError, OutOfRangeError
from penstock.graph.dtype import DType
from penstock.graph.shape import TensorShape
from penstock.kernel.waiting import NeedsThread, Suspended, WaitableItems

Element = tuple[np.ndarray, ...]


class _Turn:
    """A place in a line."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


class Queue(WaitableItems):
    """First in, first out. Each element is a tuple of arrays with the types and shapes of the queue.

    >>> queue.enqueue([(np.float32(1.0),)], step); queue.dequeue(1, step)
    [(array(1., dtype=float32),)]
    """

    kind = "FIFOQueue"

    def __init__(
        self, name: str, dtypes: Sequence[DType], shapes: Sequence[TensorShape], capacity: int, **_: Any
    ) -> None:
        super().__init__(name)
        self.dtypes = tuple(dtypes)
        self.shapes = tuple(shapes)
        self.capacity = capacity
        self.is_closed = False
        self._elements: Any = deque()
        self._fitted: Any = None  # the form of the components that were checked last
        self._enqueuers: deque[_Turn] = deque()
        self._dequeuers: deque[_Turn] = deque()

    def size(self) -> int:
        """The current number of elements."""
        return len(self._elements)

    def enqueue(self, elements: Sequence[Element], ctx: Any) -> None:
        """Puts the elements in, each as soon as there is room."""
        with self._held():
            fits = self.capacity < 0 or len(self._elements) + len(elements) <= self.capacity
            if fits and not (self._enqueuers or self.is_closed or self._gone):
                for element in elements:
                    self._put(element)
                self._notify()
            elif ctx.wake is not None:
                raise NeedsThread  # it may have to wait after it has put in some of them
            else:
                self._enqueue_in_line(elements, ctx)

    def _enqueue_in_line(self, elements: Sequence[Element], ctx: Any) -> None:
        """Waits for its turn, then puts elements in one after the other."""
        with self._in_line(self._enqueuers) as turn:

            def ready() -> bool:
                return turn.cancelled or (self._enqueuers[0] is turn and (self.is_closed or self._has_room()))

            for element in elements:
                self._wait(ready, ctx)
                if turn.cancelled or self.is_closed:
                    raise CancelledError(f"{self} is closed.")
                self._put(element)
                self._notify()

    def dequeue(self, count: int, ctx: Any, up_to: bool = False) -> list[Element]:
        """Takes `count` elements out, or with `up_to` the last ones of a closed queue. Takes none on error."""
        with self._held():
            if self._available() >= count:
                if not self._dequeuers and not self._gone:
                    taken = [self._get() for _ in range(count)]
                    self._notify()
                    return taken
            elif ctx.wake is not None and not (self.is_closed or self._gone or ctx.cancelled.is_set):
                again = lambda: self.is_closed or self._available() >= count  # noqa: E731
                self._wait(again, ctx, again)
            return self._dequeue_in_line(count, ctx, up_to)

    def _dequeue_in_line(self, count: int, ctx: Any, up_to: bool) -> list[Element]:
        """Waits for its turn, then takes elements out one after the other."""
        taken: list[Element] = []
        with self._in_line(self._dequeuers) as turn:

            def ready() -> bool:
                return self._dequeuers[0] is turn and (self.is_closed or self._available() > 0)

            try:
                while len(taken) < count:
                    self._wait(ready, ctx)
                    left = len(taken) + self._available()
                    if self.is_closed and left < count:
                        if not up_to or left == 0:
                            raise OutOfRangeError(
                                f"{self} is closed and has insufficient elements (requested {count}, "
                                f"current size {left})"
                            )
                        count = left
                        if len(taken) == count:
                            break
                    taken.append(self._get())
                    self._notify()
            except (OpError, Suspended):
                self._put_back(taken)
                raise
        return taken

    def seal(self, cancel_pending_enqueues: bool, ctx: Any) -> None:
        """Closes the queue to new elements. Waits for pending enqueues, or cancels them."""
        with self._held():
            if cancel_pending_enqueues:
                for pending in self._enqueuers:
                    pending.cancelled = True
                self._notify()
            with self._in_line(self._enqueuers) as turn:
                self._wait(lambda: turn.cancelled or self._enqueuers[0] is turn, ctx)
                if self.is_closed:
                    raise CancelledError(f"{self} is already closed.")
                self.is_closed = True

    def check(self, dtypes: Sequence[DType], components: Sequence[np.ndarray], many: bool) -> None:
        """Raises InvalidArgumentError if components do not fit the queue; with `many` they have a batch dimension."""
        form = many, dtypes, [component.shape for component in components]
        if form == self._fitted:
            return
        if tuple(dtypes) != self.dtypes:
            _refuse(f"{self} holds ({_names(self.dtypes)}), received ({_names(dtypes)}).")
        if many and any(c.ndim == 0 for c in components):
            _refuse(f"{self}: enqueue_many takes components with a first dimension, received a scalar.")
        if many and len({len(c) for c in components}) > 1:
            _refuse(
                f"{self}: all components must have the same first dimension, received {[len(c) for c in components]}."
            )
        for i, (component, shape) in enumerate(zip(components, self.shapes, strict=False)):
            received = component.shape[1:] if many else component.shape
            if not shape.is_compatible_with(received):
                _refuse(f"{self}: component {i} has shape {list(received)}, must have {shape}.")
        if components:  # dequeues, which have none, come between enqueues
            self._fitted = form

    def batch(self, elements: Sequence[Element]) -> list[np.ndarray]:
        """Elements as one array per component."""
        if elements:
            return [np.stack(arrays) for arrays in zip(*elements, strict=True)]
        empty = [tuple(d or 0 for d in s.as_list()) for s in self.shapes]
        return [np.zeros((0, *dims), d.as_numpy_dtype) for dims, d in zip(empty, self.dtypes, strict=True)]

    def require_shapes(self) -> None:
        """Raises InvalidArgumentError if elements may differ in shape, so that they cannot be batched."""
        if len(self.shapes) != len(self.dtypes):
            _refuse(f"{self} was made without shapes: dequeue_many and dequeue_up_to need them.")

    @contextmanager
    def _in_line(self, line: deque[_Turn]) -> Iterator[_Turn]:
        turn = _Turn()
        line.append(turn)
        try:
            yield turn
        finally:
            line.remove(turn)
            self._notify()

    def _has_room(self) -> bool:
        return self.capacity < 0 or len(self._elements) < self.capacity

    def _available(self) -> int:
        return len(self._elements)

    def _put(self, element: Element) -> None:
        self._elements.append(element)

    def _get(self) -> Element:
        element: Element = self._elements.popleft()
        return element

    def _put_back(self, elements: Sequence[Element]) -> None:
        self._elements.extendleft(reversed(elements))
        self._notify()


class ShuffledQueue(Queue):
    """Returns a random one of its elements, and keeps `min_after_dequeue` of them to choose from while it is open."""

    kind = "RandomShuffleQueue"

    def __init__(self, *args: Any, min_after_dequeue: int, seed: int, seed2: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._elements = []
        self._keep = min_after_dequeue
        self._random = np.random.default_rng([seed, seed2] if seed or seed2 else None)

    def _available(self) -> int:
        return len(self._elements) - (0 if self.is_closed else self._keep)

    def _get(self) -> Element:
        elements = self._elements
        at = int(self._random.integers(len(elements)))
        elements[at], elements[-1] = elements[-1], elements[at]
        element: Element = elements.pop()
        return element

    def _put_back(self, elements: Sequence[Element]) -> None:
        self._elements.extend(elements)
        self._notify()


class PaddedQueue(Queue):
    """First in, first out; a batch of elements that differ in shape is padded with zeros."""

    kind = "PaddingFIFOQueue"

    def batch(self, elements: Sequence[Element]) -> list[np.ndarray]:
        if not elements:
            return super().batch(elements)
        return [_padded(arrays) for arrays in zip(*elements, strict=True)]


class SortedQueue(Queue):
    """Returns the element with the smallest first component; of equal ones, the first that came."""

    kind = "PriorityQueue"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._elements = []
        self._arrival = itertools.count()

    def _put(self, element: Element) -> None:
        heapq.heappush(self._elements, (int(element[0]), next(self._arrival), element))

    def _get(self) -> Element:
        element: Element = heapq.heappop(self._elements)[2]
        return element

    def _put_back(self, elements: Sequence[Element]) -> None:
        for element in elements:
            self._put(element)
        self._notify()


def _padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    dims = tuple(max(sizes) for sizes in zip(*(a.shape for a in arrays), strict=True))
    result = np.zeros((len(arrays), *dims), arrays[0].dtype)
    if result.dtype.kind == "O":
        result.fill(b"")
    for i, array in enumerate(arrays):
        row = result[i, ...]
        row[tuple(slice(size) for size in array.shape)] = array
    return result


def _names(dtypes: Sequence[DType]) -> str:
    return ", ".join(d.name for d in dtypes)


def _refuse(message: str) -> None:
    raise InvalidArgumentError(message)
