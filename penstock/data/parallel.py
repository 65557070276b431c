"""Parallel calls: applies a function to several elements at a time, in threads."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from penstock.data.nodes import Element
from penstock.data.pipeline import Crew, Pipeline, Scope, outcome, workers

_WORTH_A_THREAD = 3e-4  # seconds per call
_SLOW = 5e-3
_AHEAD = 16  # results that may wait: else the threads and the consumer would wake each other for every element


class InParallel(Iterator[Element]):
    """Applies `function` to several elements at a time, and returns the results in order."""

    def __init__(
        self,
        pipeline: Pipeline,
        scope: Scope,
        make: Callable[[Scope], Iterator[Any]],
        function: Callable[[Any], Element],
        parallel: int,
    ) -> None:
        self._crew = _ParallelCalls(pipeline, make, function, workers(parallel))
        self._scope = scope
        weakref.finalize(self, self._crew.stop).atexit = False

    def __next__(self) -> Element:
        for element in self._crew.take(self._scope, 1):
            return element
        raise StopIteration

    def several(self, count: int) -> list[Element]:
        """The next `count` elements, fewer at the end. The threads wake the caller once for all of them."""
        return self._crew.take(self._scope, count)


class _SlowCalls:
    """Detects slow calls. Fast ones are best run in one thread, since Python runs one thread at a time."""

    def __init__(self) -> None:
        self._calls = 0
        self._recent: deque[float] = deque(maxlen=8)
        self._known = False

    def shows_slow(self, seconds: float) -> bool:
        """Records the time of a call; True if it shows for the first time that calls are slow."""
        if self._known:
            return False
        self._calls += 1
        if self._calls == 1:
            return False  # the first call includes compilation
        self._recent.append(seconds)
        usual = sorted(self._recent)[len(self._recent) // 2]
        self._known = seconds > _SLOW or (len(self._recent) == 8 and usual > _WORTH_A_THREAD)
        return self._known


class _ParallelCalls(Crew):
    def __init__(
        self, pipeline: Pipeline, make: Callable[[Scope], Iterator[Any]], function: Callable[[Any], Element], count: int
    ) -> None:
        super().__init__(pipeline)
        self._input = make(self.scope)
        self._function = function
        self._count, self._limit = count, count + _AHEAD
        self._reading = threading.Lock()
        self._read = self._taken = 0  # numbers of elements
        self._awaited = 0  # results that the consumer waits for
        self._end: int | None = None
        self._done: dict[int, tuple[Any, Exception | None]] = {}
        self._slow_calls = _SlowCalls()

    def work(self) -> None:
        while True:
            with self.changed:
                self.scope.wait(self.changed, self._may_read)
            with self._reading:
                if self._is_over():
                    return
                item = outcome(self._input, self.scope)
                ticket = self._read
                if item is None:
                    with self.changed:
                        self._end = ticket
                    return
                self._read += 1
            value, error = item
            if error is None:
                start = time.perf_counter()
                try:
                    item = self._function(value), None
                except Exception as problem:
                    item = None, problem
                if self._slow_calls.shows_slow(time.perf_counter() - start):
                    self.start(self._count - 1)
            with self.changed:
                self._done[ticket] = item
                if self._is_over() or len(self._done) >= self._awaited or item[1] is not None:
                    self.changed.notify_all()

    def _is_over(self) -> bool:
        return self._end is not None

    def _may_read(self) -> bool:
        return self._is_over() or self._read - self._taken < max(self._limit, self._awaited)

    def take(self, scope: Scope, count: int) -> list[Element]:
        """Waits in `scope` for the next `count` results, fewer at the end. Raises the first error among them."""
        if not self.threads:
            self.start()
        found: list[Element] = []
        with self.changed:
            self._awaited = count
            if count > self._limit:
                self.changed.notify_all()  # threads that wait may read on
            try:
                scope.wait(self.changed, lambda: self._has(count))
            finally:
                self._awaited = 0
            while len(found) < count and self._taken in self._done:
                value, error = self._done.pop(self._taken)
                self._taken += 1
                if error is not None:
                    self.changed.notify_all()
                    raise error
                found.append(value)
            self.changed.notify_all()
        return found

    def _has(self, count: int) -> bool:
        """Tells if the next `count` results are there, or all up to an error or the end."""
        last = self._taken + count if self._end is None else min(self._taken + count, self._end)
        for number in range(self._taken, last):
            item = self._done.get(number)
            if item is None or item[1] is not None:
                return item is not None
        return True
