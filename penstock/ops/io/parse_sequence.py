"""Parsing `tf.train.SequenceExample`s into tensors: the ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.ops.io.example_proto import SequenceExample
from penstock.ops.io.parse_example import (
    PARSED,
    Column,
    DenseColumn,
    SparseColumn,
    column,
    example_label,
    message_in,
    names_of,
    parts_of,
    sparse_shapes_of,
)
from penstock.ops.string.forms import invalid, listed

_NO_TYPES: list[DType] = []
_NO_SHAPES: list[TensorShape] = []
_MAX_ELEMENTS = 2**31
_ZERO = {"float32": 0.0, "int64": 0, "string": b""}


class SparseList(Column):
    """A list of features of any sizes per example: [example, step, place] per value."""

    def __init__(self, key: str, dtype: DType) -> None:
        super().__init__(key, dtype)
        self.values: list[Any] = []
        self.sizes: list[list[int]] = []  # sizes of the steps of each example

    def add(self, steps: Sequence[Any], name: str) -> None:
        """Adds the steps of the next example."""
        sizes = []
        for feature in steps:
            found = self.values_in(feature, name, len(self.sizes)) or ()
            self.values.extend(found)
            sizes.append(len(found))
        self.sizes.append(sizes)

    def sparse(self, single: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The parts of a SparseTensor."""
        rows = [
            (example, step, place)
            for example, sizes in enumerate(self.sizes)
            for step, size in enumerate(sizes)
            for place in range(size)
        ]
        indices = np.array(rows, np.int64).reshape(-1, 3)
        steps = max((len(sizes) for sizes in self.sizes), default=0)
        widest = max((size for sizes in self.sizes for size in sizes), default=0)
        shape = np.array([len(self.sizes), steps, widest], np.int64)
        values = column(self.values, self.dtype)
        return (indices[:, 1:], values, shape[1:]) if single else (indices, values, shape)


class DenseList(Column):
    """A list of tensors of one shape per example."""

    def __init__(self, key: str, dtype: DType, shape: TensorShape, may_be_missing: bool) -> None:
        super().__init__(key, dtype)
        self.may_be_missing = may_be_missing
        if not shape.is_fully_defined():
            raise invalid(f"feature_list_dense_shapes: the shape {shape} of '{key}' must be fully known.")
        self.shape = tuple(d or 0 for d in shape.as_list())
        self.count = int(np.prod(self.shape))
        self.values: list[list[Any]] = []
        self.lengths: list[int] = []

    def add(self, steps: Sequence[Any] | None, name: str) -> None:
        """Adds the steps of the next example; None if it has no such list."""
        label = example_label(name, len(self.lengths))
        if steps is None and not self.may_be_missing:
            raise invalid(
                f"{label}Feature list '{self.key}' is required but could not be found.  Did you mean to include it in "
                "feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?"
            )
        values: list[Any] = []
        for step, feature in enumerate(steps or ()):
            found = self.values_in(feature, name, len(self.lengths)) or ()
            if len(found) != self.count:
                raise invalid(
                    f"{label}Key: {self.key}, Step: {step}.  Number of values != expected.  values size: {len(found)} "
                    f"but output shape: {list(self.shape)}"
                )
            values.extend(found)
        self.values.append(values)
        self.lengths.append(len(steps or ()))

    def dense(self, single: bool) -> np.ndarray:
        """All examples, padded with zeros to the longest."""
        longest = max(self.lengths, default=0)
        if len(self.lengths) * longest * self.count > _MAX_ELEMENTS:
            raise invalid(f"'{self.key}' padded to {longest} steps for {len(self.lengths)} examples is too large.")
        zero = _ZERO[self.dtype.name]
        flat = [v for row in self.values for v in (*row, *[zero] * (longest * self.count - len(row)))]
        shape = (longest, *self.shape)
        return column(flat, self.dtype).reshape(shape if single else (len(self.lengths), *shape))


