"""Pooling of images: the ops, their gradients, and TensorFlow's functions for them."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.tensor import Tensor
from penstock.ops import reshaping
from penstock.ops.conv import ONES, axes_of, from_sizes, lowering, padding_attrs, per_dimension, placed, windows_in
from penstock.ops.reduce import renamed
from penstock.ops.shapes import require_rank
from penstock.ops.types import FLOATS, REALS, Array

_POOLED = Types(*REALS, dt.qint8, default=dt.float32)
_REALS32 = Types(*REALS, default=dt.float32)


def _pool_shape(op: Operation) -> list[TensorShape]:
    image = require_rank(op.input_list[0].shape, 4).as_list()
    channel, axes = axes_of(op.attrs["data_format"])
    size = windows_in(op, image, [op.attrs["ksize"][a] for a in axes])
    return [placed(op.attrs["data_format"], image[0], size, image[channel])]


def _pool_settings(attrs: dict[str, Any]) -> dict[str, Any]:
    names = ("ksize", "strides", "padding", "explicit_paddings", "data_format")
    return {name: attrs[name] for name in names if name in attrs}


def _pool_lowering(
    ksize: list[int], strides: list[int], padding: str, explicit_paddings: list[int], data_format: str
) -> dict[str, Any]:
    channel, (h, w) = axes_of(data_format)
    if ksize[0] != 1 or strides[0] != 1 or ksize[channel] != 1 or strides[channel] != 1:
        raise ValueError(
            f"pooling is over the spatial dimensions only, received ksize {list(ksize)} and strides {list(strides)}"
        )
    settings = lowering(strides, padding, explicit_paddings, data_format, ONES)
    del settings["dilations"]
    return {"ksize": (ksize[h], ksize[w]), **settings}


def _max_pool_gradient(op: Operation, dy: Tensor) -> list[Any]:
    return [max_pool_grad(op.input_list[0], op.outputs[0], dy, **_pool_settings(op.attrs))]


@op("MaxPool", "T -> output: T", shape=_pool_shape, grad=_max_pool_gradient, T=_POOLED)
def max_pool_op(
    input: Array, *, ksize: list[int], strides: list[int], padding: str,
    explicit_paddings: list[int] = [], data_format: str = "NHWC",  # noqa: B006
) -> Array:  # fmt: skip
    from penstock.ops import convolution as lowerings

    return lowerings.max_pool(input, **_pool_lowering(ksize, strides, padding, explicit_paddings, data_format))


@op("MaxPoolGrad", "T, T, T -> output: T", shape=lambda op: [op.input_list[0].shape], T=_REALS32)
def max_pool_grad(
    orig_input: Array, orig_output: Array, grad: Array, *, ksize: list[int], strides: list[int], padding: str,
    explicit_paddings: list[int] = [], data_format: str = "NHWC",  # noqa: B006
) -> Array:  # fmt: skip
    settings = _pool_lowering(ksize, strides, padding, explicit_paddings, data_format)
    from penstock.ops import convolution as lowerings

    return lowerings.max_pool_grad(orig_input, orig_output, grad, **settings)


def _avg_pool_gradient(op: Operation, dy: Tensor) -> list[Any]:
    return [avg_pool_grad(reshaping.shape(op.input_list[0]), dy, **_pool_settings(op.attrs))]


@op("AvgPool", "T -> output: T", shape=_pool_shape, grad=_avg_pool_gradient, T=FLOATS)
def avg_pool_op(
    value: Array, *, ksize: list[int], strides: list[int], padding: str, data_format: str = "NHWC"
) -> Array:
    from penstock.ops import convolution as lowerings

    return lowerings.avg_pool(value, **_pool_lowering(ksize, strides, padding, [], data_format))


@op("AvgPoolGrad", "int32, T -> output: T", static="orig_input_shape", shape=from_sizes(0), T=FLOATS)
def avg_pool_grad(
    orig_input_shape: Array, grad: Array, *, ksize: list[int], strides: list[int], padding: str,
    data_format: str = "NHWC",
) -> Array:  # fmt: skip
    settings = _pool_lowering(ksize, strides, padding, [], data_format)
    from penstock.ops import convolution as lowerings

    return lowerings.avg_pool_grad(tuple(map(int, orig_input_shape)), grad, **settings)


# TensorFlow's functions.


def max_pool(
    value: Any, ksize: Any, strides: Any, padding: Any, data_format: str = "NHWC", name: str | None = None,
    input: Any = None,
) -> Tensor:  # fmt: skip
    """The largest value of each window.

    >>> tf.nn.max_pool(images, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    """
    value = renamed(input, "input", value, "value")
    with name_scope(name, "MaxPool", [value]) as name:
        value = convert_to_tensor(value, name="input")
        result: Tensor = max_pool_op(
            value, ksize=per_dimension(ksize, data_format, "ksize"), name=name, data_format=data_format or "NHWC",
            strides=per_dimension(strides, data_format, "strides"), **padding_attrs(padding),
        )  # fmt: skip
        return result


def avg_pool(
    value: Any, ksize: Any, strides: Any, padding: Any, data_format: str = "NHWC", name: str | None = None,
    input: Any = None,
) -> Tensor:  # fmt: skip
    """The mean of each window; what "SAME" adds around the image does not count.

    >>> tf.nn.avg_pool(images, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    """
    value = renamed(input, "input", value, "value")
    with name_scope(name, "AvgPool", [value]) as name:
        value = convert_to_tensor(value, name="input")
        result: Tensor = avg_pool_op(
            value, ksize=per_dimension(ksize, data_format, "ksize"), name=name, data_format=data_format or "NHWC",
            strides=per_dimension(strides, data_format, "strides"), padding=padding,
        )  # fmt: skip
        return result


def pool(
    input: Any, window_shape: Any, pooling_type: str, padding: Any, dilation_rate: Any = None, strides: Any = None,
    name: str | None = None, data_format: str | None = None, dilations: Any = None,
) -> Tensor:  # fmt: skip
    """Max or average pooling of images, by `pooling_type` "MAX" or "AVG".

    >>> tf.nn.pool(images, window_shape=[2, 2], pooling_type="MAX", padding="SAME", strides=[2, 2])
    """
    rate = renamed(dilations, "dilations", dilation_rate, "dilation_rate")
    if rate is not None and any(int(r) != 1 for r in rate):
        raise ValueError(f"pool: dilated pooling is not supported, received dilation_rate {list(rate)}.")
    if pooling_type not in ("MAX", "AVG"):
        raise ValueError(f"pool: pooling_type must be 'MAX' or 'AVG', received {pooling_type!r}.")
    function = max_pool if pooling_type == "MAX" else avg_pool
    with name_scope(name, f"{pooling_type.lower()}_pool", [input]) as name:
        return function(input, window_shape, strides, padding, data_format or "NHWC", name)
