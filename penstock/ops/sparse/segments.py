"""Sums and means over segments of rows that are picked by indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.checks import require_in_range
from penstock.graph.constant import constant_value
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import op, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel.types import FLOATS, INDEX32, REALS, Array
from penstock.ops.array.gathering import gather
from penstock.ops.array.reshaping import shape
from penstock.ops.math.segments import check_sorted, sorted_shape
from penstock.row_sums import run_ends, spread_by_runs, sums_of_runs


def check_pairs(indices: np.ndarray, ids: np.ndarray) -> None:
    if indices.shape != ids.shape or ids.ndim != 1:
        raise InvalidArgumentError(
            f"segment_ids and indices must be vectors of one size, got {ids.shape} and {indices.shape}"
        )


def _num_segments_shape(op: Operation) -> list[TensorShape]:
    data, count = op.input_list[0].shape, constant_value(op.input_list[3])
    rows = TensorShape.of((None if count is None else int(count),))
    return [data if data.rank is None else rows.concatenate(data[1:])]


def _sparse_sum(data: Array, indices: Array, segment_ids: Array, num_segments: Any, power: float) -> np.ndarray:
    """Sums of picked rows, divided by a power of their number."""
    values, chosen, ids = np.asarray(data), np.asarray(indices), np.asarray(segment_ids)
    check_pairs(chosen, ids)
    require_in_range(chosen, values.shape[0])
    count = check_sorted(ids)
    if num_segments is not None:
        if count > int(num_segments):
            raise InvalidArgumentError(f"segment ids must be < num_segments {int(num_segments)}")
        count = int(num_segments)
    ends = run_ends(ids, count)
    return divided_by_counts(sums_of_runs(values, ends, chosen), ends, power)


def divided_by_counts(rows: np.ndarray, ends: np.ndarray, power: float) -> np.ndarray:
    """One row of each segment, divided by a power of the number of its rows."""
    if not power:
        return rows
    counts = np.maximum(ends[1:] - ends[:-1], 1).reshape(-1, *[1] * (rows.ndim - 1))
    # Half-precision quotients are the same if they are computed in a longer type.
    divisors = counts.astype(rows.dtype) if power == 1 and rows.dtype.kind == "f" else counts**power
    quotients: np.ndarray = rows / divisors
    return quotients.astype(rows.dtype, copy=False)


def _sparse_grad(name: str, power: float) -> Callable[..., Any]:
    def grad(op: Operation, dy: Tensor) -> list[Any]:
        data, indices, ids = op.input_list[:3]
        others = [None] * (len(op.input_list) - 1)
        if not op.attrs["sparse_gradient"]:
            return [op_of(f"{name}Grad")(dy, indices, ids, shape(data)[0]), *others]  # type: ignore[index]
        rows: Any = gather(dy, ids)
        if power:
            flat = op_of("OnesLike")(gather(data, indices))
            count: Any = gather(op_of("SegmentSum")(flat, ids), ids)
            rows = op_of("RealDiv")(rows, count if power == 1 else op_of("Sqrt")(count))
        return [IndexedSlices(rows, indices, shape(data)), *others]

    return grad


def _sparse_segment(name: str, power: float) -> tuple[Any, Any]:
    @op(
        name,
        "T, Tidx, Tsegmentids -> output: T",
        host=True,
        shape=sorted_shape,
        grad=_sparse_grad(name, power),
        T=REALS,
        Tidx=INDEX32,
        Tsegmentids=INDEX32,
    )
    def plain(data: Array, indices: Array, segment_ids: Array, *, sparse_gradient: bool = False) -> Array:
        return _sparse_sum(data, indices, segment_ids, None, power)

    @op(
        f"{name}WithNumSegments",
        "T, Tidx, Tsegmentids, Tnumsegments -> output: T",
        host=True,
        shape=_num_segments_shape,
        grad=_sparse_grad(name, power),
        T=REALS,
        Tidx=INDEX32,
        Tsegmentids=INDEX32,
        Tnumsegments=INDEX32,
    )
    def sized(
        data: Array, indices: Array, segment_ids: Array, num_segments: Array, *, sparse_gradient: bool = False
    ) -> Array:
        return _sparse_sum(data, indices, segment_ids, num_segments, power)

    def grad_of_grad(op: Operation, dy: Tensor) -> list[Any]:
        grad, indices, ids = op.input_list[:3]
        return [sized(dy, indices, ids, shape(grad)[0]), None, None, None]  # type: ignore[index]

    @op(
        f"{name}Grad",
        "T, Tidx, Tsegmentids, int32 -> output: T",
        host=True,
        shape=_num_segments_shape,
        grad=grad_of_grad,
        T=FLOATS,
        Tidx=INDEX32,
        Tsegmentids=INDEX32,
    )
    def grad(grad: Array, indices: Array, segment_ids: Array, output_dim0: Array) -> Array:
        rows, picked, ids = np.asarray(grad), np.asarray(indices), np.asarray(segment_ids)
        check_pairs(picked, ids)
        require_in_range(picked, int(output_dim0))
        if check_sorted(ids) > len(rows):
            raise InvalidArgumentError(f"Segment id {ids[-1]} out of range [0, {len(rows)}).")
        ends = run_ends(ids, len(rows))
        return spread_by_runs(divided_by_counts(rows, ends, power), ends, picked, int(output_dim0))

    return plain, sized


_SUM, _MEAN, _SQRT_N = (
    _sparse_segment(name, power)
    for name, power in (("SparseSegmentSum", 0.0), ("SparseSegmentMean", 1.0), ("SparseSegmentSqrtN", 0.5))
)


def _sparse(ops: tuple[Any, Any], data: Any, indices: Any, segment_ids: Any, name: Any, num_segments: Any) -> Tensor:
    result: Tensor
    if num_segments is None:
        result = ops[0](data, indices, segment_ids, name=name)
    else:
        result = ops[1](data, indices, segment_ids, num_segments, name=name)
    return result


def sparse_segment_sum(
    data: TensorLike,
    indices: TensorLike,
    segment_ids: TensorLike,
    name: str | None = None,
    num_segments: TensorLike = None,
) -> Tensor:
    """`segment_sum` of the rows of `data` at `indices`."""
    return _sparse(_SUM, data, indices, segment_ids, name, num_segments)


def sparse_segment_mean(
    data: TensorLike,
    indices: TensorLike,
    segment_ids: TensorLike,
    name: str | None = None,
    num_segments: TensorLike = None,
) -> Tensor:
    """`segment_mean` of the rows of `data` at `indices`."""
    return _sparse(_MEAN, data, indices, segment_ids, name, num_segments)


def sparse_segment_sqrt_n(
    data: TensorLike,
    indices: TensorLike,
    segment_ids: TensorLike,
    name: str | None = None,
    num_segments: TensorLike = None,
) -> Tensor:
    """`sparse_segment_sum`, divided by the square root of the number of rows."""
    return _sparse(_SQRT_N, data, indices, segment_ids, name, num_segments)
