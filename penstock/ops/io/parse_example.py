"""Parsing batches of `tf.train.Example`s into tensors: the ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.ops.io.example_proto import Example
from penstock.ops.string.forms import invalid, listed, texts

PARSED = Types(dt.float32, dt.int64, dt.string)
_FIELD = {dt.float32: "float_list", dt.int64: "int64_list", dt.string: "bytes_list"}
_TYPE_OF = {field: dtype.name for dtype, field in _FIELD.items()}
_MAX_ELEMENTS = 2**31
_MANY = 32


def column(values: list[Any], dtype: DType) -> np.ndarray:
    """Parsed values as a vector."""
    return texts(values) if dtype is dt.string else np.array(values, dtype.as_numpy_dtype)


def message_in(message: Any, serialized: bytes, index: int, name: str) -> Any:
    """A parsed message. Raises InvalidArgumentError, which names the example, if the bytes are invalid."""
    try:
        return message.FromString(serialized)
    except DecodeError as error:
        start = serialized[:64].decode("utf-8", "backslashreplace")
        raise InvalidArgumentError(
            f"{example_label(name, index)}Could not parse example input, value: '{start}'"
        ) from error


def example_label(name: str, index: int) -> str:
    """The name of an example in an error message."""
    return f"Name: {name or '<unknown>'}, Index: {index}. "


class Column:
    """The values under one key, over all examples."""

    def __init__(self, key: str, dtype: DType) -> None:
        self.key, self.dtype = key, dtype
        if dtype not in _FIELD:
            raise invalid(f"Feature '{key}': examples hold float32, int64 and string, not {dtype.name}.")
        self.field = _FIELD[dtype]

    def values_in(self, feature: Any, name: str, index: int) -> Any:
        """The values of a Feature, which must be of this type; None if the feature is empty."""
        values = getattr(feature, self.field).value
        if values:
            return values
        kind = feature.WhichOneof("kind")
        if kind is None:
            return None
        if kind != self.field:
            raise invalid(
                f"{example_label(name, index)}Key: {self.key}.  Data types don't match. Data type: {_TYPE_OF[kind]} "
                f"but expected type: {self.dtype.name}"
            )
        return values


class SparseColumn(Column):
    """A column with any number of values per example."""

    def __init__(self, key: str, dtype: DType) -> None:
        super().__init__(key, dtype)
        self.values: list[Any] = []
        self.sizes: list[int] = []

    def add(self, feature: Any, name: str) -> None:
        """Adds the values of the next example; `feature` is None if it is missing."""
        found = None if feature is None else self.values_in(feature, name, len(self.sizes))
        if found:
            self.values.extend(found)
        self.sizes.append(len(found or ()))

    def sparse(self, single: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The parts of a SparseTensor: one row per example, or a vector for a single example."""
        within = np.concatenate([np.arange(n) for n in self.sizes]) if self.sizes else np.empty(0, np.int64)
        values = column(self.values, self.dtype)
        if single:
            return within.astype(np.int64)[:, None], values, np.array([len(values)], np.int64)
        indices = np.empty((len(values), 2), np.int64)
        indices[:, 0] = np.repeat(np.arange(len(self.sizes)), self.sizes)
        indices[:, 1] = within
        return indices, values, np.array([len(self.sizes), max(self.sizes, default=0)], np.int64)


