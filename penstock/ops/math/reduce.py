"""Reductions along axes."""

from __future__ import annotations

import math as pymath
from typing import Any
from weakref import WeakKeyDictionary

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import as_dtype
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.opdef import OpDef, Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import tensor_or_ragged
from penstock.graph.scopes import colocate_with, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import INDEX32, NUMBERS, QUANTIZED, REALS, Array, xp
from penstock.ops.array import creation, gathering, joining, partitioning, passthrough, ranges, reshaping, selection
from penstock.ops.math import arithmetic, casting, compare, unary

SUMMED = Types(*NUMBERS, *QUANTIZED)
ORDERED = Types(*REALS, *QUANTIZED)


def _axes(array_: Array, indices: Array) -> tuple[int, ...]:
    axes = []
    for axis in np.asarray(indices).reshape(-1).tolist():
        if not -array_.ndim <= axis < array_.ndim:
            raise ValueError(f"Invalid reduction dimension ({axis} for input with {array_.ndim} dimension(s)")
        axes.append(axis % array_.ndim)
    if len(set(axes)) != len(axes):
        raise ValueError(f"Invalid reduction arguments: Axes contains duplicate dimension: {axes}")
    return tuple(axes)


# Gradients. `reduced` caches arithmetic that TensorFlow does once per graph, shapes and axes.

_reduced: WeakKeyDictionary[Graph, dict[Any, tuple[list[int], list[int]]]] = WeakKeyDictionary()


def _sum_grad(op: Operation, grad: Any) -> list[Any]:
    dims = op.inputs[0].shape
    axes = constant_value(op.inputs[1])
    if dims.rank is not None and axes is not None:
        sizes = dims.as_list()
        if np.array_equal(axes, np.arange(dims.rank)):
            spread = reshaping.reshape(grad, [1] * dims.rank)
            known = dims.is_fully_defined()
            whole = make_constant(sizes, dt.int32) if known else reshaping.shape(op.inputs[0])
            return [joining.tile(spread, whole), None]
        if dims.is_fully_defined():
            kept, factors = _static_reduction(dims, tuple(axes.reshape(-1).tolist()))
            return [joining.tile(reshaping.reshape(grad, kept), factors), None]
    whole = reshaping.shape(op.inputs[0])
    if not op.attrs["keep_dims"]:
        with colocate_with(whole):
            kept_shape = reduced_shape(whole, op.inputs[1])
        grad = reshaping.reshape(grad, kept_shape)
    return [reshaping.broadcast_to(grad, whole), None]