def _parsed(
    serialized: Any,
    names: Sequence[bytes],
    context_sparse: list[SparseColumn],
    context_dense: list[DenseColumn],
    sparse: list[SparseList],
    dense: list[DenseList],
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """All outputs, and the lengths of the dense lists."""
    single = np.ndim(serialized) == 0
    examples = listed(serialized)
    if np.ndim(serialized) > 1:
        raise invalid(f"serialized must be a scalar or a vector, received shape {np.shape(serialized)}.")
    if len(names) not in (0, len(examples)):
        raise invalid(f"{len(names)} names for {len(examples)} examples.")
    for index, text in enumerate(examples):
        name = names[index].decode("utf-8", "backslashreplace") if len(names) else ""
        message = message_in(SequenceExample, text, index, name)
        context, lists = message.context.feature, message.feature_lists.feature_list
        for sparse_column in context_sparse:
            sparse_column.add(context.get(sparse_column.key), name)
        for dense_column in context_dense:
            dense_column.add(context.get(dense_column.key), name)
        for sparse_list in sparse:
            found = lists.get(sparse_list.key)
            sparse_list.add(() if found is None else found.feature, name)
        for dense_list in dense:
            found = lists.get(dense_list.key)
            dense_list.add(None if found is None else found.feature, name)
    parts = [s.sparse(single) for s in sparse]
    lengths = [np.array(d.lengths, np.int64) for d in dense]
    outputs = [
        *parts_of(context_sparse, single),
        *(c.dense(single) for c in context_dense),
        *(part[i] for i in range(3) for part in parts),
        *(d.dense(single) for d in dense),
    ]
    return outputs, [n[0] for n in lengths] if single else lengths


def _shapes(op: Operation) -> list[TensorShape]:
    serialized = op.input_list[0].shape
    attrs = op.attrs
    if serialized.rank is None:
        return [TensorShape.of(None) for _ in op.outputs]
    if serialized.rank > 1:
        raise ValueError(f"Shape must be at most rank 1 but is rank {serialized.rank}")
    rank = serialized.rank
    steps = serialized.concatenate([None])
    lengths = [] if op.type == "ParseSingleSequenceExample" else [serialized] * len(attrs["feature_list_dense_types"])
    return [
        *sparse_shapes_of(len(attrs["context_sparse_types"]), rank + 1),
        *(serialized.concatenate(s) for s in attrs["context_dense_shapes"]),
        *sparse_shapes_of(len(attrs["feature_list_sparse_types"]), rank + 2),
        *(steps.concatenate(s) for s in attrs["feature_list_dense_shapes"]),
        *lengths,
    ]


@op(
    "ParseSequenceExampleV2",
    "string, string, string, string, string, string, string, string, bool, list(Tcontext_dense) -> "
    "context_sparse_indices: Ncontext_sparse*int64, context_sparse_values: list(context_sparse_types), "
    "context_sparse_shapes: Ncontext_sparse*int64, context_dense_values: list(Tcontext_dense), "
    "context_ragged_values: list(context_ragged_value_types), "
    "context_ragged_row_splits: list(context_ragged_split_types), "
    "feature_list_sparse_indices: Nfeature_list_sparse*int64, "
    "feature_list_sparse_values: list(feature_list_sparse_types), "
    "feature_list_sparse_shapes: Nfeature_list_sparse*int64, "
    "feature_list_dense_values: list(feature_list_dense_types), "
    "feature_list_dense_lengths: Nfeature_list_dense*int64, "
    "feature_list_ragged_values: list(feature_list_ragged_value_types), "
    "feature_list_ragged_outer_splits: list(feature_list_ragged_split_types), "
    "feature_list_ragged_inner_splits: list(feature_list_ragged_split_types)",
    host=True,
    no_gradient=True,
    shape=_shapes,
    Tcontext_dense=PARSED,
    context_sparse_types=PARSED,
    feature_list_dense_types=PARSED,
    feature_list_sparse_types=PARSED,
)
def parse_sequence_example_v2(
    serialized: Any,
    debug_name: Any,
    context_sparse_keys: Any,
    context_dense_keys: Any,
    context_ragged_keys: Any,
    feature_list_sparse_keys: Any,
    feature_list_dense_keys: Any,
    feature_list_ragged_keys: Any,
    feature_list_dense_missing_assumed_empty: Any,
    context_dense_defaults: Any,
    *,
    Ncontext_sparse: int = 0,
    Tcontext_dense: list[DType] = _NO_TYPES,
    context_sparse_types: list[DType] = _NO_TYPES,
    context_ragged_value_types: list[DType] = _NO_TYPES,
    context_ragged_split_types: list[DType] = _NO_TYPES,
    context_dense_shapes: list[TensorShape] = _NO_SHAPES,
    Nfeature_list_sparse: int = 0,
    Nfeature_list_dense: int = 0,
    feature_list_dense_types: list[DType] = _NO_TYPES,
    feature_list_sparse_types: list[DType] = _NO_TYPES,
    feature_list_ragged_value_types: list[DType] = _NO_TYPES,
    feature_list_ragged_split_types: list[DType] = _NO_TYPES,
    feature_list_dense_shapes: list[TensorShape] = _NO_SHAPES,
) -> Any:
    if context_ragged_value_types or feature_list_ragged_value_types:
        raise invalid("Ragged features are not supported: parse them as VarLenFeature.")
    missing = np.asarray(feature_list_dense_missing_assumed_empty).reshape(-1).tolist()
    dense_keys = names_of(feature_list_dense_keys)
    outputs, lengths = _parsed(
        serialized,
        listed(debug_name),
        _all(SparseColumn, names_of(context_sparse_keys), context_sparse_types),
        _all(DenseColumn, names_of(context_dense_keys), Tcontext_dense, context_dense_shapes, context_dense_defaults),
        _all(SparseList, names_of(feature_list_sparse_keys), feature_list_sparse_types),
        _all(DenseList, dense_keys, feature_list_dense_types, feature_list_dense_shapes, missing),
    )
    return [*outputs, *lengths]


@op(
    "ParseSingleSequenceExample",
    "string, string, Ncontext_sparse*string, Ncontext_dense*string, Nfeature_list_sparse*string, "
    "Nfeature_list_dense*string, list(Tcontext_dense), string -> "
    "context_sparse_indices: Ncontext_sparse*int64, context_sparse_values: list(context_sparse_types), "
    "context_sparse_shapes: Ncontext_sparse*int64, context_dense_values: list(Tcontext_dense), "
    "feature_list_sparse_indices: Nfeature_list_sparse*int64, "
    "feature_list_sparse_values: list(feature_list_sparse_types), "
    "feature_list_sparse_shapes: Nfeature_list_sparse*int64, "
    "feature_list_dense_values: list(feature_list_dense_types)",
    host=True,
    no_gradient=True,
    shape=_shapes,
    Tcontext_dense=PARSED,
    context_sparse_types=PARSED,
    feature_list_dense_types=PARSED,
    feature_list_sparse_types=PARSED,
)
def parse_single_sequence_example_op(
    serialized: Any,
    feature_list_dense_missing_assumed_empty: Any,
    context_sparse_keys: Any,
    context_dense_keys: Any,
    feature_list_sparse_keys: Any,
    feature_list_dense_keys: Any,
    context_dense_defaults: Any,
    debug_name: Any,
    *,
    Ncontext_sparse: int = 0,
    Ncontext_dense: int = 0,
    Nfeature_list_sparse: int = 0,
    Nfeature_list_dense: int = 0,
    context_sparse_types: list[DType] = _NO_TYPES,
    Tcontext_dense: list[DType] = _NO_TYPES,
    feature_list_dense_types: list[DType] = _NO_TYPES,
    context_dense_shapes: list[TensorShape] = _NO_SHAPES,
    feature_list_sparse_types: list[DType] = _NO_TYPES,
    feature_list_dense_shapes: list[TensorShape] = _NO_SHAPES,
) -> Any:
    if np.ndim(serialized):
        raise invalid(f"serialized must be a scalar, received shape {np.shape(serialized)}.")
    assumed = set(names_of(feature_list_dense_missing_assumed_empty))
    keys = [
        [name for key in keys for name in names_of(key)]
        for keys in (context_sparse_keys, context_dense_keys, feature_list_sparse_keys, feature_list_dense_keys)
    ]
    outputs, _ = _parsed(
        serialized,
        [name for name in listed(debug_name) if name],
        _all(SparseColumn, keys[0], context_sparse_types),
        _all(DenseColumn, keys[1], Tcontext_dense, context_dense_shapes, context_dense_defaults),
        _all(SparseList, keys[2], feature_list_sparse_types),
        _all(DenseList, keys[3], feature_list_dense_types, feature_list_dense_shapes, [k in assumed for k in keys[3]]),
    )
    return outputs


def _all(kind: Any, *columns: Any) -> list[Any]:
    """One column per key. Raises an error unless there are as many types, shapes and defaults."""
    if len({len(c) for c in columns}) > 1:
        raise invalid(f"There must be as many types, shapes and defaults as the {len(columns[0])} keys.")
    return [kind(*row) for row in zip(*columns, strict=True)]
