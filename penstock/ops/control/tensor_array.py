"""TensorArray: an array of tensors written and read by index, usable in loops."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import registered
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.control import tensor_list as lists


def flat_tensors(value: Any) -> list[Tensor]:
    """The tensors of a value that control flow carries."""
    if isinstance(value, TensorArray):
        return [value.flow]
    if isinstance(value, SparseTensor):
        return [value.indices, value.values, value.dense_shape]
    if isinstance(value, IndexedSlices):
        return [t for t in (value.values, value.indices, value.dense_shape) if t is not None]
    if isinstance(value, Ragged):
        return value.parts
    return [convert_to_tensor(value)]


def like_structure(leaf: Any, tensors: Iterator[Tensor]) -> Any:
    """A value like `leaf`, made from the next tensors of the iterator `tensors`."""
    if isinstance(leaf, SparseTensor):
        return SparseTensor(next(tensors), next(tensors), next(tensors))
    if isinstance(leaf, Ragged):
        return leaf.with_parts([next(tensors) for _ in leaf.parts])
    if isinstance(leaf, IndexedSlices):
        values, indices = next(tensors), next(tensors)
        return IndexedSlices(values, indices, None if leaf.dense_shape is None else next(tensors))
    tensor = next(tensors)
    return leaf.with_flow(tensor) if isinstance(leaf, TensorArray) else tensor


class TensorArray:
    """An array of tensors. Writing returns a new TensorArray, which is the one to use from then on.

    >>> ta = tf.TensorArray(tf.float32, size=2).write(0, 1.0).write(1, 2.0)
    >>> ta.stack()  # [1.0, 2.0]
    """

    eager_kind: ClassVar[type[TensorArray] | None] = None  # the class to use where ops run at once, once loaded

    def __new__(cls, *args: Any, **kwargs: Any) -> TensorArray:
        kind = cls.eager_kind
        eager = cls is TensorArray and kind is not None and kwargs.get("flow") is None
        return super().__new__(kind if eager and get_default_graph().is_eager else cls)  # type: ignore[arg-type]

    def __init__(
        self,
        dtype: DTypeLike,
        size: TensorLike = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: Any = None,
        flow: Any = None,
        infer_shape: bool = True,
        element_shape: ShapeLike = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        self._dtype = dt.as_dtype(dtype).base_dtype
        self._dynamic_size = bool(dynamic_size)
        self._infer_shape = infer_shape
        self._known = [as_shape(element_shape)]  # shared by all versions, also in a loop's body
        self._size: int | None = None  # None if it is unknown or may change
        if flow is not None:
            self._flow = flow
            return
        if size is None and not dynamic_size:
            raise ValueError("TensorArray: size must be given unless dynamic_size is True.")
        with name_scope(name, "TensorArray"):
            size = convert_to_tensor(0 if size is None else size, dtype=dt.int32, name="size")
            known = constant_value(size)
            self._size = None if known is None or dynamic_size else int(known)
            self._flow = lists.tensor_list_reserve(self._shape_tensor(), size, element_dtype=self._dtype)

    def _shape_tensor(self) -> np.ndarray:
        shape = self._element_shape
        return (
            np.array(-1, np.int32)
            if shape.rank is None
            else np.array([-1 if d is None else d for d in shape.as_list()], np.int32)
        )

    @property
    def dtype(self) -> dt.DType:
        return self._dtype

    @property
    def flow(self) -> Tensor:
        flow: Tensor = self._flow
        return flow

    handle = flow

    @property
    def dynamic_size(self) -> bool:
        return self._dynamic_size

    @property
    def element_shape(self) -> TensorShape:
        return self._element_shape

    def with_flow(self, flow: Tensor) -> TensorArray:
        """This array with other contents."""
        other = TensorArray(self._dtype, dynamic_size=self._dynamic_size, flow=flow, infer_shape=self._infer_shape)
        other._known, other._size = self._known, self._size
        return other

    @property
    def _element_shape(self) -> TensorShape:
        return self._known[0]

    def _learn(self, shape: TensorShape) -> None:
        if self._infer_shape:
            if not self._element_shape.is_compatible_with(shape):
                raise ValueError(f"Inconsistent shapes: saw {shape} but expected {self._element_shape}")
            self._known[0] = self._element_shape.merge_with(shape)

    def identity(self) -> TensorArray:
        """A TensorArray with the same contents."""
        return self.with_flow(_op("Identity")(self._flow))

    def write(self, index: Any, value: TensorLike, name: str | None = None) -> TensorArray:
        """A TensorArray with `value` at `index`."""
        with name_scope(name, "TensorArrayWrite", [self._flow, index, value]):
            value = convert_to_tensor(value, preferred_dtype=self._dtype, name="value")
            if value.dtype.base_dtype != self._dtype:
                raise TypeError(f"TensorArray holds {self._dtype.name}, received {value.dtype.base_dtype.name}.")
            self._learn(value.shape)
            flow = lists.tensor_list_set_item(
                self._flow,
                convert_to_tensor(index, dtype=dt.int32),
                value,
                resize_if_index_out_of_bounds=self._dynamic_size,
            )
            return self.with_flow(flow)

    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The tensor at `index`."""
        tensor: Tensor = lists.tensor_list_get_item(
            self._flow, index, self._shape_tensor(), element_dtype=self._dtype, name=name or "TensorArrayReadV3"
        )
        return tensor

    def stack(self, name: str | None = None) -> Tensor:
        """All tensors as one, along a new first dimension."""
        with name_scope(name, "TensorArrayStack", [self._flow]):
            tensor: Tensor = lists.tensor_list_stack(
                self._flow, self._shape_tensor(), element_dtype=self._dtype, name="TensorArrayGatherV3"
            )
        if self._element_shape.rank is not None:
            tensor.set_shape(TensorShape.of((self._size,)).concatenate(self._element_shape))
        return tensor

    def gather(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """The tensors at `indices` as one."""
        tensor: Tensor = lists.tensor_list_gather(
            self._flow, indices, self._shape_tensor(), element_dtype=self._dtype, name=name or "TensorArrayGatherV3"
        )
        return tensor

    def concat(self, name: str | None = None) -> Tensor:
        """All tensors joined along their first dimension, in which they may differ."""
        with name_scope(name, "TensorArrayConcat", [self._flow]):
            tensor, _ = lists.tensor_list_concat(
                self._flow, self._shape_tensor(), np.zeros(0, np.int64), element_dtype=self._dtype
            )
            first = self._element_shape.as_list()[0] if self._element_shape.rank else None
            if self._size is not None and first is not None:
                tensor.set_shape(TensorShape.of((self._size * first, *tensor.shape.as_list()[1:])))
            return tensor  # type: ignore[no-any-return]

    def unstack(self, value: TensorLike, name: str | None = None) -> TensorArray:
        """A TensorArray of the rows of `value`."""
        with name_scope(name, "TensorArrayUnstack", [self._flow, value]):
            value = convert_to_tensor(value, preferred_dtype=self._dtype, name="value")
            self._learn(TensorShape.of(value.shape._dims[1:] if value.shape._dims is not None else None))
            return self.with_flow(lists.tensor_list_from_tensor(value, self._shape_tensor()))

    def scatter(self, indices: TensorLike, value: TensorLike, name: str | None = None) -> TensorArray:
        """A TensorArray with the rows of `value` at `indices`."""
        with name_scope(name, "TensorArrayScatter", [self._flow, value, indices]):
            value = convert_to_tensor(value, preferred_dtype=self._dtype, name="value")
            self._learn(TensorShape.of(value.shape._dims[1:] if value.shape._dims is not None else None))
            return self.with_flow(lists.tensor_list_scatter(self._flow, value, indices))

    def split(self, value: TensorLike, lengths: TensorLike, name: str | None = None) -> TensorArray:
        """A TensorArray of consecutive pieces of `value`, of the given lengths."""
        with name_scope(name, "TensorArraySplit", [self._flow, value, lengths]):
            value = convert_to_tensor(value, preferred_dtype=self._dtype, name="value")
            lengths = _op("Cast")(lengths, DstT=dt.int64)
            known = constant_value(lengths)
            if known is not None and value.shape.rank:
                same = int(known[0]) if len(set(known.tolist())) == 1 else None
                self._learn(TensorShape.of((same, *value.shape.as_list()[1:])))
            return self.with_flow(lists.tensor_list_split(value, self._shape_tensor(), lengths))

    def size(self, name: str | None = None) -> Tensor:
        """The number of tensors in the array."""
        tensor: Tensor = lists.tensor_list_length(self._flow, name=name or "TensorArraySizeV3")
        return tensor

    def close(self, name: str | None = None) -> Any:
        """Does nothing: a list is freed with its last use."""
        return _op("NoOp")(name=name)


# Programs see the parameters of the constructor, which `__new__` hides.
_parameters = list(inspect.signature(TensorArray.__init__).parameters.values())
TensorArray.__signature__ = inspect.Signature(_parameters[1:])  # type: ignore[attr-defined]


def _op(name: str) -> Any:
    return registered(name)


# Values that consist of several tensors, or of one tensor that is not a plain value.
COMPOSITE = (TensorArray, SparseTensor, IndexedSlices, Ragged)
