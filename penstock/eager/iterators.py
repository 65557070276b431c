"""OwnedIterator: an iteration of a dataset with eager execution. Functions may use it too, by its handle."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np

from penstock.data import iterator_ops, optional, structure
from penstock.data.dataset import Dataset
from penstock.data.iterator import GET_NEXT_CALL_WARNING_THRESHOLD
from penstock.data.iterator_ops import IteratorState, check_element
from penstock.eager.datasets import described
from penstock.eager.runtime import node_for, runtime
from penstock.eager.tensor import EagerTensor, Handle
from penstock.errors import OutOfRangeError
from penstock.graph.dtype import resource
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.operation import Tensor
from penstock.graph.scopes import device
from penstock.kernel.waiting import from_handle
from penstock.worker.cancellation import Cancellation
from penstock.worker.step import Step

_names = itertools.count()


class OwnedIterator:
    """The state of an iteration through a dataset. It ends when no one uses it any more, with the next operation.

    >>> it = iter(tf.data.Dataset.range(2))
    >>> next(it).numpy(), it.get_next().numpy()
    (0, 1)
    """

    _state: IteratorState | None  # None: it is in another process, or in the graph of a function

    def __init__(self, dataset: Dataset) -> None:
        if get_default_graph().is_eager:
            runtime.free()  # ends the iterators that nobody uses any more, and their threads
            with device(None), device("CPU:0"):  # in this process, whatever device the program's ops run on
                handle = _handle(dataset.element_spec, "iterator")
            self._set(handle, dataset.element_spec)
            self._state = self._made(dataset)
        else:
            with device("CPU:0"):
                handle = _handle(dataset.element_spec, f"function_iterator_{next(_names)}")
                iterator_ops.make_iterator(dataset._variant_tensor, handle)
            self._set(handle, dataset.element_spec)

    @classmethod
    def of_handle(cls, handle: Tensor, spec: Any) -> OwnedIterator:
        """The iterator that a handle names, perhaps in another process: each element is then asked for there."""
        iterator = cls.__new__(cls)
        iterator._set(handle, spec)
        return iterator

    def _set(self, handle: Tensor, spec: Any) -> None:
        self._iterator_resource, self._spec = handle, spec
        self._types, self._shapes = structure.types_of(spec), structure.shapes_of(spec)
        self._state = None
        self._step = Step(Cancellation())  # in which Python waits for elements
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # of get_next, by graph

    def _made(self, dataset: Dataset) -> IteratorState:
        """Makes the resource that the handle names, and starts the iteration."""
        handle, described_by = self._iterator_resource, dataset._variant_tensor
        assert isinstance(handle, EagerTensor) and isinstance(described_by, EagerTensor)
        name = handle._value.attrs["shared_name"]
        state: IteratorState = runtime.worker.devices[0].resources.lookup_or_create(
            "", name, lambda: IteratorState(name, self._types, self._shapes)
        )
        state.initialize(from_handle(described_by._value), runtime.functions())
        return state

    def _device(self) -> str:
        value = getattr(self._iterator_resource, "_value", None)
        return runtime.device_of(value) if isinstance(value, Handle) else self._iterator_resource.device

    @property
    def element_spec(self) -> Any:
        """The types and shapes of an element."""
        return self._spec

    def __iter__(self) -> OwnedIterator:
        return self

    def __next__(self) -> Any:
        try:
            return self.get_next()
        except OutOfRangeError:
            raise StopIteration from None

    def get_next(self, name: str | None = None) -> Any:
        """The next element, in the structure of the dataset; OutOfRangeError at the end."""
        graph = get_default_graph()
        state = self._state
        if state is None or not graph.is_eager:
            self._check_calls(graph)
            with device(self._device()):
                found = iterator_ops.iterator_get_next(
                    self._iterator_resource, output_types=self._types, output_shapes=self._shapes, name=name
                )
            return structure.from_tensors(self._spec, found)
        element = state.get_next(self._step)
        check_element(element, self._types, self._shapes)
        where = self._iterator_resource.device
        pairs = zip(element, self._types, strict=True)
        return structure.from_tensors(self._spec, [EagerTensor(graph, v, t, where) for v, t in pairs])

    def _check_calls(self, graph: Graph) -> None:
        if graph.is_eager:
            return
        calls = self._calls[graph] = self._calls.get(graph, 0) + 1
        if calls > GET_NEXT_CALL_WARNING_THRESHOLD:
            raise ValueError(
                f"An iterator's get_next() was called {calls} times in a function, and each call adds to its graph. A "
                "`for` statement over a dataset in a tf.function needs AutoGraph: do not turn it off, or use "
                "dataset.reduce."
            )

    def get_next_as_optional(self) -> optional.Optional:
        """The next element as a value that may be missing, at the end."""
        with device(self._device()):
            return optional.get_next_as_optional(self)

    # Checkpoints

    def _saved_state(self) -> dict[str, np.ndarray]:
        """The position of the iteration, as arrays."""
        return self._local().position()

    def _restore_state(self, saved: dict[str, np.ndarray]) -> None:
        """Continues at a position that `_saved_state` gave, of an iterator of the same dataset."""
        self._local().continue_at(saved)

    def _local(self) -> IteratorState:
        if self._state is None:
            raise NotImplementedError("An iterator of another task, or of a function, has no position to save.")
        return self._state


def _handle(spec: Any, name: str) -> Tensor:
    handle: Tensor = iterator_ops.iterator_v2(
        output_types=structure.types_of(spec), output_shapes=structure.shapes_of(spec), shared_name=name
    )
    return handle


def placed_iterator(dataset: Dataset, on: str, name: str | None = None) -> OwnedIterator:
    """An iterator of an eager dataset on a device of any task, by the name `name` there.

    The operations that describe the dataset are run by that task. Functions that capture the iterator take elements
    where they run, if they run there.

    >>> placed_iterator(dataset, "/job:worker/task:1/device:CPU:0", "examples")
    """
    spec = dataset.element_spec
    attrs = {
        "output_types": structure.types_of(spec),
        "output_shapes": structure.shapes_of(spec),
        "shared_name": name or f"placed_iterator_{next(_names)}",
        "container": "",
    }
    handle = Handle(iterator_ops.iterator_v2, attrs, on)
    graph = Graph()
    with graph.as_default(), graph.device(on):
        made = iterator_ops.make_iterator(described(dataset)._variant_tensor, node_for(graph, handle))
    runtime.run(runtime.master.signature((), (), (made,), graph.mutations), ())
    return OwnedIterator.of_handle(EagerTensor(dataset._variant_tensor.graph, handle, resource, on), spec)


Dataset.iterator_class = OwnedIterator
