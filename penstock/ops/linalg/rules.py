"""Shape rules and small helpers that the ops on (batches of) matrices share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from penstock.graph import dtype as dt
from penstock.graph.opdef import Types
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel.shapes import broadcast_pair, merge
from penstock.kernel.types import COMPLEX, Array

FACTORED = Types(dt.float64, dt.float32, dt.float16, *COMPLEX)

Dims = list[int | None]


def split_matrix(shape: TensorShape) -> tuple[TensorShape, int | None, int | None]:
    """The batch shape, rows and columns of (a batch of) matrices; ValueError for less than two dimensions."""
    if shape.rank is None:
        return TensorShape.of(None), None, None
    if shape.rank < 2:
        raise ValueError(f"Shape must be at least rank 2 but is rank {shape.rank}")
    *batch, rows, columns = shape.as_list()
    return TensorShape.of(tuple(batch)), rows, columns


def join_matrix(batch: TensorShape, *dims: int | None) -> TensorShape:
    """A batch shape followed by further dimensions."""
    return batch if batch.rank is None else TensorShape.of((*batch.as_list(), *dims))


def side_of(rows: int | None, columns: int | None) -> int | None:
    """The common size of both dimensions, or None if it is unknown."""
    if rows is not None and columns is not None and rows != columns:
        raise ValueError(f"Dimensions must be equal, but are {rows} and {columns}")
    return columns if rows is None else rows


def square(op: Operation) -> list[TensorShape]:
    """Square matrices in, matrices of the same size out."""
    batch, rows, columns = split_matrix(op.input_list[0].shape)
    side = side_of(rows, columns)
    return [join_matrix(batch, side, side)]


def number_each(op: Operation) -> list[TensorShape]:
    """One number per square matrix, for each output."""
    batch, rows, columns = split_matrix(op.input_list[0].shape)
    side_of(rows, columns)
    return [batch for _ in op.outputs]


def solve(op: Operation) -> list[TensorShape]:
    """[n, n] and [n, k] give [n, k]; the batches are the same."""
    batch, rows, columns = split_matrix(op.input_list[0].shape)
    return _solution(batch, side_of(rows, columns), columns, op.input_list[1].shape)


def least_squares(op: Operation) -> list[TensorShape]:
    """[m, n] and [m, k] give [n, k]; the batches are the same."""
    batch, rows, columns = split_matrix(op.input_list[0].shape)
    return _solution(batch, rows, columns, op.input_list[1].shape)


def _solution(batch: TensorShape, rows: int | None, columns: int | None, right: TensorShape) -> list[TensorShape]:
    right_batch, right_rows, width = split_matrix(right)
    side_of(rows, right_rows)
    whole = merge(batch, right_batch)
    return [join_matrix(whole, rows if columns is None else columns, width)]


def triangular_solve(op: Operation) -> list[TensorShape]:
    """As `solve`, with batches that broadcast."""
    batch, rows, columns = split_matrix(op.input_list[0].shape)
    right_batch, right_rows, width = split_matrix(op.input_list[1].shape)
    side = side_of(side_of(rows, columns), right_rows)
    if batch.rank is None or right_batch.rank is None:
        return [TensorShape.of(None)]
    return [join_matrix(broadcast_pair(batch, right_batch), side, width)]


def widened(x: Array) -> Array:
    """`x` in a type that matrices can be factored in: half precision becomes single."""
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


def adjoint(x: Array) -> Array:
    """The conjugate transpose of each matrix."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def need_square(x: Array) -> None:
    """Raises ValueError unless `x` is (a batch of) square matrices."""
    need_matrix(x)
    if x.shape[-1] != x.shape[-2]:
        raise ValueError(f"Input matrix must be square, received {list(x.shape)}")


def need_matrix(*arrays: Any) -> None:
    """Raises ValueError unless each array is (a batch of) matrices."""
    for x in arrays:
        if x.ndim < 2:
            raise ValueError(f"Input must have rank >= 2, received shape {list(x.shape)}")
