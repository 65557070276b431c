"""The values of lists of tensors while a graph runs.

A list is an immutable value: a write returns a new one. `StackedList` keeps its items as the rows of one array, which
compiled loops need. `RowList` keeps each item separately, so that items may differ in shape; it is for the host and
for code in which every index is known. Both are pytrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph.checks import NotTraceable, require
from penstock.kernel.types import xp


class UnknownItem(ValueError):
    """Raised when an item is read that was never written and whose shape is unknown."""


def is_known(*values: Any) -> bool:
    """Tells if all values are NumPy's: on the host all are, in compiled code only constants."""
    return all(isinstance(v, (np.ndarray, np.generic, int)) for v in values)


def zeros(dims: Sequence[int], dtype: Any) -> Any:
    """Unwritten items: zeros, or empty strings."""
    return np.full(dims, b"", object) if np.dtype(dtype) == object else np.zeros(dims, dtype)


def _require_index(index: Any, size: int, what: str) -> None:
    ok = (index >= 0) & (index < size)
    require(ok, "Tried to " + what + " index {} of a TensorArray whose size is " + str(size), index)


@jax.tree_util.register_pytree_node_class
class StackedList:
    """Items as rows of one array; the array is None until the shape of an item is known.

    `cleared` marks rows that count as zeros although the array holds other values: XLA would copy the whole array
    to clear a row that it also reads.
    """

    def __init__(
        self, items: Any, size: int, dtype: Any, item_shape: tuple[int, ...] | None = None, cleared: Any = None
    ) -> None:
        self.items = items
        self.size = size
        self.dtype = dtype
        self.item_shape = item_shape  # the declared shape, until there is an array
        self.cleared = cleared

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
        return (self.items, self.cleared), (self.size, self.dtype, self.item_shape)

    @classmethod
    def tree_unflatten(cls, aux: tuple[Any, ...], children: tuple[Any, Any]) -> StackedList:
        size, dtype, item_shape = aux
        return cls(children[0], size, dtype, item_shape, children[1])

    def with_room(self, like: Any) -> Any:
        """This list with an array for items like `like`."""
        if not isinstance(like, StackedList) or like.items is None:
            return self
        items = jnp.zeros(like.items.shape, like.items.dtype) if self.items is None else self.items
        none = None if like.cleared is None else jnp.zeros(self.size, bool)
        return self._with(items, none if self.cleared is None else self.cleared)

    def _with(self, items: Any, cleared: Any) -> StackedList:
        return StackedList(items, self.size, self.dtype, None, cleared)

    def _is_on_host(self, index: Any, *items: Any) -> bool:
        """Tells if NumPy can do the operation: nothing here is part of compiled code."""
        return is_known(index, *items) and self.cleared is None and (self.items is None or is_known(self.items))

    def zeros_like(self) -> StackedList:
        items = None if self.items is None else xp(self.items).zeros_like(self.items)
        return StackedList(items, self.size, self.dtype, self.item_shape)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, RowList):
            return self.rows() + other
        if self.items is None or other.items is None:
            return other if self.items is None else self
        return self._with(self._all() + other._all(), None)

    def rows(self) -> RowList:
        """The same list with each item stored separately."""
        rows = [None] * self.size if self.items is None else [self._all()[i, ...] for i in range(self.size)]
        return RowList(rows, self.dtype, self.item_shape)

    def _all(self, shape: tuple[int, ...] | None = None) -> Any:
        """All items, cleared rows as zeros; `shape` is that of an item, if it is known."""
        if self.items is None:
            shape = self.item_shape if shape is None else shape
            if shape is None:
                raise UnknownItem
            return jnp.zeros((self.size, *shape), self.dtype)
        if self.cleared is None:
            return self.items
        cleared = self.cleared.reshape(-1, *[1] * (self.items.ndim - 1))
        return jnp.where(cleared, jnp.zeros((), self.items.dtype), self.items)

    def _row(self, index: Any) -> Any:
        row = jax.lax.dynamic_index_in_dim(self.items, index, keepdims=False)
        return row if self.cleared is None else jnp.where(self.cleared[index], jnp.zeros((), row.dtype), row)

    def _with_row(self, index: Any, row: Any) -> StackedList:
        items = jax.lax.dynamic_update_index_in_dim(self.items, jnp.asarray(row), index, 0)
        return self._with(items, None if self.cleared is None else self.cleared.at[index].set(False))

    def get(self, index: Any, shape: tuple[int, ...] | None) -> Any:
        """The item at `index`; `shape` is its declared shape, if that is known."""
        _require_index(index, self.size, "read from")
        if self.items is None and is_known(index):
            return self.rows().get(index, shape)
        if self._is_on_host(index):
            return self.items[int(index), ...]
        items = self._all(shape) if self.items is None else self.items
        if items.shape[0] == 0:
            return zeros(items.shape[1:], items.dtype)
        return self._with(items, self.cleared)._row(index)

    def take(self, index: Any, shape: tuple[int, ...]) -> tuple[StackedList | RowList, Any]:
        """A list without the item at `index`, and that item."""
        if self.items is None or self._is_on_host(index):
            return self.rows().take(index, shape)
        if self.size == 0:
            return self, self.get(index, shape)
        cleared = jnp.zeros(self.size, bool) if self.cleared is None else self.cleared
        item = self.get(index, shape)
        return self._with(self.items, cleared.at[index].set(True)), item

    def set(self, index: Any, item: Any) -> StackedList | RowList:
        """A list with `item` at `index`."""
        if is_known(index) and (self.items is None or self._is_on_host(index, item)):
            return self.rows().set(index, item)
        _require_index(index, self.size, "write to")
        items = self._room_for(item)
        return self._with(items, None) if self.size == 0 else self._with(items, self.cleared)._with_row(index, item)

    def _room_for(self, item: Any) -> Any:
        if self.items is None:
            return jnp.zeros((self.size, *item.shape), item.dtype)
        if self.items.shape[1:] != item.shape:
            raise ValueError(
                f"an element of shape {item.shape} does not fit a TensorArray of elements {self.items.shape[1:]}."
            )
        return self.items

    def add(self, index: Any, item: Any) -> StackedList | RowList:
        """A list with `item` added to the one at `index`."""
        if is_known(index) and (self.items is None or self._is_on_host(index, item)):
            return self.rows().add(index, item)
        items = self._room_for(item)
        if self.size == 0:
            return self._with(items, None)
        whole = self._with(items, self.cleared)
        return whole._with_row(index, whole._row(index) + item)

    def resized(self, size: int) -> StackedList | RowList:
        """This list with `size` items, those beyond its own unwritten."""
        return self if size <= self.size else self.rows().resized(size)

    def stack(self, shape: tuple[int, ...] | None) -> Any:
        """All items along a new first dimension."""
        return self._all(shape)

    def items_at(self, indices: Any, shape: tuple[int, ...] | None) -> Any:
        """The items at `indices`, stacked."""
        items = self._all(shape)
        return items[np.asarray(indices)] if is_known(indices, items) else jnp.take(items, indices, axis=0)

    def scatter(self, indices: Any, tensor: Any) -> StackedList | RowList:
        """A list with the rows of `tensor` at `indices`."""
        return self._rows_changed(indices, tensor, "scatter", "set")

    def add_rows(self, indices: Any, tensor: Any) -> StackedList | RowList:
        """A list with the rows of `tensor` added to the items at `indices`."""
        return self._rows_changed(indices, tensor, "add_rows", "add")

    def _rows_changed(self, indices: Any, tensor: Any, own: str, change: str) -> StackedList | RowList:
        if is_known(indices) and (self.items is None or self._is_on_host(indices, tensor)):
            result: StackedList | RowList = getattr(self.rows(), own)(indices, tensor)
            return result
        items = self._all(tensor.shape[1:])
        return self._with(getattr(jnp.asarray(items).at[indices], change)(tensor), None)

    def concat(self, shape: tuple[int, ...] | None) -> Any:
        """All items joined along their first dimension."""
        items = self._all(shape)
        if items.ndim < 2:
            raise ValueError("the elements of a TensorArray must have a first dimension to be joined along")
        return items.reshape((-1, *items.shape[2:]))

    def lengths(self) -> Any:
        """The size of the first dimension of each item."""
        return np.full(self.size, self._all().shape[1], np.int64)


