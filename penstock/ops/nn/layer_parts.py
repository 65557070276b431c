"""Elementwise parts of layers: activations, softmax, bias, dropout, and the largest entries of rows."""

from __future__ import annotations

import math as pymath
import numbers
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.opdef import OpDef, Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel import shapes
from penstock.kernel.types import FLOATS, NUMBERS, QUANTIZED, REALS, Array
from penstock.ops.array import arranging, joining, passthrough, ranges, reshaping, selection
from penstock.ops.linalg import matmul
from penstock.ops.math import arithmetic, casting, reduce, unary
from penstock.ops.math.reduce import renamed
from penstock.ops.nn.activation import relu
from penstock.ops.random import stateful as random

_FLOATS32 = Types(*FLOATS, default=dt.float32)
_NUMBERS_Q = Types(*NUMBERS, *QUANTIZED)
_COUNTS = Types(dt.int16, dt.int32, dt.int64, default=dt.int32)
_INT32, _FLOAT32, _FLOAT64, _INT64 = dt.int32, dt.float32, dt.float64, dt.int64


# Softmax.


def _at_least_vector(op: Operation) -> list[TensorShape]:
    return [op.input_list[0].shape.with_rank_at_least(1)]


def _softmax_gradient(op: Operation, dy: Any) -> list[Any]:
    softmax = op.outputs[0]
    total = reduce.reduce_sum(dy * softmax, -1, keepdims=True)
    return [(dy - total) * softmax]


@op("Softmax", "T -> softmax: T", shape=_at_least_vector, T=FLOATS, grad=_softmax_gradient)
def softmax_op(logits: Array) -> Array:
    return jax.nn.softmax(logits, axis=-1)


def _log_softmax_gradient(op: Operation, dy: Any) -> list[Any]:
    softmax = unary.exp(op.outputs[0])
    return [dy - reduce.reduce_sum(dy, -1, keepdims=True) * softmax]


@op("LogSoftmax", "T -> logsoftmax: T", shape=_at_least_vector, T=FLOATS, grad=_log_softmax_gradient)
def log_softmax_op(logits: Array) -> Array:
    return jax.nn.log_softmax(logits, axis=-1)


