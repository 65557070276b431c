"""Ragged tensors."""

from penstock.face.missing import guard as _guard
from penstock.graph.ragged_value import RaggedTensorValue
from penstock.ops.ragged.arranging import boolean_mask
from penstock.ops.ragged.making import (
    constant,
    constant_value,
    map_flat_values,
    placeholder,
    row_splits_to_segment_ids,
    segment_ids_to_row_splits,
    stack,
    stack_dynamic_partitions,
)
from penstock.ops.ragged.making import range_ as range

__getattr__ = _guard(__name__)
