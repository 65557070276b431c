"""Elementwise functions of ragged tensors: they map the innermost values, once all operands have the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import InvalidArgumentError
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.ops.array.gathering import gather_nd
from penstock.ops.array.joining import concat, stack
from penstock.ops.array.reshaping import reshape, shape
from penstock.ops.math.casting import cast
from penstock.ops.ragged import row_ops
from penstock.ops.ragged.ragged_tensor import RaggedTensor
from penstock.ops.ragged.rows import row_count


def mapped(function: Callable[[list[Any]], Any], operands: Sequence[Any]) -> Any:
    """Calls `function` with the innermost values of the operands, and gives its result the rows of these.

    Dense operands are broadcast: each value of the ragged ones meets the value at its place.
    """
    ragged = [x for x in operands if isinstance(x, Ragged)]
    first = max(ragged, key=lambda x: x.ragged_rank)
    alike = [_as_ragged_as(x, first) if isinstance(x, Ragged) else x for x in operands]
    splits = first.nested_row_splits
    for other in alike:
        if isinstance(other, Ragged):
            splits = tuple(_same(a, b) for a, b in zip(splits, other.nested_row_splits, strict=True))
    flat = [x.flat_values if isinstance(x, Ragged) else _spread(x, first) for x in alike]
    return first.with_parts([function(flat), *splits])


def _as_ragged_as(ragged: Ragged, like: Ragged) -> Ragged:
    """A ragged tensor whose inner uniform dimensions count as ragged, as far as another's do."""
    missing = like.ragged_rank - ragged.ragged_rank
    if not missing:
        return ragged
    return ragged.with_flat_values(RaggedTensor.from_tensor(ragged.flat_values, ragged_rank=missing))


def _same(splits: Tensor, other: Tensor) -> Tensor:
    """The splits, which must be the same for both operands."""
    if splits is other:
        return splits
    known, given = constant_value(splits), constant_value(other)
    if known is None or given is None:
        checked: Tensor = row_ops.equal_splits(splits, cast(other, splits.dtype))
        return checked
    if known.tolist() != given.tolist():
        raise InvalidArgumentError(
            f"The rows of ragged operands must have the same lengths: splits {known.tolist()!r:.100} against "
            f"{given.tolist()!r:.100}."
        )
    return splits


def _spread(operand: Any, like: Ragged) -> Any:
    """A dense operand with a value for each innermost value of a ragged one."""
    if isinstance(operand, (bool, int, float, complex, str, bytes)):
        return operand
    dense: Any = convert_to_tensor(operand, dtype_hint=like.dtype)
    inner = like.flat_values.shape.rank
    if dense.shape.rank is None or inner is None:
        raise ValueError("The ranks of operands must be known where one of them is ragged.")
    if dense.shape.rank < inner:
        return dense  # it meets the dimensions inside of the ragged ones only
    outer = like.ragged_rank + 1
    missing = outer + inner - 1 - dense.shape.rank
    if missing < 0:
        raise ValueError(f"An operand of rank {dense.shape.rank} does not fit a ragged tensor of shape {like.shape}.")
    places = row_ops.ragged_places(list(like.nested_row_splits))
    dims: Any = shape(dense, out_type=places.dtype)
    sizes: Any = concat([[1] * missing, dims], 0) if missing else dims
    dense = reshape(dense, sizes)
    return gather_nd(dense, row_ops.broadcast_places(places, sizes[:outer], _bounds(like)))


def _bounds(ragged: Ragged) -> Tensor:
    """The sizes of the outer dimensions that dense operands must have, or 1."""
    dims = [row_count(ragged)]
    dims += [row_ops.only_length(splits) for splits in ragged.nested_row_splits]
    return stack(dims)
