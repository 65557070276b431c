"""Ops on iterators, and the iterator itself: a resource of its device that steps take elements from."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.data import node_iterators, ordering  # noqa: F401  iterators for all kinds of nodes
from penstock.data.counting import cardinality
from penstock.data.nodes import Closure, Element, Node
from penstock.data.pipeline import Pipeline, as_array
from penstock.data.position import after, random_state, seed_all, set_random_state
from penstock.data.source_ops import text
from penstock.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    OutOfRangeError,
)
from penstock.graph.dtype import DType
from penstock.graph.function import Function
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, from_handle
from penstock.records import RecordWriter

_HANDLES: weakref.WeakValueDictionary[str, IteratorState] = weakref.WeakValueDictionary()
_OBJECTS = ("string", "variant", "resource")  # arrays of objects
_NO_TYPES: list[DType] = []
_NO_SHAPES: list[TensorShape] = []


class IteratorState:
    """The state of an iteration. Initializing it again starts another one."""

    kind = "Iterator"

    def __init__(self, name: str, dtypes: Sequence[DType], shapes: Sequence[TensorShape]) -> None:
        self.name = name
        self.dtypes = tuple(dtypes)
        self.shapes = tuple(shapes)
        self.handle = f"penstock-iterator-{secrets.token_hex(12)}-{name}"
        _HANDLES[self.handle] = self
        self._pipeline: Pipeline | None = None
        self._dataset: tuple[Node, Any] | None = None  # the description, and what makes callables of its functions
        self._begun_at = 0  # the position at which the pipeline begins
        self._random = np.zeros((0, 3), np.int64)  # the random state of the description when the iteration began
        self._end: int | None = None  # the number of elements, once `get_numbered` has come to the end
        self._lock = threading.Lock()
        self._gone = False

    @property
    def is_initialized(self) -> bool:
        return self._pipeline is not None

    def initialize(self, dataset: Node, functions: Any) -> None:
        """Starts the iteration of `dataset`; ends the previous one."""
        self._start(dataset, functions, 0)

    def _start(self, dataset: Node, functions: Any, position: int) -> None:
        random = random_state(dataset)
        pipeline = Pipeline(after(dataset, position) if position else dataset, functions)
        with self._lock:
            before, self._pipeline = self._pipeline, pipeline
            self._dataset, self._begun_at, self._random = (dataset, functions), position, random
            self._end = None
            gone = self._gone
        if before is not None:
            before.close()
        if gone:
            pipeline.close()

    def initialize_once(self, factory: Function, functions: Any) -> None:
        """Starts the iteration of the dataset that `factory` makes, unless one is running."""
        with self._lock:
            if self._pipeline is None and not self._gone:
                (dataset,) = functions(factory, ())(())
                self._pipeline = Pipeline(from_handle(dataset), functions)

    def get_next(self, step: Any) -> Element:
        """The next element; OutOfRangeError at the end."""
        pipeline = self._pipeline
        if pipeline is None:
            raise _not_initialized()
        try:
            return pipeline.next(step)
        except StopIteration:
            raise _end_of_sequence() from None

    def get_numbered(self, number: int, step: Any) -> Element:
        """The element with a number, from 0; OutOfRangeError past the end. Steps must ask one after the other.

        The iteration passes over what is before it, or begins again if it has come past it.
        """
        if self._end is not None and number >= self._end:
            raise _end_of_sequence()
        if self._dataset is None or self._pipeline is None:
            raise _not_initialized()
        if number < self._begun_at + self._pipeline.taken:
            self._pipeline.close()  # its threads take random numbers, too
            set_random_state(self._dataset[0], self._random)
            self._start(*self._dataset, number)
        while True:
            at = self._begun_at + self._pipeline.taken
            try:
                element = self._pipeline.next(step)
            except StopIteration:
                self._end = at
                raise _end_of_sequence() from None
            except (CancelledError, DeadlineExceededError):
                raise
            except OpError:
                if at == number:  # else it is an error of an element that another step gets
                    raise
            if at == number:
                return element

    def position(self) -> dict[str, np.ndarray]:
        """The position of the iteration, for a checkpoint."""
        pipeline = self._pipeline
        if pipeline is None:
            raise FailedPreconditionError("The position of an iterator was asked for before it was initialized.")
        return {"taken": np.asarray(self._begun_at + pipeline.taken, np.int64), "random": self._random}

    def continue_at(self, position: dict[str, np.ndarray]) -> None:
        """Continues at a position that an iterator of the same dataset had."""
        if self._dataset is None:
            raise FailedPreconditionError("An iterator was to continue before it was initialized.")
        taken, random = position.get("taken"), position.get("random")
        if taken is None or random is None or np.shape(taken) != () or int(taken) < 0:
            raise InvalidArgumentError(f"This is not the position of an iterator: {position!r:.200}.")
        set_random_state(self._dataset[0], random)
        self._start(*self._dataset, int(taken))

    def close(self) -> None:
        """Closes the iterator with its session: its threads are stopped."""
        with self._lock:
            self._gone = True
            pipeline = self._pipeline
        if pipeline is not None:
            pipeline.close()


def _not_initialized() -> FailedPreconditionError:
    return FailedPreconditionError(
        "GetNext() failed because the iterator has not been initialized. Ensure that you have run the initializer "
        "operation for this iterator before getting the next element."
    )


def _end_of_sequence() -> OutOfRangeError:
    return OutOfRangeError("End of sequence")


def check_element(element: Element, dtypes: Sequence[DType], wanted: Sequence[TensorShape]) -> None:
    """Raises an error if an element does not have the components that a node declares."""
    if len(element) != len(dtypes):
        raise InvalidArgumentError(f"Expected {len(dtypes)} components but got {len(element)}.")
    for i, (array, dtype, shape) in enumerate(zip(element, dtypes, wanted, strict=True)):
        if dtype.name not in _OBJECTS and array.dtype != dtype.as_numpy_dtype:
            raise InvalidArgumentError(f"Component {i} has type {array.dtype.name}, but {dtype.name} was expected.")
        known = shape._dims
        if known is not None and known != array.shape and not shape.is_compatible_with(array.shape):
            raise InvalidArgumentError(f"Component {i} has shape {list(array.shape)}, but {shape} was expected.")


@op("IteratorV2", "-> handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def iterator_v2(
    *,
    shared_name: str = "",
    container: str = "",
    output_types: list[DType],
    output_shapes: list[TensorShape],
    resource: Any,
) -> Any:
    return as_handle(resource(lambda name: IteratorState(name, output_types, output_shapes)))


@op("OneShotIterator", "-> handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def one_shot_iterator(
    *,
    dataset_factory: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
    container: str = "",
    shared_name: str = "",
    resource: Any,
    functions: Any,
) -> Any:
    iterator = resource(lambda name: IteratorState(name, output_types, output_shapes))
    if not iterator.is_initialized:
        iterator.initialize_once(dataset_factory, functions)
    return as_handle(iterator)


@op("MakeIterator", "variant, resource ->", host=True, stateful=True, no_gradient=True)
def make_iterator(dataset: Any, iterator: Any, *, functions: Any) -> None:
    from_handle(iterator).initialize(from_handle(dataset), functions)


@op(
    "IteratorToStringHandle",
    "resource -> string_handle: string",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def iterator_to_string_handle(resource_handle: Any) -> Any:
    return np.array(from_handle(resource_handle).handle.encode(), object)


@op(
    "IteratorFromStringHandleV2",
    "string -> resource_handle: resource",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def iterator_from_string_handle(
    string_handle: Any, *, output_types: list[DType] = _NO_TYPES, output_shapes: list[TensorShape] = _NO_SHAPES
) -> Any:
    value = np.asarray(string_handle, object).reshape(-1)[0]
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    found = _HANDLES.get(text)
    if found is None:
        raise NotFoundError(f"No iterator in this process has the string handle {text[:200]!r}.")
    if output_types and tuple(output_types) != found.dtypes:
        raise InvalidArgumentError(
            f"The iterator of this handle gives ({', '.join(d.name for d in found.dtypes)}), but "
            f"({', '.join(d.name for d in output_types)}) was expected."
        )
    return as_handle(found)


def _declared(op: Operation) -> list[TensorShape]:
    return list(op.attrs["output_shapes"])


@op(
    "IteratorGetNext",
    "resource -> components: list(output_types)",
    host=True,
    stateful=True,
    blocking=True,
    no_gradient=True,
    shape=_declared,
)
def iterator_get_next(iterator: Any, *, output_types: list[DType], output_shapes: list[TensorShape], ctx: Any) -> Any:
    element = from_handle(iterator).get_next(ctx)
    check_element(element, output_types, output_shapes)
    return list(element)


# By number


@op("MakeNumberedIterator", "variant, resource, int64 ->", host=True, stateful=True, no_gradient=True)
def make_numbered_iterator(dataset: Any, iterator: Any, seed: Any, *, functions: Any) -> None:
    """Starts an iteration that is the same wherever it is made with the same seed, for `IteratorGetNumbered`."""
    description = from_handle(dataset)
    seed_all(description, int(seed))
    from_handle(iterator).initialize(description, functions)


@op(
    "IteratorGetNumbered",
    "resource, int64 -> components: list(output_types)",
    host=True,
    stateful=True,
    blocking=True,
    no_gradient=True,
    shape=_declared,
)
def iterator_get_numbered(
    iterator: Any, number: Any, *, output_types: list[DType], output_shapes: list[TensorShape], ctx: Any
) -> Any:
    """The element with a number, which a coordinator gives."""
    if number < 0:
        raise FailedPreconditionError(
            "The next element of a dataset with visit_once=True was asked for in a function that was called. Use "
            "ClusterCoordinator.schedule: the coordinator decides which element a function gets."
        )
    element = from_handle(iterator).get_numbered(int(number), ctx)
    check_element(element, output_types, output_shapes)
    return list(element)


# Without an iterator


@op(
    "ReduceDataset",
    "variant, list(Tstate), list(Targuments) -> components: list(output_types)",
    host=True,
    stateful=True,
    blocking=True,
    no_gradient=True,
    shape=_declared,
)
def reduce_dataset(
    input_dataset: Any,
    initial_state: list[Any],
    other_arguments: list[Any],
    *,
    f: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
    use_inter_op_parallelism: bool = True,
    ctx: Any,
    functions: Any,
) -> Any:
    pipeline = Pipeline(from_handle(input_dataset), functions)
    function = pipeline.function(Closure(f, tuple(other_arguments)))
    state = list(map(as_array, initial_state))
    try:
        while True:
            try:
                element = pipeline.next(ctx)
            except StopIteration:
                return state
            state = list(map(as_array, function((*state, *element))))
    finally:
        pipeline.close()


@op(
    "DatasetToSingleElement",
    "variant -> components: list(output_types)",
    host=True,
    stateful=True,
    blocking=True,
    no_gradient=True,
    shape=_declared,
)
def dataset_to_single_element(
    dataset: Any, *, output_types: list[DType], output_shapes: list[TensorShape], ctx: Any, functions: Any
) -> Any:
    pipeline = Pipeline(from_handle(dataset), functions)
    try:
        found: list[Element] = []
        while len(found) < 2:
            try:
                found.append(pipeline.next(ctx))
            except StopIteration:
                break
    finally:
        pipeline.close()
    if len(found) != 1:
        raise InvalidArgumentError(
            f"Dataset {'was empty' if not found else 'had more than one element'}, one was expected."
        )
    return list(found[0])


@op("DatasetCardinality", "variant -> cardinality: int64", host=True, no_gradient=True, shape=shapes.scalar)
def dataset_cardinality(input_dataset: Any) -> Any:
    return np.asarray(cardinality(from_handle(input_dataset)), np.int64)


@op("DatasetToTFRecord", "variant, string, string ->", host=True, stateful=True, blocking=True, no_gradient=True)
def dataset_to_tf_record(input_dataset: Any, filename: Any, compression_type: Any, *, ctx: Any, functions: Any) -> None:
    pipeline = Pipeline(from_handle(input_dataset), functions)
    try:
        with RecordWriter(text(filename), text(compression_type)) as writer:
            while True:
                try:
                    (record,) = pipeline.next(ctx)
                except StopIteration:
                    return
                writer.write(record.item())
    finally:
        pipeline.close()
