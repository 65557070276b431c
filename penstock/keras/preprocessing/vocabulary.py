"""Vocabulary: the index of each token, found by ops on constants, so that it works on any task without a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.data.dataset import Dataset
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.ops.array.gathering import gather
from penstock.ops.array.reshaping import reshape
from penstock.ops.array.reshaping import shape as shape_of
from penstock.ops.array.selection import where_v2
from penstock.ops.array.sorting import searchsorted
from penstock.ops.math.arithmetic import minimum
from penstock.ops.math.compare import equal
from penstock.ops.string.forms import string_to_hash_bucket_fast

_BUCKETS = 2**63 - 1


class Vocabulary:
    """Tokens with indices from `start` on, in their order. Tokens are bytes, or integers."""

    def __init__(self, tokens: Sequence[Any], start: int) -> None:
        self.tokens = list(tokens)
        self.is_text = not self.tokens or isinstance(self.tokens[0], bytes)
        hashes = self._hashes()
        order = np.argsort(hashes, kind="stable")
        self._hash = hashes[order]
        if len(np.unique(self._hash)) < len(self.tokens):
            raise ValueError("Two tokens of the vocabulary have the same hash of 63 bits: leave out or rename one.")
        self._index = (order + start).astype(np.int64)
        ordered = [self.tokens[i] for i in order]
        self._token = np.array(ordered, object) if self.is_text else np.array(ordered, np.int64)

    def _hashes(self) -> np.ndarray:
        if not self.is_text:
            return np.array(self.tokens, np.int64)
        found: Any = string_to_hash_bucket_fast(np.array(self.tokens, object), num_buckets=_BUCKETS)
        return np.asarray(found, np.int64)

    def indices(self, values: Tensor, other: Any) -> Tensor:
        """The index of each value; that in `other`, of the same shape, for values that are no tokens."""
        if not self.tokens:
            return convert_to_tensor(other)
        flat = reshape(values, [-1])
        hashed = string_to_hash_bucket_fast(flat, num_buckets=_BUCKETS) if self.is_text else flat
        at = minimum(searchsorted(convert_to_tensor(self._hash), hashed), len(self.tokens) - 1)
        known = equal(gather(convert_to_tensor(self._token), at), flat)
        found = where_v2(known, gather(convert_to_tensor(self._index), at), reshape(other, [-1]))
        result: Tensor = reshape(found, shape_of(values))
        result.set_shape(values.shape)
        return result


class TokenCounts:
    """Counts tokens of data, to learn a vocabulary from."""

    def __init__(self) -> None:
        self.tokens: Counter[Any] = Counter()
        self.documents: Counter[Any] = Counter()  # how many rows have a token
        self.rows = 0

    def add(self, rows: Iterable[Iterable[Any]]) -> None:
        """Counts the tokens of rows."""
        for row in rows:
            tokens = list(row)
            self.tokens.update(tokens)
            self.documents.update(set(tokens))
            self.rows += 1

    def most_frequent(self, without: Iterable[Any], limit: int | None) -> list[Any]:
        """The tokens, most frequent first, and of equally frequent ones the greatest first."""
        left_out = set(without)
        pairs = [(count, token) for token, count in self.tokens.items() if token not in left_out]
        return [token for _, token in sorted(pairs, reverse=True)[:limit]]


def batches_of(data: Any, steps: int | None) -> Iterable[Any]:
    """The batches of what a layer adapts to: a dataset or other iterable of batches, or one array."""
    if isinstance(data, Dataset) or (
        hasattr(data, "__iter__") and not isinstance(data, (list, tuple, np.ndarray, Tensor))
    ):
        for number, batch in enumerate(data):
            if steps is not None and number >= steps:
                return
            yield batch
        return
    array = np.asarray(data)
    yield array[:, None] if array.ndim == 1 else array


def as_bytes(value: Any) -> bytes:
    """A token as bytes."""
    return value if isinstance(value, bytes) else str(value).encode()
