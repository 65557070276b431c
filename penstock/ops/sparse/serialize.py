"""SparseTensors as strings: three serialized tensors, the indices, the values and the shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.io.decoding import deserialized, serialized
from penstock.ops.string.forms import invalid, listed, texts

_AS = Types(dt.string, default=dt.string)


def _checked(indices: Any, values: Any, shape: Any) -> None:
    if np.ndim(indices) != 2 or np.ndim(values) != 1 or np.ndim(shape) != 1:
        raise invalid(
            "A sparse tensor has a matrix of indices, a vector of values and a vector as its shape, received shapes "
            f"{np.shape(indices)}, {np.shape(values)} and {np.shape(shape)}."
        )
    if np.shape(indices) != (len(values), len(shape)):
        raise invalid(f"{len(values)} values of rank {len(shape)} need as many indices, received {np.shape(indices)}.")


def _parts(indices: np.ndarray, values: np.ndarray, shape: np.ndarray, dtype: DType) -> list[bytes]:
    return [serialized(indices, dt.int64), serialized(values, dtype), serialized(shape, dt.int64)]


@op(
    "SerializeSparse",
    "int64, T, int64 -> serialized_sparse: out_type",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((3,))],
    out_type=_AS,
)
def serialize_sparse_op(
    sparse_indices: Any, sparse_values: Any, sparse_shape: Any, *, T: DType, out_type: DType = dt.string
) -> Any:
    _checked(sparse_indices, sparse_values, sparse_shape)
    return texts(_parts(sparse_indices, sparse_values, sparse_shape, T))


@op(
    "SerializeManySparse",
    "int64, T, int64 -> serialized_sparse: out_type",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((None, 3))],
    out_type=_AS,
)
def serialize_many_sparse_op(
    sparse_indices: Any, sparse_values: Any, sparse_shape: Any, *, T: DType, out_type: DType = dt.string
) -> Any:
    _checked(sparse_indices, sparse_values, sparse_shape)
    if len(sparse_shape) < 2:
        raise invalid(f"Rank of input SparseTensor should be > 1, but saw rank: {len(sparse_shape)}")
    rows, count = sparse_indices[:, 0], int(sparse_shape[0])
    if len(rows) and (rows.min() < 0 or rows.max() >= count):
        raise invalid(f"Indices of the first dimension must be in [0, {count}).")
    found: list[bytes] = []
    for row in range(count):
        chosen = rows == row
        found += _parts(sparse_indices[chosen, 1:], sparse_values[chosen], sparse_shape[1:], T)
    return texts(found, (count, 3))


def _read(rows: list[bytes], dtype: DType) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    indices, shape = (deserialized(rows[i], dt.int64, "serialized_sparse") for i in (0, 2))
    values = deserialized(rows[1], dtype, "serialized_sparse")
    _checked(indices, values, shape)
    return indices, values, shape


def _stacked(strings: np.ndarray, dtype: DType) -> list[np.ndarray]:
    """Stacks sparse tensors along new first dimensions: those of the array of strings without its last."""
    outer = strings.shape[:-1]
    parts = [_read(row, dtype) for row in strings.reshape(-1, 3).tolist()]
    if not parts:
        raise invalid("There must be at least one serialized sparse tensor.")
    ranks = {len(shape) for _, _, shape in parts}
    if len(ranks) > 1:
        raise invalid(f"Inconsistent ranks of the serialized sparse tensors: {sorted(ranks)}.")
    indices = []
    for place, (inner, _, _) in zip(np.ndindex(outer), parts, strict=True):
        prefix = np.broadcast_to(np.array(place, np.int64), (len(inner), len(outer)))
        indices.append(np.concatenate([prefix, inner], axis=1))
    shape = np.concatenate([np.array(outer, np.int64), np.max([shape for _, _, shape in parts], axis=0)])
    return [np.concatenate(indices), np.concatenate([values for _, values, _ in parts]), shape]


def _many_shapes(op: Operation) -> list[TensorShape]:
    return [TensorShape.of((None, None)), TensorShape.of((None,)), TensorShape.of((None,))]


@op(
    "DeserializeManySparse",
    "string -> sparse_indices: int64, sparse_values: dtype, sparse_shape: int64",
    host=True,
    no_gradient=True,
    shape=_many_shapes,
)
def deserialize_many_sparse_op(serialized_sparse: Any, *, dtype: DType) -> Any:
    if np.ndim(serialized_sparse) != 2 or np.shape(serialized_sparse)[1] != 3:
        raise invalid(f"Serialized sparse should have 3 columns, received shape {np.shape(serialized_sparse)}.")
    return _stacked(np.asarray(serialized_sparse, object), dtype)


@op(
    "DeserializeSparse",
    "Tserialized -> sparse_indices: int64, sparse_values: dtype, sparse_shape: int64",
    host=True,
    no_gradient=True,
    shape=_many_shapes,
    Tserialized=_AS,
)
def deserialize_sparse_op(serialized_sparse: Any, *, dtype: DType) -> Any:
    if np.ndim(serialized_sparse) < 1 or np.shape(serialized_sparse)[-1] != 3:
        raise invalid(f"Serialized sparse should have 3 as its last dimension: {np.shape(serialized_sparse)}.")
    if np.ndim(serialized_sparse) == 1:
        return list(_read(listed(serialized_sparse), dtype))
    return _stacked(np.asarray(serialized_sparse, object), dtype)


def serialize_sparse(sp_input: Any, name: str | None = None, out_type: DTypeLike = dt.string) -> Tensor:
    """A SparseTensor as three strings: `tf.serialize_sparse(x)`."""
    x = SparseTensor.from_value(sp_input)
    found: Tensor = serialize_sparse_op(x.indices, x.values, x.dense_shape, out_type=out_type, name=name)
    return found


def serialize_many_sparse(sp_input: Any, name: str | None = None, out_type: DTypeLike = dt.string) -> Tensor:
    """A SparseTensor as three strings per row, so that rows can be put in queues: `tf.serialize_many_sparse(x)`."""
    x = SparseTensor.from_value(sp_input)
    found: Tensor = serialize_many_sparse_op(x.indices, x.values, x.dense_shape, out_type=out_type, name=name)
    return found


def deserialize_many_sparse(
    serialized_sparse: TensorLike, dtype: DTypeLike, rank: int | None = None, name: str | None = None
) -> SparseTensor:
    """The SparseTensor whose rows were serialized: `tf.deserialize_many_sparse(rows, tf.float32)`."""
    parts = deserialize_many_sparse_op(serialized_sparse, dtype=dtype, name=name)
    return _with_rank(parts, rank)


def deserialize_sparse(
    serialized_sparse: Any, dtype: Any, rank: int | None = None, name: str | None = None
) -> SparseTensor:
    """The SparseTensor that was serialized, or those of all rows stacked."""
    return _with_rank(deserialize_sparse_op(serialized_sparse, dtype=dtype, name=name), rank)


def _with_rank(parts: Any, rank: int | None) -> SparseTensor:
    indices, values, shape = parts
    indices.set_shape([None, rank])
    shape.set_shape([rank])
    return SparseTensor(indices, values, shape)
