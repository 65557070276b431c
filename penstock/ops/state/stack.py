"""Stacks: a step pushes values and pops them in the opposite order. A stack lives as long as its step."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.types import Array
from penstock.kernel.waiting import as_handle, behind
from penstock.ops.array.passthrough import refuse_gradient


class Stack:
    """Values of one type, at most `max_size` of them unless that is negative."""

    def __init__(self, name: str, dtype: DType, max_size: int) -> None:
        self.name = name
        self.dtype = dtype
        self._max_size = max_size
        self._lock = threading.Lock()
        self._values: list[Any] | None = []  # None once it is closed

    def push(self, value: Any, dtype: DType) -> None:
        """Puts a value on top."""
        with self._lock:
            values = self._open(dtype)
            if 0 <= self._max_size <= len(values):
                raise self._refused(f"overflowed its max_size ({self._max_size})")
            values.append(value)

    def pop(self, dtype: DType) -> Any:
        """Takes the value on top."""
        with self._lock:
            values = self._open(dtype)
            if not values:
                raise self._refused("is empty when calling Pop()")
            return values.pop()

    def close(self) -> None:
        """Forgets the values; nothing can be pushed or popped any more."""
        with self._lock:
            self._values = None

    def _open(self, dtype: DType) -> list[Any]:
        if self._values is None:
            raise self._refused("has already been closed")
        if dtype != self.dtype:
            raise self._refused(f"holds {self.dtype.name}, not {dtype.name}")
        return self._values

    def _refused(self, what: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"Stack[{self.name}] {what}.")


def _pair(node: Operation) -> list[TensorShape]:
    return [TensorShape.of((2,))]  # two elements as in TensorFlow, though it is one handle


@op("StackV2", "int32 -> handle: resource", host=True, stateful=True, no_gradient=True, shape=_pair)
def stack_v2(max_size: Array, *, elem_type: DType, stack_name: str = "") -> np.ndarray:
    """A new stack: `handle = tf.raw_ops.StackV2(max_size=10, elem_type=tf.float32)`."""
    return as_handle(Stack(stack_name, elem_type, int(np.asarray(max_size))))


@op("StackPushV2", "resource, T -> output: T", host=True, stateful=True, grad=refuse_gradient, shape=shapes.same_as(1))
def stack_push_v2(handle: Any, elem: Array, *, T: DType, swap_memory: bool = False) -> Any:
    """Puts a value on top of a stack, and returns it."""
    behind(handle).push(elem, T)
    return elem


@op("StackPopV2", "resource -> elem: elem_type", host=True, stateful=True, no_gradient=True, shape=shapes.unknown)
def stack_pop_v2(handle: Any, *, elem_type: DType) -> Any:
    """Takes the value on top of a stack."""
    return behind(handle).pop(elem_type)


@op("StackCloseV2", "resource ->", host=True, stateful=True, no_gradient=True)
def stack_close_v2(handle: Any) -> None:
    """Frees a stack."""
    behind(handle).close()
