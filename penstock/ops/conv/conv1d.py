"""Convolutions along one axis, computed as those of images of height one."""

from __future__ import annotations

from typing import Any

from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.ops.array import joining, reshaping
from penstock.ops.conv.conv2d import conv2d, conv2d_backprop_input, per_dimension
from penstock.ops.math.reduce import renamed


def conv1d(
    value: TensorLike = None,
    filters: TensorLike = None,
    stride: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool | None = None,
    data_format: str | None = None,
    name: str | None = None,
    input: TensorLike = None,
    dilations: Any = None,
) -> Tensor:
    """Slides `filters` [width, in, out] along sequences.

    >>> tf.nn.conv1d(sequences, weights, stride=2, padding="SAME")
    """
    value = renamed(input, "input", value, "value")
    return conv1d_under(value, filters, stride, padding, data_format, dilations, name, "conv1d")


def conv1d_under(
    value: Any,
    filters: Any,
    stride: Any,
    padding: Any,
    data_format: str | None,
    dilations: Any,
    name: str | None,
    default_name: str,
) -> Tensor:
    """`conv1d`, under another default name."""
    if data_format not in (None, "NWC", "NHWC", "NCW", "NCHW"):
        raise ValueError(f"`data_format` must be 'NWC' or 'NCW', received {data_format}.")
    first = data_format in ("NCW", "NCHW")
    with name_scope(name, default_name, [value, filters]) as name:
        layout, at, axis = ("NCHW", 2, -2) if first else ("NHWC", 1, -3)
        steps = per_dimension(stride, layout, "stride", 1)
        rates = per_dimension(dilations, layout, "dilations", 1)
        steps.insert(at, 1)
        rates.insert(at, 1)
        value = reshaping.expand_dims(value, axis)
        filters = reshaping.expand_dims(filters, 0)
        wide = conv2d(value, filters, steps, padding, data_format=layout, dilations=rates, name=name)
        return reshaping.squeeze(wide, [axis])


def conv1d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: ShapeLike,
    strides: Any,
    padding: Any = "SAME",
    data_format: str = "NWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The transpose of conv1d; `filters` is [width, out, in].

    >>> tf.nn.conv1d_transpose(x, weights, output_shape=[8, 20, 3], strides=2)
    """
    data_format = data_format or "NWC"
    if data_format not in ("NWC", "NHWC", "NCW", "NCHW"):
        raise ValueError(f"`data_format` must be 'NWC' or 'NCW', received {data_format}.")
    layout, axis = ("NCHW", 2) if data_format in ("NCW", "NCHW") else ("NHWC", 1)
    with name_scope(name, "conv1d_transpose", [input, filters, output_shape]) as name:
        steps = per_dimension(strides, layout, "strides", 1)
        rates = per_dimension(dilations, layout, "dilations", 1)
        steps.insert(axis, 1)
        rates.insert(axis, 1)
        input = reshaping.expand_dims(input, axis)
        filters = reshaping.expand_dims(filters, 0)
        sizes: Any = list(output_shape) if isinstance(output_shape, (list, tuple)) else output_shape
        wide = joining.concat([sizes[:axis], [1], sizes[axis:]], 0)
        image = conv2d_backprop_input(
            wide, filters, input, strides=steps, padding=padding, data_format=layout, dilations=rates, name=name
        )
        return reshaping.squeeze(image, [axis])
