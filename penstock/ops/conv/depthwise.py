"""Depthwise convolutions, of each channel by itself, and separable ones, which mix the channels afterwards."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel.shapes import require_rank
from penstock.kernel.types import FLOATS, Array
from penstock.ops.array import reshaping
from penstock.ops.conv import lowerings
from penstock.ops.conv.conv2d import (
    ONES,
    axes_of,
    conv2d,
    from_sizes,
    lowering,
    padding_attrs,
    per_dimension,
    placed,
    windows_in,
)
from penstock.ops.conv.dilated import with_space_to_batch
from penstock.ops.math.reduce import renamed


def _depthwise_shape(op: Operation) -> list[TensorShape]:
    image, kernel = (require_rank(t.shape, 4).as_list() for t in op.input_list)
    channel, _ = axes_of(op.attrs["data_format"])
    depth = image[channel] if kernel[2] is None else kernel[2]
    if image[channel] is not None and image[channel] != depth:
        raise ValueError(f"Dimensions must be equal, but are {image[channel]} and {depth}")
    channels = None if depth is None or kernel[3] is None else depth * kernel[3]
    size = windows_in(op, image, kernel[:2])
    return [placed(op.attrs["data_format"], image[0], size, channels)]


def _settings(attrs: dict[str, Any]) -> dict[str, Any]:
    return {k: attrs[k] for k in ("strides", "padding", "explicit_paddings", "data_format", "dilations")}


def _depthwise_gradient(op: Operation, dy: Tensor) -> list[Any]:
    image, kernel = op.input_list
    attrs = _settings(op.attrs)
    return [
        depthwise_conv2d_native_backprop_input_op(reshaping.shape(image), kernel, dy, **attrs),
        depthwise_conv2d_native_backprop_filter_op(image, reshaping.shape(kernel), dy, **attrs),
    ]


def _as_groups(kernel: Array, channels: int) -> Array:
    """The kernel for a convolution in groups: one group per channel, with `multiplier` results each."""
    height, width, depth, multiplier = kernel.shape
    if depth != channels:
        raise ValueError(f"input and filter must have the same depth: {channels} vs {depth}")
    return jnp.reshape(kernel, (height, width, 1, depth * multiplier))


@op("DepthwiseConv2dNative", "T, T -> output: T", shape=_depthwise_shape, grad=_depthwise_gradient, T=FLOATS)
def depthwise_conv2d_native_op(
    input: Array,
    filter: Array,
    *,
    strides: list[int],
    padding: str,
    explicit_paddings: list[int] = [],  # noqa: B006
    data_format: str = "NHWC",
    dilations: list[int] = ONES,
) -> Array:
    settings = lowering(strides, padding, explicit_paddings, data_format, dilations)
    return lowerings.conv2d(input, _as_groups(filter, input.shape[axes_of(data_format)[0]]), **settings)


def _backprop_input_gradient(op: Operation, dy: Tensor) -> list[Any]:
    _, kernel, upstream = op.input_list
    attrs = _settings(op.attrs)
    d_kernel = depthwise_conv2d_native_backprop_filter_op(dy, reshaping.shape(kernel), upstream, **attrs)
    return [None, d_kernel, depthwise_conv2d_native_op(dy, kernel, **attrs)]


@op(
    "DepthwiseConv2dNativeBackpropInput",
    "int32, T, T -> output: T",
    static="input_sizes",
    shape=from_sizes(0, 2),
    grad=_backprop_input_gradient,
    T=FLOATS,
)
def depthwise_conv2d_native_backprop_input_op(
    input_sizes: Array,
    filter: Array,
    out_backprop: Array,
    *,
    strides: list[int],
    padding: str,
    explicit_paddings: list[int] = [],  # noqa: B006
    data_format: str = "NHWC",
    dilations: list[int] = ONES,
) -> Array:
    settings = lowering(strides, padding, explicit_paddings, data_format, dilations)
    sizes = tuple(map(as_size, input_sizes))
    kernel = _as_groups(filter, sizes[axes_of(data_format)[0]])
    return lowerings.conv2d_input_grad(sizes, kernel, out_backprop, **settings)


def _backprop_filter_gradient(op: Operation, dy: Tensor) -> list[Any]:
    image, _, upstream = op.input_list
    attrs = _settings(op.attrs)
    d_image = depthwise_conv2d_native_backprop_input_op(reshaping.shape(image), dy, upstream, **attrs)
    return [d_image, None, depthwise_conv2d_native_op(image, dy, **attrs)]


@op(
    "DepthwiseConv2dNativeBackpropFilter",
    "T, int32, T -> output: T",
    static="filter_sizes",
    shape=from_sizes(1),
    grad=_backprop_filter_gradient,
    T=FLOATS,
)
def depthwise_conv2d_native_backprop_filter_op(
    input: Array,
    filter_sizes: Array,
    out_backprop: Array,
    *,
    strides: list[int],
    padding: str,
    explicit_paddings: list[int] = [],  # noqa: B006
    data_format: str = "NHWC",
    dilations: list[int] = ONES,
) -> Array:
    settings = lowering(strides, padding, explicit_paddings, data_format, dilations)
    height, width, depth, multiplier = map(as_size, filter_sizes)
    kernel = lowerings.conv2d_filter_grad(input, (height, width, 1, depth * multiplier), out_backprop, **settings)
    return kernel.reshape(height, width, depth, multiplier)


# TensorFlow's functions.


def depthwise_conv2d_native(
    input: TensorLike,
    filter: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """A convolution of each channel by itself; `filter` is [height, width, channels, multiplier].

    >>> tf.nn.depthwise_conv2d_native(images, weights, [1, 1, 1, 1], "SAME")
    """
    result: Tensor = depthwise_conv2d_native_op(
        input,
        filter,
        strides=per_dimension(strides, data_format, "strides"),
        data_format=data_format,
        dilations=per_dimension(dilations, data_format, "dilations"),
        name=name,
        **padding_attrs(padding),
    )
    return result


def depthwise_conv2d_native_backprop_input(
    input_sizes: ShapeLike,
    filter: TensorLike,
    out_backprop: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The gradient of a depthwise convolution with respect to its images, which have shape `input_sizes`.

    >>> tf.nn.depthwise_conv2d_native_backprop_input([1, 5, 5, 2], weights, grad, [1, 1, 1, 1], "SAME")
    """
    result: Tensor = depthwise_conv2d_native_backprop_input_op(
        input_sizes,
        filter,
        out_backprop,
        strides=per_dimension(strides, data_format, "strides"),
        name=name,
        data_format=data_format,
        dilations=per_dimension(dilations, data_format, "dilations"),
        **padding_attrs(padding),
    )
    return result


