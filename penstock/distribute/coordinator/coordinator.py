"""ClusterCoordinator: schedules functions on workers, and has those of lost workers run by others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.distribute.coordinator.closures import Closure, PerWorker, PerWorkerValue, RemoteValue, SentFunction
from penstock.distribute.coordinator.datasets import PerWorkerDataset
from penstock.distribute.coordinator.members import Members
from penstock.distribute.coordinator.tables import filling
from penstock.distribute.parameter_server import ParameterServerStrategyV2
from penstock.eager.concrete import ConcreteFunction
from penstock.eager.function import Function
from penstock.eager.runtime import runtime
from penstock.graph import nest
from penstock.graph.operation import Tensor
from penstock.progress import under_way

MAX_WAITING = 10_000  # closures: more have to wait in `schedule`


class ClusterCoordinator(Members):
    """Runs functions on the workers of a strategy's cluster.

    >>> coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    >>> losses = [coordinator.schedule(train_step, args=(iterator,)) for _ in range(100)]
    >>> coordinator.join()
    >>> losses[-1].fetch()
    """

    def __new__(cls, strategy: Any) -> ClusterCoordinator:
        """A strategy has one coordinator: a second call returns the first one."""
        if not isinstance(strategy, ParameterServerStrategyV2):
            raise ValueError(
                f"ClusterCoordinator takes a tf.distribute.ParameterServerStrategy, received {strategy!r}."
            )
        if strategy._cluster_coordinator is None:
            strategy._cluster_coordinator = super().__new__(cls)
        found: ClusterCoordinator = strategy._cluster_coordinator
        return found

    def __init__(self, strategy: Any) -> None:
        if hasattr(self, "_strategy"):
            return
        self._tables: set[str] = set()  # those that workers have
        super().__init__(strategy)

    @property
    def strategy(self) -> Any:
        """The strategy whose workers run the functions."""
        return self._strategy

    @property
    def worker_count(self) -> int:
        """The number of workers that the job has now, those included that are lost at the moment."""
        return self._queue.workers

    # Scheduling

    def schedule(self, fn: Callable[..., Any], args: Any = None, kwargs: Any = None) -> RemoteValue:
        """Has some worker run a function, and returns its result to be.

        If the worker is lost, another one runs it; what a parameter server has written then is not written again. If a
        function that was scheduled before has failed, its error is raised here, once.
        """
        if not isinstance(fn, (Function, ConcreteFunction)):
            raise TypeError(f"schedule takes a tf.function or a concrete function, received {fn!r}.")
        args, kwargs = () if args is None else args, {} if kwargs is None else kwargs
        if isinstance(args, Tensor) or not isinstance(args, Iterable) or not isinstance(kwargs, Mapping):
            raise TypeError(
                "schedule takes the function's arguments as args=(x, y), a tuple or list, and kwargs={'name': z}, a "
                f"dict; received args={args!r:.200} and kwargs={kwargs!r:.200}."
            )
        closure = self._closure(fn, tuple(args), dict(kwargs))
        self._save_if_due()
        runtime.send_unused()
        with self._changed:
            if self._queue.waiting >= MAX_WAITING:
                self._waits.until(lambda: self._queue.waiting < MAX_WAITING or self._error is not None, "schedule")
            if self._error is not None:  # else a program that only schedules would never hear of it
                self._waits.until(lambda: self._queue.is_idle, "schedule")
            self._raise_error()
            is_behind = self._queue.is_behind
            self._queue.add(closure)
        if not is_behind:
            self._send_to_all()
        self._apply_if_due()  # it may be for other workers than those that the round waits for
        return closure.result

    def join(self) -> None:
        """Waits until all scheduled functions have run. Raises the error of one that has failed."""
        runtime.send_unused()
        with self._waiting(), self._changed:
            self._waits.until(self._is_over, "join", None if self._kept is None else self._save_if_due)
            self._raise_error()
        under_way()

    def done(self) -> bool:
        """Tells if all scheduled functions have run. Raises the error of one that has failed."""
        with self._changed:
            self._raise_error()
            return self._is_over()

    def fetch(self, val: Any) -> Any:
        """Waits for the results in a structure, and returns it with NumPy arrays in their place."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, RemoteValue):
                return leaf.fetch()
            return leaf.numpy() if hasattr(leaf, "numpy") else leaf

        return nest.map_structure(value, val)

    def create_per_worker_dataset(self, dataset_fn: Any, *, visit_once: bool = False) -> PerWorkerDataset:
        """A dataset that each worker makes by `dataset_fn`, and makes again when it comes back after it was lost.

        With `visit_once` it is one dataset that the workers share: each element goes to one function, which keeps it
        when its worker is lost and another one runs it again. `join` raises OutOfRangeError if more functions were
        scheduled than there are elements for, when all were visited.

        >>> iterator = iter(coordinator.create_per_worker_dataset(lambda: records.batch(32), visit_once=True))
        """
        return PerWorkerDataset(self, dataset_fn, visit_once)

    def begin_visits(self, iterator: str) -> None:
        """Takes an iterator whose elements are given to functions by their numbers, each once."""
        with self._changed:
            self._visits.begin(iterator)

    def add_resource(self, make: Callable[[int], Closure]) -> None:
        """Has each worker make a resource before it runs functions that are scheduled later."""
        with self._changed:
            self._resources.append(make)
            for number in range(self._queue.workers):
                if self._queue.present[number]:  # the others make it when they are connected
                    self._queue.add(make(number))
        self._send_to_all()

    def _closure(self, fn: Function | ConcreteFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Closure:
        if any(isinstance(leaf, RemoteValue) for leaf in nest.flatten((args, kwargs))):
            raise ValueError(
                "A RemoteValue cannot be an argument of a scheduled function: its value is not there yet. Fetch it, or "
                "keep it in a variable."
            )
        several: dict[int, PerWorker] = {}

        def of_first(leaf: Any) -> Any:
            if not isinstance(leaf, PerWorkerValue):
                return leaf
            # Values for a number of workers that there was once are used on: workers that have joined since get none.
            if len(leaf.tensors) not in self._queue.sizes:
                raise ValueError(
                    f"There are {self.worker_count} workers, received {len(leaf.tensors)} values for them."
                )
            several[id(leaf.tensors[0])] = PerWorker([t._value for t in leaf.tensors])  # type: ignore[attr-defined]
            return leaf.tensors[0]

        args, kwargs = nest.map_structure(of_first, (args, kwargs))
        with self._strategy.scope():
            concrete, tensors = fn.traced(args, kwargs)
        arguments = [several.get(id(t), t._value) for t in tensors]  # type: ignore[attr-defined]
        sent = self.sent(concrete)
        result = RemoteValue(self._wait_for_result)
        result._pack = sent.pack
        return Closure(sent, arguments, result)

    def sent(self, concrete: ConcreteFunction) -> SentFunction:
        """The form in which workers get a function. They get the tables that it needs first."""
        sent: SentFunction | None = concrete.derived.get(self)
        if sent is None:
            sent = SentFunction(concrete)
            for name, table in sent.tables.items():
                if name not in self._tables:
                    self._tables.add(name)
                    self.add_resource(filling(table, name))
            concrete.derived[self] = sent
        return sent
