"""Crossed features: all combinations of the values that several features have in a row."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import make_constant
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.kernel.types import Array
from penstock.ops.math import casting
from penstock.ops.sparse.indices import as_sparse, invalid, need_in_bounds, parts, sparse_shapes
from penstock.ops.string.hashing import fingerprint64

_FEATURES = (dt.int64, dt.string)
_DEFAULT_KEY = 0xDECAFCAFFE
_MULTIPLIER, _MASK = 0xC6A4A7935BD1E995, 2**64 - 1


def _shape(op: Operation) -> list[TensorShape]:
    return sparse_shapes(None, 2)


def _rows(indices: list[Array], values: list[Array], shapes: list[Array], dense: list[Array]) -> list[list[Any]]:
    """For each feature the values of each row."""
    features: list[list[Any]] = []
    for piece in zip(indices, values, shapes, strict=True):
        places, entries, dims = parts(*piece)
        if len(dims) != 2:
            raise invalid(f"Expected sparse matrices of features, received a shape of {len(dims)} dimensions")
        need_in_bounds(places, dims)
        starts = np.searchsorted(places[:, 0], np.arange(int(dims[0]) + 1))
        features.append([entries[a:b].tolist() for a, b in itertools.pairwise(starts)])
    for matrix in dense:
        if np.ndim(matrix) != 2:
            raise invalid(f"Dense inputs should be a matrix but received shape {list(np.shape(matrix))}")
        features.append(np.asarray(matrix).tolist())
    if len({len(rows) for rows in features}) > 1:
        raise invalid(f"Expected batch sizes to be equal, received {[len(rows) for rows in features]}")
    return features


def _crossed(features: list[list[Any]], kind: Any, combine: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    batch = len(features[0]) if features else 0
    found: list[list[Any]] = [[combine(c) for c in itertools.product(*(f[i] for f in features))] for i in range(batch)]
    width = max((len(row) for row in found), default=0)
    indices = [(i, j) for i, row in enumerate(found) for j in range(len(row))]
    values = np.empty(len(indices), kind)
    values[:] = [value for row in found for value in row]
    return np.array(indices, np.int64).reshape(-1, 2), values, np.array([batch, width], np.int64)


def _mixed(x: int) -> int:
    return x ^ (x >> 47)


def _joined_hash(first: int, second: int) -> int:
    """One fingerprint made from two; their order matters."""
    result = first ^ _MULTIPLIER
    result ^= _mixed(second * _MULTIPLIER & _MASK) * _MULTIPLIER & _MASK
    result = result * _MULTIPLIER & _MASK
    result = _mixed(result) * _MULTIPLIER & _MASK
    return _mixed(result)


def _hashes(features: list[list[Any]]) -> list[list[list[int]]]:
    """The hashes of values: integers themselves, and fingerprints of strings."""
    return [
        [
            [int(h) for h in fingerprint64(row)] if row and isinstance(row[0], bytes) else [v & _MASK for v in row]
            for row in feature
        ]
        for feature in features
    ]


@op(
    "SparseCross",
    "N*int64, list(sparse_types), N*int64, list(dense_types) -> output_indices: int64, "
    "output_values: out_type, output_shape: int64",
    host=True,
    no_gradient=True,
    shape=_shape,
    sparse_types=_FEATURES,
    dense_types=_FEATURES,
    out_type=_FEATURES,
    internal_type=_FEATURES,
)
def sparse_cross_op(
    indices: list[Array],
    values: list[Array],
    shapes: list[Array],
    dense_inputs: list[Array],
    *,
    hashed_output: bool,
    num_buckets: int,
    hash_key: int,
    out_type: DType,
    internal_type: DType,
) -> tuple[Array, Array, Array]:
    features = _rows(indices, values, shapes, dense_inputs)
    if not hashed_output:
        return _crossed(features, object, lambda combination: _text(combination, b"_X_"))

    def combined(hashes: tuple[int, ...]) -> int:
        result = hash_key & _MASK
        for value in hashes:
            result = _joined_hash(result, value)
        return result % (num_buckets if num_buckets > 0 else 2**63 - 1)

    return _crossed(_hashes(features), np.int64, combined)


def _text(combination: tuple[Any, ...], separator: bytes) -> bytes:
    return separator.join(v if isinstance(v, bytes) else str(v).encode() for v in combination)


@op(
    "SparseCrossV2",
    "N*int64, list(sparse_types), N*int64, list(dense_types), string -> output_indices: int64, "
    "output_values: string, output_shape: int64",
    host=True,
    no_gradient=True,
    shape=_shape,
    sparse_types=_FEATURES,
    dense_types=_FEATURES,
)
def sparse_cross_v2(
    indices: list[Array], values: list[Array], shapes: list[Array], dense_inputs: list[Array], sep: Array
) -> tuple[Array, Array, Array]:
    separator = np.asarray(sep).reshape(-1)[0]
    features = _rows(indices, values, shapes, dense_inputs)
    return _crossed(features, object, lambda combination: _text(combination, separator))


def _inputs(inputs: Any) -> list[list[Any]]:
    if not isinstance(inputs, (list, tuple)):
        raise TypeError("Inputs must be a list")
    if not all(isinstance(x, (Tensor, SparseTensor)) or hasattr(x, "dense_shape") for x in inputs):
        raise TypeError("All inputs must be Tensor or SparseTensor.")
    sparse = [as_sparse(x) for x in inputs if not isinstance(x, Tensor)]
    values = [x.values if x.dtype.base_dtype is dt.string else casting.cast(x.values, dt.int64) for x in sparse]
    dense = [x for x in inputs if isinstance(x, Tensor)]
    dense = [x if x.dtype.base_dtype is dt.string else casting.cast(x, dt.int64) for x in dense]
    return [[x.indices for x in sparse], values, [x.dense_shape for x in sparse], dense]


def sparse_cross(inputs: Any, name: str | None = None, separator: str | None = None) -> SparseTensor:
    """The combinations of features as strings, joined by `separator` ("_X_"): `tf.sparse.cross([colors, sizes])`."""
    parts_ = _inputs(inputs)
    joint = make_constant("_X_" if separator is None else separator, dt.string)
    return SparseTensor(*sparse_cross_v2(*parts_, joint, name=name))


def sparse_cross_hashed(
    inputs: Any, num_buckets: int = 0, hash_key: int | None = None, name: str | None = None
) -> SparseTensor:
    """The combinations of features as hashes: `tf.sparse.cross_hashed([colors, sizes], num_buckets=1000)`."""
    return SparseTensor(
        *sparse_cross_op(
            *_inputs(inputs),
            hashed_output=True,
            num_buckets=num_buckets,
            hash_key=_DEFAULT_KEY if hash_key is None else hash_key,
            out_type=dt.int64,
            internal_type=dt.int64,
            name=name,
        )
    )
