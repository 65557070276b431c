"""Parts of neural networks for ragged tensors as well."""

from __future__ import annotations

from typing import Any

from penstock.ops.math import reduce, unary
from penstock.ops.nn import activation, embedding_v2, layer_parts
from penstock.ops.nn import v2 as nn
from penstock.ops.ragged.functions import elementwise, or_ragged


def _softmax(logits: Any, axis: int | None = None, name: str | None = None) -> Any:
    """The softmax of each row."""
    rank = logits.shape.rank
    if axis not in (None, -1, rank and rank - 1):
        raise ValueError(f"softmax of a ragged tensor goes along its last axis, received axis={axis}.")
    largest = reduce.reduce_max(logits, axis=-1, keepdims=True)
    powers = unary.exp(logits - largest)
    return powers / reduce.reduce_sum(powers, axis=-1, keepdims=True)


def _embedding_lookup(params: Any, ids: Any, max_norm: Any = None, name: str | None = None) -> Any:
    rows = embedding_v2.embedding_lookup(params, ids.flat_values, max_norm=max_norm, name=name)
    return ids.with_flat_values(rows)


dropout = elementwise(nn.dropout)
embedding_lookup = or_ragged(embedding_v2.embedding_lookup, _embedding_lookup)
silu = elementwise(activation.silu)
softmax = or_ragged(layer_parts.softmax, _softmax)
swish = elementwise(activation.swish)
