"""IndexedSlices as dense tensors, in gradients."""

from __future__ import annotations

from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import op_of
from penstock.graph.operation import Tensor


def dense_rows(value: Any, name: str | None = None) -> Tensor:
    """`value` itself, or IndexedSlices made dense without the warning about memory; for gradients."""
    if not isinstance(value, IndexedSlices):
        return convert_to_tensor(value)
    dims: Any = value.dense_shape
    tensor: Tensor = op_of("UnsortedSegmentSum")(value.values, value.indices, dims[0], name=name)
    return tensor
