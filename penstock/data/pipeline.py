"""Pipeline: one run over a dataset. It owns and stops the threads; a `Scope` cancels and waits."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from penstock.cores import cores
from penstock.data.fuse import fuse
from penstock.data.nodes import Closure, Element, Node
from penstock.data.position import closures_of
from penstock.errors import CancelledError, DeadlineExceededError
from penstock.graph.dtype import DType
from penstock.kernel.waiting import as_handle

Function = Callable[[Sequence[Any]], list[Any]]
MAX_THREADS = 64
_JOIN_SECONDS = 5.0  # for a thread inside a Python generator that does not return


class Scope:
    """The context in which iterators run: a step that asks for an element, or a thread of the pipeline."""

    def __init__(self) -> None:
        self.stopped = False
        self.step: Any = None  # the step that asks for an element, if there is one
        self._waiting_on: list[threading.Condition] = []  # one per waiting thread

    def stop(self) -> None:
        """Raises CancelledError in all code that runs in this scope, even while it waits."""
        self.stopped = True
        self._wake()

    def _wake(self) -> None:
        for changed in list(self._waiting_on):
            with changed:
                changed.notify_all()

    def check(self) -> None:
        """Raises an error if the caller was cancelled or its deadline has passed."""
        if self.stopped:
            raise CancelledError("The iterator was closed together with its session.")
        step = self.step
        if step is not None and (step.deadline is not None or step.cancelled.is_set):
            step.check("IteratorGetNext")

    def wait(self, changed: threading.Condition, ready: Callable[[], bool]) -> None:
        """Waits, with `changed` held, until `ready()`."""
        if ready():
            return
        step = self.step
        self._waiting_on.append(changed)
        try:
            if step is None:
                changed.wait_for(lambda: self.stopped or ready())
            else:
                step.cancelled.on_cancel(self._wake)
                try:
                    changed.wait_for(lambda: self.stopped or step.cancelled.is_set or ready(), step.remaining())
                finally:
                    step.cancelled.forget(self._wake)
        finally:
            self._waiting_on.remove(changed)
        if not ready():
            if self.stopped or (step is not None and step.cancelled.is_set):
                self.check()
            raise DeadlineExceededError("Timed out waiting for the next element of a dataset.")


class Crew:
    """Threads that work for one iterator, in their own scope. They hold no reference to that iterator."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.scope = Scope()
        self.changed = threading.Condition()
        self.threads: list[threading.Thread] = []

    def start(self, count: int = 1) -> None:
        """Starts `count` threads."""
        self.pipeline.admit(self)
        for _ in range(min(count, MAX_THREADS)):
            thread = threading.Thread(target=self._main, name="penstock-data", daemon=True)
            thread.start()
            self.threads.append(thread)

    def _main(self) -> None:
        try:
            self.work()
        except CancelledError:
            pass
        finally:
            with self.changed:
                self.changed.notify_all()
            self.pipeline.dismiss(self)

    def work(self) -> None:
        """The main function of each thread."""
        raise NotImplementedError

    def stop(self) -> None:
        """Asks the threads to end, without waiting for them."""
        self.scope.stop()
        with self.changed:
            self.changed.notify_all()


