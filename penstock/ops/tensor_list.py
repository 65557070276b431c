"""Lists of tensors of one shape, which TensorArray is made of. A list is a value: writing gives a new one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph.checks import require, require_in_range
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.ops import shapes
from penstock.ops.types import INDEX32, Array, xp


@jax.tree_util.register_pytree_node_class
class ListValue:
    """The items as rows of one array; without room (None) until the shape of an item is known."""

    def __init__(self, items: Any, size: int, dtype: Any) -> None:
        self.items = items
        self.size = size
        self.element_dtype = dtype

    def tree_flatten(self) -> tuple[tuple[Any], tuple[int, Any]]:
        return (self.items,), (self.size, self.element_dtype)

    @classmethod
    def tree_unflatten(cls, aux: tuple[int, Any], children: tuple[Any]) -> ListValue:
        return cls(children[0], *aux)

    def with_room(self, like: ListValue) -> ListValue:
        """This list with room for items as `like` has them."""
        if like.items is None:
            return self
        items = jnp.zeros(like.items.shape, like.items.dtype)
        if self.items is not None:
            if self.items.shape[0] >= like.items.shape[0]:
                return self
            items = items.at[: self.items.shape[0]].set(self.items)
        return ListValue(items, like.size, self.element_dtype)

    def required(self) -> Any:
        """The items; an error if nothing was ever written and the shape is not known."""
        if self.items is None:
            raise ValueError(
                "Could not read from the TensorArray: nothing was written, and the shape of its elements is not known."
            )
        return self.items


class _Room(threading.local):
    rows: int | None = None


_ROOM = _Room()


@contextmanager
def growing_lists(rows: int) -> Iterator[None]:
    """While a loop is traced whose lists grow: gives them `rows` rows at once, or with 0 drops what is written."""
    before, _ROOM.rows = _ROOM.rows, rows
    try:
        yield
    finally:
        _ROOM.rows = before


def _index_must_be_known(attrs: dict[str, Any]) -> frozenset[int]:
    return frozenset({1} if attrs["resize_if_index_out_of_bounds"] and _ROOM.rows is None else ())


def _declared(element_shape: Any) -> TensorShape:
    """The shape of an item as an input gives it; a scalar -1 says that nothing is known."""
    return TensorShape.of(None) if element_shape.shape.rank == 0 else constant_value_as_shape(element_shape)


def _item_shape(op: Operation) -> list[TensorShape]:
    return [_declared(op.input_list[-1])]


@op("TensorListReserve", "shape_type, int32 -> handle: variant", static="element_shape num_elements",
    shape=shapes.scalar, shape_type=INDEX32)  # fmt: skip
def tensor_list_reserve(element_shape: Array, num_elements: Array, *, element_dtype: DType) -> ListValue:
    size = int(num_elements)
    known = element_shape.ndim == 1 and all(int(d) >= 0 for d in element_shape)
    dtype = element_dtype.as_numpy_dtype
    # Strings are no arrays of jax: their rows are made where the first is written, which is on the host.
    items = jnp.zeros((size, *map(int, element_shape)), dtype) if known and dtype is not object else None
    return ListValue(items, size, np.dtype(dtype))


@op("TensorListFromTensor", "element_dtype, shape_type -> output_handle: variant", static="element_shape",
    shape=shapes.scalar, shape_type=INDEX32)  # fmt: skip
def tensor_list_from_tensor(tensor: Array, element_shape: Array) -> ListValue:
    items = tensor if tensor.dtype == object else jnp.asarray(tensor)
    return ListValue(items, tensor.shape[0], tensor.dtype)


@op("TensorListStack", "variant, int32 -> tensor: element_dtype", static="element_shape",
    shape=lambda op: [TensorShape.of((None,)).concatenate(_declared(op.input_list[1]))])  # fmt: skip
def tensor_list_stack(
    input_handle: ListValue, element_shape: Array, *, element_dtype: DType, num_elements: int = -1
) -> Array:
    if input_handle.items is None and input_handle.size == 0 and all(int(d) >= 0 for d in element_shape.reshape(-1)):
        return _zeros((0, *map(int, element_shape)), element_dtype.as_numpy_dtype)
    return input_handle.required()


@op("TensorListGetItem", "variant, int32, int32 -> item: element_dtype", static="element_shape", shape=_item_shape)
def tensor_list_get_item(input_handle: ListValue, index: Array, element_shape: Array, *, element_dtype: DType) -> Array:
    items = input_handle.required()
    _require_index(index, input_handle.size, "read from")
    if items.dtype == object:
        return items[int(index), ...]
    if items.shape[0] == 0:
        return jnp.zeros(items.shape[1:], items.dtype)
    return jax.lax.dynamic_index_in_dim(items, index, keepdims=False)


@op("TensorListSetItem", "variant, int32, element_dtype -> output_handle: variant", shape=shapes.scalar,
    static_of=_index_must_be_known)  # fmt: skip
def tensor_list_set_item(
    input_handle: ListValue, index: Array, item: Array, *, resize_if_index_out_of_bounds: bool = False
) -> ListValue:
    size = input_handle.size
    items = input_handle.items
    least = size
    if resize_if_index_out_of_bounds:
        if _ROOM.rows == 0:
            return input_handle
        least = int(index) + 1 if _ROOM.rows is None else _ROOM.rows
    if least > size:
        size = least
        if items is not None:
            more = _zeros((size - items.shape[0], *items.shape[1:]), items.dtype)
            items = xp(items, more).concatenate([items, more])
    _require_index(index, size, "write to")
    if items is None:
        items = _zeros((size, *item.shape), item.dtype)
    elif items.shape[1:] != item.shape:
        raise ValueError(f"an element of shape {item.shape} does not fit a TensorArray of elements {items.shape[1:]}.")
    if size == 0:
        return ListValue(items, size, input_handle.element_dtype)
    if items.dtype == object:
        items = items.copy()
        items[int(index), ...] = item
        return ListValue(items, size, input_handle.element_dtype)
    return ListValue(
        jax.lax.dynamic_update_index_in_dim(items, jnp.asarray(item), index, 0), size, input_handle.element_dtype
    )


@op("TensorListLength", "variant -> length: int32", shape=shapes.scalar)
def tensor_list_length(input_handle: ListValue) -> Array:
    return np.array(input_handle.size, np.int32)


@op("TensorListGather", "variant, int32, int32 -> values: element_dtype", static="element_shape",
    shape=lambda op: [op.input_list[1].shape.concatenate(_declared(op.input_list[2]))])  # fmt: skip
def tensor_list_gather(input_handle: ListValue, indices: Array, element_shape: Array, *, element_dtype: DType) -> Array:
    items = input_handle.required()
    if items.dtype == object:
        require_in_range(np.asarray(indices), len(items))
        return items[np.asarray(indices)]
    return jnp.take(items, indices, axis=0)


@op("TensorListScatterIntoExistingList", "variant, element_dtype, int32 -> output_handle: variant", shape=shapes.scalar)
def tensor_list_scatter(input_handle: ListValue, tensor: Array, indices: Array) -> ListValue:
    items = input_handle.items
    if items is None:
        items = _zeros((input_handle.size, *tensor.shape[1:]), tensor.dtype)
    if items.dtype == object:
        require_in_range(np.asarray(indices), len(items))
        items = items.copy()
        items[np.asarray(indices)] = tensor
        return ListValue(items, input_handle.size, input_handle.element_dtype)
    return ListValue(items.at[indices].set(tensor), input_handle.size, input_handle.element_dtype)


def _zeros(dims: tuple[int, ...], dtype: Any) -> Any:
    """Rows that nothing was written to; of strings, empty ones."""
    return np.full(dims, b"", object) if np.dtype(dtype) == object else jnp.zeros(dims, dtype)


def _require_index(index: Array, size: int, what: str) -> None:
    ok = (index >= 0) & (index < size)
    require(ok, "Tried to " + what + " index {} of a TensorArray whose size is " + str(size), index)
