"""Batching: joins several elements into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.data.nodes import Element
from penstock.data.sparse_ops import Sparse
from penstock.errors import DataLossError, InvalidArgumentError, UnimplementedError
from penstock.kernel.waiting import as_handle


def stacked(elements: list[Element]) -> Element:
    """Stacks elements of equal shapes into one with an additional first dimension."""
    return tuple(_stack(column, i) for i, column in enumerate(zip(*elements, strict=True)))


def _stack(arrays: Sequence[Any], component: int) -> Any:
    first = arrays[0]
    shape = first.shape
    for i, array in enumerate(arrays):
        if array.shape != shape:
            raise InvalidArgumentError(
                f"Cannot batch tensors with different shapes in component {component}. First element had shape "
                f"{list(shape)} and element {i} had shape {list(array.shape)}."
            )
    batch = np.empty((len(arrays), *shape), first.dtype)
    for i, array in enumerate(arrays):
        batch[i, ...] = array
    return batch


def taking(components: Sequence[np.ndarray]) -> Callable[[list[int]], Element]:
    """Returns a function from row numbers to a batch of those rows."""

    def take(rows: list[int]) -> Element:
        index = np.array(rows, np.intp)
        return tuple(c.take(index, axis=0) for c in components)

    return take


def sparse(row_shape: Sequence[int]) -> Callable[[list[Element]], Element]:
    """Returns a function from elements to a sparse batch with rows of `row_shape`; -1: as long as the longest."""

    def join(elements: list[Element]) -> Element:
        rows = [row for (row,) in elements]
        for row in rows:
            if row.ndim != len(row_shape) or any(0 <= w < n for n, w in zip(row.shape, row_shape, strict=True)):
                raise InvalidArgumentError(
                    f"Input element had shape {list(row.shape)} that is incompatible with the row shape "
                    f"{list(row_shape)}."
                )
        longest = [max(row.shape[d] for row in rows) for d in range(len(row_shape))]
        dims = [n if w < 0 else w for n, w in zip(longest, row_shape, strict=True)]
        places = [np.argwhere(np.ones(row.shape, bool)) for row in rows]
        indices = np.concatenate([np.insert(where, 0, i, axis=1) for i, where in enumerate(places)])
        values = np.concatenate([row.reshape(-1) for row in rows])
        return (as_handle(Sparse(indices.astype(np.int64), values, np.array([len(rows), *dims], np.int64))),)

    return join


def padding(shapes: Sequence[Sequence[int]], values: Sequence[Any]) -> Callable[[list[Element]], Element]:
    """Returns a function from elements to a padded batch; -1 in `shapes` means the length of the longest element."""

    def join(elements: list[Element]) -> Element:
        columns = zip(*elements, strict=True)
        return tuple(
            _padded(column, shape, value, i)
            for i, (column, shape, value) in enumerate(zip(columns, shapes, values, strict=True))
        )

    return join


def _padded(arrays: Sequence[Any], shape: Sequence[int], value: Any, component: int) -> Any:
    for array in arrays:
        if array.ndim != len(shape):
            raise InvalidArgumentError(
                f"All elements in a batch must have the same rank as the padded shape for component {component}: "
                f"expected rank {len(shape)} but got element with rank {array.ndim}."
            )
    sizes = [max(a.shape[d] for a in arrays) for d in range(len(shape))]
    for d, wanted in enumerate(shape):
        if wanted >= 0:
            if sizes[d] > wanted:
                longest = next(a for a in arrays if a.shape[d] > wanted)
                raise _too_long(longest.shape, shape, component)
            sizes[d] = wanted
    if arrays[0].dtype == object and not isinstance(value, (bytes, str)) and np.asarray(value).dtype != object:
        raise UnimplementedError(f"Component {component} cannot be padded.")
    batch = np.empty((len(arrays), *sizes), arrays[0].dtype)
    batch[...] = value
    for i, array in enumerate(arrays):
        where: tuple[Any, ...] = (i, *(slice(n) for n in array.shape))
        batch[where] = array
    return batch


def _too_long(found: Sequence[int], shape: Sequence[int], component: int) -> DataLossError:
    return DataLossError(
        f"Attempted to pad to a smaller size than the input element: component {component} has shape {list(found)}, "
        f"the padded shape is {list(shape)}."
    )
