"""Grey-scale dilation and erosion of images."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel.shapes import require_rank, same_as
from penstock.kernel.types import REALS, Array
from penstock.ops.array import arranging
from penstock.ops.conv import windowing
from penstock.ops.conv.conv2d import window_count
from penstock.ops.math import unary
from penstock.ops.math.reduce import renamed


def _dilation_shape(op: Operation) -> list[TensorShape]:
    image, kernel = require_rank(op.input_list[0].shape, 4).as_list(), require_rank(op.input_list[1].shape, 3).as_list()
    strides, rates, padding = (op.attrs[name] for name in ("strides", "rates", "padding"))
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"Attr 'padding' of 'Dilation2D' Op passed string '{padding}' not in: SAME, VALID")
    if len(strides) != 4 or len(rates) != 4:
        raise ValueError(f"strides and rates must have 4 numbers, received {strides} and {rates}")
    depth = image[3] if kernel[2] is None else kernel[2]
    if image[3] is not None and image[3] != depth:
        raise ValueError(f"Dimensions must be equal, but are {image[3]} and {depth}")
    # The size of the windows decides if they fit, so nothing is known without it, even for "SAME".
    size = [
        None if None in kernel[:2] else window_count(image[a + 1], kernel[a], strides[a + 1], rates[a + 1], padding, 0)
        for a in (0, 1)
    ]
    return [TensorShape.of((image[0], *size, depth))]


def _taps(x: Array, kernel_shape: Any, strides: list[int], rates: list[int], padding: str, fill: float) -> list[Array]:
    if any(v[i] != 1 for v in (strides, rates) for i in (0, 3)):
        raise ValueError(f"strides and rates of batch and depth must be 1, received {strides} and {rates}")
    if kernel_shape[2] != x.shape[3]:
        raise ValueError(f"input and filter must have the same depth: {x.shape[3]} vs {kernel_shape[2]}")
    rows, cols = (
        windowing.axis_of(name, x.shape[a], kernel_shape[a - 1], strides[a], rates[a], padding)
        for name, a in (("height", 1), ("width", 2))
    )
    around = ((0, 0), (rows.before, rows.after), (cols.before, cols.after), (0, 0))
    x = jnp.pad(x, around, constant_values=fill)
    return [x[:, rows.span(i), cols.span(j)] for i in range(rows.window) for j in range(cols.window)]


def _sums(
    input: Array, filter: Array, strides: list[int], rates: list[int], padding: str
) -> tuple[list[Array], list[Array]]:
    """For each place of the windows, the sum of input and filter, and True where that place is in the image."""
    lowest: Any = -np.inf if jnp.issubdtype(input.dtype, jnp.floating) else np.iinfo(input.dtype).min
    seen = _taps(input, filter.shape, strides, rates, padding, 0)
    inside = _taps(jnp.ones((1, *input.shape[1:3], filter.shape[2]), bool), filter.shape, strides, rates, padding, 0)
    weights = filter.reshape(-1, filter.shape[2])
    sums = [jnp.where(ok, tap + w, lowest) for tap, w, ok in zip(seen, weights, inside, strict=True)]
    return sums, inside


def _dilation_gradient(op: Operation, dy: Tensor) -> list[Any]:
    image, kernel = op.input_list
    attrs = {name: op.attrs[name] for name in ("strides", "rates", "padding")}
    return [
        dilation2d_backprop_input(image, kernel, dy, **attrs),
        dilation2d_backprop_filter(image, kernel, dy, **attrs),
    ]


@op("Dilation2D", "T, T -> output: T", shape=_dilation_shape, grad=_dilation_gradient, T=REALS)
def dilation2d_op(input: Array, filter: Array, *, strides: list[int], rates: list[int], padding: str) -> Array:
    return functools.reduce(jnp.maximum, _sums(input, filter, strides, rates, padding)[0])


def _shares(input: Array, filter: Array, dy: Array, strides: list[int], rates: list[int], padding: str) -> list[Array]:
    """The part of `dy` that each place of the windows gets: all of it goes to the first maximum."""
    sums, _ = _sums(input, filter, strides, rates, padding)
    largest = functools.reduce(jnp.maximum, sums)
    if largest.shape != dy.shape:
        raise ValueError(f"out_backprop must have shape {largest.shape}, received {dy.shape}")
    left = jnp.ones(dy.shape, bool)
    parts = []
    for each in sums:
        hit = left & (each == largest)
        parts.append(jnp.where(hit, dy, 0))
        left = left & ~hit
    return parts


@op("Dilation2DBackpropInput", "T, T, T -> in_backprop: T", shape=same_as(0), T=REALS)
def dilation2d_backprop_input(
    input: Array, filter: Array, out_backprop: Array, *, strides: list[int], rates: list[int], padding: str
) -> Array:
    parts = _shares(input, filter, out_backprop, strides, rates, padding)
    spread = jax.linear_transpose(
        lambda x: _taps(x, filter.shape, strides, rates, padding, 0),
        jax.ShapeDtypeStruct(input.shape, out_backprop.dtype),
    )
    return spread(parts)[0]


@op("Dilation2DBackpropFilter", "T, T, T -> filter_backprop: T", shape=same_as(1), T=REALS)
def dilation2d_backprop_filter(
    input: Array, filter: Array, out_backprop: Array, *, strides: list[int], rates: list[int], padding: str
) -> Array:
    parts = _shares(input, filter, out_backprop, strides, rates, padding)
    return jnp.stack([part.sum((0, 1, 2), dtype=filter.dtype) for part in parts]).reshape(filter.shape)


# TensorFlow's functions.


def dilation2d(
    input: TensorLike,
    filter: TensorLike = None,
    strides: Any = None,
    rates: Any = None,
    padding: Any = None,
    name: str | None = None,
    filters: TensorLike = None,
    dilations: Any = None,
) -> Tensor:
    """The largest value of pixel plus `filter` [height, width, channels] in each window.

    >>> tf.nn.dilation2d(images, element, strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding="SAME")
    """
    filter, rates = renamed(filters, "filters", filter, "filter"), renamed(dilations, "dilations", rates, "rates")
    result: Tensor = dilation2d_op(input, filter, strides=list(strides), rates=list(rates), padding=padding, name=name)
    return result


def erosion2d(
    value: TensorLike, kernel: TensorLike, strides: Any, rates: Any, padding: Any, name: str | None = None
) -> Tensor:
    """The smallest value of pixel minus `kernel` [height, width, channels] in each window.

    >>> tf.nn.erosion2d(images, element, strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding="SAME")
    """
    with name_scope(name, "erosion2d", [value, kernel]) as name:
        turned = arranging.reverse_v2(convert_to_tensor(kernel), [0, 1])
        largest = dilation2d_op(
            unary.negative(value), turned, strides=list(strides), rates=list(rates), padding=padding, name=name
        )
        result: Tensor = unary.negative(largest)
        return result
