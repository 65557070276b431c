"""EagerTensorArray: the TensorArray of eager execution, a Python list of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, OutOfRangeError
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.operation import Tensor
from penstock.graph.scopes import init_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.array.creation import zeros
from penstock.ops.array.joining import concat, split, stack, unstack
from penstock.ops.control import tensor_list as lists
from penstock.ops.control.tensor_array import TensorArray


class EagerTensorArray(TensorArray):
    """Holds its tensors itself, and changes in place. Inside functions it goes on as a list of the graph.

    >>> ta = tf.TensorArray(tf.float32, size=2)
    >>> ta.write(0, 1.0).write(1, 2.0).stack()
    """

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
        if size is None and not dynamic_size:
            raise ValueError("TensorArray: size must be given unless dynamic_size is True.")
        self._dtype = dt.as_dtype(dtype).base_dtype
        self._dynamic_size = bool(dynamic_size)
        self._infer_shape = infer_shape
        self._known = [as_shape(element_shape)]
        self._items: list[Tensor | None] = [None] * int(0 if size is None else size)
        self._clears = clear_after_read is not False
        self._cleared: set[int] = set()
        self._size: int | None = None if dynamic_size else len(self._items)

    @property
    def flow(self) -> Tensor:
        with init_scope():
            flow: Tensor = lists.tensor_list_reserve(
                self._shape_tensor(), np.int32(len(self._items)), element_dtype=self._dtype
            )
            for i, item in enumerate(self._items):
                if item is not None:
                    flow = lists.tensor_list_set_item(flow, np.int32(i), item)
        return flow

    handle = flow

    def _in_graph(self) -> TensorArray | None:
        """This array as a list of the graph that is being built; None where ops run at once."""
        return None if get_default_graph().is_eager else self.with_flow(self.flow)

    def _checked(self, index: int) -> int:
        if index < 0:
            raise OutOfRangeError(f"TensorArray: index {index} is negative.")
        if index >= len(self._items):
            if not self._dynamic_size:
                raise OutOfRangeError(
                    f"TensorArray: index {index} is out of range: its size is {len(self._items)}. Give a larger size, "
                    "or dynamic_size=True."
                )
            self._items += [None] * (index + 1 - len(self._items))
        return index

    def _set(self, index: int, value: Any, infer_shape: bool = True) -> None:
        tensor = convert_to_tensor(value, preferred_dtype=self._dtype)
        if tensor.dtype.base_dtype != self._dtype:
            raise InvalidArgumentError(
                f"TensorArray holds {self._dtype.name}, received {tensor.dtype.base_dtype.name}."
            )
        if not self._element_shape.is_compatible_with(tensor.shape):
            raise ValueError(f"Inconsistent shapes: saw {tensor.shape} but expected {self._element_shape}")
        if infer_shape:
            self._learn(tensor.shape)
        self._items[self._checked(index)] = tensor
        self._cleared.discard(index)

    def _filled(self) -> list[Tensor]:
        """All tensors; zeros for those that were never written."""
        shape = next((t.shape for t in self._items if t is not None), self._element_shape)
        return [zeros(shape, self._dtype) if t is None else t for t in self._items]

    def identity(self) -> TensorArray:
        return self

    def write(self, index: Any, value: TensorLike, name: str | None = None) -> TensorArray:
        if symbolic := self._in_graph():
            return symbolic.write(index, value, name)
        self._set(int(index), value)
        return self

    def read(self, index: Any, name: str | None = None) -> Tensor:
        if symbolic := self._in_graph():
            return symbolic.read(index, name)
        at = int(index)
        if not 0 <= at < len(self._items):
            raise OutOfRangeError(f"TensorArray: tried to read index {at}; its size is {len(self._items)}.")
        if at in self._cleared:
            raise InvalidArgumentError(
                f"TensorArray: index {at} was read before and is cleared. Give clear_after_read=False to read it twice."
            )
        found = self._items[at]
        if found is None:
            shape = self._element_shape
            if not shape.is_fully_defined():
                raise InvalidArgumentError(f"TensorArray: index {at} was never written, and its shape is not known.")
            found = zeros(shape, self._dtype)
        if self._clears:
            self._items[at] = None
            self._cleared.add(at)
        return found

    def stack(self, name: str | None = None) -> Tensor:
        if symbolic := self._in_graph():
            return symbolic.stack(name)
        if not self._items:
            return zeros(TensorShape.of((0,)).concatenate(self._element_shape), self._dtype)
        return stack(self._filled(), name=name or "stack")

    def gather(self, indices: TensorLike, name: str | None = None) -> Tensor:
        if symbolic := self._in_graph():
            return symbolic.gather(indices, name)
        return stack([self._filled()[int(i)] for i in convert_to_tensor(indices)])

    def concat(self, name: str | None = None) -> Tensor:
        if symbolic := self._in_graph():
            return symbolic.concat(name)
        return concat(self._filled(), 0)

    def _replaced(self, values: list[Tensor], infer_shape: bool = True) -> TensorArray:
        if not self._dynamic_size and len(values) != len(self._items):
            raise ValueError(f"TensorArray has {len(self._items)} elements, received {len(values)}.")
        self._items = [None] * len(values)
        for i, value in enumerate(values):
            self._set(i, value, infer_shape)
        return self

    def unstack(self, value: TensorLike, name: str | None = None) -> TensorArray:
        if symbolic := self._in_graph():
            return symbolic.unstack(value, name)
        return self._replaced(unstack(convert_to_tensor(value, preferred_dtype=self._dtype)))

    def scatter(self, indices: TensorLike, value: TensorLike, name: str | None = None) -> TensorArray:
        if symbolic := self._in_graph():
            return symbolic.scatter(indices, value, name)
        for index, row in zip(convert_to_tensor(indices), unstack(convert_to_tensor(value)), strict=True):
            self._set(int(index), row)
        return self

    def split(self, value: TensorLike, lengths: TensorLike, name: str | None = None) -> TensorArray:
        if symbolic := self._in_graph():
            return symbolic.split(value, lengths, name)
        pieces = split(convert_to_tensor(value, preferred_dtype=self._dtype), lengths)
        return self._replaced(list(pieces), infer_shape=False)

    def size(self, name: str | None = None) -> Tensor:
        if symbolic := self._in_graph():
            return symbolic.size(name)
        return convert_to_tensor(np.int32(len(self._items)))

    def close(self, name: str | None = None) -> Any:
        self._items.clear()


TensorArray.eager_kind = EagerTensorArray
