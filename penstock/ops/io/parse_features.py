"""`tf.parse_example` and similar functions, which take a dict of the features to parse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import constant
from penstock.ops.array.passthrough import ensure_shape
from penstock.ops.array.reshaping import reshape
from penstock.ops.io.parse_example import PARSED, parse_example_v2
from penstock.ops.io.parse_sequence import parse_sequence_example_v2
from penstock.ops.ragged.ragged_tensor import RaggedTensor
from penstock.ops.sparse.rows import sparse_merge


class VarLenFeature(NamedTuple):
    """Any number of values, parsed as a SparseTensor: `tf.VarLenFeature(tf.int64)`."""

    dtype: Any


class FixedLenFeature(NamedTuple):
    """A tensor of a fixed shape; every example must have it unless there is a default.

    >>> tf.FixedLenFeature([2], tf.float32)
    """

    shape: Any
    dtype: Any
    default_value: Any = None


class FixedLenSequenceFeature(NamedTuple):
    """As many tensors of `shape` as there are, padded to the longest of the batch."""

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


class SparseFeature(NamedTuple):
    """A SparseTensor of the values under `value_key` at the places under `index_key`."""

    index_key: Any
    value_key: str
    dtype: Any
    size: Any
    already_sorted: bool = False


class RaggedFeature(NamedTuple):
    """Any number of values, parsed as a RaggedTensor: `tf.io.RaggedFeature(tf.int64)`."""

    dtype: Any
    value_key: str | None = None
    partitions: Any = ()
    row_splits_dtype: Any = dt.int32
    validate: bool = False


class _Params:
    """Features in the form of the ops' arguments: lists of keys, types, shapes and defaults."""

    def __init__(self, features: dict[str, Any] | None, allowed: tuple[type, ...]) -> None:
        self.features = features or {}
        self.sparse: dict[str, DType] = {}
        self.dense: dict[str, tuple[DType, TensorShape, Any]] = {}
        self.ragged: dict[str, tuple[DType, DType]] = {}  # the types of values and of splits
        self.missing_allowed: set[str] = set()
        for key in sorted(self.features):
            feature: Any = self.features[key]
            if type(feature) not in allowed:
                names = ", ".join(kind.__name__ for kind in allowed)
                raise ValueError(f"Unsupported feature '{key}': expected {names}, received {feature!r}.")
            if not feature.dtype:
                raise ValueError(f"Missing type for feature {key}. Received feature={feature!r}")
            if as_dtype(feature.dtype) not in PARSED:
                names = ", ".join(dtype.name for dtype in PARSED)
                raise TypeError(f"Feature {key} has type {feature.dtype} not in list of allowed values: {names}")
            self._add(key, feature)

    def _add(self, key: str, feature: Any) -> None:
        dtype = as_dtype(feature.dtype)
        if isinstance(feature, VarLenFeature):
            self._add_sparse(key, dtype)
        elif isinstance(feature, SparseFeature):
            for index_key in sorted(_listed(feature.index_key)):
                self._add_sparse(index_key, dt.int64)
            self._add_sparse(feature.value_key, dtype)
        elif isinstance(feature, RaggedFeature):
            if feature.partitions:
                raise ValueError(
                    f"Feature '{key}': RaggedFeature takes no partitions here. Parse the partitions as features of "
                    "their own, and use tf.RaggedTensor.from_row_splits and the like."
                )
            value_key = key if feature.value_key is None else feature.value_key
            types = dtype, as_dtype(feature.row_splits_dtype)
            if self.ragged.setdefault(value_key, types) != types or value_key in self.sparse or value_key in self.dense:
                raise ValueError(f"Conflicting features parse the values under '{value_key}'.")
        else:
            if feature.shape is None:
                raise ValueError(f"Missing shape for feature {key}.")
            shape = as_shape(feature.shape)
            if not shape.is_fully_defined():
                raise ValueError(
                    f"All dimensions of shape for feature {key} need to be known but received {shape}. Consider "
                    "FixedLenSequenceFeature for a first dimension that is not."
                )
            if isinstance(feature, FixedLenSequenceFeature):
                if feature.allow_missing:
                    self.missing_allowed.add(key)
                shape = TensorShape.of((None,)).concatenate(shape)
            self.dense[key] = (dtype, shape, feature.default_value)

    def _add_sparse(self, key: str, dtype: DType) -> None:
        if key in self.ragged:
            raise ValueError(f"Conflicting features parse the values under '{key}'.")
        if self.sparse.setdefault(key, dtype) != dtype:
            raise ValueError(f"Conflicting types {self.sparse[key]} and {dtype} for feature {key}.")

    @property
    def dense_types(self) -> list[DType]:
        return [dtype for dtype, _, _ in self.dense.values()]

    @property
    def dense_shapes(self) -> list[TensorShape]:
        return [shape for _, shape, _ in self.dense.values()]

    def defaults(self) -> list[Tensor]:
        """One tensor per dense feature: its default, or an empty tensor if examples must have the feature."""
        return [_default(key, *entry) for key, entry in self.dense.items()]

    def merged(self, found: dict[str, Any]) -> dict[str, Any]:
        """The parsed tensors by the names of the features, with SparseFeatures put together."""
        result = {}
        for key, feature in self.features.items():
            if isinstance(feature, SparseFeature):
                ids = [found[k] for k in _listed(feature.index_key)]
                result[key] = sparse_merge(
                    ids, found[feature.value_key], _listed(feature.size), already_sorted=feature.already_sorted
                )
            elif isinstance(feature, RaggedFeature):
                result[key] = found[key if feature.value_key is None else feature.value_key]
            else:
                result[key] = found[key]
        return {key: result[key] for key in sorted(result)}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _default(key: str, dtype: DType, shape: TensorShape, value: Any) -> Tensor:
    dims = shape.as_list()
    name = re.sub(r"[^A-Za-z0-9_.\-/]", "_", key)
    if dims and dims[0] is None:
        # The value that pads shorter examples.
        if value is None:
            return convert_to_tensor("" if dtype == dt.string else 0, dtype=dtype)
        return reshape(convert_to_tensor(value, dtype=dtype, name=f"padding_{name}"), [])
    if value is None:
        return constant([], dtype=dtype)
    if isinstance(value, Tensor):
        return value
    return reshape(convert_to_tensor(value, dtype=dtype, name=f"key_{name}"), shape)