def depthwise_conv2d_native_backprop_filter(
    input: TensorLike,
    filter_sizes: ShapeLike,
    out_backprop: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The gradient of a depthwise convolution with respect to its filter, which has shape `filter_sizes`.

    >>> tf.nn.depthwise_conv2d_native_backprop_filter(images, [3, 3, 2, 1], grad, [1, 1, 1, 1], "SAME")
    """
    result: Tensor = depthwise_conv2d_native_backprop_filter_op(
        input,
        filter_sizes,
        out_backprop,
        strides=per_dimension(strides, data_format, "strides"),
        name=name,
        data_format=data_format,
        dilations=per_dimension(dilations, data_format, "dilations"),
        **padding_attrs(padding),
    )
    return result


def depthwise_conv2d(
    input: TensorLike,
    filter: TensorLike,
    strides: Any,
    padding: Any,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """`depthwise_conv2d_native`, dilated by `rate` (one number for height and one for width).

    >>> tf.nn.depthwise_conv2d(images, weights, [1, 1, 1, 1], "SAME", rate=[2, 2])
    """
    rate = renamed(dilations, "dilations", rate, "rate")
    with name_scope(name, "depthwise", [input, filter]) as name:
        input = convert_to_tensor(input, name="tensor_in")
        filter = convert_to_tensor(filter, name="filter_in")
        return _dilated(input, filter, strides, padding, rate, data_format, name)


def _dilated(
    input: Tensor, filter: Tensor, strides: Any, padding: Any, rate: Any, data_format: str | None, name: str | None
) -> Tensor:
    layout = data_format or "NHWC"

    def convolve(input: Tensor, num_spatial_dims: int, padding: Any) -> Tensor:
        return depthwise_conv2d_native(input, filter, strides, padding, layout, name=name)

    rates = per_dimension(rate, layout, "rate")
    rates = rates[2:] if layout.startswith("NC") else rates[1:-1]
    return with_space_to_batch(
        input, rates, padding, convolve, filter_shape=reshaping.shape(filter), data_format=data_format
    )


def separable_conv2d(
    input: TensorLike,
    depthwise_filter: TensorLike,
    pointwise_filter: TensorLike,
    strides: Any,
    padding: Any,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """A depthwise convolution followed by one that mixes the channels of each pixel.

    >>> tf.nn.separable_conv2d(images, depthwise, pointwise, [1, 1, 1, 1], "SAME")
    """
    rate = renamed(dilations, "dilations", rate, "rate")
    with name_scope(name, "separable_conv2d", [input, depthwise_filter, pointwise_filter]) as name:
        input = convert_to_tensor(input, name="tensor_in")
        depthwise_filter = convert_to_tensor(depthwise_filter, name="depthwise_filter")
        pointwise_filter = convert_to_tensor(pointwise_filter, name="pointwise_filter")
        sizes = pointwise_filter.shape.with_rank(4).as_list()
        if any(size not in (1, None) for size in sizes[:2]):
            raise ValueError(f"separable_conv2d: pointwise_filter must be [1, 1, in, out], received {sizes}.")
        parts = _dilated(input, depthwise_filter, strides, padding, rate, data_format, "depthwise")
        return conv2d(parts, pointwise_filter, ONES, "VALID", data_format=data_format or "NHWC", name=name)
