"""Remember and Recall: they keep values of a loop's iterations for its gradient, the loop that runs backwards.

A memory is a value, like a list. It has one item per iteration, which is written once. In compiled code it has room for
a number of iterations that is known at compile time; on the host it grows.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph.checks import NotTraceable, require, require_once
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.jaxprs.symbols import as_size
from penstock.kernel import shapes
from penstock.kernel.lists import RowList, is_known
from penstock.kernel.types import Array, xp
from penstock.ops.array.creation import zeros_like_op
from penstock.ops.engine.vjp import differentiable


@jax.tree_util.register_pytree_node_class
class StackedMemory:
    """The items of all iterations, stacked: arrays, or lists with arrays inside. None before the first."""

    def __init__(self, items: Any, size: int) -> None:
        self.items = items
        self.size = size

    def tree_flatten(self) -> tuple[tuple[Any], int]:
        return (self.items,), self.size

    @classmethod
    def tree_unflatten(cls, size: int, children: tuple[Any]) -> StackedMemory:
        return cls(children[0], size)

    def with_room(self, like: Any) -> StackedMemory:
        """This memory with room for items shaped as those of `like`."""
        if self.items is not None or not isinstance(like, StackedMemory):
            return self
        return StackedMemory(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like.items), self.size)

    def zeros_like(self) -> StackedMemory:
        return StackedMemory(jax.tree.map(jnp.zeros_like, self.items), self.size)

    def __add__(self, other: Any) -> StackedMemory:
        return StackedMemory(jax.tree.map(jnp.add, self.items, other.items), self.size)

    def remember(self, index: Any, item: Any) -> StackedMemory | HostMemory:
        if is_known(index):
            return HostMemory([]).remember(index, item)
        if self.size < 0:
            raise NotTraceable("it is not known how many iterations a loop has at most")
        message = "A loop ran more often than when its iterations were counted: {} times"
        require_once((id(index), self.size), lambda: require(index < self.size, message, index + 1))
        item = _stackable(item)
        items = self.items
        if items is None:
            items = jax.tree.map(lambda x: jnp.zeros((self.size, *x.shape), x.dtype), item)
        return self._with(items, index, item)

    def _with(self, items: Any, index: Any, item: Any) -> StackedMemory:
        put = jax.tree.map(lambda rows, x: lax.dynamic_update_index_in_dim(rows, x, index, 0), items, item)
        return StackedMemory(put, self.size)

    def recall(self, index: Any) -> Any:
        if is_known(index):
            return jax.tree.map(lambda rows: rows[int(index)], self.items)
        return jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, index, keepdims=False), self.items)

    def add(self, index: Any, item: Any) -> StackedMemory:
        return self._with(self.items, index, jax.tree.map(jnp.add, self.recall(index), _stackable(item)))


def _stackable(item: Any) -> Any:
    return jax.tree.map(jnp.asarray, item.stacked() if isinstance(item, RowList) else item)


class HostMemory:
    """The items of iterations that ran on the host; in a gradient, None where nothing was added."""

    host_only = True

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def zeros_like(self) -> HostMemory:
        return HostMemory([None] * len(self.items))

    def __add__(self, other: HostMemory) -> HostMemory:
        return HostMemory([_sum(a, b) for a, b in zip(self.items, other.items, strict=True)])

    def remember(self, index: Any, item: Any) -> HostMemory:
        assert int(index) == len(self.items), "the iterations of a loop come one after the other"
        # All versions of a memory share the list: an item is written once, and read only after the loop.
        self.items.append(item)
        return self

    def recall(self, index: Any) -> Any:
        return self.items[int(index)]

    def add(self, index: Any, item: Any) -> HostMemory:
        items = list(self.items)
        items[int(index)] = _sum(items[int(index)], item)
        return HostMemory(items)


def _sum(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else one + other


Memory = StackedMemory | HostMemory


@op("IterationMemory", "int32 -> memory: variant", static="iterations", shape=shapes.scalar, no_gradient=True)
def iteration_memory(iterations: Array) -> Memory:
    """An empty memory. In compiled code it has room for `iterations` items; -1 means that it runs only on the host."""
    return StackedMemory(None, as_size(iterations) or 1)


def _remember_grad(op: Operation, dmemory: Any) -> list[Any]:
    _, index, item = op.input_list
    gradient = recall_gradient(dmemory, index, item) if differentiable(item.dtype) else None
    return [dmemory, None, gradient]


@op("Remember", "variant, int32, T -> output: variant", shape=shapes.scalar, grad=_remember_grad)
def remember(memory: Memory, index: Array, item: Any) -> Memory:
    """`memory` with the item of iteration `index`."""
    return memory.remember(index, item)


def _recall_grad(op: Operation, dy: Any) -> list[Any]:
    memory, index = op.input_list
    return [add_to_memory(zeros_like_op(memory), index, dy), None]


@op("Recall", "variant, int32 -> item: T", grad=_recall_grad, shape=lambda op: [op.attrs["shape"]])
def recall(memory: Memory, index: Array, *, T: DType, shape: TensorShape) -> Any:
    """The item of iteration `index`."""
    return memory.recall(index)


def _recall_gradient_grad(op: Operation, dy: Any) -> list[Any]:
    memory, index, _ = op.input_list
    return [add_to_memory(zeros_like_op(memory), index, dy), None, None]


@op(
    "RecallGradient",
    "variant, int32, T -> gradient: T",
    grad=_recall_gradient_grad,
    shape=lambda op: [op.input_list[2].shape],
)
def recall_gradient(memory: Memory, index: Array, like: Any) -> Any:
    """The sum added for iteration `index` to the gradient of a memory; zeros `like` the item if nothing was added."""
    found = memory.recall(index)
    if found is not None:
        return found
    return like.zeros_like() if hasattr(like, "zeros_like") else xp(like).zeros_like(like)


def _add_to_memory_grad(op: Operation, dmemory: Any) -> list[Any]:
    _, index, item = op.input_list
    return [dmemory, None, recall_gradient(dmemory, index, item)]


@op("AddToMemory", "variant, int32, T -> output: variant", shape=shapes.scalar, grad=_add_to_memory_grad)
def add_to_memory(memory: Memory, index: Array, item: Any) -> Memory:
    """`memory` with `item` added to that of iteration `index`."""
    return memory.add(index, item)


def _rows_grad(op: Operation, dy: Any) -> list[Any]:
    return [memory_of_rows(op.input_list[0], dy), None]


@op("RowsOfMemory", "variant, int32 -> rows: T", shape=lambda op: [op.attrs["shape"]], grad=_rows_grad)
def rows_of_memory(memory: Memory, count: Array, *, T: DType, shape: TensorShape) -> Any:
    """The items of the first `count` iterations, joined along their first dimension: parts of IndexedSlices.

    Compiled code has fixed shapes, so its result also has rows for iterations that did not run. They are zeros, and
    their indices repeat that of the first row, so that they add no other row.
    """
    if isinstance(memory, HostMemory):
        return np.concatenate([np.asarray(item) for item in memory.items])
    if memory.items is None:  # the loop ran on the host, for no iteration
        return np.zeros([d or 0 for d in (0, *shape.as_list()[1:])], T.as_numpy_dtype)
    items = memory.items
    if not T.is_floating:
        ran = jnp.arange(memory.size).reshape(-1, *[1] * (items.ndim - 1)) < count
        items = jnp.where(ran, items, items.reshape(-1)[0])
    return items.reshape((-1, *items.shape[2:]))


def _memory_of_rows_grad(op: Operation, dmemory: Any) -> list[Any]:
    rows = op.input_list[1]
    count = rows_in_memory(op.input_list[0])
    return [None, rows_of_memory(dmemory, count, T=rows.dtype.base_dtype, shape=rows.shape)]


@op("MemoryOfRows", "variant, T -> memory: variant", shape=shapes.scalar, grad=_memory_of_rows_grad)
def memory_of_rows(like: Memory, rows: Array) -> Memory:
    """A memory of consecutive rows; its items have the shapes of those of `like`."""
    if isinstance(like, HostMemory):
        ends = np.cumsum([len(item) for item in like.items])
        return HostMemory(np.split(np.asarray(rows), ends[:-1]))
    return like if like.items is None else StackedMemory(rows.reshape(like.items.shape), like.size)


@op("RowsInMemory", "variant -> count: int32", shape=shapes.scalar, no_gradient=True)
def rows_in_memory(memory: Memory) -> Array:
    """The number of iterations that a memory has items for."""
    return np.array(len(memory.items) if isinstance(memory, HostMemory) else memory.size, np.int32)