_running: weakref.WeakSet[Pipeline] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Closes the pipelines of sessions that were not closed: no thread may run compiled code when Python exits."""
    for pipeline in list(_running):
        pipeline.close()


class Pipeline:
    """One iteration of a dataset, with the state that its iterators share.

    `functions` makes a callable from a function body and its captured values.
    """

    def __init__(self, node: Node, functions: Callable[[Any, Sequence[Any]], Function]) -> None:
        self._functions = functions
        # Those of datasets that a function makes for each element are not kept.
        self._callables: dict[Closure, Function | None] = dict.fromkeys(closures_of(node))
        self.taken = 0  # elements that were asked for, with those that failed
        self._crews: set[Crew] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self.scope = Scope()
        self._turn = threading.Lock()
        self._iterator: Iterator[Element] | None = iterate(fuse(node), self, self.scope)

    def next(self, step: Any) -> Element:
        """The next element, for a step; StopIteration at the end."""
        with self._taking_turns(step):
            if self._iterator is None:
                raise StopIteration
            self.scope.check()
            try:
                element = next(self._iterator)
            except (StopIteration, CancelledError, DeadlineExceededError):
                raise
            except Exception:
                self.taken += 1
                raise
            self.taken += 1
            return element

    def _taking_turns(self, step: Any) -> _Turn:
        return _Turn(self._turn, self.scope, step)

    def function(self, closure: Closure) -> Function:
        """A closure as a callable that takes the arrays of an element. Its random numbers go on from epoch to epoch."""
        with self._lock:
            found = self._callables.get(closure) or self._functions(closure.function, closure.captured)
            if closure in self._callables:
                self._callables[closure] = found
        return found

    def admit(self, crew: Crew) -> None:
        """Registers threads that must be stopped at the end."""
        with self._lock:
            if self._stopped:
                raise CancelledError("The iterator was closed together with its session.")
            self._crews.add(crew)
        _running.add(self)

    def dismiss(self, crew: Crew) -> None:
        """Removes threads that have ended."""
        with self._lock:
            if all(t is threading.current_thread() or not t.is_alive() for t in crew.threads):
                self._crews.discard(crew)

    def close(self) -> None:
        """Stops all threads and waits for them; steps that wait for an element get CancelledError."""
        with self._lock:
            self._stopped = True
            crews = list(self._crews)
        self.scope.stop()
        for crew in crews:
            crew.stop()
        with self._lock:
            crews = list({*crews, *self._crews})
        for crew in crews:
            for thread in crew.threads:
                if thread is not threading.current_thread():
                    thread.join(_JOIN_SECONDS)
        self._iterator = None


_OPEN: dict[type[Node], Callable[[Any, Pipeline, Scope], Iterator[Any]]] = {}
_Open = TypeVar("_Open", bound=Callable[[Any, Pipeline, Scope], Iterator[Any]])


def opens(kind: type[Node]) -> Callable[[_Open], _Open]:
    """Registers a function or class that makes iterators for nodes of a kind: `@opens(nodes.Batched)`."""

    def register(function: _Open) -> _Open:
        _OPEN[kind] = function
        return function

    return register


def iterate(node: Node, pipeline: Pipeline, scope: Scope) -> Iterator[Element]:
    """An iterator over the elements of `node` that runs in `scope`."""
    return _OPEN[type(node)](node, pipeline, scope)


class _Turn:
    """A lock by which steps take turns with an iterator; a waiting step can be cancelled, and keeps its deadline."""

    __slots__ = ("_lock", "_scope", "_step")

    def __init__(self, lock: threading.Lock, scope: Scope, step: Any) -> None:
        self._lock, self._scope, self._step = lock, scope, step

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            while not self._lock.acquire(timeout=0.05):
                self._step.check("IteratorGetNext")
                if self._scope.stopped:
                    raise CancelledError("The iterator was closed together with its session.")
        self._scope.step = self._step

    def __exit__(self, *error: Any) -> None:
        self._scope.step = None
        self._lock.release()


class Prefetched(Iterator[Element]):
    """An iterator with a thread that makes up to `size` elements in advance."""

    def __init__(self, pipeline: Pipeline, scope: Scope, make: Callable[[Scope], Iterator[Element]], size: int) -> None:
        self._crew = _Prefetcher(pipeline, make, size)
        self._scope = scope
        weakref.finalize(self, self._crew.stop).atexit = False

    def __next__(self) -> Element:
        return self._crew.take(self._scope)


class _Prefetcher(Crew):
    def __init__(self, pipeline: Pipeline, make: Callable[[Scope], Iterator[Element]], size: int) -> None:
        super().__init__(pipeline)
        self._make = make
        self._size = size
        self._items: deque[tuple[Any, Exception | None]] = deque()
        self._ended = False

    def work(self) -> None:
        try:
            iterator: Iterator[Element] | None = None
            while True:
                try:
                    # Made in this thread, since it may start to read at once.
                    iterator = self._make(self.scope) if iterator is None else iterator
                    item = outcome(iterator, self.scope)
                except Exception as error:
                    if self.scope.stopped:
                        raise
                    item = None, error
                if item is None:
                    return
                with self.changed:
                    self.scope.wait(self.changed, lambda: len(self._items) < self._size)
                    self._items.append(item)
                    self.changed.notify_all()
        finally:
            with self.changed:
                self._ended = True

    def take(self, scope: Scope) -> Element:
        """Waits in `scope` for the next element."""
        if not self.threads:
            self.start()
        with self.changed:
            if not self._items:
                scope.wait(self.changed, lambda: bool(self._items) or self._ended)
            if not self._items:
                scope.check()
                raise StopIteration
            value, error = self._items.popleft()
            self.changed.notify_all()
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]


def outcome(iterator: Iterator[Any], scope: Scope) -> tuple[Any, Exception | None] | None:
    """The result or the error of `next(iterator)`; None at the end. CancelledError once `scope` is stopped."""
    try:
        return next(iterator), None
    except StopIteration:
        return None
    except Exception as error:
        if scope.stopped:
            raise CancelledError("The iterator was closed.") from error
        return None, error


def workers(parallel: int) -> int:
    """The number of threads for `parallel` calls; -1 means one per CPU."""
    return min(parallel if parallel > 0 else cores(), MAX_THREADS)


def called(function: Function) -> Callable[[Element], Element]:
    """A function from elements to elements: its results become arrays."""
    return lambda element: tuple(map(as_array, function(element)))


def as_array(value: Any, dtype: DType | None = None) -> Any:
    """A component as an array: strings and handles become arrays of objects."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (bytes, str)):
        return np.array(value.encode() if isinstance(value, str) else value, object)
    if isinstance(value, Node):
        return as_handle(value)
    return np.asarray(value)