def _sparse(indices: Sequence[Tensor], values: Sequence[Tensor], shapes: Sequence[Tensor]) -> list[SparseTensor]:
    return [SparseTensor(*parts) for parts in zip(indices, values, shapes, strict=True)]


def parse_example(
    serialized: TensorLike, features: dict[str, Any], name: str | None = None, example_names: TensorLike = None
) -> dict[str, Any]:
    """A batch of serialized `tf.train.Example`s as tensors.

    >>> tf.parse_example(batch, {"x": tf.FixedLenFeature([2], tf.float32), "ids": tf.VarLenFeature(tf.int64)})
    """
    if not features:
        raise ValueError(f"Argument `features` cannot be None or empty. Received: {features!r}")
    params = _Params(features, (VarLenFeature, SparseFeature, FixedLenFeature, FixedLenSequenceFeature, RaggedFeature))
    for key, feature in features.items():
        if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing:
            raise ValueError(f"Unsupported: FixedLenSequenceFeature requires allow_missing to be True, for '{key}'.")
    return params.merged(_parse(serialized, params, name, example_names))


def _parse(serialized: Any, params: _Params, name: str | None, example_names: Any) -> dict[str, Any]:
    with name_scope(name, "ParseExample", [serialized, example_names]):
        serialized = convert_to_tensor(serialized, dtype=dt.string, name="serialized")
        defaults = params.defaults()
        indices, values, shapes, dense, ragged, splits = parse_example_v2(
            serialized,
            [] if example_names is None else example_names,
            list(params.sparse),
            list(params.dense),
            list(params.ragged),
            defaults,
            num_sparse=len(params.sparse),
            sparse_types=list(params.sparse.values()),
            Tdense=params.dense_types,
            ragged_value_types=[values for values, _ in params.ragged.values()],
            ragged_split_types=[splits for _, splits in params.ragged.values()],
            dense_shapes=params.dense_shapes,
            name="ParseExampleV2",
        )
        sparse = _sparse(indices, values, shapes)
        if serialized.shape.rank != 0:  # the values of one example are a vector
            ragged = [RaggedTensor(*parts) for parts in zip(ragged, splits, strict=True)]
        keys = [*params.sparse, *params.dense, *params.ragged]
        return dict(zip(keys, [*sparse, *dense, *ragged], strict=True))


