"""Lookups of rows in tables, which may be split over several tensors or variables and so over parameter servers."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op, op_of
from penstock.graph.operation import Tensor
from penstock.graph.scopes import colocate_with, name_scope
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.kernel.types import FLOATS, INDEX, Array
from penstock.ops.array import (
    creation,
    gathering,
    joining,
    partitioning,
    passthrough,
    ranges,
    reshaping,
    selection,
    slicing,
)
from penstock.ops.math import arithmetic, casting, clip, compare, reduce, unary
from penstock.ops.math import segments as segment
from penstock.ops.sparse import segments
from penstock.ops.sparse.arranging import sparse_reshape
from penstock.ops.sparse.indices import as_sparse
from penstock.ops.sparse.rows import sparse_fill_empty_rows, sparse_retain


def embedding_lookup(
    params: TensorLike,
    ids: TensorLike,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Tensor:
    """Rows `ids` of a table, given as one tensor or variable, a list of shards, or a partitioned variable.

    With "mod" row i of n shards lies in shard i % n, with "div" the shards are contiguous. Rows longer than
    `max_norm` are scaled down to it. Each shard's rows are gathered on the device of the shard.

    >>> tf.nn.embedding_lookup(embeddings, [3, 1, 4])
    """
    if params is None:
        raise ValueError("embedding_lookup: params must be specified")
    shards = _shards(params)
    if not shards:
        raise ValueError("embedding_lookup: params is an empty list. Need at least one param.")
    with name_scope(name, "embedding_lookup", [*shards, ids]) as name:
        shards = [
            p if hasattr(p, "sparse_read") else convert_to_tensor(p, name=f"params_{i}") for i, p in enumerate(shards)
        ]
        ids = convert_to_tensor(ids, name="ids")
        if len(shards) == 1:
            with colocate_with(shards[0]):
                rows = _clipped(gathering.gather(shards[0], ids, name=name), ids, max_norm)
                return passthrough.identity(rows)
        return _lookup_in_shards(shards, ids, partition_strategy, name, max_norm)


def _shards(params: Any) -> list[Any]:
    if hasattr(params, "_get_variable_list") or isinstance(params, (list, tuple)):
        return list(params)  # a partitioned variable iterates over its parts
    return [params]


def _lookup_in_shards(
    shards: list[Any], ids: Tensor, partition_strategy: str, name: str, max_norm: float | None
) -> Tensor:
    count = len(shards)
    flat: Any = reshaping.reshape(ids, [-1])
    shard_of: Any
    row_of: Any
    places = ranges.range(reshaping.size(flat))
    if partition_strategy == "mod":
        shard_of, row_of = flat % count, flat // count
    elif partition_strategy == "div":
        shard_of, row_of = contiguous(shards, flat)
    else:
        raise ValueError(f"Unrecognized partition strategy: {partition_strategy}. Must be 'mod' or 'div'.")
    shard_of = casting.cast(shard_of, dt.int32)
    rows_by_shard = partitioning.dynamic_partition(row_of, shard_of, count)
    places_by_shard = partitioning.dynamic_partition(places, shard_of, count)
    found = []
    for shard, rows in zip(shards, rows_by_shard, strict=True):
        with colocate_with(shard):
            found.append(gathering.gather(shard, rows))
    merged = partitioning.parallel_dynamic_stitch(places_by_shard, found, name=name)
    row_shape = shards[0].shape[1:]
    for shard in shards[1:]:
        row_shape = row_shape.merge_with(shard.shape[1:])
    if row_shape.is_fully_defined():
        result = reshaping.reshape(merged, joining.concat([reshaping.shape(ids), row_shape.as_list()], 0))
    else:
        with colocate_with(shards[0]):
            dynamic = reshaping.shape(shards[0])
        result = reshaping.reshape(merged, joining.concat([reshaping.shape(ids), slicing.slice(dynamic, [1], [-1])], 0))
    result.set_shape(ids.shape.concatenate(row_shape))
    return _clipped(result, ids, max_norm)


def contiguous(shards: list[Any], flat: Any) -> tuple[Any, Any]:
    """Shard and row of each id if the table has contiguous shards: the first `extra` shards have one row more."""
    kind = flat.dtype.base_dtype
    sizes = [None if s.shape.rank is None else s.shape.as_list()[0] for s in shards]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        total: Any = convert_to_tensor(sum(known), dtype=kind)
    else:
        dynamic: list[Any] = []
        for shard, size in zip(shards, sizes, strict=True):
            if size is not None:
                dynamic.append(size)
            else:
                with colocate_with(shard):
                    shape: Any = reshaping.shape(shard)
                    dynamic.append(shape[0])
        total = reduce.reduce_sum(casting.cast(joining.stack(dynamic), kind))
    each = total // len(shards)
    extra = total % len(shards)
    shard_of = arithmetic.maximum(flat // (each + 1), (flat - extra) // each)
    row_of = selection.where(shard_of < extra, flat % (each + 1), (flat - extra) % each)
    return shard_of, row_of


def _clipped(rows: Tensor, ids: Tensor, max_norm: float | None) -> Tensor:
    if max_norm is None:
        return rows
    if ids.shape.rank is not None and rows.shape.rank is not None:
        axes: Any = list(range(ids.shape.rank, rows.shape.rank))
    else:
        axes = ranges.range(reshaping.rank(ids), reshaping.rank(rows))
    result: Tensor = clip.clip_by_norm(rows, max_norm, axes=axes)
    return result


def embedding_lookup_sparse(
    params: TensorLike,
    sp_ids: Any,
    sp_weights: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    allow_fast_lookup: bool = False,
) -> Tensor:
    """Combines the table's rows for each row of the sparse matrix `sp_ids` by "sum", "mean" or "sqrtn".

    `sp_weights` gives a weight to each id, or is None.

    >>> tf.nn.embedding_lookup_sparse(embeddings, sparse_ids, None, combiner="mean")
    """
    combiner = "mean" if combiner is None else combiner
    if combiner not in ("mean", "sqrtn", "sum"):
        raise ValueError(f"combiner must be one of 'mean', 'sqrtn' or 'sum', received {combiner!r}.")
    shards = _shards(params)
    for what, value in (("sp_ids", sp_ids), ("sp_weights", sp_weights)):
        if not isinstance(value, SparseTensor) and not (value is None and what == "sp_weights"):
            raise TypeError(f"{what} must be a SparseTensor, received {type(value).__name__}.")
    with name_scope(name, "embedding_lookup_sparse", [*shards, sp_ids.values]) as name:
        indices: Any = sp_ids.indices
        segments = indices[:, 0]
        if sp_weights is None and len(shards) == 1 and max_norm is None:
            # The table may be large and the step may need few of its rows, so their gradient stays sparse.
            return _combined(combiner, shards[0], sp_ids.values, segments, name, sparse_gradient=True)
        ids, positions = selection.unique(sp_ids.values)
        rows = embedding_lookup(shards, ids, partition_strategy, max_norm=max_norm)
        if sp_weights is None:
            return _combined(combiner, rows, positions, segments, name)
        segments = casting.cast(segments, dt.int32)
        return _weighted(combiner, gathering.gather(rows, positions), sp_weights.values, segments, name)


@op("SegmentSqrtN", "T, Tindices -> output: T", host=True, grad=passthrough.refuse_gradient, T=FLOATS, Tindices=INDEX)
def segment_sqrt_n(data: Array, segment_ids: Array) -> Array:
    """Sums of rows over the square roots of their counts; `penstock.passes.sparse_lookups` adds this op."""
    return segments._sparse_sum(data, np.arange(len(data)), segment_ids, None, 0.5)


_COMBINERS = {"sum": "SparseSegmentSum", "mean": "SparseSegmentMean", "sqrtn": "SparseSegmentSqrtN"}


def _combined(
    combiner: str, rows: Any, positions: Tensor, segments: Tensor, name: str, sparse_gradient: bool = False
) -> Tensor:
    combine = op_of(_COMBINERS[combiner])
    result: Tensor = combine(convert_to_tensor(rows), positions, segments, sparse_gradient=sparse_gradient, name=name)
    return result


def _weighted(combiner: str, rows: Any, weights: Any, segments: Tensor, name: str) -> Tensor:
    if weights.dtype != rows.dtype:
        weights = casting.cast(weights, rows.dtype)
    rank: Any = reshaping.rank(rows)
    count = reshaping.expand_dims(rank - 1, 0)
    shape = joining.concat([reshaping.shape(weights), creation.ones(count, dt.int32)], 0)
    column: Any = reshaping.reshape(weights, shape)
    scaled = rows * column
    result: Tensor
    if combiner == "sum":
        result = segment.segment_sum(scaled, segments, name=name)
        return result
    total = segment.segment_sum(scaled, segments)
    if combiner == "mean":
        divisor = segment.segment_sum(column, segments)
    else:
        divisor = unary.sqrt(segment.segment_sum(arithmetic.pow(column, 2.0), segments))
    result = arithmetic.div_no_nan(total, divisor, name=name)
    return result


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str = "mean",
    default_id: TensorLike = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
    allow_fast_lookup: bool = False,
) -> Tensor:
    """`embedding_lookup_sparse` for unchecked ids: rows without a valid id get that of `default_id`, or zeros.

    Negative ids and, unless they are summed, ids of weights that are not positive are left out. All axes of
    `sparse_ids` but the last are rows.

    >>> tf.nn.safe_embedding_lookup_sparse(embeddings, sparse_ids, combiner="sum")
    """
    if embedding_weights is None:
        raise ValueError(f"safe_embedding_lookup_sparse: missing embedding_weights {embedding_weights}.")
    shards = _shards(embedding_weights)
    if not shards:
        raise ValueError("safe_embedding_lookup_sparse: missing embedding_weights, received an empty list.")
    dtype = None if sparse_weights is None else sparse_weights.dtype
    shards = [
        w if hasattr(w, "sparse_read") and dtype in (None, w.dtype) else convert_to_tensor(w, dtype=dtype)
        for w in shards
    ]
    ids, weights = as_sparse(sparse_ids), None if sparse_weights is None else as_sparse(sparse_weights)
    with name_scope(name, "embedding_lookup", [*shards, sparse_ids, sparse_weights]) as scope:
        dims = ids.dense_shape
        known = dims.shape.as_list()[0] if dims.shape.rank else None
        last: Any = reshaping.size(dims) - 1 if known is None else known - 1  # type: ignore[operator]
        rows = reduce.reduce_prod(slicing.slice(dims, [0], [last]))
        ids = sparse_reshape(ids, [rows, gathering.gather(dims, last)])
        if weights is not None:
            weights = SparseTensor(ids.indices, weights.values, ids.dense_shape)
        ids, weights = _valid(ids, weights, combiner)
        ids, empty = sparse_fill_empty_rows(ids, default_id or 0)
        if weights is not None:
            weights, _ = sparse_fill_empty_rows(weights, 1.0)
        result = embedding_lookup_sparse(
            shards, ids, weights, partition_strategy, None if default_id is None else scope, combiner, max_norm
        )
        if default_id is None:
            column = reshaping.reshape(empty, [-1, 1])
            width: Any = reshaping.shape(result)[1]  # type: ignore[index]
            nowhere = joining.tile(column, joining.stack([1, width]))
            result = selection.where(nowhere, creation.zeros_like(result), result, name=scope)
        outer = slicing.slice(casting.cast(dims, dt.int32), [0], [last])
        inner = slicing.slice(reshaping.shape(result), [1], [-1])
        final = reshaping.reshape(result, joining.concat([outer, inner], 0))
        if result.shape.rank is not None and known is not None:
            final.set_shape([None] * (known - 1) + result.shape.as_list()[1:])
        return final


def _valid(ids: SparseTensor, weights: SparseTensor | None, combiner: str) -> tuple[SparseTensor, SparseTensor | None]:
    """The ids (with their weights) that may be looked up."""
    valid = compare.greater_equal(ids.values, 0)
    if weights is None:
        return sparse_retain(ids, valid), None
    valid = compare.logical_and(valid, creation.ones_like(weights.values, dtype=dt.bool))
    ids, weights = sparse_retain(ids, valid), sparse_retain(weights, valid)
    if combiner == "sum":
        return ids, weights
    positive = compare.greater(weights.values, 0)
    return sparse_retain(ids, positive), sparse_retain(weights, positive)
