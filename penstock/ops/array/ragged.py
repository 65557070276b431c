"""Ragged tensors as dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, UnimplementedError
from penstock.graph.dtype import int32, int64
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape


def _padded_shape(operation: Operation) -> list[TensorShape]:
    rank = operation.input_list[1].shape.rank
    dims = None if rank is None else (None,) * (operation.attrs["num_row_partition_tensors"] + rank)
    return [TensorShape.of(dims)]


@op(
    "RaggedTensorToTensor",
    "Tshape, T, T, num_row_partition_tensors*Tindex -> result: T",
    host=True,
    no_gradient=True,
    shape=_padded_shape,
    Tshape=(int32, int64),
    Tindex=(int32, int64),
)
def ragged_tensor_to_tensor(
    shape: Any,
    values: Any,
    default_value: Any,
    row_partition_tensors: list[Any],
    *,
    num_row_partition_tensors: int,
    row_partition_types: list[str],
) -> Any:
    if any(kind not in ("ROW_SPLITS", b"ROW_SPLITS") for kind in row_partition_types):
        raise UnimplementedError(f"RaggedTensorToTensor takes ROW_SPLITS only, received {row_partition_types}.")
    splits = [np.asarray(s) for s in row_partition_tensors]
    for i, each in enumerate(splits):
        rows = len(splits[i + 1]) - 1 if i + 1 < len(splits) else len(values)
        if not len(each) or each[0] != 0 or each[-1] != rows or np.any(np.diff(each) < 0):
            raise InvalidArgumentError(f"row_splits must begin with 0, not decrease, and end with {rows}: {each}.")
    longest = [len(splits[0]) - 1, *(int(np.diff(s).max(initial=0)) for s in splits)]
    wanted = np.asarray(shape).reshape(-1).tolist()
    dims = [n if w < 0 else w for n, w in zip(longest, [*wanted, *[-1] * len(longest)], strict=False)]
    dense = np.empty((*dims, *np.shape(values)[1:]), np.asarray(values).dtype)
    dense[...] = default_value
    _fill(dense, splits, np.asarray(values), 0, len(splits[0]) - 1)
    return dense


def _fill(dense: np.ndarray, splits: list[np.ndarray], values: np.ndarray, begin: int, end: int) -> None:
    """Writes the rows from `begin` to `end`, as far as they fit."""
    if not splits:
        count = min(len(dense), end - begin)
        dense[:count] = values[begin : begin + count]
        return
    for row in range(min(len(dense), end - begin)):
        _fill(dense[row], splits[1:], values, int(splits[0][begin + row]), int(splits[0][begin + row + 1]))
