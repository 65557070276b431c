"""Uses of datasets without an iterator: their only element, their size, writing them to a file."""

from __future__ import annotations

from typing import Any

from penstock.data import iterator_ops, structure
from penstock.data.counting import INFINITE as INFINITE_CARDINALITY
from penstock.data.counting import UNKNOWN as UNKNOWN_CARDINALITY
from penstock.data.dataset import Dataset
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Operation, Tensor
from penstock.graph.typing import TensorLike

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


def get_single_element(dataset: Dataset) -> Any:
    """The only element of a dataset, as tensors: `tf.data.experimental.get_single_element(dataset.batch(10))`."""
    if not isinstance(dataset, Dataset):
        raise TypeError(f"get_single_element takes a Dataset, received {dataset!r:.200}.")
    spec = dataset.element_spec
    tensors = iterator_ops.dataset_to_single_element(
        dataset._variant_tensor, output_types=structure.types_of(spec), output_shapes=structure.shapes_of(spec)
    )
    return structure.from_tensors(spec, tensors)


def cardinality(dataset: Dataset) -> Tensor:
    """The number of elements of a dataset, INFINITE_CARDINALITY or UNKNOWN_CARDINALITY; an int64 scalar."""
    count: Tensor = iterator_ops.dataset_cardinality(dataset._variant_tensor)
    return count


def get_structure(dataset_or_iterator: Any) -> Any:
    """The types and shapes of an element."""
    return dataset_or_iterator.element_spec


def to_variant(dataset: Dataset) -> Tensor:
    """The tensor that represents a dataset."""
    return dataset._variant_tensor


def from_variant(variant: Tensor, structure: Any) -> Dataset:
    """The dataset that a tensor represents."""
    return Dataset(variant, structure)


class TFRecordWriter:
    """Writes a dataset of strings to a file: `sess.run(tf.data.experimental.TFRecordWriter(path).write(dataset))`."""

    def __init__(self, filename: TensorLike, compression_type: Any = None) -> None:
        self._filename = convert_to_tensor(filename, dtype=dt.string, name="filename")
        self._compression = convert_to_tensor(compression_type or "", dtype=dt.string, name="compression_type")

    def write(self, dataset: Dataset) -> Operation:
        """The operation that writes it."""
        if dataset.output_types != dt.string or not dataset.output_shapes.is_compatible_with(()):
            raise TypeError(f"TFRecordWriter takes a dataset of scalar strings, received one of {dataset!r}.")
        node: Operation = iterator_ops.dataset_to_tf_record(dataset._variant_tensor, self._filename, self._compression)
        return node