@jax.tree_util.register_pytree_node_class
class RowList:
    """Items stored separately, None if nothing was written. An index must be known."""

    def __init__(self, items: Sequence[Any], dtype: Any, shape: tuple[int, ...] | None = None) -> None:
        self.items = list(items)
        self.dtype = dtype
        self.item_shape = shape  # the declared shape of an item

    @property
    def size(self) -> int:
        return len(self.items)

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, ...]]:
        return self.items, (self.dtype, self.item_shape)

    @classmethod
    def tree_unflatten(cls, aux: tuple[Any, ...], children: Sequence[Any]) -> RowList:
        return cls(children, *aux)

    def stacked(self) -> StackedList:
        """The same list in the form that compiled loops need; NotTraceable if items differ in shape."""
        written = [i for i in self.items if i is not None]
        if not written:
            return StackedList(None, self.size, self.dtype, self.item_shape)
        if len({i.shape for i in written}) > 1:
            raise NotTraceable("the elements of a TensorArray differ in shape")
        rows = [zeros(written[0].shape, self.dtype) if i is None else i for i in self.items]
        return StackedList(jnp.stack(rows), self.size, self.dtype)

    def zeros_like(self) -> RowList:
        return self._with([None if i is None else xp(i).zeros_like(i) for i in self.items])

    def __add__(self, other: Any) -> RowList:
        pairs = zip(self.items, other.rows().items, strict=True)
        return self._with([b if a is None else a if b is None else a + b for a, b in pairs])

    def rows(self) -> RowList:
        return self

    def _with(self, items: Sequence[Any]) -> RowList:
        return RowList(items, self.dtype, self.item_shape)

    def _changed(self, index: int, item: Any) -> RowList:
        return self._with([*self.items[:index], item, *self.items[index + 1 :]])

    def _position(self, index: Any, what: str) -> int:
        if not is_known(index):
            raise NotTraceable("an index of a TensorArray whose elements may differ in shape must be known")
        _require_index(np.asarray(index), self.size, what)
        return int(index)

    def _item(self, position: int, shape: tuple[int, ...] | None) -> Any:
        item = self.items[position]
        if item is not None:
            return item
        shape = self.item_shape if shape is None else shape
        if shape is None:
            raise UnknownItem
        return zeros(shape, self.dtype)

    def get(self, index: Any, shape: tuple[int, ...] | None) -> Any:
        return self._item(self._position(index, "read from"), shape)

    def set(self, index: Any, item: Any) -> RowList:
        return self._changed(self._position(index, "write to"), item)

    def take(self, index: Any, shape: tuple[int, ...]) -> tuple[RowList, Any]:
        return self._changed(self._position(index, "read from"), None), self.get(index, shape)

    def add(self, index: Any, item: Any) -> RowList:
        position = self._position(index, "write to")
        before = self.items[position]
        return self._changed(position, item if before is None else before + item)

    def resized(self, size: int) -> RowList:
        return self._with([*self.items, *[None] * (size - self.size)])

    def _all(self, shape: tuple[int, ...] | None) -> list[Any]:
        if shape is None and self.item_shape is None:
            written = {i.shape for i in self.items if i is not None}
            shape = written.pop() if len(written) == 1 else None
        return [self._item(i, shape) for i in range(self.size)]

    def stack(self, shape: tuple[int, ...] | None) -> Any:
        if not self.items:
            declared = self.item_shape if shape is None else shape
            if declared is None:
                raise UnknownItem
            return zeros((0, *declared), self.dtype)
        return _joined(self._all(shape), lambda items: xp(*items).stack(items))

    def items_at(self, indices: Any, shape: tuple[int, ...] | None) -> Any:
        if not is_known(indices):
            raise NotTraceable("indices of a TensorArray whose elements may differ in shape must be known")
        chosen = [self.get(i, shape) for i in np.asarray(indices).reshape(-1)]
        return RowList(chosen, self.dtype, self.item_shape).stack(shape)

    def scatter(self, indices: Any, tensor: Any) -> RowList:
        return self._rows_changed(indices, tensor, RowList.set)

    def add_rows(self, indices: Any, tensor: Any) -> RowList:
        return self._rows_changed(indices, tensor, RowList.add)

    def _rows_changed(self, indices: Any, tensor: Any, change: Any) -> RowList:
        if not is_known(indices):
            raise NotTraceable("indices of a TensorArray whose elements may differ in shape must be known")
        result = self
        for row, index in enumerate(np.asarray(indices).reshape(-1)):
            result = change(result, index, tensor[row])
        return result

    def concat(self, shape: tuple[int, ...] | None) -> Any:
        if not self.items:
            declared = self.item_shape if shape is None else shape
            if not declared:
                raise UnknownItem
            return zeros((0, *declared[1:]), self.dtype)
        return _joined(self._all(shape), lambda items: xp(*items).concatenate(items))

    def lengths(self) -> Any:
        return np.array([i.shape[0] for i in self._all(None)], np.int64)


def _joined(items: list[Any], join: Any) -> Any:
    try:
        return join(items)
    except ValueError as error:
        shapes = sorted({str(list(i.shape)) for i in items})
        raise ValueError(f"the elements of a TensorArray have shapes that do not fit: {', '.join(shapes)}") from error
