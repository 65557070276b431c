"""Pooling of images: the ops, their gradients, and TensorFlow's functions for them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel.shapes import require_rank, same_as
from penstock.kernel.types import FLOATS, REALS, Array
from penstock.ops.array import creation, passthrough, reshaping
from penstock.ops.conv import pool_lowerings
from penstock.ops.conv.conv2d import (
    ONES,
    axes_of,
    from_sizes,
    lowering,
    padding_attrs,
    per_dimension,
    placed,
    window_count,
    windows_in,
)
from penstock.ops.conv.dilated import sequence, with_space_to_batch
from penstock.ops.conv.pool3d import avg_pool3d, avg_pool3d_op, max_pool3d, max_pool3d_op
from penstock.ops.math.reduce import renamed

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


def pool_lowering(
    ksize: list[int], strides: list[int], padding: str, explicit_paddings: list[int], data_format: str
) -> dict[str, Any]:
    """TensorFlow's attrs, four numbers each, as the two spatial ones that the lowerings take."""
    channel, (h, w) = axes_of(data_format)
    if len(ksize) != 4 or len(strides) != 4:
        raise ValueError(f"ksize and strides must have 4 numbers, received {list(ksize)} and {list(strides)}")
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
    input: Array,
    *,
    ksize: list[int],
    strides: list[int],
    padding: str,
    explicit_paddings: list[int] = [],  # noqa: B006
    data_format: str = "NHWC",
) -> Array:
    return pool_lowerings.max_pool(input, **pool_lowering(ksize, strides, padding, explicit_paddings, data_format))


def _max_pool_grad_gradient(op: Operation, dy: Tensor) -> list[Any]:
    image, largest = op.input_list[:2]
    settings = _pool_settings(op.attrs)
    settings.pop("explicit_paddings")
    zeros = [creation.zeros_like(image), creation.zeros_like(largest)]
    return [*zeros, max_pool_grad_grad(image, largest, dy, **settings)]


@op("MaxPoolGrad", "T, T, T -> output: T", shape=same_as(0), grad=_max_pool_grad_gradient, T=_REALS32)
def max_pool_grad(
    orig_input: Array,
    orig_output: Array,
    grad: Array,
    *,
    ksize: list[int],
    strides: list[int],
    padding: str,
    explicit_paddings: list[int] = [],  # noqa: B006
    data_format: str = "NHWC",
) -> Array:
    settings = pool_lowering(ksize, strides, padding, explicit_paddings, data_format)
    return pool_lowerings.max_pool_grad(orig_input, orig_output, grad, **settings)


def _at_maxima(image: Array, grad: Array, settings: dict[str, Any]) -> Array:
    """The value of `grad`, which has the images' size, at the maximum of each window."""
    first = settings["data_format"] == "NCHW"
    if first:
        image, grad = image.transpose(0, 2, 3, 1), grad.transpose(0, 2, 3, 1)
    places = pool_lowerings.max_pool_places(image, **{**settings, "data_format": "NHWC"})
    rows = grad.reshape(grad.shape[0], -1)
    kept = jnp.take_along_axis(rows, places.reshape(grad.shape[0], -1), axis=1).reshape(places.shape)
    return kept.transpose(0, 3, 1, 2) if first else kept


@op("MaxPoolGradGrad", "T, T, T -> output: T", shape=same_as(1), T=REALS)
def max_pool_grad_grad(
    orig_input: Array,
    orig_output: Array,
    grad: Array,
    *,
    ksize: list[int],
    strides: list[int],
    padding: str,
    data_format: str = "NHWC",
) -> Array:
    return _at_maxima(orig_input, grad, pool_lowering(ksize, strides, padding, [], data_format))


def _pool_v2_shape(op: Operation) -> list[TensorShape]:
    ksize, strides = (constant_value(t) for t in op.input_list[1:3])
    image = require_rank(op.input_list[0].shape, 4).as_list()
    channel, axes = axes_of(op.attrs["data_format"])
    if ksize is None or strides is None:
        return [placed(op.attrs["data_format"], image[0], [None, None], image[channel])]
    size = [window_count(image[a], int(ksize[a]), int(strides[a]), 1, op.attrs["padding"], 0) for a in axes]
    return [placed(op.attrs["data_format"], image[0], size, image[channel])]


def _max_pool_v2_gradient(op: Operation, dy: Tensor) -> list[Any]:
    image, ksize, strides = op.input_list
    attrs = {name: op.attrs[name] for name in ("padding", "data_format")}
    return [max_pool_grad_v2(image, op.outputs[0], dy, ksize, strides, **attrs), None, None]


@op(
    "MaxPoolV2",
    "T, int32, int32 -> output: T",
    static="ksize strides",
    shape=_pool_v2_shape,
    grad=_max_pool_v2_gradient,
    T=_POOLED,
)
def max_pool_v2_op(input: Array, ksize: Array, strides: Array, *, padding: str, data_format: str = "NHWC") -> Array:
    return pool_lowerings.max_pool(input, **pool_lowering(ksize.tolist(), strides.tolist(), padding, [], data_format))


