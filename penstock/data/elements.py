"""Uses of datasets without an iterator: their size, their only element, a sum over them, writing them to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.data import counting, iterator_ops, structure
from penstock.data.base import DatasetBase
from penstock.data.counting import INFINITE as INFINITE_CARDINALITY
from penstock.data.counting import UNKNOWN as UNKNOWN_CARDINALITY
from penstock.data.functions import trace, trace_stable
from penstock.data.inputs import normalized
from penstock.data.structure import DatasetSpec
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import executing_eagerly
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.kernel.waiting import from_handle

__all__ = [
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "TFRecordWriter",
    "cardinality",
    "from_variant",
    "get_single_element",
    "get_structure",
    "to_variant",
]


class Elements(DatasetBase):
    """All elements of a dataset at once."""

    def cardinality(self, name: str | None = None) -> Tensor:
        """The number of elements, INFINITE_CARDINALITY or UNKNOWN_CARDINALITY; an int64 scalar."""
        count: Tensor = iterator_ops.dataset_cardinality(self._variant_tensor)
        return count

    def get_single_element(self, name: str | None = None) -> Any:
        """The only element of a dataset, as tensors: `dataset.batch(10).get_single_element()`."""
        spec = self._spec
        tensors = iterator_ops.dataset_to_single_element(
            self._variant_tensor, output_types=structure.types_of(spec), output_shapes=structure.shapes_of(spec)
        )
        return structure.from_tensors(spec, tensors)

    def reduce(self, initial_state: Any, reduce_func: Callable[..., Any], name: str | None = None) -> Any:
        """The state after all elements: `dataset.reduce(np.int64(0), lambda total, x: total + x)`."""
        with name_scope(None, "initial_state"):
            state, tensors = normalized(initial_state)
        traced = trace_stable(lambda spec: trace(reduce_func, "Dataset.reduce", spec, self._spec), state)
        results = iterator_ops.reduce_dataset(
            self._variant_tensor,
            tensors,
            traced.captured,
            f=traced.function,
            output_types=structure.types_of(traced.spec),
            output_shapes=structure.shapes_of(traced.spec),
        )
        return structure.from_tensors(traced.spec, results)

    # With eager execution

    def __bool__(self) -> bool:
        return True  # a dataset is there, whatever its length

    def __len__(self) -> int:
        """The number of elements, if it is known and finite."""
        if not executing_eagerly():
            raise TypeError("`tf.data.Dataset` only supports `len` in eager mode. Use `tf.data.Dataset.cardinality()`.")
        count = counting.cardinality(from_handle(self._variant_tensor._value))  # type: ignore[attr-defined]
        if count < 0:
            raise TypeError(f"The dataset is {'infinite' if count == INFINITE_CARDINALITY else 'of unknown length'}.")
        return count

    def as_numpy_iterator(self) -> Iterator[Any]:
        """The elements as NumPy arrays, in their structure: `list(dataset.as_numpy_iterator())`."""
        if not executing_eagerly():
            raise RuntimeError("`tf.data.Dataset.as_numpy_iterator()` is only supported in eager mode.")
        for leaf in structure.flatten(self._spec):
            if isinstance(leaf, DatasetSpec):
                raise TypeError("as_numpy_iterator: an element with a dataset has no form as an array.")
        return (structure.map_leaves(_as_numpy, element) for element in self)


def _as_numpy(leaf: Any) -> Any:
    found = leaf.numpy() if hasattr(leaf, "numpy") else leaf
    if isinstance(found, np.ndarray):
        found.setflags(write=False)
    return found


def get_single_element(dataset: Any) -> Any:
    """The only element of a dataset, as tensors: `tf.data.experimental.get_single_element(dataset.batch(10))`."""
    if not isinstance(dataset, Elements):
        raise TypeError(f"get_single_element takes a Dataset, received {dataset!r:.200}.")
    return dataset.get_single_element()


def cardinality(dataset: Elements) -> Tensor:
    """The number of elements of a dataset, INFINITE_CARDINALITY or UNKNOWN_CARDINALITY; an int64 scalar."""
    return dataset.cardinality()


def get_structure(dataset_or_iterator: Any) -> Any:
    """The types and shapes of an element."""
    return dataset_or_iterator.element_spec


def to_variant(dataset: DatasetBase) -> Tensor:
    """The tensor that represents a dataset."""
    return dataset._variant_tensor


def from_variant(variant: Tensor, structure: Any) -> Any:
    """The dataset that a tensor represents."""
    return DatasetSpec.dataset_class(variant, structure)


class TFRecordWriter:
    """Writes a dataset of strings to a file: `sess.run(tf.data.experimental.TFRecordWriter(path).write(dataset))`."""

    def __init__(self, filename: TensorLike, compression_type: Any = None) -> None:
        self._filename = convert_to_tensor(filename, dtype=dt.string, name="filename")
        self._compression = convert_to_tensor(compression_type or "", dtype=dt.string, name="compression_type")

    def write(self, dataset: DatasetBase) -> Operation:
        """The operation that writes it."""
        if dataset.output_types != dt.string or not dataset.output_shapes.is_compatible_with(()):
            raise TypeError(f"TFRecordWriter takes a dataset of scalar strings, received one of {dataset!r}.")
        node: Operation = iterator_ops.dataset_to_tf_record(dataset._variant_tensor, self._filename, self._compression)
        return node
