"""Sparse tensors as components: a handle carries indices, values and shape, and a batch is an array of handles."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle

Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # indices, values, dense shape


class Sparse:
    """A sparse tensor as one value."""

    __slots__ = ("parts",)

    def __init__(self, *parts: np.ndarray) -> None:
        self.parts = parts


@op(
    "_PackSparse",
    "int64, T, int64 -> handle: variant",
    host=True,
    no_gradient=True,
    shape=shapes.scalar,
    default_name="PackSparse",
)
def pack_sparse(indices: Any, values: Any, dense_shape: Any) -> Any:
    return as_handle(Sparse(np.asarray(indices), values, np.asarray(dense_shape)))


@op(
    "_UnstackSparse",
    "variant -> rows: variant",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((None,))],
    default_name="UnstackSparse",
)
def unstack_sparse(handle: Any) -> Any:
    indices, values, dense_shape = handle.item().parts
    rows = np.empty(int(dense_shape[0]), object)
    for i in range(len(rows)):
        here = indices[:, 0] == i
        rows[i] = Sparse(indices[here, 1:], np.asarray(values)[here], dense_shape[1:])
    return rows


def _part_shapes(op: Operation) -> list[TensorShape]:
    return [TensorShape.of((None, None)), TensorShape.of((None,)), TensorShape.of((None,))]


@op(
    "_UnpackSparse",
    "variant -> indices: int64, values: dtype, dense_shape: int64",
    host=True,
    no_gradient=True,
    shape=_part_shapes,
    default_name="UnpackSparse",
)
def unpack_sparse(handle: Any, *, dtype: DType) -> Any:
    return _joined(handle, dtype)


def _joined(handle: Any, dtype: DType) -> Parts:
    """The parts of a handle; an array of handles becomes one sparse tensor, with the largest of their shapes."""
    if isinstance(handle, Sparse):
        indices, values, dense_shape = handle.parts
        return indices, values, dense_shape
    if handle.ndim == 0:
        return _joined(handle.item(), dtype)
    rows = [_joined(row, dtype) for row in handle]
    if not rows:
        raise InvalidArgumentError("A batch of no sparse tensors has no shape.")
    if len({len(shape) for _, _, shape in rows}) > 1:
        raise InvalidArgumentError("Cannot batch sparse tensors of different ranks.")
    moved = [np.insert(where, 0, i, axis=1) for i, (where, _, _) in enumerate(rows)]
    largest = np.max([shape for _, _, shape in rows], axis=0)
    values = np.concatenate([np.asarray(v) for _, v, _ in rows])
    return np.concatenate(moved), values, np.array([len(rows), *largest], np.int64)