def _max_pool_grad_v2_gradient(op: Operation, dy: Tensor) -> list[Any]:
    image, largest, _, ksize, strides = op.input_list
    attrs = {name: op.attrs[name] for name in ("padding", "data_format")}
    kept = max_pool_grad_grad_v2(image, largest, dy, ksize, strides, **attrs)
    return [creation.zeros_like(image), creation.zeros_like(largest), kept, None, None]


@op(
    "MaxPoolGradV2",
    "T, T, T, int32, int32 -> output: T",
    static="ksize strides",
    shape=same_as(0),
    grad=_max_pool_grad_v2_gradient,
    T=_REALS32,
)
def max_pool_grad_v2(
    orig_input: Array,
    orig_output: Array,
    grad: Array,
    ksize: Array,
    strides: Array,
    *,
    padding: str,
    data_format: str = "NHWC",
) -> Array:
    settings = pool_lowering(ksize.tolist(), strides.tolist(), padding, [], data_format)
    return pool_lowerings.max_pool_grad(orig_input, orig_output, grad, **settings)


@op("MaxPoolGradGradV2", "T, T, T, int32, int32 -> output: T", static="ksize strides", shape=same_as(1), T=REALS)
def max_pool_grad_grad_v2(
    orig_input: Array,
    orig_output: Array,
    grad: Array,
    ksize: Array,
    strides: Array,
    *,
    padding: str,
    data_format: str = "NHWC",
) -> Array:
    return _at_maxima(orig_input, grad, pool_lowering(ksize.tolist(), strides.tolist(), padding, [], data_format))


def _avg_pool_gradient(op: Operation, dy: Tensor) -> list[Any]:
    return [avg_pool_grad(reshaping.shape(op.input_list[0]), dy, **_pool_settings(op.attrs))]


@op("AvgPool", "T -> output: T", shape=_pool_shape, grad=_avg_pool_gradient, T=FLOATS)
def avg_pool_op(
    value: Array, *, ksize: list[int], strides: list[int], padding: str, data_format: str = "NHWC"
) -> Array:
    return pool_lowerings.avg_pool(value, **pool_lowering(ksize, strides, padding, [], data_format))


def _avg_pool_grad_gradient(op: Operation, dy: Tensor) -> list[Any]:
    return [passthrough.stop_gradient(op.input_list[0]), avg_pool_op(dy, **_pool_settings(op.attrs))]


@op(
    "AvgPoolGrad",
    "int32, T -> output: T",
    static="orig_input_shape",
    shape=from_sizes(0),
    grad=_avg_pool_grad_gradient,
    T=FLOATS,
)
def avg_pool_grad(
    orig_input_shape: Array,
    grad: Array,
    *,
    ksize: list[int],
    strides: list[int],
    padding: str,
    data_format: str = "NHWC",
) -> Array:
    settings = pool_lowering(ksize, strides, padding, [], data_format)
    return pool_lowerings.avg_pool_grad(tuple(map(as_size, orig_input_shape)), grad, **settings)


# TensorFlow's functions.


def max_pool(
    value: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    name: str | None = None,
    input: TensorLike = None,
) -> Tensor:
    """The largest value of each window.

    >>> tf.nn.max_pool(images, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    """
    value = renamed(input, "input", value, "value")
    with name_scope(name, "MaxPool", [value]) as name:
        value = convert_to_tensor(value, name="input")
        result: Tensor = max_pool_op(
            value,
            ksize=per_dimension(ksize, data_format, "ksize"),
            name=name,
            data_format=data_format or "NHWC",
            strides=per_dimension(strides, data_format, "strides"),
            **padding_attrs(padding),
        )
        return result


def avg_pool(
    value: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    name: str | None = None,
    input: TensorLike = None,
) -> Tensor:
    """The mean of each window; the padding of "SAME" does not count.

    >>> tf.nn.avg_pool(images, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    """
    value = renamed(input, "input", value, "value")
    with name_scope(name, "AvgPool", [value]) as name:
        value = convert_to_tensor(value, name="input")
        result: Tensor = avg_pool_op(
            value,
            ksize=per_dimension(ksize, data_format, "ksize"),
            name=name,
            data_format=data_format or "NHWC",
            strides=per_dimension(strides, data_format, "strides"),
            padding=padding,
        )
        return result


