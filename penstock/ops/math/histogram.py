"""Ops that count how often numbers occur: histograms, confusion matrices and bincount."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel.shapes import merge, require_rank
from penstock.kernel.types import INDEX32, Array
from penstock.ops.array import creation, gathering, joining
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.array.reshaping import reshape, shape, size
from penstock.ops.control import grouping
from penstock.ops.debugging import assertion, check_ops
from penstock.ops.math import arithmetic, casting, clip, compare, reduce, unary
from penstock.ops.nn.weights import remove_squeezable_dimensions

_INT32 = dt.int32
_COUNTABLE = Types(dt.int32, dt.int64, dt.float32, dt.float64)


def _histogram_shape(op: Operation) -> list[TensorShape]:
    merge(op.input_list[1].shape, TensorShape.of((2,)))
    require_rank(op.input_list[2].shape, 0)
    bins = constant_value(op.input_list[2])
    if bins is not None and int(bins) <= 0:
        raise ValueError(f"Requires nbins > 0: {int(bins)}")
    return [TensorShape.of((None if bins is None else int(bins),))]


@op(
    "HistogramFixedWidth",
    "T, T, int32 -> out: dtype",
    static="nbins",
    shape=_histogram_shape,
    no_gradient=True,
    T=_COUNTABLE,
    dtype=INDEX32,
)
def histogram_fixed_width_op(values: Array, value_range: Array, nbins: Array, *, dtype: DType = _INT32) -> Array:
    bins = int(nbins)
    if bins <= 0:
        raise ValueError(f"nbins should be a positive number, but got '{bins}'")
    if tuple(value_range.shape) != (2,):
        raise ValueError(f"value_range should be a vector of 2 elements, received shape {list(value_range.shape)}")
    low, high = value_range[0], value_range[1]
    require(low < high, "value_range should satisfy value_range[0] < value_range[1], but got value_range[0] = {}", low)
    wide = jnp.asarray(values).astype(np.float64).reshape(-1)
    first = jnp.asarray(low).astype(np.float64)
    width = (jnp.asarray(high).astype(np.float64) - first) / bins
    at = jnp.clip(jnp.floor((wide - first) / width), 0, bins - 1).astype(np.int32)
    return jnp.zeros(bins, dtype.as_numpy_dtype).at[at].add(1)


def histogram_fixed_width(
    values: TensorLike,
    value_range: TensorLike,
    nbins: TensorLike = 100,
    dtype: DTypeLike = _INT32,
    name: str | None = None,
) -> Tensor:
    """Counts the `values` in each of `nbins` equal parts of `value_range`; the outer parts include values beyond.

    >>> tf.histogram_fixed_width([-1.0, 0.0, 1.5], [0.0, 5.0], nbins=5)
    """
    with name_scope(name, "histogram_fixed_width", [values, value_range, nbins]) as scope:
        result: Tensor = histogram_fixed_width_op(values, value_range, nbins, dtype=as_dtype(dtype), name=scope)
        return result


def histogram_fixed_width_bins(
    values: TensorLike,
    value_range: TensorLike,
    nbins: TensorLike = 100,
    dtype: DTypeLike = _INT32,
    name: str | None = None,
) -> Tensor:
    """The part of `value_range` that each of `values` falls into, as `histogram_fixed_width` counts them.

    >>> tf.histogram_fixed_width_bins([-1.0, 0.0, 1.5], [0.0, 5.0], nbins=5)
    """
    with name_scope(name, "histogram_fixed_width_bins", [values, value_range, nbins]):
        values = convert_to_tensor(values, name="values")
        dims = shape(values)
        flat: Any = reshape(values, [-1])
        value_range = convert_to_tensor(value_range, name="value_range")
        nbins = convert_to_tensor(nbins, dtype=_INT32, name="nbins")
        positive = assertion.Assert(nbins > 0, [f"nbins {nbins} must be > 0"])
        nbins = grouping.with_dependencies([positive], nbins)
        count: Any = casting.cast(nbins, values.dtype)
        scaled = arithmetic.truediv(flat - value_range[0], value_range[1] - value_range[0], name="scaled_values")
        at = unary.floor(count * scaled, name="indices")
        at = clip.clip_by_value(at, 0, count - 1)
        return reshape(casting.cast(at, as_dtype(dtype)), dims)


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: TensorLike = None,
    dtype: DTypeLike = _INT32,
    name: str | None = None,
    weights: TensorLike = None,
) -> Tensor:
    """Counts how often each class (row) was predicted as each class (column), or sums the weights.

    >>> tf.confusion_matrix([1, 2, 4], [2, 2, 4])
    """
    with name_scope(name, "confusion_matrix", [predictions, labels, num_classes, weights]):
        labels, predictions = remove_squeezable_dimensions(
            convert_to_tensor(labels, name="labels"), convert_to_tensor(predictions, name="predictions")
        )
        predictions = casting.cast(predictions, dt.int64)
        labels = casting.cast(labels, dt.int64)
        labels = grouping.with_dependencies(
            [check_ops.assert_non_negative(labels, message="`labels` contains negative values.")], labels
        )
        predictions = grouping.with_dependencies(
            [check_ops.assert_non_negative(predictions, message="`predictions` contains negative values.")], predictions
        )
        if num_classes is None:
            largest: Any = arithmetic.maximum(reduce.reduce_max(predictions), reduce.reduce_max(labels))
            num_classes = largest + 1
        else:
            limit = casting.cast(num_classes, dt.int64)
            labels = grouping.with_dependencies(
                [check_ops.assert_less(labels, limit, message="`labels` out of bound")], labels
            )
            predictions = grouping.with_dependencies(
                [check_ops.assert_less(predictions, limit, message="`predictions` out of bound")], predictions
            )
        kind = as_dtype(dtype)
        if weights is not None:
            weights = convert_to_tensor(weights, name="weights")
            predictions.shape.assert_is_compatible_with(weights.shape)
            weights = casting.cast(weights, kind)
        dims = joining.stack([num_classes, num_classes])
        indices = joining.stack([labels, predictions], axis=1)
        values = creation.ones_like(predictions, kind) if weights is None else weights
        return gathering.scatter_nd(indices, values, casting.cast(dims, dt.int64))


@op(
    "DenseBincount",
    "Tidx, Tidx, T -> output: T",
    static="size",
    grad=refuse_gradient,
    T=_COUNTABLE,
    Tidx=Types(dt.int32, dt.int64),
    shape=lambda op: [TensorShape.of((_known(op.input_list[1]),))],
)
def dense_bincount(input: Array, size: Array, weights: Array, *, binary_output: bool = False) -> Array:
    ones = jnp.ones(input.shape, weights.dtype)
    bins = jnp.zeros(int(size), weights.dtype)
    counts = bins.at[input].add(weights if weights.size else ones, mode="drop")
    return (counts != 0).astype(weights.dtype) if binary_output else counts


def _known(tensor: Tensor) -> int | None:
    value = constant_value(tensor)
    return None if value is None else int(value)


def bincount(
    arr: TensorLike,
    weights: TensorLike = None,
    minlength: TensorLike = None,
    maxlength: TensorLike = None,
    dtype: DTypeLike = dt.int32,
    name: str | None = None,
) -> Tensor:
    """Counts each number from 0 up, or sums its weights: `tf.bincount([0, 2, 2])` is [1, 0, 2]."""
    with name_scope(name, "bincount", [arr, weights]):
        arr = convert_to_tensor(arr, name="arr", dtype=dt.int32)
        any_given = casting.cast(compare.greater(size(arr), 0), dt.int32)
        count = arithmetic.mul(any_given, arithmetic.add_v2(reduce.reduce_max(arr), 1, name="add"), name="mul")
        if minlength is not None:
            count = arithmetic.maximum(convert_to_tensor(minlength, dtype=dt.int32, name="minlength"), count)
        if maxlength is not None:
            count = arithmetic.minimum(convert_to_tensor(maxlength, dtype=dt.int32, name="maxlength"), count)
        flat = reshape(arr, [-1])
        if weights is None:
            weights = make_constant(np.zeros(0, as_dtype(dtype).as_numpy_dtype), as_dtype(dtype))
        else:
            weights = reshape(convert_to_tensor(weights, name="weights"), [-1])
        counts: Tensor = dense_bincount(flat, count, weights)
        return counts
