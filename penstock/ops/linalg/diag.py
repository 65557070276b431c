"""Diagonals of (batches of) matrices, and the identity matrix."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.opdef import op, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.jaxprs.symbols import is_symbol
from penstock.kernel import shapes
from penstock.kernel.types import INDEX64, Array
from penstock.ops.array.creation import ones, zeros
from penstock.ops.array.joining import concat

DIAGONAL_TYPES = (dt.bfloat16, dt.float16, dt.float32, dt.float64, dt.int32, dt.int64, dt.complex64, dt.complex128)


def _band(k: Array) -> tuple[int, int]:
    """The lowest and the highest diagonal of `k`, which is one number or two."""
    bounds = [int(v) for v in np.asarray(k).reshape(-1)]
    if len(bounds) not in (1, 2) or bounds[0] > bounds[-1]:
        raise ValueError(f"diag_index must be one number or two in rising order, received {bounds}")
    return bounds[0], bounds[-1]


def _length(rows: int, cols: int, k: int) -> int:
    return min(rows + min(k, 0), cols - max(k, 0))


def _longest(rows: int, cols: int, low: int, high: int) -> int:
    return min(rows + min(high, 0), cols - max(low, 0))


def _shift(length: int, longest: int, k: int, align: str) -> int:
    """The offset of diagonal `k` from the left edge in the rows that hold diagonals."""
    side = align.split("_")[0 if k >= 0 else 1]
    return longest - length if side == "RIGHT" else 0


def _places(rows: int, cols: int, low: int, high: int, align: str) -> tuple[Array, Array, Array]:
    """For each element of a matrix: True if it is in the band, its diagonal (from above), and its place there."""
    longest = _longest(rows, cols, low, high)
    i, j = _indices(rows, cols)
    inside = (j - i >= low) & (j - i <= high)
    if is_symbol(longest) and low == high:
        return inside, jnp.zeros_like(inside, int), jnp.clip(jnp.minimum(i, j), 0, longest - 1)
    shifts = np.array([_shift(_length(rows, cols, k), longest, k, align) for k in range(high, low - 1, -1)], int)
    which = np.clip(high - (j - i), 0, high - low)
    at = np.clip(np.minimum(i, j) + shifts[which], 0, max(longest - 1, 0))
    return inside, which, at


def _indices(rows: Any, cols: Any) -> tuple[Array, Array]:
    """The row and the column of each element of a matrix, in shapes that broadcast."""
    if is_symbol(rows) or is_symbol(cols):
        return jnp.arange(rows)[:, None], jnp.arange(cols)[None, :]
    i, j = np.indices((rows, cols))
    return i, j


def _spread(diagonal: Array, rows: int, cols: int, low: int, high: int, align: str) -> tuple[Array, Array]:
    """A mask of the matrix elements that the diagonals cover, and their values at these places."""
    inside, which, at = _places(rows, cols, low, high, align)
    lines = diagonal if low != high else jnp.expand_dims(diagonal, -2)
    return inside, jnp.asarray(lines)[..., which, at]


def _diag_shape(op: Operation) -> list[TensorShape]:
    diagonal = op.input_list[0].shape
    k, rows, cols = (constant_value(t) for t in op.input_list[1:4])
    if diagonal.rank is None or k is None or rows is None or cols is None:
        return [TensorShape.of(None)]
    low, high = _band(k)
    dims = diagonal.as_list()
    batch, longest = dims[: -1 if low == high else -2], dims[-1]
    if longest is None:
        sides = [None if int(s) == -1 else int(s) for s in (rows, cols)]
        return [TensorShape.of((*batch, *sides))]
    return [TensorShape.of((*batch, *_sides(longest, low, high, int(rows), int(cols))))]


def _sides(longest: int, low: int, high: int, rows: int, cols: int) -> tuple[int, int]:
    """The size of the matrix; -1 means the smallest size that holds the diagonals."""
    least_rows, least_cols = longest - min(high, 0), longest + max(low, 0)
    if rows == -1 and cols == -1:
        side = max(least_rows, least_cols)
        return side, side
    return (least_rows if rows == -1 else rows), (least_cols if cols == -1 else cols)


@op("MatrixDiagV3", "T, int32, int32, int32, T -> output: T", static="k num_rows num_cols", shape=_diag_shape)
def matrix_diag_v3(
    diagonal: Array, k: Array, num_rows: Array, num_cols: Array, padding_value: Array, *, align: str = "RIGHT_LEFT"
) -> Array:
    low, high = _band(k)
    rows, cols = _sides(diagonal.shape[-1], low, high, int(num_rows), int(num_cols))
    inside, values = _spread(diagonal, rows, cols, low, high, align)
    return jnp.where(inside, values, padding_value)


def _padding(values: Any, padding_value: Any) -> Any:
    """`padding_value`; for bool values 0 becomes False."""
    return bool(padding_value) if getattr(values, "dtype", None) == dt.bool else padding_value


def matrix_diag(
    diagonal: TensorLike,
    name: str = "diag",
    k: TensorLike = 0,
    num_rows: TensorLike = -1,
    num_cols: TensorLike = -1,
    padding_value: TensorLike = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """Matrices with the given diagonals: `tf.matrix_diag([1.0, 2.0])`."""
    result: Tensor = matrix_diag_v3(
        diagonal, k, num_rows, num_cols, _padding(diagonal, padding_value), align=align, name=name
    )
    return result


def _diag_part_shape(op: Operation) -> list[TensorShape]:
    source, k = op.input_list[0].shape, constant_value(op.input_list[1])
    if source.rank is None or k is None:
        return [TensorShape.of(None)]
    low, high = _band(k)
    *batch, rows, cols = source.with_rank_at_least(2).as_list()
    longest = None if rows is None or cols is None else _longest(rows, cols, low, high)
    return [TensorShape.of((*batch, longest) if low == high else (*batch, high - low + 1, longest))]


@op("MatrixDiagPartV3", "T, int32, T -> diagonal: T", static="k", shape=_diag_part_shape)
def matrix_diag_part_v3(input: Array, k: Array, padding_value: Array, *, align: str = "RIGHT_LEFT") -> Array:
    low, high = _band(k)
    rows, cols = input.shape[-2:]
    longest = _longest(rows, cols, low, high)
    if is_symbol(longest) and low == high:
        step = jnp.arange(longest)
        return jnp.asarray(input)[..., step - min(low, 0), step + max(low, 0)]
    offsets = np.arange(high, low - 1, -1)
    lengths = np.array([_length(rows, cols, int(o)) for o in offsets])
    shifts = np.array([_shift(int(n), longest, int(o), align) for n, o in zip(lengths, offsets, strict=True)])
    step = np.arange(longest)[None, :] - shifts[:, None]
    inside = (step >= 0) & (step < lengths[:, None])
    i = np.clip(step - np.minimum(offsets, 0)[:, None], 0, rows - 1)
    j = np.clip(step + np.maximum(offsets, 0)[:, None], 0, cols - 1)
    lines = jnp.where(inside, jnp.asarray(input)[..., i, j], padding_value)
    return lines[..., 0, :] if low == high else lines


def matrix_diag_part(
    input: TensorLike,
    name: str = "diag_part",
    k: TensorLike = 0,
    padding_value: TensorLike = 0,
    align: str = "RIGHT_LEFT",
) -> Tensor:
    """The diagonals of matrices."""
    result: Tensor = matrix_diag_part_v3(input, k, _padding(input, padding_value), align=align, name=name)
    return result


def _set_diag_shape(op: Operation) -> list[TensorShape]:
    source, diagonal = op.input_list[0].shape, op.input_list[1].shape
    k = constant_value(op.input_list[2])
    if source.rank is None or diagonal.rank is None or k is None:
        return [source]
    low, high = _band(k)
    batch = diagonal.as_list()[: -1 if low == high else -2]
    return [shapes.merge(source, TensorShape.of((*batch, None, None)))]


@op("MatrixSetDiagV3", "T, T, int32 -> output: T", static="k", shape=_set_diag_shape)
def matrix_set_diag_v3(input: Array, diagonal: Array, k: Array, *, align: str = "RIGHT_LEFT") -> Array:
    low, high = _band(k)
    inside, values = _spread(diagonal, input.shape[-2], input.shape[-1], low, high, align)
    return jnp.where(inside, values, input)


def matrix_set_diag(
    input: TensorLike, diagonal: TensorLike, name: str = "set_diag", k: TensorLike = 0, align: str = "RIGHT_LEFT"
) -> Tensor:
    """Matrices with other diagonals: `tf.matrix_set_diag(x, tf.ones([3]))`."""
    result: Tensor = matrix_set_diag_v3(input, diagonal, k, align=align, name=name)
    return result


def _square_of(op: Operation) -> list[TensorShape]:
    source = op.input_list[0].shape
    return [source if source.rank is None else source.concatenate(source[-1:])]


@op("MatrixDiag", "T -> output: T", shape=_square_of)
def matrix_diag_v1(diagonal: Array) -> Array:
    side = diagonal.shape[-1]
    return jnp.where(np.eye(side, dtype=bool), jnp.expand_dims(diagonal, -1), jnp.zeros((), diagonal.dtype))


@op("MatrixDiagPart", "T -> diagonal: T")
def matrix_diag_part_v1(input: Array) -> Array:
    return jnp.diagonal(input, axis1=-2, axis2=-1)


@op("MatrixSetDiag", "T, T -> output: T", shape=shapes.unchanged)
def matrix_set_diag_v1(input: Array, diagonal: Array) -> Array:
    inside, values = _spread(diagonal, input.shape[-2], input.shape[-1], 0, 0, "LEFT_LEFT")
    return jnp.where(inside, values, input)


@op("MatrixBandPart", "T, Tindex, Tindex -> band: T", shape=shapes.unchanged, Tindex=INDEX64)
def matrix_band_part_op(input: Array, num_lower: Array, num_upper: Array) -> Array:
    i, j = _indices(*input.shape[-2:])
    inside = ((num_lower < 0) | (i - j <= num_lower)) & ((num_upper < 0) | (j - i <= num_upper))
    return jnp.where(inside, input, jnp.zeros((), input.dtype))


def matrix_band_part(
    input: TensorLike, num_lower: TensorLike, num_upper: TensorLike, name: str | None = None
) -> Tensor:
    """Matrices with zeros outside a band; -1 keeps a whole triangle: `tf.matrix_band_part(x, -1, 0)`."""
    result: Tensor = matrix_band_part_op(input, num_lower, num_upper, name=name)
    return result


@op(
    "Diag",
    "T -> output: T",
    T=DIAGONAL_TYPES,
    shape=lambda op: [op.input_list[0].shape.concatenate(op.input_list[0].shape)],
)
def diag(diagonal: Array) -> Array:
    return jnp.diag(diagonal.reshape(-1)).reshape(*diagonal.shape, *diagonal.shape)


def _half_shape(op: Operation) -> list[TensorShape]:
    source = op.input_list[0].shape
    if source.rank is None:
        return [source]
    if source.rank % 2:
        raise ValueError(f"Input must have even rank, input rank is {source.rank}")
    return [shapes.merge(source[: source.rank // 2], source[source.rank // 2 :])]


@op("DiagPart", "T -> diagonal: T", T=DIAGONAL_TYPES, shape=_half_shape)
def diag_part(input: Array) -> Array:
    half = input.shape[: input.ndim // 2]
    if input.ndim % 2 or half != input.shape[input.ndim // 2 :]:
        raise ValueError(f"Invalid shape {list(input.shape)}: the first half of the dimensions must equal the second")
    side = math.prod(half)
    return jnp.diagonal(input.reshape(side, side)).reshape(half)


def eye(
    num_rows: TensorLike,
    num_columns: TensorLike = None,
    batch_shape: ShapeLike = None,
    dtype: DTypeLike = dt.float32,
    name: str | None = None,
) -> Tensor:
    """The identity matrix, or a batch of it: `tf.eye(3)`."""
    with name_scope(name, "eye", [num_rows, num_columns, batch_shape]):
        kind = as_dtype(dtype)
        square = num_columns is None
        cols = num_rows if square else num_columns
        batch: Any = [] if batch_shape is None else batch_shape
        sizes = [num_rows, cols, batch]
        if not any(isinstance(s, Tensor) for s in sizes) and not any(isinstance(b, Tensor) for b in batch):
            line: Any = [*batch, min(num_rows, cols)]
            whole: Any = [*batch, num_rows, cols]
        else:
            least = op_of("Minimum")(num_rows, cols, name="Minimum")
            lead = convert_to_tensor(batch, dtype=dt.int32, name="shape")
            line = concat([lead, [least]], 0)
            whole = None if square else concat([lead, [num_rows, cols]], 0)
        diagonal = ones(line, kind)
        if square:
            return matrix_diag(diagonal)
        return matrix_set_diag(zeros(whole, kind), diagonal)
