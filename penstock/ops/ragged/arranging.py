"""Ragged tensors joined, stacked, tiled, and with other dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.ops.array.gathering import gather as dense_gather
from penstock.ops.array.joining import concat as dense_concat
from penstock.ops.array.ranges import range as range_of
from penstock.ops.array.reshaping import expand_dims as dense_expand_dims
from penstock.ops.array.reshaping import reshape
from penstock.ops.math.casting import cast
from penstock.ops.ragged import row_ops, rows
from penstock.ops.ragged.ragged_tensor import RaggedTensor


def expand_dims(ragged: Any, axis: int) -> Any:
    """A new dimension of size 1 at `axis`: `tf.expand_dims(r, 1)`."""
    rank = ragged.shape.rank
    at = axis if axis >= 0 or rank is None else axis + rank + 1
    if rank is not None and not 0 <= at <= rank:
        raise ValueError(f"expand_dims: axis={axis} is out of range for a tensor of rank {rank}.")
    if not isinstance(ragged, RaggedTensor):
        return dense_expand_dims(ragged, at)
    if at > 1:
        return ragged.with_values(expand_dims(ragged.values, at - 1))
    if at == 1:
        return RaggedTensor.from_uniform_row_length(ragged, 1, ragged.nrows(), validate=False)
    return rows.alone(RaggedTensor, ragged)


def concat(values: Sequence[Any], axis: int) -> Any:
    """Tensors one after another along `axis`; dense ones become ragged: `tf.concat([r, r], 1)`."""
    parts = [v if isinstance(v, Ragged) else convert_to_tensor(v) for v in values]
    rank = next((p.shape.rank for p in parts if p.shape.rank is not None), None)
    if any(p.shape.rank not in (None, rank) for p in parts):
        raise ValueError(f"concat: inputs must have one rank, received shapes {[str(p.shape) for p in parts]}.")
    at = axis if axis >= 0 or rank is None else axis + rank
    if rank is not None and not 0 <= at < rank:
        raise ValueError(f"concat: axis={axis} is out of range for tensors of rank {rank}.")
    return _joined(parts, at)


def _joined(parts: Sequence[Any], axis: int) -> Any:
    depths = [p.ragged_rank if isinstance(p, RaggedTensor) else 0 for p in parts]
    if not any(depths) and axis == 0:
        return dense_concat(list(parts), 0)
    depth = max(*depths, 1) if len(depths) > 1 else max(depths[0], 1)
    ragged = [_to_depth(p, depth) for p in parts]
    if axis > 1:
        return ragged[0].with_values(_joined([r.values for r in ragged], axis - 1))
    if axis == 0:
        lengths = dense_concat([cast(r.row_lengths(), ragged[0].row_splits.dtype) for r in ragged], 0)
        return RaggedTensor(_joined([r.values for r in ragged], 0), row_ops.splits_of(lengths))
    # Row i of each comes after row i of the one before; the rows of all these become one.
    count, below = len(ragged), ragged[0].nrows()
    firsts: Any = range_of(below)
    steps: Any = range_of(count * below, delta=below)
    order = reshape(firsts[:, None] + steps[None, :], [-1])
    mixed = rows.gather_rows(_joined(ragged, 0), order)
    return RaggedTensor(mixed.values, mixed.row_splits[::count])


def _to_depth(value: Any, depth: int) -> RaggedTensor:
    """A tensor with as many ragged dimensions as wanted, at least."""
    if not isinstance(value, RaggedTensor):
        return RaggedTensor.from_tensor(value, ragged_rank=depth)
    if value.ragged_rank >= depth:
        return value
    inner = value.values
    return value.with_values(_to_depth(inner, depth - 1))


def stack(values: Sequence[Any], axis: int) -> Any:
    """Tensors of rank R as a ragged one of rank R + 1: `tf.ragged.stack([[1], [2, 3]])`."""
    parts = [v if isinstance(v, Ragged) else convert_to_tensor(v) for v in values]
    if not parts:
        raise ValueError("stack: at least one tensor is needed.")
    rank = parts[0].shape.rank
    at = axis if axis >= 0 or rank is None else axis + rank + 1
    if rank == 0:
        return reshape(dense_concat([dense_expand_dims(p, 0) for p in parts], 0), [-1])
    if at == 0 and rank == 1 and not any(isinstance(p, Ragged) for p in parts):
        lengths = dense_concat([rows.row_count(p)[None] for p in parts], 0)
        return RaggedTensor(dense_concat(parts, 0), row_ops.splits_of(lengths))
    if not any(isinstance(p, Ragged) for p in parts):
        parts = [_to_depth(p, (rank or 2) - 1) for p in parts]  # their sizes may differ
    return concat([expand_dims(p, at) for p in parts], at)


def gather(params: Any, indices: Any, axis: int = 0, batch_dims: int = 0) -> Any:
    """Rows of `params` at `indices`, where either is ragged: `tf.gather(embeddings, r)`."""
    given = params if isinstance(params, Ragged) else convert_to_tensor(params)
    at = indices if isinstance(indices, Ragged) else convert_to_tensor(indices)
    if batch_dims == 1 and axis in (0, 1):
        return _gather_in_rows(given, at)
    if batch_dims or axis:
        raise ValueError(
            f"gather of ragged tensors takes axis 0, or batch_dims 1, received axis {axis} and batch_dims {batch_dims}."
        )
    if isinstance(at, RaggedTensor):
        return at.with_flat_values(gather(given, at.flat_values))
    if not isinstance(given, RaggedTensor):
        return dense_gather(given, at)
    if at.shape.rank == 0:
        return given[at]
    if at.shape.rank == 1:
        return rows.gather_rows(given, at)
    return gather(given, RaggedTensor.from_tensor(at, ragged_rank=(at.shape.rank or 2) - 1))


def _gather_in_rows(params: Any, indices: Any) -> Any:
    """Row i of the result has the items of row i of `params` at row i of `indices`."""
    given, at = _to_depth(params, 1), indices
    if not isinstance(at, Ragged) and at.shape.rank == 1:
        return rows.gather_rows(given.values, given.row_starts() + cast(at, given.row_splits.dtype))
    at = _to_depth(at, 1)
    starts = rows.gather_rows(given.row_starts(), at.value_rowids())
    return at.with_values(gather(given.values, cast(at.values, starts.dtype) + starts))


def boolean_mask(data: Any, mask: Any, name: str | None = None) -> Any:
    """The values where `mask` is True, in rows that are as long as that makes them.

    >>> tf.ragged.boolean_mask([[1, 2], [3, 4]], [[True, False], [False, False]])
    <tf.RaggedTensor [[1], []]>
    """
    values = data if isinstance(data, Ragged) else convert_to_tensor(data)
    kept = mask if isinstance(mask, Ragged) else convert_to_tensor(mask, dtype="bool")
    if not kept.shape.rank:
        raise ValueError("boolean_mask: the mask must have a known rank of 1 at least.")
    if kept.shape.rank == 1 and not isinstance(kept, Ragged):
        return rows.gather_rows(values, row_ops.true_places(kept))
    masks, inner = _to_depth(kept, 1), _to_depth(values, 1)
    if isinstance(masks.values, Ragged) or masks.values.shape.rank != 1:
        return inner.with_values(boolean_mask(inner.values, masks.values))
    counts = row_ops.true_counts(masks.row_splits, masks.values)
    return RaggedTensor(boolean_mask(inner.values, masks.values), row_ops.splits_of(counts))


def tile(ragged: RaggedTensor, multiples: Sequence[int]) -> Any:
    """The rows repeated in every dimension: `tf.tile(r, [1, 2])`."""
    found: Any = ragged
    for axis, times in enumerate(multiples):
        found = concat([found] * int(times), axis) if int(times) != 1 else found
    return found


def reverse(ragged: RaggedTensor, axes: Sequence[int]) -> Any:
    """The values backwards along axes: `tf.reverse(r, [1])`."""
    found: Any = ragged
    rank = ragged.shape.rank or ragged.ragged_rank + 1
    for axis in axes:
        found = found[(*[slice(None)] * (axis % rank), slice(None, None, -1))]
    return found


def squeeze(ragged: RaggedTensor, axes: Sequence[int]) -> Any:
    """The tensor without dimensions of size 1, which must be named: `tf.squeeze(r, [1])`."""
    rank = ragged.shape.rank or ragged.ragged_rank + 1
    if not axes:
        raise ValueError("squeeze: the axes must be given for a ragged tensor.")
    found: Any = ragged
    for axis in sorted((a % rank for a in axes), reverse=True):
        found = found[(*[slice(None)] * axis, 0)]
    return found
