"""Datasets of workers: each worker makes its own, and iterates over it; after a worker was lost it is made again."""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from penstock.data import iterator_ops, optional, structure
from penstock.data.functions import copied
from penstock.data.one_order import require_one_order
from penstock.distribute.coordinator.closures import Closure, RemoteValue, SentFunction
from penstock.distribute.input import DistributedDataset, DistributedDatasetsFromFunction, InputContext
from penstock.eager.function import Function, function
from penstock.eager.graph import PROCESS
from penstock.graph.graph import executing_eagerly, get_default_graph

_names = itertools.count()


def _new_name() -> str:
    return f"per_worker_iterator_{PROCESS}_{next(_names)}"


class PerWorkerDataset:
    """A dataset that each worker has its own of. `iter` makes the iterators of all workers.

    >>> per_worker = coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(10))
    >>> coordinator.schedule(step, args=(iter(per_worker),))

    With `visit_once` the workers share the elements: each goes to one function.
    """

    def __init__(self, coordinator: Any, dataset_fn: Any, visit_once: bool = False) -> None:
        if not callable(dataset_fn) and not hasattr(dataset_fn, "element_spec"):
            raise ValueError(
                f"create_per_worker_dataset takes a function or a tf.data.Dataset, received {dataset_fn!r}."
            )
        self._coordinator = coordinator
        self._dataset_fn = dataset_fn
        self._visit_once = visit_once
        self.element_spec: Any = None
        self._traced: dict[tuple[str, int, int], SentFunction] = {}  # by name, worker, and how many workers there were
        self._next_name = _new_name()
        self._making(0, self._next_name)  # so that a function that raises does so here

    def __iter__(self) -> PerWorkerDistributedIterator:
        if not executing_eagerly():
            raise RuntimeError("__iter__() is not supported inside of tf.function or in graph mode.")
        name, self._next_name = self._next_name, _new_name()
        iterator = PerWorkerDistributedIterator(name, self.element_spec, self._visit_once)
        if self._visit_once:
            self._coordinator.begin_visits(name)
        self._coordinator.add_resource(lambda worker: self._making(worker, name))
        return iterator

    def _making(self, worker: int, name: str) -> Closure:
        """The closure that makes the iterator of one worker, traced once; once for all if they share the elements."""
        key = (name, 0, 0) if self._visit_once else (name, worker, self._coordinator.worker_count)
        found = self._traced.get(key)
        if found is None:
            found = self._traced[key] = self._trace(worker, name)
        return Closure(found, [], RemoteValue(), worker)

    def _trace(self, worker: int, name: str) -> SentFunction:
        make = self._dataset_fn
        if isinstance(make, Function):
            make = make.python_function

        def iterate() -> None:
            graph: Any = get_default_graph()
            graph.copies_datasets = True
            dataset = self._of_worker(make() if callable(make) else make, worker)
            if not hasattr(dataset, "element_spec"):
                raise AttributeError(f"dataset_fn must return a tf.data.Dataset, it returned {dataset!r}.")
            self.element_spec = dataset.element_spec
            variant, handle = dataset._variant_tensor, _handle(name, self.element_spec)
            if variant.graph.is_eager:  # a description of this process: the worker makes it again
                variant = copied(variant, graph, handles=True)
            if self._visit_once:
                require_one_order(variant)
                iterator_ops.make_numbered_iterator(variant, handle, secrets.randbits(62) | 1)
            else:
                iterator_ops.make_iterator(variant, handle)

        with self._coordinator.strategy.scope():
            concrete = function(iterate, autograph=False).get_concrete_function()
        found: SentFunction = self._coordinator.sent(concrete)
        return found

    def _of_worker(self, dataset: Any, worker: int) -> Any:
        """The dataset of one worker; a function of an InputContext is told which of how many workers it is."""
        if isinstance(dataset, DistributedDatasetsFromFunction):
            strategy = self._coordinator.strategy
            if self._visit_once:  # the coordinator divides the elements among workers: each has all of them
                return dataset.dataset_fn(InputContext(1, 0, strategy.num_replicas_in_sync))
            workers = self._coordinator.worker_count
            return dataset.dataset_fn(InputContext(workers, worker, strategy.num_replicas_in_sync))
        return dataset.dataset if isinstance(dataset, DistributedDataset) else dataset


class PerWorkerDistributedIterator:
    """The iterators of all workers. A scheduled function gets that of the worker that runs it."""

    def __init__(self, name: str, element_spec: Any, visit_once: bool = False) -> None:
        self._name = name
        self._visit_once = visit_once
        self.element_spec = element_spec

    def __iter__(self) -> PerWorkerDistributedIterator:
        return self

    def __next__(self) -> Any:
        return self.get_next()

    def get_next(self) -> Any:
        """The next element of the worker's dataset, in a scheduled function."""
        graph = get_default_graph()
        if graph.is_eager:
            raise NotImplementedError(
                "Iterating over a per-worker dataset directly is not supported: pass its iterator to a function that "
                "is scheduled, and call next() there."
            )
        spec = self.element_spec
        handle = _handle(self._name, spec)
        shape: dict[str, Any] = {"output_types": structure.types_of(spec), "output_shapes": structure.shapes_of(spec)}
        if self._visit_once:  # a closure feeds the number
            tensors = iterator_ops.iterator_get_numbered(handle, -1, **shape)
        else:
            tensors = iterator_ops.iterator_get_next(handle, **shape)
        return structure.from_tensors(spec, tensors)

    def get_next_as_optional(self) -> optional.Optional:
        """The next element as a value that may be missing, at the end."""
        if self._visit_once:
            raise NotImplementedError(
                "A dataset with visit_once=True gives no optional elements, and none to a loop over the iterator in a "
                "function: a closure visits the same number of elements each time. Call next(); join() raises "
                "OutOfRangeError at the end."
            )
        spec = self.element_spec
        found = optional.iterator_get_next_as_optional(
            _handle(self._name, spec), output_types=structure.types_of(spec), output_shapes=structure.shapes_of(spec)
        )
        return optional.Optional(found, spec)


def _handle(name: str, spec: Any) -> Any:
    return iterator_ops.iterator_v2(
        shared_name=name, output_types=structure.types_of(spec), output_shapes=structure.shapes_of(spec)
    )