def _scalar(value: Any, name: str) -> Tensor:
    tensor = convert_to_tensor(value, dtype=dt.string, name=name)
    if tensor.shape.rank is None:
        return ensure_shape(tensor, [])
    if tensor.shape.rank != 0:
        raise ValueError(f"Input {name} must be a scalar, received shape {tensor.shape}.")
    return tensor


def parse_single_example(
    serialized: TensorLike, features: dict[str, Any], name: str | None = None, example_names: TensorLike = None
) -> dict[str, Any]:
    """One serialized `tf.train.Example` as tensors, without a batch dimension.

    >>> tf.parse_single_example(record, {"x": tf.FixedLenFeature([2], tf.float32)})
    """
    if not features:
        raise ValueError(f"Invalid argument: features cannot be None or empty. Received: {features!r}")
    with name_scope(name, "ParseSingleExample", [serialized, example_names]):
        return parse_example(_scalar(serialized, "serialized"), features, example_names=example_names)


_CONTEXT = (VarLenFeature, FixedLenFeature)
_LISTS = (VarLenFeature, FixedLenSequenceFeature)


def parse_sequence_example(
    serialized: TensorLike,
    context_features: dict[str, Any] | None = None,
    sequence_features: dict[str, Any] | None = None,
    example_names: TensorLike = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    """A batch of serialized `tf.train.SequenceExample`s: context, lists of features, and the lengths of the dense ones.

    >>> tf.io.parse_sequence_example(batch, sequence_features={"x": tf.FixedLenSequenceFeature([2], tf.float32)})
    """
    with name_scope(name, "ParseSequenceExample", [serialized, example_names]):
        return _parse_sequence(serialized, context_features, sequence_features, example_names)


def parse_single_sequence_example(
    serialized: TensorLike,
    context_features: dict[str, Any] | None = None,
    sequence_features: dict[str, Any] | None = None,
    example_name: TensorLike = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One serialized `tf.train.SequenceExample`: its context, and its lists of features.

    >>> tf.parse_single_sequence_example(record, {"id": tf.FixedLenFeature([], tf.int64)})
    """
    with name_scope(name, "ParseSingleSequenceExample", [serialized, example_name]):
        with name_scope(None, "ParseSingleExample", [serialized, example_name]):
            serialized = _scalar(serialized, "serialized")
        return _parse_sequence(serialized, context_features, sequence_features, example_name)[:2]


def _parse_sequence(
    serialized: Any, context_features: dict[str, Any] | None, sequence_features: dict[str, Any] | None, names: Any
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    if not context_features and not sequence_features:
        raise ValueError("Both `context_features` and `sequence_features` argument are None or empty.")
    context, lists = _Params(context_features, _CONTEXT), _Params(sequence_features, _LISTS)
    with name_scope(None, "ParseSequenceExample", [serialized, names]):
        serialized = convert_to_tensor(serialized, dtype=dt.string, name="serialized")
        defaults = context.defaults()
        parts = parse_sequence_example_v2(
            serialized,
            [] if names is None else names,
            list(context.sparse),
            list(context.dense),
            [],
            list(lists.sparse),
            list(lists.dense),
            [],
            [key in lists.missing_allowed for key in lists.dense],
            defaults,
            Ncontext_sparse=len(context.sparse),
            context_sparse_types=list(context.sparse.values()),
            Tcontext_dense=context.dense_types,
            context_dense_shapes=context.dense_shapes,
            Nfeature_list_sparse=len(lists.sparse),
            feature_list_sparse_types=list(lists.sparse.values()),
            Nfeature_list_dense=len(lists.dense),
            feature_list_dense_types=lists.dense_types,
            feature_list_dense_shapes=[shape[1:] for shape in lists.dense_shapes],
            name="ParseSequenceExampleV2",
        )
    in_context = dict(zip([*context.sparse, *context.dense], [*_sparse(*parts[:3]), *parts[3]], strict=True))
    in_lists = dict(zip([*lists.sparse, *lists.dense], [*_sparse(*parts[6:9]), *parts[9]], strict=True))
    lengths = dict(zip(lists.dense, parts[10], strict=True))
    return in_context, in_lists, lengths
