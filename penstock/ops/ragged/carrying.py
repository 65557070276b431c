"""Ragged tensors as values that one variant tensor carries: components of datasets, items of lists."""

from __future__ import annotations

from typing import Any

from penstock.graph.dtype import DType
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.shape import TensorShape
from penstock.ops.ragged import row_ops
from penstock.ops.ragged.ragged_tensor import RaggedTensor


def to_variant(value: Any, rows: bool = False) -> Tensor:
    """The tensor that carries a ragged or dense one; with `rows` a vector with each row of a ragged one."""
    splits = list(value.nested_row_splits) if isinstance(value, Ragged) else []
    flat = value.flat_values if isinstance(value, Ragged) else value
    types = {} if splits else {"Tsplits": "int64"}
    carrier: Tensor = row_ops.ragged_tensor_to_variant(splits, flat, batched_input=rows, **types)
    return carrier


def from_variant(
    carrier: Tensor, dtype: DType, ragged_rank: int, row_splits_dtype: DType, shape: TensorShape
) -> RaggedTensor | Tensor:
    """The tensor that `to_variant` packed. A vector of carriers becomes the rows of one ragged tensor."""
    splits, values = row_ops.ragged_tensor_from_variant(
        carrier, input_ragged_rank=-1, output_ragged_rank=ragged_rank, Tvalues=dtype, Tsplits=row_splits_dtype
    )
    lengths: list[int | None] = [None] * ragged_rank
    if shape.rank is not None:
        values.set_shape(TensorShape.of((None,)).concatenate(shape[ragged_rank + 1 :]) if ragged_rank else shape)
        rows = shape.as_list()[0] if ragged_rank else None
        lengths = shape.as_list()[1 : ragged_rank + 1]
        if rows is not None:
            splits[0].set_shape([rows + 1])
    found: Any = values
    for level, length in zip(reversed(splits), reversed(lengths), strict=True):
        found = RaggedTensor(found, level, length)
    carried: RaggedTensor | Tensor = found
    return carried
