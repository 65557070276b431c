"""Jacobians of tapes: one walk backwards for each element of the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.autodiff.walk import UnconnectedGradients
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.ops.array.creation import zeros
from penstock.ops.array.joining import concat, stack
from penstock.ops.array.reshaping import reshape, shape, size
from penstock.ops.array.slicing import slice as slice_
from penstock.ops.control.folds import map_fn
from penstock.ops.linalg.diag import eye

Gradients = Callable[[Any], list[Any]]  # from the gradient of the target to those of the sources, some None


def jacobian(gradients: Gradients, target: Tensor, sources: Any, unconnected: UnconnectedGradients) -> Any:
    """The derivatives of each element of `target`, of shape `target.shape + source.shape`, as the sources nest."""
    flat = nest.flatten(sources)
    dims: Any = target.shape.as_list() if target.shape.is_fully_defined() else None
    if dims is None:
        rows: list[Any] | None = _mapped_rows(gradients, target)
    else:
        count = math.prod(dims)
        basis = np.eye(count, dtype=target.dtype.as_numpy_dtype).reshape(count, *dims)
        rows = _stacked([gradients(convert_to_tensor(row, dtype=target.dtype)) for row in basis])
    found: list[Any] = []
    for source, part in zip(flat, rows or [None] * len(flat), strict=True):
        if part is None and unconnected is UnconnectedGradients.NONE:
            found.append(None)
            continue
        sizes = concat([shape(target), shape(source)], 0)
        found.append(zeros(sizes, source.dtype) if part is None else reshape(part, sizes))
    return nest.pack_sequence_as(sources, found) if nest.is_nested(sources) else found[0]


def batch_jacobian(gradients: Gradients, target: Any, source: Any, unconnected: UnconnectedGradients) -> Any:
    """The jacobian of each example. One walk serves an element of all examples, which do not depend on each other."""
    dims = target.shape.as_list()
    if not dims or not source.shape.rank:
        raise IndexError(f"batch_jacobian: target and source need a batch dimension, received {target!r}, {source!r}.")
    batch = source.shape.as_list()[0]
    if dims[0] is not None and batch is not None and dims[0] != batch:
        raise ValueError(
            f"batch_jacobian: the first dimensions of target and source must be equal, received {target.shape} and "
            f"{source.shape}."
        )
    if None in dims[1:]:
        raise ValueError(f"batch_jacobian: the shape of an example of the target must be known, it is {target.shape}.")
    count = math.prod(dims[1:])
    basis = np.eye(count, dtype=target.dtype.as_numpy_dtype).reshape(count, 1, *dims[1:])
    ones = target * 0 + 1
    columns = _stacked([gradients(ones * convert_to_tensor(row, dtype=target.dtype)) for row in basis], axis=1)
    sizes = concat([shape(target), slice_(shape(source), [1], [-1])], 0)
    if columns is None or columns[0] is None:
        return None if unconnected is UnconnectedGradients.NONE else zeros(sizes, source.dtype)
    return reshape(columns[0], sizes)


def _stacked(rows: list[list[Any]], axis: int = 0) -> list[Any] | None:
    if not rows:
        return None
    columns = [[None if g is None else convert_to_tensor(g) for g in column] for column in zip(*rows, strict=True)]
    return [None if c[0] is None else stack(c, axis=axis) for c in columns]


def _mapped_rows(gradients: Gradients, target: Any) -> list[Any]:
    """The rows for a target whose shape is known only when the graph runs: by a loop in the graph."""
    basis = eye(size(target), dtype=target.dtype)
    probe = gradients(target * 0 + 1)
    connected = [i for i, g in enumerate(probe) if g is not None]

    def row(one_hot: Tensor) -> list[Tensor]:
        found = gradients(reshape(one_hot, shape(target)))
        return [convert_to_tensor(found[i]) for i in connected]

    types: Any = [probe[i].dtype for i in connected]
    rows = map_fn(row, basis, dtype=types) if connected else []
    places = dict(zip(connected, rows, strict=True))
    return [places.get(i) for i in range(len(probe))]
