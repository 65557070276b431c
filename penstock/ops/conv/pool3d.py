"""Pooling of volumes, in two parts: along the depth first, then as windows over images."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel.shapes import require_rank, same_as
from penstock.kernel.types import FLOATS, REALS, Array, platform
from penstock.ops.array import creation, passthrough, reshaping
from penstock.ops.conv import pool_lowerings, windowing
from penstock.ops.conv.conv2d import axes_of, from_sizes, per_dimension, placed, windows_in
from penstock.ops.conv.conv3d import channels_last, depth_slices, from_channels_last, spatial

_POOLED = Types(dt.float16, dt.bfloat16, dt.float32)
_POOLED32 = Types(*_POOLED, default=dt.float32)


def _pool_shape(op: Operation) -> list[TensorShape]:
    volume = require_rank(op.input_list[0].shape, 5).as_list()
    channel, axes = axes_of(op.attrs["data_format"], 3)
    if len(op.attrs["ksize"]) != 5:
        raise ValueError(f"{op.type} requires ksize to have 5 numbers, received {op.attrs['ksize']}")
    size = windows_in(op, volume, [op.attrs["ksize"][a] for a in axes])
    return [placed(op.attrs["data_format"], volume[0], size, volume[channel])]


def _attrs(op: Operation) -> dict[str, Any]:
    return {name: op.attrs[name] for name in ("ksize", "strides", "padding", "data_format")}


def _windows(
    sizes: Any, ksize: list[int], strides: list[int], padding: str, data_format: str
) -> tuple[Any, dict[str, Any]]:
    """The windows along the depth, and the settings of those over images."""
    if len(sizes) != 5:
        raise ValueError(f"pooling of volumes takes tensors of rank 5, received shape {tuple(sizes)}")
    window, steps = spatial(ksize, data_format, "ksize"), spatial(strides, data_format, "strides")
    axis = windowing.axis_of("depth", sizes[axes_of(data_format, 3)[1][0]], window[0], steps[0], 1, padding)
    return axis, {"ksize": window[1:], "strides": steps[1:], "padding": padding, "platform": platform()}


def _largest(x: Array, ksize: list[int], strides: list[int], padding: str, data_format: str) -> Array:
    axis, settings = _windows(x.shape, ksize, strides, padding, data_format)
    least = pool_lowerings.lowest(x.dtype)
    parts = depth_slices(channels_last(x, data_format), axis, least)
    y = pool_lowerings.max_pool(
        functools.reduce(pool_lowerings.larger, parts, jnp.full((), least, x.dtype)), **settings
    )
    return from_channels_last(y.reshape(x.shape[0], axis.out, *y.shape[1:]), data_format)


def _max_pool_gradient(op: Operation, dy: Tensor) -> list[Any]:
    return [max_pool3d_grad(op.input_list[0], op.outputs[0], dy, **_attrs(op))]


@op("MaxPool3D", "T -> output: T", shape=_pool_shape, grad=_max_pool_gradient, T=_POOLED)
def max_pool3d_op(
    input: Array, *, ksize: list[int], strides: list[int], padding: str, data_format: str = "NDHWC"
) -> Array:
    return _largest(input, ksize, strides, padding, data_format)


def _taps(x: Array, ksize: list[int], strides: list[int], padding: str, data_format: str, fill: float) -> list[Array]:
    """The values under each place of the windows: arrays of the result's size, NDHWC."""
    window, steps = spatial(ksize, data_format, "ksize"), spatial(strides, data_format, "strides")
    x = channels_last(x, data_format)
    d, h, w = (windowing.axis_of("volume", *each, 1, padding) for each in zip(x.shape[1:4], window, steps, strict=True))
    around = [(0, 0), *((axis.before, axis.after) for axis in (d, h, w)), (0, 0)]
    x = jnp.pad(x, around, constant_values=fill)
    return [
        x[:, d.span(i), h.span(j), w.span(k)] for i in range(d.window) for j in range(h.window) for k in range(w.window)
    ]


def _max_pool_grad_gradient(op: Operation, dy: Tensor) -> list[Any]:
    volume, largest = op.input_list[:2]
    return [
        creation.zeros_like(volume),
        creation.zeros_like(largest),
        max_pool3d_grad_grad(volume, largest, dy, **_attrs(op)),
    ]


@op(
    "MaxPool3DGrad",
    "TInput, TInput, T -> output: T",
    shape=same_as(0),
    grad=_max_pool_grad_gradient,
    T=_POOLED32,
    TInput=_POOLED32,
)
def max_pool3d_grad(
    orig_input: Array,
    orig_output: Array,
    grad: Array,
    *,
    ksize: list[int],
    strides: list[int],
    padding: str,
    data_format: str = "NDHWC",
) -> Array:
    """Every maximum of a window gets the window's gradient, unlike in two dimensions."""
    settings: Any = {"ksize": ksize, "strides": strides, "padding": padding, "data_format": data_format}
    y, dy = channels_last(orig_output, data_format), channels_last(grad, data_format)
    seen = _taps(orig_input, **settings, fill=-np.inf)
    parts = [jnp.where(tap == y, dy, 0) for tap in seen]
    spread = jax.linear_transpose(
        lambda x: _taps(x, **settings, fill=0), jax.ShapeDtypeStruct(orig_input.shape, grad.dtype)
    )
    return spread(parts)[0]


