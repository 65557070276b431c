"""Iterators, from which a program takes the elements of a dataset."""

from __future__ import annotations

import warnings
from typing import Any

from penstock.data import iterator_ops, structure
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import string
from penstock.graph.graph import get_default_graph
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import device, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike

GET_NEXT_CALL_WARNING_THRESHOLD = 32


class Iterator:
    """The state of an iteration through a dataset.

    >>> iterator = tf.data.make_one_shot_iterator(tf.data.Dataset.range(3))
    >>> sess.run(iterator.get_next())
    0
    """

    def __init__(
        self,
        iterator_resource: Tensor,
        initializer: Operation | None,
        output_types: Any,
        output_shapes: Any,
        output_classes: Any = None,
        *,
        spec: Any = None,
    ) -> None:
        self._iterator_resource = iterator_resource
        self._initializer = initializer
        self._spec = structure.from_legacy(output_types, output_shapes, output_classes) if spec is None else spec
        with device("CPU:0"):
            self._string_handle: Tensor = iterator_ops.iterator_to_string_handle(iterator_resource)
        self._calls = 0
        get_default_graph().add_to_collection("iterators", self._iterator_resource)

    @staticmethod
    def from_structure(
        output_types: Any, output_shapes: Any = None, shared_name: str | None = None, output_classes: Any = None
    ) -> Iterator:
        """An iterator without a dataset; `make_initializer(dataset)` sets one, and may be called again with another.

        >>> iterator = tf.data.Iterator.from_structure(tf.float32, [None])
        >>> use_train = iterator.make_initializer(train)
        """
        spec = structure.from_legacy(output_types, output_shapes, output_classes)
        with device("CPU:0"):
            handle = iterator_ops.iterator_v2(
                shared_name=shared_name or "",
                output_types=structure.types_of(spec),
                output_shapes=structure.shapes_of(spec),
            )
        return Iterator(handle, None, None, None, spec=spec)

    @staticmethod
    def from_string_handle(
        string_handle: TensorLike, output_types: Any, output_shapes: Any = None, output_classes: Any = None
    ) -> Iterator:
        """The iterator that a string names; the string can be fed: `sess.run(x, {handle: train_handle})`.

        >>> handle = tf.placeholder(tf.string, [])
        >>> x = tf.data.Iterator.from_string_handle(handle, tf.float32, [None]).get_next()
        """
        spec = structure.from_legacy(output_types, output_shapes, output_classes)
        handle = convert_to_tensor(string_handle, dtype=string)
        with device("CPU:0"):
            resource = iterator_ops.iterator_from_string_handle(
                handle, output_types=structure.types_of(spec), output_shapes=structure.shapes_of(spec)
            )
        return Iterator(resource, None, None, None, spec=spec)

    @property
    def initializer(self) -> Operation:
        """The operation that starts the iteration."""
        if self._initializer is None:
            raise ValueError("The iterator does not have an initializer: use make_initializer(dataset).")
        return self._initializer

    def make_initializer(self, dataset: Any, name: str | None = None) -> Operation:
        """An operation that starts an iteration of `dataset`, whose elements must be like those of this iterator."""
        with name_scope(name, "make_initializer") as scope:
            _require_fit(self._spec, dataset.element_spec)
            with device("CPU:0"):
                node: Operation = iterator_ops.make_iterator(
                    dataset._variant_tensor, self._iterator_resource, name=scope
                )
        return node

    def get_next(self, name: str | None = None) -> Any:
        """The next element, in the structure of the dataset. Each run takes one; OutOfRangeError at the end.

        Call it once and run the result many times.
        """
        self._calls += 1
        if self._calls == GET_NEXT_CALL_WARNING_THRESHOLD:
            warnings.warn(
                "An iterator's get_next() was called many times, and each call adds nodes to the graph. Call it once, "
                "outside the loop, and run the result in the loop."
            )
        with device("CPU:0"):
            tensors = iterator_ops.iterator_get_next(
                self._iterator_resource,
                output_types=structure.types_of(self._spec),
                output_shapes=structure.shapes_of(self._spec),
                name=name,
            )
        return structure.from_tensors(self._spec, tensors)

    def string_handle(self, name: str | None = None) -> Tensor:
        """A string tensor whose value names this iterator, for `from_string_handle`."""
        if name is None:
            return self._string_handle
        handle: Tensor = iterator_ops.iterator_to_string_handle(self._iterator_resource, name=name)
        return handle

    @property
    def element_spec(self) -> Any:
        return self._spec

    @property
    def output_types(self) -> Any:
        return get_legacy_output_types(self)

    @property
    def output_shapes(self) -> Any:
        return get_legacy_output_shapes(self)

    @property
    def output_classes(self) -> Any:
        return get_legacy_output_classes(self)

    def __iter__(self) -> Any:
        raise RuntimeError("Iterating in Python needs eager execution; in a graph, run get_next() in a session.")


def _require_fit(wanted: Any, given: Any) -> None:
    """Raises an error if elements of `given` cannot be used as `wanted` ones."""
    mine, others = structure.flatten(wanted), structure.flatten(given)
    same = len(mine) == len(others) and structure.map_leaves(lambda _: 0, wanted) == structure.map_leaves(
        lambda _: 0, given
    )
    if not same or any(a.dtype != b.dtype for a, b in zip(mine, others, strict=True)):
        raise TypeError(
            f"Expected output types {structure.map_leaves(lambda s: s.dtype, wanted)!r} but got dataset with output "
            f"types {structure.map_leaves(lambda s: s.dtype, given)!r}."
        )
    for a, b in zip(mine, others, strict=True):
        if not _at_least_as_specific(b.shape, a.shape):
            raise TypeError(f"Expected output shapes compatible with {a.shape} but got dataset with {b.shape}.")


def _at_least_as_specific(given: TensorShape, wanted: TensorShape) -> bool:
    return bool(given.is_compatible_with(wanted))


def get_legacy_output_types(dataset_or_iterator: Any) -> Any:
    """The types of the components, nested as elements are: `tf.data.get_output_types(dataset)`."""
    return structure.map_leaves(lambda s: s.dtype, dataset_or_iterator.element_spec)


def get_legacy_output_shapes(dataset_or_iterator: Any) -> Any:
    """The shapes of the components, nested as elements are: `tf.data.get_output_shapes(dataset)`."""
    return structure.map_leaves(lambda s: s.shape, dataset_or_iterator.element_spec)


def get_legacy_output_classes(dataset_or_iterator: Any) -> Any:
    """The Python classes of the components, nested as elements are; for ragged ones their specs."""

    def kind(leaf: Any) -> Any:
        return leaf if isinstance(leaf, structure.RaggedTensorSpec) else leaf.value_type

    return structure.map_leaves(kind, dataset_or_iterator.element_spec)