class DenseColumn(Column):
    """A tensor of one shape per example. If its first dimension is None, examples may differ in length."""

    def __init__(self, key: str, dtype: DType, shape: TensorShape, default: np.ndarray) -> None:
        super().__init__(key, dtype)
        dims = shape._dims
        if dims is None or any(d is None for d in dims[1:]):
            raise invalid(f"dense_shapes: the shape {shape} of '{key}' must be known but for its first dimension.")
        self.variable = bool(dims) and dims[0] is None
        self.inner = tuple(int(d or 0) for d in (dims[1:] if self.variable else dims))
        self.count = math.prod(self.inner)
        self.default = default
        self.values: list[Any] = []
        self.sizes: list[int] = []  # lengths of the examples, if they may differ
        self.rows = 0
        # Many floats are read directly from the bytes of the message, not as Python objects.
        self.raw = not self.variable and dtype is dt.float32 and self.count >= _MANY
        self.filler = np.asarray(default).reshape(-1).tolist()
        if not self.variable and self.filler and len(self.filler) != self.count:
            raise invalid(f"dense_defaults: '{key}' needs {self.count} values, received {len(self.filler)}.")
        if self.variable and len(self.filler) != 1:
            raise invalid(f"dense_defaults: '{key}' is padded by one value, received {len(self.filler)}.")

    def add(self, feature: Any, name: str) -> None:
        """Adds the values of the next example; `feature` is None if it is missing."""
        found = None if feature is None else self.values_in(feature, name, self.rows)
        if self.variable:
            size = len(found or ())
            if self.count == 0 or size % self.count:
                raise invalid(
                    f"{example_label(name, self.rows)}Key: {self.key}.  Number of {self.dtype.name} values is not a "
                    f"multiple of stride length. values size: {size}, stride: {self.count}"
                )
            self.values.extend(found or ())
            self.sizes.append(size)
        elif found is None:
            if not self.filler and self.count:
                raise invalid(
                    f"{example_label(name, self.rows)}Feature: {self.key} (data type: {self.dtype.name}) is required "
                    "but could not be found."
                )
            self._extend(self.filler)
        else:
            if len(found) != self.count:
                raise invalid(
                    f"{example_label(name, self.rows)}Key: {self.key}.  Number of {self.dtype.name} values != "
                    f"expected.  Values size: {len(found)} but output shape: {list(self.inner)}"
                )
            self._extend(_raw_floats(feature.float_list, self.count) if self.raw else found)
        self.rows += 1

    def _extend(self, values: Any) -> None:
        if self.raw:
            self.values.append(values)
        else:
            self.values.extend(values)

    def dense(self, single: bool = False) -> np.ndarray:
        """The examples as one tensor, padded to the longest."""
        values = np.array(self.values, np.float32) if self.raw else column(self.values, self.dtype)
        if not self.variable:
            return values.reshape(self.inner if single else (self.rows, *self.inner))
        if single:
            return values.reshape(-1, *self.inner)
        longest = max(self.sizes, default=0)
        if self.rows * longest > _MAX_ELEMENTS:
            raise invalid(f"'{self.key}' padded to {longest} values for {self.rows} examples is too large.")
        if all(size == longest for size in self.sizes):
            padded = values
        else:
            padded = np.full((self.rows, longest), self.filler[0], values.dtype)
            padded[np.arange(longest) < np.array(self.sizes)[:, None]] = values
        return padded.reshape(self.rows, longest // self.count, *self.inner)


def _raw_floats(message: Any, count: int) -> np.ndarray:
    """The values of a FloatList, from its serialized form: they are packed, and nothing follows them."""
    packed = message.SerializeToString()
    return np.frombuffer(packed, "<f4", count, len(packed) - 4 * count)


def parse_columns(
    serialized: Any,
    names: Sequence[bytes],
    sparse: list[SparseColumn],
    dense: list[DenseColumn],
    ragged: Sequence[SparseColumn] = (),
) -> list[np.ndarray]:
    """The outputs of the parsing ops: indices, values and shapes of sparse features, then dense ones.

    The columns `ragged` are filled, and no outputs.
    """
    single = np.ndim(serialized) == 0
    examples = listed(serialized)
    if np.ndim(serialized) > 1:
        raise invalid(f"serialized must be a scalar or a vector, received shape {np.shape(serialized)}.")
    if len(names) not in (0, len(examples)):
        raise invalid(f"{len(names)} names for {len(examples)} examples.")
    for index, text in enumerate(examples):
        name = names[index].decode("utf-8", "backslashreplace") if len(names) else ""
        features = message_in(Example, text, index, name).features.feature
        find = features.get
        for sparse_column in (*sparse, *ragged):
            sparse_column.add(find(sparse_column.key), name)
        for dense_column in dense:
            dense_column.add(find(dense_column.key), name)
    return [*parts_of(sparse, single), *(c.dense(single) for c in dense)]


def parts_of(sparse: list[SparseColumn], single: bool) -> list[np.ndarray]:
    """All indices, then all values, then all shapes."""
    parts = [c.sparse(single) for c in sparse]
    return [part[i] for i in range(3) for part in parts]


def names_of(keys: Any) -> list[str]:
    """Keys of features, from a tensor."""
    return [key.decode("utf-8", "surrogateescape") for key in listed(keys)]


def _columns(
    sparse_keys: Sequence[str],
    sparse_types: Sequence[DType],
    dense_keys: Sequence[str],
    dense_types: Sequence[DType],
    dense_shapes: Sequence[TensorShape],
    dense_defaults: Sequence[np.ndarray],
) -> tuple[list[SparseColumn], list[DenseColumn]]:
    if len(sparse_keys) != len(sparse_types) or not (
        len(dense_keys) == len(dense_types) == len(dense_shapes) == len(dense_defaults)
    ):
        raise invalid("There must be as many types, shapes and defaults as keys.")
    sparse = [SparseColumn(*pair) for pair in zip(sparse_keys, sparse_types, strict=True)]
    dense = [DenseColumn(*row) for row in zip(dense_keys, dense_types, dense_shapes, dense_defaults, strict=True)]
    return sparse, dense


def sparse_shapes_of(count: int, rank: int | None) -> list[TensorShape]:
    """The static shapes of `count` SparseTensors: indices, values, shapes."""
    parts = ((None, rank), (None,), (rank,))
    return [TensorShape.of(dims) for dims in parts for _ in range(count)]


def _batch_shapes(op: Operation) -> list[TensorShape]:
    serialized = op.input_list[0].shape
    if serialized.rank is not None and serialized.rank > 1:
        raise ValueError(f"Shape must be at most rank 1 but is rank {serialized.rank}")
    count = len(op.attrs["sparse_types"])
    shapes = op.attrs["dense_shapes"]
    if serialized.rank is None:
        ragged = 2 * len(op.attrs.get("ragged_value_types", ()))
        return [*sparse_shapes_of(count, None), *[TensorShape.of(None)] * (len(shapes) + ragged)]
    dense = [serialized.concatenate(shape) for shape in shapes]
    ragged = 2 * len(op.attrs.get("ragged_value_types", ()))
    return [*sparse_shapes_of(count, serialized.rank + 1), *dense, *[TensorShape.of((None,))] * ragged]


@op(
    "ParseExampleV2",
    "string, string, string, string, string, list(Tdense) -> sparse_indices: num_sparse*int64, "
    "sparse_values: list(sparse_types), sparse_shapes: num_sparse*int64, dense_values: list(Tdense), "
    "ragged_values: list(ragged_value_types), ragged_row_splits: list(ragged_split_types)",
    host=True,
    no_gradient=True,
    shape=_batch_shapes,
    Tdense=PARSED,
    sparse_types=PARSED,
)
def parse_example_v2(
    serialized: Any,
    names: Any,
    sparse_keys: Any,
    dense_keys: Any,
    ragged_keys: Any,
    dense_defaults: Any,
    *,
    Tdense: list[DType],
    num_sparse: int,
    sparse_types: list[DType],
    ragged_value_types: list[DType],
    ragged_split_types: list[DType],
    dense_shapes: list[TensorShape],
) -> Any:
    sparse, dense = _columns(
        names_of(sparse_keys), sparse_types, names_of(dense_keys), Tdense, dense_shapes, dense_defaults
    )
    ragged = [SparseColumn(*pair) for pair in zip(names_of(ragged_keys), ragged_value_types, strict=True)]
    found = parse_columns(serialized, listed(names), sparse, dense, ragged)
    values = [column(c.values, c.dtype) for c in ragged]
    splits = [np.cumsum([0, *c.sizes]) for c in ragged]
    return [*found, *values, *(s.astype(t.as_numpy_dtype) for s, t in zip(splits, ragged_split_types, strict=True))]


@op(
    "ParseExample",
    "string, string, Nsparse*string, Ndense*string, list(Tdense) -> sparse_indices: Nsparse*int64, "
    "sparse_values: list(sparse_types), sparse_shapes: Nsparse*int64, dense_values: list(Tdense)",
    host=True,
    no_gradient=True,
    shape=_batch_shapes,
    Tdense=PARSED,
    sparse_types=PARSED,
)
def parse_example_op(
    serialized: Any,
    names: Any,
    sparse_keys: Any,
    dense_keys: Any,
    dense_defaults: Any,
    *,
    Tdense: list[DType],
    sparse_types: list[DType],
    dense_shapes: list[TensorShape],
) -> Any:
    keys = [[name for key in keys for name in names_of(key)] for keys in (sparse_keys, dense_keys)]
    columns = _columns(keys[0], sparse_types, keys[1], Tdense, dense_shapes, dense_defaults)
    return parse_columns(serialized, listed(names), *columns)


@op(
    "ParseSingleExample",
    "string, list(Tdense) -> sparse_indices: num_sparse*int64, sparse_values: list(sparse_types), "
    "sparse_shapes: num_sparse*int64, dense_values: list(Tdense)",
    host=True,
    no_gradient=True,
    shape=_batch_shapes,
    Tdense=PARSED,
    sparse_types=PARSED,
)
def parse_single_example_op(
    serialized: Any,
    dense_defaults: Any,
    *,
    Tdense: list[DType],
    num_sparse: int,
    sparse_keys: list[str],
    dense_keys: list[str],
    sparse_types: list[DType],
    dense_shapes: list[TensorShape],
) -> Any:
    if np.ndim(serialized):
        raise invalid(f"serialized must be a scalar, received shape {np.shape(serialized)}.")
    columns = _columns(sparse_keys, sparse_types, dense_keys, Tdense, dense_shapes, dense_defaults)
    return parse_columns(serialized, (), *columns)
