"""Sums, means, products and extremes over segments of rows; conversion of IndexedSlices to dense tensors."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor, register_tensor_conversion_function
from penstock.graph.dtype import as_dtype
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import op, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel import shapes
from penstock.kernel.shapes import merge, require_rank
from penstock.kernel.types import FLOATS, INDEX, INDEX32, NUMBERS, QUANTIZED, REALS, Array
from penstock.ops.array.creation import ones
from penstock.ops.array.dense_rows import dense_rows
from penstock.ops.array.gathering import gather
from penstock.ops.array.joining import concat
from penstock.ops.array.reshaping import rank, reshape, shape_internal
from penstock.row_sums import run_ends, sums_of_runs

# Unsorted: the number of segments is given, negative ids are left out.


def _unsorted_shape(op: Operation) -> list[TensorShape]:
    data, ids, count = op.input_list
    if data.shape.rank is None or ids.shape.rank is None:
        return [TensorShape.of(None)]
    merge(data.shape[: ids.shape.rank], ids.shape)
    known = constant_value(count)
    if known is not None and int(known) < 0:
        raise ValueError(f"num_segments must be >= 0, received {known}")
    rows = TensorShape.of((None if known is None else int(known),))
    return [rows.concatenate(data.shape[ids.shape.rank :])]


def _lowest(kind: Any) -> Any:
    return as_dtype(kind).min


def _highest(kind: Any) -> Any:
    return as_dtype(kind).max


_STARTS: dict[str, Callable[[Any], Any]] = {
    "add": lambda kind: 0,
    "multiply": lambda kind: 1,
    "max": _lowest,
    "min": _highest,
}


def _unsorted(method: str, data: Array, segment_ids: Array, num_segments: Array) -> Array:
    count = as_size(num_segments)
    ids = jnp.asarray(segment_ids)
    if data.shape[: ids.ndim] != ids.shape:
        raise ValueError(f"data.shape = {list(data.shape)} does not start with segment_ids.shape = {list(ids.shape)}")
    if ids.size:
        top = ids.max()
        require(top < count, f"segment_ids value {{}} is out of range [0, {count})", top)
    start = jnp.full((count, *data.shape[ids.ndim :]), _STARTS[method](data.dtype), data.dtype)
    # Rows with negative ids are dropped.
    return getattr(start.at[ids], method)(data, mode="drop", wrap_negative_indices=False)


def _extreme_grad(op: Operation, grad: Tensor) -> list[Any]:
    data, ids = op.input_list[:2]
    return [segment_extreme_grad(data, ids, op.outputs[0], grad)] + [None] * (len(op.input_list) - 1)


def _prod_grad(op: Operation, grad: Tensor) -> list[Any]:
    data, ids = op.input_list[:2]
    return [segment_prod_grad(data, ids, grad)] + [None] * (len(op.input_list) - 1)


@op("SegmentExtremeGrad", "T, Tindices, T, T -> output: T", shape=shapes.unchanged, T=FLOATS, Tindices=INDEX)
def segment_extreme_grad(data: Array, segment_ids: Array, extreme: Array, dy: Array) -> Array:
    """The gradient of a segment's minimum or maximum, shared by all elements that attain it."""
    ids = jnp.asarray(segment_ids)
    present = _column(ids >= 0, data.ndim)
    hit = (data == jnp.asarray(extreme)[ids]) & present
    share = jnp.zeros(dy.shape, data.dtype).at[ids].add(hit.astype(data.dtype))
    return jnp.where(hit, (dy / jnp.maximum(share, 1))[ids], 0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _products(shape: tuple[int, ...], ids: Array, factors: Array) -> Array:
    """The product of each segment. jax has no derivative of it; the one below is for factors that are not zero."""
    return jnp.ones(shape, factors.dtype).at[ids].multiply(factors)


@_products.defjvp
def _products_jvp(shape: tuple[int, ...], primals: Any, tangents: Any) -> tuple[Array, Array]:
    ids, factors = primals
    product = _products(shape, ids, factors)
    return product, product * jnp.zeros(shape, factors.dtype).at[ids].add(tangents[1] / factors)


@op("SegmentProdGrad", "T, Tindices, T -> output: T", shape=shapes.unchanged, T=FLOATS, Tindices=INDEX)
def segment_prod_grad(data: Array, segment_ids: Array, dy: Array) -> Array:
    """The gradient of a segment's product: per element the product of the others, which is right for zeros too."""
    ids = jnp.asarray(segment_ids)
    present = _column(ids >= 0, data.ndim)
    is_zero = (data == 0) & present
    filled = jnp.where((data == 0) | ~present, 1, data)
    zeros = jnp.zeros(dy.shape, data.dtype).at[ids].add(is_zero.astype(data.dtype))[ids]
    product = _products(dy.shape, ids, filled)[ids]
    others = jnp.where(is_zero, jnp.where(zeros == 1, product, 0), jnp.where(zeros == 0, product / filled, 0))
    return jnp.where(present, others * jnp.asarray(dy)[ids], 0)


def _column(mask: Array, ndim: int) -> Array:
    return mask.reshape(*mask.shape, *[1] * (ndim - mask.ndim))


@op(
    "UnsortedSegmentSum",
    "T, Tindices, Tnumsegments -> output: T",
    static="num_segments",
    shape=_unsorted_shape,
    T=(*NUMBERS, *QUANTIZED),
    Tindices=(dt.int16, *INDEX),
    Tnumsegments=INDEX32,
)
def unsorted_segment_sum_op(data: Array, segment_ids: Array, num_segments: Array) -> Array:
    return _unsorted("add", data, segment_ids, num_segments)


@op(
    "UnsortedSegmentProd",
    "T, Tindices, Tnumsegments -> output: T",
    static="num_segments",
    shape=_unsorted_shape,
    grad=_prod_grad,
    T=NUMBERS,
    Tindices=INDEX,
    Tnumsegments=INDEX32,
)
def unsorted_segment_prod_op(data: Array, segment_ids: Array, num_segments: Array) -> Array:
    return _unsorted("multiply", data, segment_ids, num_segments)


@op(
    "UnsortedSegmentMax",
    "T, Tindices, Tnumsegments -> output: T",
    static="num_segments",
    shape=_unsorted_shape,
    grad=_extreme_grad,
    T=REALS,
    Tindices=INDEX,
    Tnumsegments=INDEX32,
)
def unsorted_segment_max_op(data: Array, segment_ids: Array, num_segments: Array) -> Array:
    return _unsorted("max", data, segment_ids, num_segments)


@op(
    "UnsortedSegmentMin",
    "T, Tindices, Tnumsegments -> output: T",
    static="num_segments",
    shape=_unsorted_shape,
    grad=_extreme_grad,
    T=REALS,
    Tindices=INDEX,
    Tnumsegments=INDEX32,
)
def unsorted_segment_min_op(data: Array, segment_ids: Array, num_segments: Array) -> Array:
    return _unsorted("min", data, segment_ids, num_segments)


def unsorted_segment_sum(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Row i of the result is the sum of the rows of `data` whose id is i."""
    result: Tensor = unsorted_segment_sum_op(data, segment_ids, num_segments, name=name)
    return result


def unsorted_segment_prod(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The products of the rows of each segment, 1 where a segment is empty."""
    result: Tensor = unsorted_segment_prod_op(data, segment_ids, num_segments, name=name)
    return result


def unsorted_segment_max(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The largest values of each segment, the lowest possible where it is empty."""
    result: Tensor = unsorted_segment_max_op(data, segment_ids, num_segments, name=name)
    return result


def unsorted_segment_min(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The smallest values of each segment, the highest possible where it is empty."""
    result: Tensor = unsorted_segment_min_op(data, segment_ids, num_segments, name=name)
    return result


def _counts(data: Tensor, ids: Tensor, count: Tensor) -> Tensor:
    """The number of rows of each segment, at least 1, with as many dimensions as the sums."""
    one_each = ones(shape_internal(ids, const_name="shape_as_tensor"), data.dtype.base_dtype)
    each = unsorted_segment_sum(one_each, ids, count)
    extra: Any = rank(data)
    lead: Any = count
    tail = ones([extra - rank(ids)], count.dtype)
    column = reshape(each, concat([lead[None], tail], 0))
    result: Tensor = op_of("Maximum")(column, 1, name="Maximum")
    return result


def unsorted_segment_mean(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The means of the rows of each segment, 0 where it is empty."""
    with name_scope(name, "UnsortedSegmentMean"):
        values, ids, count = (convert_to_tensor(v) for v in (data, segment_ids, num_segments))
        divisor = _counts(values, ids, count)
        result: Tensor = op_of("RealDiv")(unsorted_segment_sum(values, ids, num_segments), divisor, name="truediv")
        return result


def unsorted_segment_sqrt_n(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The sums of the rows of each segment divided by the square roots of their counts."""
    with name_scope(name, "UnsortedSegmentSqrtN"):
        values, ids, count = (convert_to_tensor(v) for v in (data, segment_ids, num_segments))
        divisor = _counts(values, ids, count)
        sums = unsorted_segment_sum(values, ids, num_segments)
        result: Tensor = op_of("RealDiv")(sums, op_of("Sqrt")(divisor, name="Sqrt"), name="truediv")
        return result


# Sorted: the last id tells the number of segments, so the result's size is known only when it runs.


def sorted_shape(op: Operation) -> list[TensorShape]:
    data, ids = op.input_list[0].shape, op.input_list[-1].shape
    require_rank(ids, 1)
    return [data if data.rank is None else TensorShape.of((None,)).concatenate(data.with_rank_at_least(1)[1:])]


def check_sorted(ids: np.ndarray) -> int:
    """The number of segments. Raises an error unless the ids are sorted."""
    if ids.size and ids[0] < 0:
        raise InvalidArgumentError(f"Segment id {ids[0]} out of range [0, {int(ids[-1]) + 1})")
    if np.count_nonzero(ids[1:] < ids[:-1]):  # takes half the time of any()
        raise InvalidArgumentError("segment ids are not increasing")
    return int(ids[-1]) + 1 if ids.size else 0


def _sorted(method: Any, start: Any, data: Array, segment_ids: Array) -> np.ndarray:
    values, ids = np.asarray(data), np.asarray(segment_ids)
    if ids.shape != values.shape[:1]:
        raise ValueError(f"segment_ids should be the same size as dimension 0 of input, got {ids.size}")
    count = check_sorted(ids)
    if method is np.add:
        return sums_of_runs(values, run_ends(ids, count))
    result = np.full((count, *values.shape[1:]), start, values.dtype)
    method.at(result, ids, values)
    # Segments without rows are zero for all operations except products.
    if method is not np.multiply:
        result[np.setdiff1d(np.arange(count), ids)] = 0
    return result


def _mean_of(data: Array, segment_ids: Array) -> Array:
    sums = _sorted(np.add, 0, data, segment_ids)
    counts = np.maximum(np.bincount(np.asarray(segment_ids), minlength=len(sums)), 1)
    column = counts.reshape(-1, *[1] * (sums.ndim - 1)).astype(sums.dtype)
    # Integers are divided as in C: towards zero.
    return np.trunc(sums / column).astype(sums.dtype) if sums.dtype.kind in "iu" else sums / column


def _segment_sum_grad(op: Operation, grad: Tensor) -> list[Any]:
    return [gather(grad, op.input_list[1]), None]


@op(
    "SegmentSum",
    "T, Tindices -> output: T",
    host=True,
    shape=sorted_shape,
    grad=_segment_sum_grad,
    T=NUMBERS,
    Tindices=INDEX,
)
def segment_sum_op(data: Array, segment_ids: Array) -> Array:
    return _sorted(np.add, 0, data, segment_ids)


def _segment_mean_grad(op: Operation, grad: Tensor) -> list[Any]:
    data, ids = op.input_list
    weight: Any = op_of("SegmentSum")(op_of("OnesLike")(data), ids)
    return [gather(op_of("RealDiv")(grad, op_of("Maximum")(weight, op_of("OnesLike")(weight))), ids), None]


@op(
    "SegmentMean",
    "T, Tindices -> output: T",
    host=True,
    shape=sorted_shape,
    grad=_segment_mean_grad,
    T=NUMBERS,
    Tindices=INDEX,
)
def segment_mean_op(data: Array, segment_ids: Array) -> Array:
    return _mean_of(data, segment_ids)


@op(
    "SegmentMax", "T, Tindices -> output: T", host=True, shape=sorted_shape, grad=_extreme_grad, T=REALS, Tindices=INDEX
)
def segment_max_op(data: Array, segment_ids: Array) -> Array:
    return _sorted(np.maximum, np.asarray(_lowest(np.asarray(data).dtype)), data, segment_ids)


@op(
    "SegmentMin", "T, Tindices -> output: T", host=True, shape=sorted_shape, grad=_extreme_grad, T=REALS, Tindices=INDEX
)
def segment_min_op(data: Array, segment_ids: Array) -> Array:
    return _sorted(np.minimum, np.asarray(_highest(np.asarray(data).dtype)), data, segment_ids)


@op(
    "SegmentProd", "T, Tindices -> output: T", host=True, shape=sorted_shape, grad=_prod_grad, T=NUMBERS, Tindices=INDEX
)
def segment_prod_op(data: Array, segment_ids: Array) -> Array:
    return _sorted(np.multiply, 1, data, segment_ids)


segment_sum, segment_mean, segment_prod = segment_sum_op, segment_mean_op, segment_prod_op
segment_max, segment_min = segment_max_op, segment_min_op


# IndexedSlices

_LARGE = 100_000_000  # elements; from here on making slices dense deserves a warning, as in TensorFlow


def indexed_slices_to_tensor(
    value: IndexedSlices, dtype: Any = None, name: str | None = None, as_ref: bool = False
) -> Any:
    """The dense tensor that IndexedSlices stand for: rows of equal index are added up."""
    if dtype is not None and not dtype.is_compatible_with(value.dtype):
        raise ValueError(
            f"Tensor conversion requested dtype {dtype.name} for IndexedSlices with dtype {value.dtype.name}"
        )
    if value.dense_shape is None:
        raise ValueError(f"Tensor conversion requested for IndexedSlices without dense_shape: {value}.")
    count = value.shape.num_elements()
    if count is None:
        warnings.warn(
            "Converting sparse IndexedSlices to a dense Tensor of unknown shape. "
            "This may consume a large amount of memory."
        )
    elif count >= _LARGE:
        warnings.warn(
            f"Converting sparse IndexedSlices to a dense Tensor with {count} elements. "
            "This may consume a large amount of memory."
        )
    return dense_rows(value, name)


register_tensor_conversion_function(IndexedSlices, indexed_slices_to_tensor)
