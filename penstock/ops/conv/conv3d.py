"""Convolutions of volumes: the ops, their gradients, and TensorFlow's functions for them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel.shapes import same_as
from penstock.kernel.types import FLOATS, INDEX32, Array, platform
from penstock.ops.array import reshaping
from penstock.ops.conv import lowerings, windowing
from penstock.ops.conv.conv1d import conv1d_transpose
from penstock.ops.conv.conv2d import axes_of, conv2d_transpose, conv_shape, from_sizes, per_dimension
from penstock.ops.math.reduce import renamed

ONES3 = [1, 1, 1, 1, 1]
_FLOATS_OLD = Types(dt.float16, dt.float32, dt.float64)


def spatial(values: list[int], data_format: str, what: str) -> tuple[int, int, int]:
    """The three spatial numbers of a setting; those for batch and channels must be 1."""
    channel, axes = axes_of(data_format, 3)
    if len(values) != 5 or values[0] != 1 or values[channel] != 1:
        raise ValueError(f"{what} must be five numbers, 1 for batch and channels, received {list(values)}")
    depth, height, width = (values[a] for a in axes)
    return depth, height, width


def channels_last(x: Array, data_format: str) -> Array:
    """`x` of layout `data_format` as NDHWC."""
    return x if data_format == "NDHWC" else jnp.transpose(x, (0, 2, 3, 4, 1))


def from_channels_last(x: Array, data_format: str) -> Array:
    """`x` of layout NDHWC as `data_format`."""
    return x if data_format == "NDHWC" else jnp.transpose(x, (0, 4, 1, 2, 3))


def depth_slices(x: Array, axis: Any, fill: float = 0) -> list[Array]:
    """The part of NDHWC volumes under each depth of the windows along `axis`, as images [batch * depth, H, W, C]."""
    x = jnp.pad(x, ((0, 0), (axis.before, axis.after), (0, 0), (0, 0), (0, 0)), constant_values=fill)
    return [x[:, axis.span(tap)].reshape(-1, *x.shape[2:]) for tap in range(axis.window)]


def _convolve(x: Array, kernel: Array, strides: list[int], padding: str, data_format: str, rates: list[int]) -> Array:
    steps, holes = spatial(strides, data_format, "strides"), spatial(rates, data_format, "dilations")
    channel, axes = axes_of(data_format, 3)
    if x.ndim != 5 or kernel.ndim != 5:
        raise ValueError(f"input and filter must be of rank 5, received shapes {x.shape} and {kernel.shape}")
    if kernel.shape[3] == 0 or x.shape[channel] % kernel.shape[3]:
        raise ValueError(f"the filter's depth {kernel.shape[3]} must divide that of the input, {x.shape[channel]}")
    # The windows of all axes are checked for every lowering.
    sides = zip(("depth", "height", "width"), axes, kernel.shape, steps, holes, strict=False)
    windows = [windowing.axis_of(name, x.shape[at], size, step, hole, padding) for name, at, size, step, hole in sides]
    if platform() != "cpu":
        return lax.conv_general_dilated(
            x,
            kernel,
            steps,
            padding,
            rhs_dilation=holes,
            dimension_numbers=(data_format, "DHWIO", data_format),
            feature_group_count=x.shape[channel] // kernel.shape[3],
        )
    # A sum of convolutions of images, one for each depth of the kernel: XLA's own has slow gradients on the CPU.
    axis = windows[0]
    parts = depth_slices(channels_last(x, data_format), axis)
    images = [
        lowerings.conv2d(part, kernel[i], strides=steps[1:], padding=padding, dilations=holes[1:])
        for i, part in enumerate(parts)
    ]
    total = sum(images[1:], images[0])
    return from_channels_last(total.reshape(x.shape[0], axis.out, *total.shape[1:]), data_format)


def _conv3d_gradient(op: Operation, dy: Tensor) -> list[Any]:
    volume, kernel = op.input_list
    volume_sizes, kernel_sizes = reshaping.shape_n([volume, kernel])
    attrs = _settings(op.attrs)
    return [
        conv3d_backprop_input_v2(volume_sizes, kernel, dy, **attrs),
        conv3d_backprop_filter_v2_op(volume, kernel_sizes, dy, **attrs),
    ]


def _settings(attrs: dict[str, Any]) -> dict[str, Any]:
    return {name: attrs[name] for name in ("strides", "padding", "data_format", "dilations")}


@op("Conv3D", "T, T -> output: T", shape=conv_shape, grad=_conv3d_gradient, T=FLOATS)
def conv3d_op(
    input: Array,
    filter: Array,
    *,
    strides: list[int],
    padding: str,
    data_format: str = "NDHWC",
    dilations: list[int] = ONES3,
) -> Array:
    return _convolve(input, filter, strides, padding, data_format, dilations)


def _input_grad(
    sizes: Any, kernel: Array, dy: Array, strides: list[int], padding: str, data_format: str, rates: list[int]
) -> Array:
    shape = tuple(map(as_size, sizes))

    def forward(x: Array) -> Array:
        return _convolve(x, kernel, strides, padding, data_format, rates)

    return _pulled(forward, jnp.zeros(shape, dy.dtype), dy)


def _filter_grad(
    x: Array, sizes: Any, dy: Array, strides: list[int], padding: str, data_format: str, rates: list[int]
) -> Array:
    shape = tuple(map(as_size, sizes))

    def forward(kernel: Array) -> Array:
        return _convolve(x, kernel, strides, padding, data_format, rates)

    return _pulled(forward, jnp.zeros(shape, dy.dtype), dy)


def _pulled(linear: Any, zeros: Array, dy: Array) -> Array:
    result, pull = jax.vjp(linear, zeros)  # the function is linear, so the zeros are never read
    if result.shape != dy.shape:
        raise ValueError(f"out_backprop must have shape {result.shape}, received {dy.shape}")
    return pull(dy)[0]


def _backprop_input_gradient(op: Operation, dy: Tensor) -> list[Any]:
    _, kernel, upstream = op.input_list
    attrs = _settings(op.attrs)
    d_kernel = conv3d_backprop_filter_v2_op(dy, reshaping.shape(kernel), upstream, **attrs)
    return [None, d_kernel, conv3d_op(dy, kernel, **attrs)]


@op(
    "Conv3DBackpropInputV2",
    "Tshape, T, T -> output: T",
    static="input_sizes",
    shape=from_sizes(0, rank=5),
    grad=_backprop_input_gradient,
    T=FLOATS,
    Tshape=INDEX32,
)
def conv3d_backprop_input_v2(
    input_sizes: Array,
    filter: Array,
    out_backprop: Array,
    *,
    strides: list[int],
    padding: str,
    data_format: str = "NDHWC",
    dilations: list[int] = ONES3,
) -> Array:
    return _input_grad(input_sizes, filter, out_backprop, strides, padding, data_format, dilations)


def _backprop_filter_gradient(op: Operation, dy: Tensor) -> list[Any]:
    volume, _, upstream = op.input_list
    attrs = _settings(op.attrs)
    d_volume = conv3d_backprop_input_v2(reshaping.shape(volume), dy, upstream, **attrs)
    return [d_volume, None, conv3d_op(volume, dy, **attrs)]


@op(
    "Conv3DBackpropFilterV2",
    "T, int32, T -> output: T",
    static="filter_sizes",
    shape=from_sizes(1, rank=5),
    grad=_backprop_filter_gradient,
    T=FLOATS,
)
def conv3d_backprop_filter_v2_op(
    input: Array,
    filter_sizes: Array,
    out_backprop: Array,
    *,
    strides: list[int],
    padding: str,
    data_format: str = "NDHWC",
    dilations: list[int] = ONES3,
) -> Array:
    return _filter_grad(input, filter_sizes, out_backprop, strides, padding, data_format, dilations)


@op("Conv3DBackpropInput", "T, T, T -> output: T", shape=same_as(0), T=_FLOATS_OLD)
def conv3d_backprop_input(
    input: Array, filter: Array, out_backprop: Array, *, strides: list[int], padding: str, dilations: list[int] = ONES3
) -> Array:
    return _input_grad(input.shape, filter, out_backprop, strides, padding, "NDHWC", dilations)


@op("Conv3DBackpropFilter", "T, T, T -> output: T", shape=same_as(1), T=_FLOATS_OLD)
def conv3d_backprop_filter_op(
    input: Array, filter: Array, out_backprop: Array, *, strides: list[int], padding: str, dilations: list[int] = ONES3
) -> Array:
    return _filter_grad(input, filter.shape, out_backprop, strides, padding, "NDHWC", dilations)


# TensorFlow's functions.


def conv3d(
    input: TensorLike,
    filter: TensorLike = None,
    strides: Any = None,
    padding: Any = None,
    data_format: str = "NDHWC",
    dilations: Any = (1, 1, 1, 1, 1),
    name: str | None = None,
    filters: TensorLike = None,
) -> Tensor:
    """Slides `filter` [depth, height, width, in, out] over volumes.

    >>> tf.nn.conv3d(volumes, weights, strides=[1, 1, 1, 1, 1], padding="SAME")
    """
    filter = renamed(filters, "filters", filter, "filter")
    result: Tensor = conv3d_op(
        input,
        filter,
        strides=list(strides),
        padding=padding,
        data_format=data_format or "NDHWC",
        dilations=list(dilations),
        name=name,
    )
    return result


def conv3d_transpose(
    value: TensorLike,
    filter: TensorLike = None,
    output_shape: ShapeLike = None,
    strides: Any = None,
    padding: Any = "SAME",
    data_format: str = "NDHWC",
    name: str | None = None,
    input: TensorLike = None,
    filters: TensorLike = None,
    dilations: Any = None,
) -> Tensor:
    """The transpose of conv3d; `filter` is [depth, height, width, out, in].

    >>> tf.nn.conv3d_transpose(x, weights, output_shape=[1, 8, 8, 8, 1], strides=[1, 2, 2, 2, 1])
    """
    filter = renamed(filters, "filters", filter, "filter")
    value = renamed(input, "input", value, "value")
    with name_scope(name, "conv3d_transpose", [value, filter, output_shape]) as name:
        layout = data_format or "NDHWC"
        result: Tensor = conv3d_backprop_input_v2(
            output_shape,
            filter,
            value,
            strides=per_dimension(strides, layout, "strides", 3),
            padding=padding,
            data_format=layout,
            dilations=per_dimension(dilations, layout, "dilations", 3),
            name=name,
        )
        return result


def conv3d_backprop_filter(
    input: TensorLike,
    filter_sizes: ShapeLike,
    out_backprop: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NDHWC",
    dilations: Any = (1, 1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The gradient of a convolution of volumes with respect to its filter, which has shape `filter_sizes`.

    >>> tf.nn.conv3d_backprop_filter(volumes, [3, 3, 3, 2, 3], grad, strides=[1, 1, 1, 1, 1], padding="SAME")
    """
    result: Tensor = conv3d_backprop_filter_v2_op(
        input,
        filter_sizes,
        out_backprop,
        strides=list(strides),
        padding=padding,
        data_format=data_format,
        dilations=list(dilations),
        name=name,
    )
    return result


def conv_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: ShapeLike,
    strides: Any,
    padding: Any = "SAME",
    data_format: str | None = None,
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The transpose of a convolution over one, two or three spatial dimensions, by the length of `output_shape`.

    >>> tf.nn.conv_transpose(x, weights, output_shape=[8, 28, 28, 1], strides=2)
    """
    with name_scope(name, "conv_transpose", [input, filters, output_shape]) as name:
        if isinstance(output_shape, (list, tuple)):
            rank: int | None = len(output_shape)
        else:
            rank = convert_to_tensor(output_shape).shape.as_list()[0]
        found: Any = {3: conv1d_transpose, 4: conv2d_transpose, 5: conv3d_transpose}.get(rank or 0)
        if rank is None or found is None:
            raise ValueError(f"conv_transpose: output_shape must have 3, 4 or 5 entries, received {output_shape}.")
        layout = data_format or ("NWC", "NHWC", "NDHWC")[rank - 3]
        result: Tensor = found(
            input, filters, output_shape, strides, padding=padding, data_format=layout, dilations=dilations, name=name
        )
        return result
