"""Specs of values that are no dense tensors, and the spec of any value."""

from __future__ import annotations

from typing import Any

from penstock.data.structure import DatasetSpec, RaggedTensorSpec, SparseTensorSpec, TensorSpec, TypeSpec
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.ops.control.tensor_array import TensorArray


class IndexedSlicesSpec(TensorSpec):
    """Describes some rows of a tensor: `tf.IndexedSlicesSpec([None, 3], tf.float32)`."""

    __slots__ = ("_dense_shape_dtype", "_indices_dtype", "_indices_shape")

    def __init__(
        self,
        shape: Any = None,
        dtype: Any = "float32",
        indices_dtype: Any = "int64",
        dense_shape_dtype: Any = None,
        indices_shape: Any = None,
    ) -> None:
        super().__init__(shape, dtype)
        self._indices_dtype = as_dtype(indices_dtype)
        self._dense_shape_dtype: DType | None = None if dense_shape_dtype is None else as_dtype(dense_shape_dtype)
        self._indices_shape: TensorShape = as_shape(indices_shape).with_rank(1)

    @property
    def value_type(self) -> Any:
        return IndexedSlices

    def __repr__(self) -> str:
        parts = (self._shape, self._dtype, self._indices_dtype, self._dense_shape_dtype, self._indices_shape)
        return f"IndexedSlicesSpec({', '.join(map(repr, parts))})"


class TensorArraySpec(TensorSpec):
    """Describes a TensorArray: `tf.TensorArraySpec([2], tf.int32)`."""

    __slots__ = ("_dynamic_size", "_infer_shape")

    def __init__(
        self, element_shape: Any = None, dtype: Any = "float32", dynamic_size: bool = False, infer_shape: bool = True
    ) -> None:
        super().__init__(element_shape, dtype)
        self._dynamic_size, self._infer_shape = dynamic_size, infer_shape

    @property
    def value_type(self) -> Any:
        return TensorArray

    def __repr__(self) -> str:
        return f"TensorArraySpec({self._shape!r}, {self._dtype!r}, {self._dynamic_size}, {self._infer_shape})"


class VariableSpec(TensorSpec):
    """Describes a variable."""

    __slots__ = ("trainable",)

    def __init__(self, shape: Any, dtype: Any = "float32", trainable: bool = True) -> None:
        super().__init__(shape, dtype)
        self.trainable = trainable

    def __repr__(self) -> str:
        return f"VariableSpec(shape={self._shape}, dtype={self._dtype!r}, trainable={self.trainable})"


def type_spec_from_value(value: Any) -> TypeSpec:
    """The spec of a value: a tensor, a sparse one, rows, a TensorArray, a variable, a dataset, or a value of one.

    >>> tf.type_spec_from_value(tf.constant([1, 2]))
    TensorSpec(shape=(2,), dtype=tf.int32, name=None)
    """
    if isinstance(value, SparseTensor):
        return SparseTensorSpec(value.shape, value.dtype)
    if isinstance(value, Ragged):
        return RaggedTensorSpec.from_value(value)
    if isinstance(value, IndexedSlices):
        dense = None if value.dense_shape is None else value.dense_shape.dtype
        return IndexedSlicesSpec(value.shape, value.dtype, value.indices.dtype, dense, value.indices.shape)
    if isinstance(value, TensorArray):
        return TensorArraySpec(value.element_shape, value.dtype, value.dynamic_size)
    if hasattr(value, "handle") and hasattr(value, "trainable"):
        return VariableSpec(value.shape, value.dtype, value.trainable)
    if hasattr(value, "_type_spec"):
        spec: TypeSpec = value._type_spec
        return spec
    if isinstance(value, DatasetSpec.dataset_class):
        return DatasetSpec(value.element_spec)
    try:
        return TensorSpec.from_tensor(convert_to_tensor(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"There is no TypeSpec for {value!r:.80} of type {type(value).__name__}.") from error
