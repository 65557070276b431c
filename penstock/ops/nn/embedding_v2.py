"""Lookups of rows in tables as in the 2.x API: the shards of a table are contiguous."""

from __future__ import annotations

from typing import Any

from penstock.graph.operation import Tensor
from penstock.graph.typing import TensorLike
from penstock.ops.nn import embedding


def embedding_lookup(
    params: TensorLike, ids: TensorLike, max_norm: float | None = None, name: str | None = None
) -> Tensor:
    """Rows `ids` of a table, given as one tensor or variable, a list of shards, or a sharded variable.

    Rows longer than `max_norm` are scaled down to it. Each shard's rows are gathered on the device of the shard.

    >>> tf.nn.embedding_lookup(embeddings, [3, 1, 4])
    """
    return embedding.embedding_lookup(params, ids, "div", name, max_norm=max_norm)


def embedding_lookup_sparse(
    params: TensorLike,
    sp_ids: Any,
    sp_weights: Any,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
) -> Tensor:
    """Combines the table's rows for each row of the sparse matrix `sp_ids` by "sum", "mean" or "sqrtn".

    `sp_weights` gives a weight to each id, or is None.

    >>> tf.nn.embedding_lookup_sparse(embeddings, sparse_ids, None, combiner="mean")
    """
    return embedding.embedding_lookup_sparse(params, sp_ids, sp_weights, "div", name, combiner, max_norm)


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str = "mean",
    default_id: TensorLike = None,
    max_norm: float | None = None,
    name: str | None = None,
    allow_fast_lookup: bool = False,
) -> Tensor:
    """`embedding_lookup_sparse` for unchecked ids: rows without a valid id get that of `default_id`, or zeros.

    Negative ids and, unless they are summed, ids of weights that are not positive are left out. All axes of
    `sparse_ids` but the last are rows.

    >>> tf.nn.safe_embedding_lookup_sparse(embeddings, sparse_ids, combiner="sum")
    """
    return embedding.safe_embedding_lookup_sparse(
        embedding_weights, sparse_ids, sparse_weights, combiner, default_id, name, "div", max_norm
    )