def _static_reduction(shape: TensorShape, axes: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The shape with 1 along `axes`, and how often each axis was reduced.

    TensorFlow makes nodes for this division once per graph, though it needs only their values. They count for names.
    """
    cache = _reduced.setdefault(get_default_graph(), {})
    sizes: tuple[int, ...] = tuple(d or 0 for d in shape.as_list())
    if (sizes, axes) not in cache:
        chosen = {a % len(sizes) for a in axes}
        kept = [1 if i in chosen else d for i, d in enumerate(sizes)]
        arithmetic.floordiv(list(sizes), arithmetic.maximum(kept, 1))
        cache[sizes, axes] = kept, [d // max(k, 1) for d, k in zip(sizes, kept, strict=True)]
    return cache[sizes, axes]


def reduced_shape(input_shape: Tensor, axes: Tensor) -> Tensor:
    """The shape of a reduction with keepdims, from shape and axes as tensors."""
    rank = reshaping.size(input_shape)
    positive = arithmetic.floor_mod(arithmetic.add_v2(axes, rank, name="add"), rank, name="mod")
    count, everywhere = reshaping.shape(positive), ranges.range(0, rank)
    ones = creation.ones(count, dtype=input_shape.dtype.base_dtype)
    stitched: Tensor = partitioning.dynamic_stitch([everywhere, positive], [input_shape, ones])
    return stitched


def _mean_grad(op: Operation, grad: Any) -> list[Any]:
    total = _sum_grad(op, grad)[0]
    before, after = op.inputs[0].shape, op.outputs[0].shape
    dtype = total.dtype.base_dtype
    if before.is_fully_defined() and after.is_fully_defined():
        count = (before.num_elements() or 0) // max(after.num_elements() or 0, 1)
        factor = make_constant(count, dtype)
    else:
        sizes = reshaping.shape(op.inputs[0])
        rank = reshaping.size(sizes)
        axes = arithmetic.floor_mod(arithmetic.add_v2(op.inputs[1], rank, name="add"), rank, name="mod")
        factor = reduce_prod(gathering.gather(sizes, axes))
    return [arithmetic.truediv(total, casting.cast(factor, dtype)), None]


# Reductions


@op(
    "Sum",
    "T, Tidx -> output: T",
    static="reduction_indices",
    numpy=True,
    shape=shapes.reduction,
    grad=_sum_grad,
    T=SUMMED,
    Tidx=INDEX32,
)
def sum_op(input: Array, reduction_indices: Array, *, keep_dims: bool = False) -> Array:
    return xp(input).sum(input, _axes(input, reduction_indices), dtype=input.dtype, keepdims=keep_dims)


@op(
    "Mean",
    "T, Tidx -> output: T",
    static="reduction_indices",
    shape=shapes.reduction,
    grad=_mean_grad,
    T=SUMMED,
    Tidx=INDEX32,
)
def mean_op(input: Array, reduction_indices: Array, *, keep_dims: bool = False) -> Array:
    axes = _axes(input, reduction_indices)
    if not np.issubdtype(input.dtype, np.integer):
        return jnp.mean(input, axes, keepdims=keep_dims)
    total = jnp.sum(input, axes, dtype=input.dtype, keepdims=keep_dims)
    count = pymath.prod(input.shape[a] for a in axes)
    return jnp.sign(total) * (jnp.abs(total) // max(count, 1)).astype(input.dtype)  # rounded towards zero, as in C


@op(
    "Prod",
    "T, Tidx -> output: T",
    static="reduction_indices",
    numpy=True,
    shape=shapes.reduction,
    T=SUMMED,
    Tidx=INDEX32,
)
def prod_op(input: Array, reduction_indices: Array, *, keep_dims: bool = False) -> Array:
    return xp(input).prod(input, _axes(input, reduction_indices), dtype=input.dtype, keepdims=keep_dims)


def _extreme(input: Array, indices: Array, keep_dims: bool, largest: bool) -> Array:
    m = xp(input)
    start: dict[str, Any] = {}
    if input.size == 0:  # the neutral element, which an empty reduction gives
        if np.issubdtype(input.dtype, np.integer):
            info = np.iinfo(input.dtype)
            start["initial"] = info.min if largest else info.max
        else:
            start["initial"] = -np.inf if largest else np.inf
    return (m.max if largest else m.min)(input, _axes(input, indices), keepdims=keep_dims, **start)


@op(
    "Max",
    "T, Tidx -> output: T",
    static="reduction_indices",
    numpy=True,
    shape=shapes.reduction,
    T=ORDERED,
    Tidx=INDEX32,
)
def max_op(input: Array, reduction_indices: Array, *, keep_dims: bool = False) -> Array:
    return _extreme(input, reduction_indices, keep_dims, largest=True)


@op(
    "Min",
    "T, Tidx -> output: T",
    static="reduction_indices",
    numpy=True,
    shape=shapes.reduction,
    T=ORDERED,
    Tidx=INDEX32,
)
def min_op(input: Array, reduction_indices: Array, *, keep_dims: bool = False) -> Array:
    return _extreme(input, reduction_indices, keep_dims, largest=False)


@op(
    "All",
    "bool, Tidx -> output: bool",
    static="reduction_indices",
    numpy=True,
    shape=shapes.reduction,
    no_gradient=True,
    Tidx=INDEX32,
)
def all_op(input: Array, reduction_indices: Array, *, keep_dims: bool = False) -> Array:
    return xp(input).all(input, _axes(input, reduction_indices), keepdims=keep_dims)


@op(
    "Any",
    "bool, Tidx -> output: bool",
    static="reduction_indices",
    numpy=True,
    shape=shapes.reduction,
    no_gradient=True,
    Tidx=INDEX32,
)
def any_op(input: Array, reduction_indices: Array, *, keep_dims: bool = False) -> Array:
    return xp(input).any(input, _axes(input, reduction_indices), keepdims=keep_dims)


@op("EuclideanNorm", "T, Tidx -> output: T", static="reduction_indices", shape=shapes.reduction, T=SUMMED, Tidx=INDEX32)
def euclidean_norm_op(input: Array, reduction_indices: Array, *, keep_dims: bool = False) -> Array:
    squares = jnp.real(input * jnp.conj(input))
    return jnp.sqrt(jnp.sum(squares, _axes(input, reduction_indices), keepdims=keep_dims)).astype(input.dtype)


# Public functions


def renamed(new: Any, new_name: str, old: Any, old_name: str) -> Any:
    """The value of an argument that also has a deprecated name."""
    if new is not None and old is not None:
        raise ValueError(f"Cannot specify both '{old_name}' and '{new_name}'.")
    return old if new is None else new


def _reduce(
    raw: OpDef, input_tensor: Any, axis: Any, keepdims: Any, name: str | None, reduction_indices: Any, keep_dims: Any
) -> Tensor:
    axis = renamed(axis, "axis", reduction_indices, "reduction_indices")
    keepdims = bool(renamed(keepdims, "keepdims", keep_dims, "keep_dims"))
    result: Tensor = raw(input_tensor, _all_axes(input_tensor, axis), keep_dims=keepdims, name=name)
    return _maybe_scalar(result, axis, keepdims)


def _all_axes(x: Any, axis: Any) -> Any:
    if axis is not None:
        return axis
    # A scalar gets a range too, since TensorFlow's node names need it.
    rank = x.shape.rank if isinstance(x, Tensor) or hasattr(x, "_as_tensor") else None
    return make_constant(np.arange(rank, dtype=np.int32), dt.int32) if rank else ranges.range(0, reshaping.rank(x))


def _maybe_scalar(result: Tensor, axis: Any, keepdims: bool) -> Tensor:
    if axis is None and not keepdims and not result.shape.is_fully_defined():
        result.set_shape(())
    return result


def reduce_sum(
    input_tensor: TensorLike,
    axis: TensorLike = None,
    keepdims: Any = None,
    name: str | None = None,
    reduction_indices: TensorLike = None,
    keep_dims: Any = None,
) -> Tensor:
    """The sum along `axis` (a number, a list, a tensor; None for all).

    >>> tf.reduce_sum([[1.0, 2.0], [3.0, 4.0]], axis=1)  # [3.0, 7.0]
    """
    return _reduce(sum_op, input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_mean(
    input_tensor: TensorLike,
    axis: TensorLike = None,
    keepdims: Any = None,
    name: str | None = None,
    reduction_indices: TensorLike = None,
    keep_dims: Any = None,
) -> Tensor:
    """The mean along `axis`: `tf.reduce_mean(losses)`."""
    return _reduce(mean_op, input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_prod(
    input_tensor: TensorLike,
    axis: TensorLike = None,
    keepdims: Any = None,
    name: str | None = None,
    reduction_indices: TensorLike = None,
    keep_dims: Any = None,
) -> Tensor:
    """The product along `axis`: `tf.reduce_prod(tf.shape(x))`."""
    return _reduce(prod_op, input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_max(
    input_tensor: TensorLike,
    axis: TensorLike = None,
    keepdims: Any = None,
    name: str | None = None,
    reduction_indices: TensorLike = None,
    keep_dims: Any = None,
) -> Tensor:
    """The largest element along `axis`: `tf.reduce_max(x, axis=0)`."""
    return _reduce(max_op, input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_min(
    input_tensor: TensorLike,
    axis: TensorLike = None,
    keepdims: Any = None,
    name: str | None = None,
    reduction_indices: TensorLike = None,
    keep_dims: Any = None,
) -> Tensor:
    """The smallest element along `axis`: `tf.reduce_min(x, axis=0)`."""
    return _reduce(min_op, input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_all(
    input_tensor: TensorLike,
    axis: TensorLike = None,
    keepdims: Any = None,
    name: str | None = None,
    reduction_indices: TensorLike = None,
    keep_dims: Any = None,
) -> Tensor:
    """True if all elements along `axis` are True: `tf.reduce_all(x > 0)`."""
    return _reduce(all_op, input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_any(
    input_tensor: TensorLike,
    axis: TensorLike = None,
    keepdims: Any = None,
    name: str | None = None,
    reduction_indices: TensorLike = None,
    keep_dims: Any = None,
) -> Tensor:
    """True if any element along `axis` is True: `tf.reduce_any(x > 0)`."""
    return _reduce(any_op, input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_euclidean_norm(
    input_tensor: TensorLike, axis: TensorLike = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The L2 norm along `axis`: `tf.math.reduce_euclidean_norm([3.0, 4.0])` is 5."""
    return _reduce(euclidean_norm_op, input_tensor, axis, bool(keepdims), name, None, None)


def reduce_logsumexp(
    input_tensor: TensorLike,
    axis: TensorLike = None,
    keepdims: Any = None,
    name: str | None = None,
    reduction_indices: TensorLike = None,
    keep_dims: Any = None,
) -> Tensor:
    """log(sum(exp(x))) along `axis`, without overflow: `tf.reduce_logsumexp(logits, axis=1)`."""
    axis = renamed(axis, "axis", reduction_indices, "reduction_indices")
    keepdims = bool(renamed(keepdims, "keepdims", keep_dims, "keep_dims"))
    with name_scope(name, "ReduceLogSumExp", [input_tensor]) as scope:
        highest = reduce_max(input_tensor, axis, keepdims=True)
        shift = selection.select_v2(unary.is_finite(highest), highest, 0)
        shift = passthrough.stop_gradient(shift)
        powers = unary.exp(arithmetic.subtract(input_tensor, shift))
        result = unary.log(reduce_sum(powers, axis, keepdims=keepdims))
        if not keepdims:
            shift = reshaping.reshape(shift, reshaping.shape_op(result))
        return _maybe_scalar(arithmetic.add(result, shift, name=scope), axis, keepdims)


def reduce_variance(
    input_tensor: TensorLike, axis: TensorLike = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The variance along `axis`: `tf.math.reduce_variance(x, axis=0)`."""
    with name_scope(name or "reduce_variance"):
        x = tensor_or_ragged(input_tensor)
        means = reduce_mean(x, axis, keepdims=True)
        if means.dtype.is_integer:
            raise TypeError(f"reduce_variance takes floats or complex numbers, received {means.dtype.name}.")
        deviation = arithmetic.sub(x, means, name="sub")
        if deviation.dtype.is_complex:
            squares = casting.real(arithmetic.mul(casting.conj(deviation), deviation, name="mul"))
        else:
            squares = unary.square(deviation)
        return reduce_mean(squares, axis, keepdims=keepdims)


def reduce_std(
    input_tensor: TensorLike, axis: TensorLike = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The standard deviation along `axis`: `tf.math.reduce_std(x, axis=0)`."""
    with name_scope(name or "reduce_std"):
        deviation: Tensor = unary.sqrt(reduce_variance(input_tensor, axis, keepdims))
        return deviation


def count_nonzero(
    input_tensor: TensorLike = None,
    axis: TensorLike = None,
    keepdims: Any = None,
    dtype: DTypeLike = dt.int64,
    name: str | None = None,
    reduction_indices: TensorLike = None,
    keep_dims: Any = None,
    input: TensorLike = None,
) -> Tensor:
    """The number of elements along `axis` that are not zero (empty, for strings): `tf.count_nonzero(mask)`."""
    keepdims = bool(renamed(keepdims, "keepdims", keep_dims, "keep_dims"))
    x = renamed(input, "input", input_tensor, "input_tensor")
    axis = renamed(axis, "axis", reduction_indices, "reduction_indices")
    with name_scope(name, "count_nonzero", [x]):
        x = convert_to_tensor(x, name="input")
        if not x.dtype.is_bool:
            x = compare.not_equal(x, creation.zeros([], dtype=x.dtype.base_dtype))
        total = reduce_sum(casting.cast(x, dt.int64), axis, keepdims)
        count: Tensor = casting.cast(total, as_dtype(dtype))
        return count