def max_pool_v2(
    input: TensorLike, ksize: Any, strides: Any, padding: Any, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """The largest value of each window of sequences, images or volumes, by the rank of the input.

    >>> tf.nn.max_pool_v2(images, ksize=2, strides=2, padding="SAME")
    """
    count = _spatial_count(input, data_format)
    functions: Any = (max_pool1d, max_pool2d, max_pool3d)
    result: Tensor = functions[count - 1](
        input, ksize, strides, padding, data_format or _LAYOUTS[count - 1], name or f"MaxPool{count}d"
    )
    return result


def avg_pool_v2(
    input: TensorLike, ksize: Any, strides: Any, padding: Any, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """The mean of each window of sequences, images or volumes, by the rank of the input.

    >>> tf.nn.avg_pool_v2(images, ksize=2, strides=2, padding="SAME")
    """
    count = _spatial_count(input, data_format)
    functions: Any = (avg_pool1d, avg_pool, avg_pool3d)
    result: Tensor = functions[count - 1](input, ksize, strides, padding, data_format or _LAYOUTS[count - 1], name)
    return result


_LAYOUTS = ("NWC", "NHWC", "NDHWC")


def _spatial_count(input: Any, data_format: str | None) -> int:
    rank = len(data_format) if data_format is not None else convert_to_tensor(input).shape.rank
    if rank not in (3, 4, 5):
        raise ValueError(f"pooling takes sequences, images or volumes: rank 3, 4 or 5, received rank {rank}.")
    return int(rank) - 2


def max_pool2d(
    input: TensorLike, ksize: Any, strides: Any, padding: Any, data_format: str = "NHWC", name: str | None = None
) -> Tensor:
    """The largest value of each window of images.

    >>> tf.nn.max_pool2d(images, ksize=2, strides=2, padding="SAME")
    """
    return max_pool(input, ksize, strides, padding, data_format, name or "MaxPool2d")


avg_pool2d = avg_pool


def max_pool1d(
    input: TensorLike, ksize: Any, strides: Any, padding: str, data_format: str = "NWC", name: str | None = None
) -> Tensor:
    """The largest value of each window of sequences.

    >>> tf.nn.max_pool1d(sequences, ksize=2, strides=2, padding="SAME")
    """
    return _pool1d(max_pool_op, "MaxPool1d", input, ksize, strides, padding, data_format, name)


def avg_pool1d(
    input: TensorLike, ksize: Any, strides: Any, padding: str, data_format: str = "NWC", name: str | None = None
) -> Tensor:
    """The mean of each window of sequences.

    >>> tf.nn.avg_pool1d(sequences, ksize=2, strides=2, padding="SAME")
    """
    return _pool1d(avg_pool_op, "AvgPool1D", input, ksize, strides, padding, data_format, name)


def _pool1d(
    raw: Any, default: str, input: Any, ksize: Any, strides: Any, padding: str, data_format: str, name: str | None
) -> Tensor:
    layout, axis = ("NCHW", 2) if data_format.startswith("NC") else ("NHWC", 1)
    with name_scope(name, default, [input]) as name:
        window, steps = per_dimension(ksize, layout, "ksize", 1), per_dimension(strides, layout, "strides", 1)
        window.insert(axis, 1)
        steps.insert(axis, 1)
        wide = reshaping.expand_dims(input, axis)
        pooled = raw(wide, ksize=window, strides=steps, padding=padding, data_format=layout, name=name)
        return reshaping.squeeze(pooled, [axis])


def pool(
    input: TensorLike,
    window_shape: Any,
    pooling_type: str,
    padding: Any,
    dilation_rate: Any = None,
    strides: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """Max or average pooling over one, two or three dimensions, by `pooling_type` "MAX" or "AVG".

    >>> tf.nn.pool(images, window_shape=[2, 2], pooling_type="MAX", padding="SAME", strides=[2, 2])
    """
    if pooling_type not in ("MAX", "AVG"):
        raise ValueError(f"pool: pooling_type must be 'MAX' or 'AVG', received {pooling_type!r}.")
    rate = renamed(dilations, "dilations", dilation_rate, "dilation_rate")
    with name_scope(name, f"{pooling_type.lower()}_pool", [input]) as name:
        input = convert_to_tensor(input, name="input")
        window = [int(size) for size in window_shape]
        count = len(window)
        if not 1 <= count <= 3:
            raise ValueError(f"pool: window_shape must have 1, 2 or 3 sizes, received {window}.")
        rates, steps = sequence(rate, count, "dilation_rate"), sequence(strides, count, "strides")
        if any(r > 1 for r in rates) and any(s > 1 for s in steps):
            raise ValueError("strides > 1 not supported in conjunction with dilation_rate > 1")
        if any(s > w for s, w in zip(steps, window, strict=True)):
            raise ValueError(f"strides > window_shape not supported due to inconsistency between devices: {steps}")
        if padding == "SAME" and any(r > 1 for r in rates):
            # Space-to-batch pads with zeros, which would count.
            raise ValueError(f"pooling with 'SAME' padding is not implemented for dilation_rate > 1, got {rates}.")

        def pooled(input: Tensor, _: int, padding: Any) -> Tensor:
            if count == 1:
                raw, layout = (max_pool_op if pooling_type == "MAX" else avg_pool_op), data_format or "NWC"
                return _pool1d(raw, "", input, window, steps, padding, layout, name)
            raws = (max_pool_op, max_pool3d_op) if pooling_type == "MAX" else (avg_pool_op, avg_pool3d_op)
            layout = data_format or _LAYOUTS[count - 1]
            result: Tensor = raws[count - 2](
                input,
                ksize=per_dimension(window, layout, "window_shape", count),
                padding=padding,
                name=name,
                strides=per_dimension(steps, layout, "strides", count),
                data_format=layout,
            )
            return result

        return with_space_to_batch(input, rates, padding, pooled, filter_shape=window, data_format=data_format)
