"""Max pooling that also returns the place of each maximum."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel.shapes import require_rank, same_as
from penstock.kernel.types import INDEX, INDEX64, REALS, Array
from penstock.ops.conv import pool_lowerings
from penstock.ops.conv.conv2d import per_dimension, placed, window_count
from penstock.ops.conv.pool import pool_lowering

_INT64 = dt.int64


class MaxPoolWithArgmax(NamedTuple):
    """The result of `max_pool_with_argmax`."""

    output: Any
    argmax: Any


def _shape(op: Operation) -> list[TensorShape]:
    image = require_rank(op.input_list[0].shape, 4).as_list()
    ksize, strides, padding = (op.attrs[name] for name in ("ksize", "strides", "padding"))
    size = [window_count(image[a], ksize[a], strides[a], 1, padding, 0) for a in (1, 2)]
    return [placed("NHWC", image[0], size, image[3])] * 2


def _settings(attrs: dict[str, Any]) -> dict[str, Any]:
    return {name: attrs[name] for name in ("ksize", "strides", "padding", "include_batch_in_index")}


def _gradient(op: Operation, dy: Tensor, _: Any) -> list[Any]:
    return [max_pool_grad_with_argmax(op.input_list[0], dy, op.outputs[1], **_settings(op.attrs))]


@op("MaxPoolWithArgmax", "T -> output: T, argmax: Targmax", shape=_shape, grad=_gradient, T=REALS, Targmax=INDEX64)
def max_pool_with_argmax_op(
    input: Array,
    *,
    ksize: list[int],
    strides: list[int],
    Targmax: DType = _INT64,
    padding: str,
    include_batch_in_index: bool = False,
) -> tuple[Array, Array]:
    if input.size == 0:
        raise ValueError(f"tensor_in must not be empty, received shape {input.shape}")
    settings = pool_lowering(ksize, strides, padding, [], "NHWC")
    places = pool_lowerings.max_pool_places(input, **settings)
    if include_batch_in_index:
        places = places + _first_of_images(input.shape)
    return pool_lowerings.max_pool(input, **settings), places.astype(Targmax.as_numpy_dtype)


def _first_of_images(shape: Any) -> Array:
    return (jnp.arange(shape[0]) * math.prod(shape[1:])).reshape(-1, 1, 1, 1)


def _flat_places(shape: Any, argmax: Array, include_batch: bool) -> Array:
    return (argmax if include_batch else argmax + _first_of_images(shape)).reshape(-1)


def _grad_gradient(op: Operation, dy: Tensor) -> list[Any]:
    image, _, argmax = op.input_list
    kept = max_pool_grad_grad_with_argmax(image, dy, argmax, **_settings(op.attrs))
    return [None, kept, None]


@op(
    "MaxPoolGradWithArgmax", "T, T, Targmax -> output: T", shape=same_as(0), grad=_grad_gradient, T=REALS, Targmax=INDEX
)
def max_pool_grad_with_argmax(
    input: Array,
    grad: Array,
    argmax: Array,
    *,
    ksize: list[int],
    strides: list[int],
    padding: str,
    include_batch_in_index: bool = False,
) -> Array:
    if grad.shape != argmax.shape:
        raise ValueError(f"grad and argmax must have the same shape, received {grad.shape} and {argmax.shape}")
    at = _flat_places(input.shape, argmax, include_batch_in_index)
    flat = jnp.zeros(input.size, grad.dtype).at[at].add(grad.reshape(-1), mode="drop")
    return flat.reshape(input.shape)


@op("MaxPoolGradGradWithArgmax", "T, T, Targmax -> output: T", shape=same_as(2), T=REALS, Targmax=INDEX)
def max_pool_grad_grad_with_argmax(
    input: Array,
    grad: Array,
    argmax: Array,
    *,
    ksize: list[int],
    strides: list[int],
    padding: str,
    include_batch_in_index: bool = False,
) -> Array:
    at = _flat_places(input.shape, argmax, include_batch_in_index)
    return jnp.asarray(grad).reshape(-1)[at].reshape(argmax.shape)


def max_pool_with_argmax(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    Targmax: DTypeLike | None = None,
    name: str | None = None,
    output_dtype: DTypeLike | None = None,
    include_batch_in_index: bool = False,
) -> MaxPoolWithArgmax:
    """The largest value of each window, and its place as an index into the flat image (or batch of images).

    >>> values, places = tf.nn.max_pool_with_argmax(images, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    """
    if data_format != "NHWC":
        raise ValueError(f"data_format values other than 'NHWC' are not supported, received {data_format!r}.")
    Targmax = _INT64 if Targmax is None and output_dtype is None else Targmax or output_dtype
    pair = max_pool_with_argmax_op(
        input,
        ksize=per_dimension(ksize, data_format, "ksize"),
        padding=padding,
        Targmax=Targmax,
        name=name,
        strides=per_dimension(strides, data_format, "strides"),
        include_batch_in_index=include_batch_in_index,
    )
    return MaxPoolWithArgmax(*pair)