@op("MaxPool3DGradGrad", "T, T, T -> output: T", shape=same_as(1), T=REALS)
def max_pool3d_grad_grad(
    orig_input: Array,
    orig_output: Array,
    grad: Array,
    *,
    ksize: list[int],
    strides: list[int],
    padding: str,
    data_format: str = "NDHWC",
) -> Array:
    settings: Any = {"ksize": ksize, "strides": strides, "padding": padding, "data_format": data_format}
    y = channels_last(orig_output, data_format)
    seen, changes = _taps(orig_input, **settings, fill=-np.inf), _taps(grad, **settings, fill=0)
    total = jnp.zeros(y.shape, grad.dtype)
    for tap, change in reversed(list(zip(seen, changes, strict=True))):  # the first maximum counts
        total = jnp.where(tap == y, change, total)
    return from_channels_last(total, data_format)


def _avg_pool_gradient(op: Operation, dy: Tensor) -> list[Any]:
    return [avg_pool3d_grad(reshaping.shape(op.input_list[0]), dy, **_attrs(op))]


def _means(x: Array, ksize: list[int], strides: list[int], padding: str, data_format: str) -> Array:
    axis, settings = _windows(x.shape, ksize, strides, padding, data_format)
    parts = depth_slices(channels_last(x, data_format), axis)
    y = pool_lowerings.avg_pool(sum(parts[1:], parts[0]), **settings)
    y = y.reshape(x.shape[0], axis.out, *y.shape[1:]) / _depths(axis, x.dtype)
    return from_channels_last(y, data_format)


def _depths(axis: Any, dtype: Any) -> Array:
    """The number of depths of each window that lie in the volume."""
    starts = np.arange(axis.out) * axis.stride - axis.before
    inside = np.minimum(starts + axis.window, axis.size) - np.maximum(starts, 0)
    return jnp.asarray(inside, dtype).reshape(-1, 1, 1, 1)


@op("AvgPool3D", "T -> output: T", shape=_pool_shape, grad=_avg_pool_gradient, T=FLOATS)
def avg_pool3d_op(
    input: Array, *, ksize: list[int], strides: list[int], padding: str, data_format: str = "NDHWC"
) -> Array:
    return _means(input, ksize, strides, padding, data_format)


def _avg_pool_grad_gradient(op: Operation, dy: Tensor) -> list[Any]:
    return [passthrough.stop_gradient(op.input_list[0]), avg_pool3d_op(dy, **_attrs(op))]


@op(
    "AvgPool3DGrad",
    "int32, T -> output: T",
    static="orig_input_shape",
    shape=from_sizes(0, rank=5),
    grad=_avg_pool_grad_gradient,
    T=FLOATS,
)
def avg_pool3d_grad(
    orig_input_shape: Array,
    grad: Array,
    *,
    ksize: list[int],
    strides: list[int],
    padding: str,
    data_format: str = "NDHWC",
) -> Array:
    sizes = tuple(map(as_size, orig_input_shape))
    axis, settings = _windows(sizes, ksize, strides, padding, data_format)
    dy = channels_last(grad, data_format) / _depths(axis, grad.dtype)
    shape = sizes if data_format == "NDHWC" else (sizes[0], *sizes[2:], sizes[1])
    images = pool_lowerings.avg_pool_grad((shape[0] * axis.out, *shape[2:]), dy.reshape(-1, *dy.shape[2:]), **settings)
    spread = jax.linear_transpose(lambda x: depth_slices(x, axis), jax.ShapeDtypeStruct(shape, grad.dtype))
    return from_channels_last(spread([images] * axis.window)[0], data_format)


# TensorFlow's functions.


def max_pool3d(
    input: TensorLike, ksize: Any, strides: Any, padding: Any, data_format: str = "NDHWC", name: str | None = None
) -> Tensor:
    """The largest value of each window of volumes.

    >>> tf.nn.max_pool3d(volumes, ksize=[1, 2, 2, 2, 1], strides=[1, 2, 2, 2, 1], padding="SAME")
    """
    return _pool(max_pool3d_op, "MaxPool3D", input, ksize, strides, padding, data_format, name)


def avg_pool3d(
    input: TensorLike, ksize: Any, strides: Any, padding: Any, data_format: str = "NDHWC", name: str | None = None
) -> Tensor:
    """The mean of each window of volumes; the padding of "SAME" does not count.

    >>> tf.nn.avg_pool3d(volumes, ksize=[1, 2, 2, 2, 1], strides=[1, 2, 2, 2, 1], padding="SAME")
    """
    return _pool(avg_pool3d_op, "AvgPool3D", input, ksize, strides, padding, data_format, name)


def _pool(
    raw: Any, default: str, input: Any, ksize: Any, strides: Any, padding: Any, data_format: str, name: str | None
) -> Tensor:
    layout = data_format or "NDHWC"
    with name_scope(name, default, [input]) as name:
        result: Tensor = raw(
            convert_to_tensor(input, name="input"),
            ksize=per_dimension(ksize, layout, "ksize", 3),
            padding=padding,
            strides=per_dimension(strides, layout, "strides", 3),
            data_format=layout,
            name=name,
        )
        return result