def softmax(logits: TensorLike, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Tensor:
    """exp(logits), scaled to sum to 1 along `axis` (the last one by default).

    >>> tf.nn.softmax([[1.0, 2.0]])
    """
    return _along(softmax_op, logits, renamed(axis, "axis", dim, "dim"), name)


def log_softmax(logits: TensorLike, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Tensor:
    """log(softmax(logits)), without overflow.

    >>> tf.nn.log_softmax([[1.0, 2.0]])
    """
    return _along(log_softmax_op, logits, renamed(axis, "axis", dim, "dim"), name)


def _along(compute: OpDef, logits: Any, axis: int | None, name: str | None) -> Tensor:
    logits = convert_to_tensor(logits, name="logits")
    rank = logits.shape.rank
    axis = -1 if axis is None else axis
    result: Tensor
    if axis == -1 or (rank is not None and axis == rank - 1):
        result = compute(logits, name=name)
        return result
    if rank is None:
        raise TypeError(f"{compute.name}: axis {axis} asks for an input of known rank; set_shape gives it one.")
    if not -rank <= axis < rank:
        raise ValueError(f"{compute.name}: axis must be in [{-rank}, {rank}) for rank {rank}, received {axis}.")
    # The op works on the last axis, so the axis is swapped with it before and after.
    at: Any = axis
    first: Any = reshaping.rank(logits)
    if axis < 0:
        at = axis + first
    count = reshaping.rank(logits)
    if axis < 0:
        at = at % rank
    swapped = compute(_swap_with_last(logits, at, count))
    result = _swap_with_last(swapped, at, count, name)
    result.set_shape(logits.shape)
    return result


def _swap_with_last(tensor: Tensor, axis: Any, rank: Tensor, name: str | None = None) -> Tensor:
    last = arithmetic.subtract(rank, 1)
    order = joining.concat([ranges.range(axis), [last], ranges.range(axis + 1, last), [axis]], 0)
    result: Tensor = arranging.transpose(tensor, order, name=name or "transpose")
    return result


# Bias.


def _bias_axis(data_format: str, rank: int) -> int:
    return 1 if data_format.startswith("NC") and rank > 2 else rank - 1


def _bias_add_shape(op: Operation) -> list[TensorShape]:
    value = op.input_list[0].shape
    bias = op.input_list[1].shape.with_rank(1)
    if value.rank is None:
        return [value]
    value = value.with_rank_at_least(2)
    dims = value.as_list()
    axis = _bias_axis(op.attrs["data_format"], len(dims))
    channels, given = dims[axis], bias.as_list()[0]
    if channels is not None and given is not None and channels != given:
        raise ValueError(f"Dimensions must be equal, but are {channels} and {given}")
    dims[axis] = given if channels is None else channels
    return [TensorShape.of(tuple(dims))]


def _bias_grad_shape(op: Operation) -> list[TensorShape]:
    shape = op.input_list[0].shape
    if shape.rank is None:
        return [TensorShape.of((None,))]
    return [TensorShape.of((shape.as_list()[_bias_axis(op.attrs["data_format"], shape.rank)],))]


@op("BiasAddGrad", "T -> output: T", shape=_bias_grad_shape, T=_NUMBERS_Q)
def bias_add_grad(out_backprop: Array, *, data_format: str = "NHWC") -> Array:
    axis = _bias_axis(data_format, out_backprop.ndim)
    return jnp.sum(out_backprop, [i for i in range(out_backprop.ndim) if i != axis], dtype=out_backprop.dtype)


def _bias_add_gradient(op: Operation, dy: Tensor) -> list[Any]:
    return [dy, bias_add_grad(dy, data_format=op.attrs["data_format"])]


@op("BiasAdd", "T, T -> output: T", shape=_bias_add_shape, grad=_bias_add_gradient, T=_NUMBERS_Q)
def bias_add_op(value: Array, bias: Array, *, data_format: str = "NHWC") -> Array:
    if value.ndim < 2:
        raise ValueError(f"Input tensor must be at least 2D, received shape {value.shape}")
    axis = _bias_axis(data_format, value.ndim)
    if bias.ndim != 1 or bias.shape[0] != value.shape[axis]:
        raise ValueError(f"bias must be a vector of {value.shape[axis]} values, received shape {bias.shape}")
    return value + bias.reshape([-1 if i == axis else 1 for i in range(value.ndim)])


@op(
    "BiasAddV1",
    "T, T -> output: T",
    T=_NUMBERS_Q,
    shape=lambda op: [op.input_list[0].shape.with_rank_at_least(2)],
    grad=lambda op, dy: [dy, reduce.reduce_sum(dy, ranges.range(arithmetic.subtract(reshaping.rank(dy), 1)))],
)
def bias_add_v1(value: Array, bias: Array) -> Array:
    return bias_add_op.kernel(value, bias)


def bias_add(value: TensorLike, bias: TensorLike, data_format: str | None = None, name: str | None = None) -> Tensor:
    """Adds a vector to every position of the channel dimension (the last one, or 1 for "NCHW").

    >>> tf.nn.bias_add(tf.nn.conv2d(x, w, [1, 1, 1, 1], "SAME"), b)
    """
    if data_format is not None and data_format not in ("NHWC", "NCHW", "NWC", "NCW", "NDHWC", "NCDHW"):
        raise ValueError(f"bias_add: data_format must be of the form `N...C` or `NC...`, received {data_format!r}.")
    layout = "NCHW" if data_format is not None and data_format.startswith("NC") else "NHWC"
    with name_scope(name, "BiasAdd", [value, bias]) as name:
        value = convert_to_tensor(value, name="input")
        bias = convert_to_tensor(bias, dtype=value.dtype.base_dtype, name="bias")
        result: Tensor = bias_add_op(value, bias, data_format=layout, name=name)
        return result


def xw_plus_b(x: TensorLike, weights: TensorLike, biases: TensorLike, name: str | None = None) -> Tensor:
    """matmul(x, weights) + biases.

    >>> tf.nn.xw_plus_b(x, w, b)
    """
    with name_scope(name, "xw_plus_b", [x, weights, biases]) as name:
        return bias_add(_product(x, weights), convert_to_tensor(biases, name="biases"), name=name)


def relu_layer(x: TensorLike, weights: TensorLike, biases: TensorLike, name: str | None = None) -> Tensor:
    """relu(matmul(x, weights) + biases).

    >>> tf.nn.relu_layer(x, w, b)
    """
    with name_scope(name, "relu_layer", [x, weights, biases]) as name:
        result: Tensor = relu(bias_add(_product(x, weights), convert_to_tensor(biases, name="biases")), name=name)
        return result


def _product(x: Any, weights: Any) -> Tensor:
    result: Tensor = matmul.matmul(convert_to_tensor(x, name="x"), convert_to_tensor(weights, name="weights"))
    return result


# Dropout.


def dropout(
    x: TensorLike,
    keep_prob: TensorLike = None,
    noise_shape: ShapeLike = None,
    seed: int | None = None,
    name: str | None = None,
    rate: TensorLike = None,
) -> Tensor:
    """Zeroes each element with probability `rate` (1 - keep_prob) and scales the others up to keep the expected sum.

    Elements along an axis for which `noise_shape` is 1 are dropped together.

    >>> tf.nn.dropout(hidden, keep_prob=0.5)
    """
    if keep_prob is not None:
        if not isinstance(keep_prob, (numbers.Real, Tensor, np.ndarray)) and not hasattr(keep_prob, "dtype"):
            raise ValueError(f"dropout: keep_prob must be a floating point number or Tensor, received {keep_prob!r}.")
        rate = renamed(rate, "rate", 1.0 - keep_prob, "keep_prob")
    if rate is None:
        raise ValueError("dropout: `rate` must be provided (or keep_prob). Received: rate=None")
    with name_scope(name, "dropout", [x]):
        value = convert_to_tensor(x, name="x")
        kind = value.dtype.base_dtype
        if not kind.is_floating:
            raise ValueError(f"dropout: x is scaled, so it must be floating. Received: dtype={kind.name}")
        if isinstance(rate, numbers.Real):
            if not 0 <= float(rate) < 1:
                raise ValueError(f"dropout: `rate` must be a scalar tensor or a float in [0, 1). Received: rate={rate}")
            if rate == 0:
                return value
            scaled = arithmetic.multiply(value, convert_to_tensor(1.0 / (1.0 - float(rate)), dtype=kind))
        else:
            rate = _rate_tensor(rate, kind)
            one = convert_to_tensor(1, dtype=kind)
            scaled = arithmetic.realdiv(value, arithmetic.subtract(one, rate))
        drawn: Any = random.random_uniform(_noise_shape(value, noise_shape), dtype=kind, seed=seed)
        result: Tensor = selection.where_v2(drawn >= rate, scaled, convert_to_tensor(0, dtype=kind))
        result.set_shape(value.shape)
        return result


def _rate_tensor(rate: Any, dtype: DType) -> Tensor:
    tensor = convert_to_tensor(rate, name="rate")
    tensor.shape.assert_has_rank(0)
    if tensor.dtype.base_dtype == dtype:
        return tensor
    if not tensor.dtype.is_floating:
        raise ValueError(f"dropout: `rate` must be floating, received dtype {tensor.dtype.name}.")
    result: Tensor = casting.cast(tensor, dtype, name="rate")
    return result


def _noise_shape(x: Tensor, noise_shape: Any) -> Any:
    """The shape of the mask; None in `noise_shape` stands for the size in `x`."""
    if noise_shape is None:
        return reshaping.shape(x)
    if isinstance(noise_shape, Tensor):
        return noise_shape
    try:
        given = as_shape(noise_shape)
    except (TypeError, ValueError):
        return noise_shape  # a list with tensors or -1 in it
    if x.shape.rank is None or given.rank != x.shape.rank:
        return noise_shape
    return TensorShape([b if a is None else a for a, b in zip(given.as_list(), x.shape.as_list(), strict=True)])


# The largest entries of rows.


class TopK(NamedTuple):
    """The result of `top_k`."""

    values: Any
    indices: Any


def _top_k_shape(op: Operation) -> list[TensorShape]:
    shape = op.input_list[0].shape
    count = constant_value(op.input_list[1])
    if shape.rank is None:
        return [shape, shape]
    dims = shape.with_rank_at_least(1).as_list()
    k = None if count is None else int(count)
    if k is not None and dims[-1] is not None and dims[-1] < k:
        raise ValueError(f"input must have last dimension >= k = {k} but is {dims[-1]}")
    return [TensorShape.of((*dims[:-1], k))] * 2


def _top_k_gradient(op: Operation, dy: Tensor, _: Any) -> list[Any]:
    return [top_k_grad(op.input_list[0], op.outputs[1], dy), None]


@op("TopKGrad", "T, index_type, T -> output: T", shape=shapes.unchanged, T=FLOATS, index_type=_COUNTS)
def top_k_grad(input: Array, indices: Array, dy: Array) -> Array:
    """`dy` at the places of the values that `top_k` returned, zero elsewhere."""
    if not input.shape[-1]:
        raise ValueError(f"a gradient needs at least one column, received shape {input.shape}")
    rows = jnp.zeros((pymath.prod(input.shape[:-1]), input.shape[-1]), input.dtype)
    at = indices.reshape(rows.shape[0], indices.shape[-1])
    return rows.at[jnp.arange(rows.shape[0])[:, None], at].add(dy.reshape(at.shape)).reshape(input.shape)


@op(
    "TopKV2",
    "T, Tk -> values: T, indices: index_type",
    static="k",
    shape=_top_k_shape,
    grad=_top_k_gradient,
    T=REALS,
    Tk=_COUNTS,
    index_type=_COUNTS,
)
def top_k_v2(input: Array, k: Array, *, sorted: bool = True, index_type: DType = _INT32) -> tuple[Array, Array]:
    count = as_size(k)
    if input.ndim < 1 or input.shape[-1] < count:
        raise ValueError(f"input must have at least k = {count} columns, received shape {input.shape}")
    values, indices = lax.top_k(input, count)
    return values, indices.astype(index_type.as_numpy_dtype)


def _top_k_v1_shape(op: Operation) -> list[TensorShape]:
    shape = op.input_list[0].shape
    if shape.rank is None:
        return [shape, shape]
    dims = shape.with_rank_at_least(1).as_list()
    if dims[-1] is not None and dims[-1] < op.attrs["k"]:
        raise ValueError(f"input must have last dimension >= k = {op.attrs['k']} but is {dims[-1]}")
    return [TensorShape.of((*dims[:-1], op.attrs["k"]))] * 2


@op(
    "TopK",
    "T -> values: T, indices: int32",
    shape=_top_k_v1_shape,
    T=REALS,
    grad=lambda op, dy, _: [top_k_grad(op.input_list[0], op.outputs[1], dy)],
)
def top_k_v1(input: Array, *, k: int, sorted: bool = True) -> tuple[Array, Array]:
    return top_k_v2.kernel(input, k, sorted=sorted)  # type: ignore[no-any-return]


def top_k(
    input: TensorLike, k: TensorLike = 1, sorted: bool = True, index_type: DTypeLike = _INT32, name: str | None = None
) -> TopK:
    """The `k` largest entries along the last dimension, largest first, and where they are.

    >>> values, indices = tf.nn.top_k([1.0, 3.0, 2.0], k=2)
    """
    return TopK(*top_k_v2(input, k, sorted=sorted, index_type=index_type, name=name))


def _in_top_k_shape(op: Operation) -> list[TensorShape]:
    rows = op.input_list[0].shape.with_rank(2).as_list()[0]
    return [TensorShape.of((rows,)).merge_with(op.input_list[1].shape.with_rank(1))]


@op(
    "InTopK",
    "float32, T -> precision: bool",
    shape=_in_top_k_shape,
    no_gradient=True,
    T=Types(dt.int32, dt.int64, default=dt.int32),
)
def in_top_k_op(predictions: Array, targets: Array, *, k: int) -> Array:
    return in_top_k_v2.kernel(predictions, targets, k)


@op(
    "InTopKV2",
    "float32, T, T -> precision: bool",
    shape=_in_top_k_shape,
    no_gradient=True,
    T=Types(dt.int32, dt.int64, default=dt.int32),
)
def in_top_k_v2(predictions: Array, targets: Array, k: Array) -> Array:
    classes = predictions.shape[1]
    inside = (targets >= 0) & (targets < classes)
    chosen = jnp.take_along_axis(predictions, jnp.clip(targets, 0, classes - 1)[:, None], axis=1)
    # A tie at the border counts as in the top k; a row with infinities or NaN never does.
    finite = jnp.all(jnp.isfinite(predictions), axis=1)
    return inside & finite & (jnp.sum(predictions > chosen, axis=1) < k)


def in_top_k(predictions: TensorLike, targets: TensorLike, k: TensorLike, name: str | None = None) -> Tensor:
    """For each row of `predictions`, True if its class in `targets` is among the `k` largest.

    >>> tf.nn.in_top_k(logits, labels, 1)
    """
    with name_scope(name, "in_top_k"):
        result: Tensor = in_top_k_v2(predictions, targets, k)
        return result


def zero_fraction(value: TensorLike, name: str | None = None) -> Tensor:
    """The share of zeros in `value`.

    >>> tf.nn.zero_fraction(tf.nn.relu(x))
    """
    with name_scope(name, "zero_fraction", [value]):
        value = convert_to_tensor(value, name="value")
        size: Any = reshaping.size(value, out_type=_INT64)
        nonzero = reduce.count_nonzero(value, dtype=_INT64)
        with name_scope("counts_to_fraction"):
            fraction = casting.cast(size - nonzero, _FLOAT32) / casting.cast(size, _FLOAT32)
        return passthrough.identity(fraction, name="fraction")
