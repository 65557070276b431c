"""TensorArray: an array of tensors written and read by index, usable in loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import registered
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.tensor import Tensor
from penstock.ops import tensor_list as lists


def flat_tensors(value: Any) -> list[Tensor]:
    """The tensors that a value carried through control flow is made of."""
    if isinstance(value, TensorArray):
        return [value.flow]
    return [convert_to_tensor(value)]


def like_structure(leaf: Any, tensors: Iterator[Tensor]) -> Any:
    """A value like `leaf` made of the next of `tensors`."""
    tensor = next(tensors)
    return leaf.with_flow(tensor) if isinstance(leaf, TensorArray) else tensor


class TensorArray:
    """An array of tensors. Writing returns a new TensorArray, which is the one to use from then on.

    >>> ta = tf.TensorArray(tf.float32, size=2).write(0, 1.0).write(1, 2.0)
    >>> ta.stack()  # [1.0, 2.0]
    """

    def __init__(
        self, dtype: Any, size: Any = None, dynamic_size: bool | None = None, clear_after_read: bool | None = None,
        tensor_array_name: str | None = None, handle: Any = None, flow: Any = None, infer_shape: bool = True,
        element_shape: Any = None, colocate_with_first_write_call: bool = True, name: str | None = None,
    ) -> None:  # fmt: skip
        self._dtype = dt.as_dtype(dtype).base_dtype
        self._dynamic_size = bool(dynamic_size)
        self._infer_shape = infer_shape
        self._element_shape = as_shape(element_shape)
        if flow is not None:
            self._flow = flow
            return
        if size is None and not dynamic_size:
            raise ValueError("TensorArray: size must be given unless dynamic_size is True.")
        with name_scope(name, "TensorArray"):
            size = convert_to_tensor(0 if size is None else size, dtype=dt.int32, name="size")
            self._flow = lists.tensor_list_reserve(self._shape_tensor(), size, element_dtype=self._dtype)

    def _shape_tensor(self) -> np.ndarray:
        shape = self._element_shape
        return np.array(-1, np.int32) if shape.rank is None else np.array(
            [-1 if d is None else d for d in shape.as_list()], np.int32)  # fmt: skip

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
        other._element_shape = self._element_shape
        return other

    def _learn(self, shape: TensorShape) -> None:
        if self._infer_shape:
            if not self._element_shape.is_compatible_with(shape):
                raise ValueError(f"Inconsistent shapes: saw {shape} but expected {self._element_shape}")
            self._element_shape = self._element_shape.merge_with(shape)

    def identity(self) -> TensorArray:
        """A TensorArray with the same contents."""
        return self.with_flow(_op("Identity")(self._flow))

    def write(self, index: Any, value: Any, name: str | None = None) -> TensorArray:
        """A TensorArray with `value` at `index`."""
        with name_scope(name, "TensorArrayWrite", [self._flow, index, value]):
            value = convert_to_tensor(value, preferred_dtype=self._dtype, name="value")
            if value.dtype.base_dtype != self._dtype:
                raise TypeError(f"TensorArray holds {self._dtype.name}, received {value.dtype.base_dtype.name}.")
            self._learn(value.shape)
            flow = lists.tensor_list_set_item(
                self._flow, convert_to_tensor(index, dtype=dt.int32), value,
                resize_if_index_out_of_bounds=self._dynamic_size,
            )  # fmt: skip
            return self.with_flow(flow)

    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The tensor at `index`."""
        tensor: Tensor = lists.tensor_list_get_item(
            self._flow, index, self._shape_tensor(), element_dtype=self._dtype, name=name or "TensorArrayRead"
        )
        return tensor

    def stack(self, name: str | None = None) -> Tensor:
        """All tensors as one, along a new first dimension."""
        tensor: Tensor = lists.tensor_list_stack(
            self._flow, self._shape_tensor(), element_dtype=self._dtype, name=name or "TensorArrayStack"
        )
        return tensor

    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """The tensors at `indices` as one."""
        tensor: Tensor = lists.tensor_list_gather(
            self._flow, indices, self._shape_tensor(), element_dtype=self._dtype, name=name or "TensorArrayGather"
        )
        return tensor

    def concat(self, name: str | None = None) -> Tensor:
        """All tensors joined along their first dimension."""
        with name_scope(name, "TensorArrayConcat", [self._flow]):
            stacked = self.stack()
            shape = _op("Shape")(stacked, out_type=dt.int32)
            rest = _op("StridedSlice")(shape, [2], [0], [1], end_mask=1)
            return _op("Reshape")(stacked, _op("ConcatV2")([[-1], rest], 0))  # type: ignore[no-any-return]

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """A TensorArray of the rows of `value`."""
        with name_scope(name, "TensorArrayUnstack", [self._flow, value]):
            value = convert_to_tensor(value, preferred_dtype=self._dtype, name="value")
            self._learn(TensorShape.of(value.shape._dims[1:] if value.shape._dims is not None else None))
            return self.with_flow(lists.tensor_list_from_tensor(value, self._shape_tensor()))

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> TensorArray:
        """A TensorArray with the rows of `value` at `indices`."""
        with name_scope(name, "TensorArrayScatter", [self._flow, value, indices]):
            value = convert_to_tensor(value, preferred_dtype=self._dtype, name="value")
            self._learn(TensorShape.of(value.shape._dims[1:] if value.shape._dims is not None else None))
            return self.with_flow(lists.tensor_list_scatter(self._flow, value, indices))

    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray:
        """A TensorArray of consecutive pieces of `value`, all of one length."""
        with name_scope(name, "TensorArraySplit", [self._flow, value, lengths]):
            value = convert_to_tensor(value, preferred_dtype=self._dtype, name="value")
            shape = _op("Shape")(value, out_type=dt.int32)
            count = _op("Size")(lengths, out_type=dt.int32)
            rest = _op("StridedSlice")(shape, [1], [0], [1], end_mask=1)
            parts = _op("ConcatV2")([_op("Pack")([count, -1]), rest], 0)
            return self.with_flow(lists.tensor_list_from_tensor(_op("Reshape")(value, parts), self._shape_tensor()))

    def size(self, name: str | None = None) -> Tensor:
        """How many tensors it holds."""
        tensor: Tensor = lists.tensor_list_length(self._flow, name=name or "TensorArraySize")
        return tensor

    def close(self, name: str | None = None) -> Any:
        """Nothing to do: a list is freed with its last use."""
        return _op("NoOp")(name=name)


def _op(name: str) -> Any:
    return registered(name)
