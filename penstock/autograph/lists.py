"""Lists and subscripts in code that is converted with `Feature.LISTS`."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from malt.operators import GetItemOpts, ListPopOpts, ListStackOpts

from penstock.autograph.dispatch import becomes_nodes
from penstock.graph import dtype as dt
from penstock.ops.array.gathering import tensor_scatter_nd_update
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.string.forms import substr

_OPERATORS = {
    "add": operator.add,
    "sub": operator.sub,
    "mult": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
}


def new_list(iterable: Iterable[Any] = ()) -> list[Any]:
    """`[...]`."""
    return list(iterable)


def list_append(target: Any, x: Any) -> Any:
    """`target.append(x)`; returns the target, or the TensorArray that takes its place."""
    if isinstance(target, TensorArray):
        return target.write(target.size(), x)
    target.append(x)
    return target


def list_pop(target: Any, i: Any, opts: ListPopOpts) -> tuple[Any, Any]:
    """`target.pop(i)`, after the target."""
    if isinstance(target, TensorArray):
        raise ValueError("TensorArray does not support item removal")
    return target, target.pop() if i is None else target.pop(i)


def list_stack(target: Any, opts: ListStackOpts) -> Any:
    """`stack(target)`."""
    if isinstance(target, TensorArray):
        return target.stack()
    return target if becomes_nodes(target) else opts.original_call(target)


def get_item(target: Any, i: Any, opts: GetItemOpts) -> Any:
    """`target[i]`; of a string tensor one character."""
    if isinstance(target, TensorArray):
        return target.read(i)
    if becomes_nodes(target) and target.dtype.base_dtype is dt.string and target.shape.rank == 0:
        return substr(target, i, 1)
    return target[i]


def set_item(target: Any, i: Any, x: Any) -> Any:
    """`target[i] = x`; returns the target, or the tensor or TensorArray that takes its place."""
    if isinstance(target, TensorArray):
        return target.write(i, x)
    if becomes_nodes(target):
        return tensor_scatter_nd_update(target, [[i]], [x])
    target[i] = x
    return target


def update_item_with_op(target: Any, i: Any, x: Any, op: str) -> Any:
    """`target[i] += x`, or another operator; returns as `set_item` does."""
    return set_item(target, i, _OPERATORS[op](get_item(target, i, GetItemOpts(element_dtype=None)), x))
