"""Windows with holes between their values, made of ordinary windows over every n-th pixel (space-to-batch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import int32
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.ops.array import joining, reshaping
from penstock.ops.conv.batch_space import batch_to_space_nd, required_space_to_batch_paddings, space_to_batch_nd
from penstock.ops.conv.conv1d import conv1d_under
from penstock.ops.conv.conv2d import ONES, conv2d, conv2d_backprop_input, per_dimension
from penstock.ops.conv.conv3d import conv3d
from penstock.ops.math.reduce import renamed


def with_space_to_batch(
    input: TensorLike,
    dilation_rate: Any,
    padding: str,
    op: Callable[[Tensor, int, str], Tensor],
    filter_shape: ShapeLike = None,
    spatial_dims: Sequence[int] | None = None,
    data_format: str | None = None,
) -> Tensor:
    """`op(input, num_spatial_dims, padding)` with its windows dilated by `dilation_rate`.

    For "SAME" padding `filter_shape` gives the size of the windows. Without dilation it is a plain call of `op`.

    >>> tf.nn.with_space_to_batch(images, [2, 2], "VALID", lambda x, dims, padding: tf.nn.conv2d(x, w, 1, padding))
    """
    tensor = convert_to_tensor(input, name="input")
    rate = convert_to_tensor(dilation_rate, dtype=int32, name="dilation_rate")
    count = rate.shape.with_rank(1).as_list()[0]
    if count is None:
        raise ValueError("with_space_to_batch: the length of dilation_rate must be known.")
    first = 2 if data_format is not None and data_format.startswith("NC") else 1
    axes = sorted(range(first, first + count) if spatial_dims is None else map(int, spatial_dims))
    if len(set(axes)) != count or axes[0] < 1:
        raise ValueError(f"with_space_to_batch: spatial_dims must be {count} different positive numbers, got {axes}.")
    known = constant_value(rate)
    if known is not None:
        if (known < 1).any():
            raise ValueError(f"dilation_rate must be positive, received {known.tolist()}.")
        if (known == 1).all():
            return op(tensor, count, padding)
    rates: Any = rate if known is None else known
    base = _base_paddings(padding, filter_shape, count, rates)
    paddings, crops = required_space_to_batch_paddings(_spatial_shape(tensor, axes), rate, base_paddings=base)
    blocks = _adjusted(rates, 1, axes)
    apart = space_to_batch_nd(tensor, blocks, _adjusted(paddings, 0, axes), name="SpaceToBatchND")
    result = op(apart, count, "VALID")
    together: Tensor = batch_to_space_nd(result, blocks, _adjusted(crops, 0, axes), name="BatchToSpaceND")
    if together.shape.rank is not None and tensor.shape.rank is not None:
        together.set_shape([tensor.shape.as_list()[0], *[None] * (together.shape.rank - 1)])
    return together


def _base_paddings(padding: str, filter_shape: Any, count: int, rates: Any) -> Any:
    """The padding that the windows need before the image is divided: a pair for each dimension."""
    if padding == "VALID":
        return np.zeros((count, 2), np.int32)
    if padding != "SAME":
        raise ValueError(f"Invalid padding method {padding!r}: dilated windows take 'SAME' or 'VALID'.")
    if filter_shape is None:
        raise ValueError("filter_shape must be specified for padding='SAME'")
    sizes: Any = convert_to_tensor(filter_shape, name="filter_shape")
    known = constant_value(sizes)
    sizes = sizes[:count] if known is None else known[:count]
    extra = (sizes - 1) * rates
    before = extra // 2
    after = extra - before
    return joining.stack([[before[i], after[i]] for i in range(count)])


def _spatial_shape(tensor: Tensor, axes: list[int]) -> Any:
    if tensor.shape.rank is not None:
        sizes = [tensor.shape.as_list()[axis] for axis in axes]
        if None not in sizes:
            return np.array(sizes, np.int32)
    shape: Any = reshaping.shape(tensor)
    return joining.stack([shape[axis] for axis in axes])


def _adjusted(values: Any, fill: int, axes: list[int]) -> Any:
    """Rows of `values` for the dimensions in `axes`, rows of `fill` between them: space-to-batch starts at 1."""
    known = values if isinstance(values, np.ndarray) else constant_value(values)
    rows: Any = values if known is None else known
    trailing = [int(d) for d in (rows.shape[1:] if known is not None else rows.shape.as_list()[1:])]
    parts: list[Any] = []
    start, end = 0, 1
    for i, axis in enumerate(axes):
        if axis > end:
            parts += [rows[start:i]] if i > start else []
            parts.append(np.full([axis - end, *trailing], fill, np.int32))
            start = i
        end = axis + 1
    parts.append(rows[start:])
    return joining.concat(parts, 0) if known is None else np.concatenate(parts)


# TensorFlow's functions.


def convolution(
    input: TensorLike,
    filter: TensorLike,
    padding: Any,
    strides: Any = None,
    dilation_rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    filters: TensorLike = None,
    dilations: Any = None,
) -> Tensor:
    """A convolution over one, two or three spatial dimensions, by the rank of the filter.

    >>> tf.nn.convolution(images, weights, padding="SAME", dilation_rate=[2, 2])
    """
    filter = renamed(filters, "filters", filter, "filter")
    rate = renamed(dilations, "dilations", dilation_rate, "dilation_rate")
    with name_scope(name, "convolution", [input, filter]) as name:
        input = convert_to_tensor(input, name="input")
        filter = convert_to_tensor(filter, name="filter")
        rank = filter.shape.rank if filter.shape.rank is not None else input.shape.rank
        if rank is None:
            raise ValueError(
                "convolution: the rank of the input or of the filter must be known, received unknown shapes of both."
            )
        if rank not in (3, 4, 5):
            raise ValueError(f"convolution: the filter must have rank 3, 4 or 5, received shape {filter.shape}.")
        count = rank - 2
        rates, steps = sequence(rate, count, "dilation_rate"), sequence(strides, count, "strides")
        convolve = _convolution_of(filter, count, steps, data_format, name)
        if all(r == 1 for r in rates):
            return convolve(input, count, padding)
        if any(s > 1 for s in steps):
            raise ValueError("strides > 1 not supported in conjunction with dilation_rate > 1")
        return with_space_to_batch(input, rates, padding, convolve, filter_shape=filter.shape, data_format=data_format)


def sequence(value: Any, count: int, what: str) -> list[int]:
    """A setting for every spatial dimension, from one number or all of them."""
    given = [1] if value is None else [int(v) for v in np.ravel(value)]
    if len(given) not in (1, count):
        raise ValueError(f"{what} should be of length 1 or {count} but was {len(given)}")
    given = given * count if len(given) == 1 else given
    if any(v < 1 for v in given):
        raise ValueError(f"all values of {what} must be positive, received {given}")
    return given


def _convolution_of(
    filter: Tensor, count: int, strides: list[int], data_format: str | None, name: str | None
) -> Callable[[Tensor, int, Any], Tensor]:
    def one(input: Tensor, _: int, padding: Any) -> Tensor:
        return conv1d_under(input, filter, strides, padding, data_format, None, name, "convolution")

    def two(input: Tensor, _: int, padding: Any) -> Tensor:
        return conv2d(input, filter, strides, padding, data_format=data_format or "NHWC", name=name)

    def three(input: Tensor, _: int, padding: Any) -> Tensor:
        layout = data_format or "NDHWC"
        steps = per_dimension(strides, layout, "strides", 3)
        return conv3d(input, filter, steps, padding, data_format=layout, name=name)

    return (one, two, three)[count - 1]


def atrous_conv2d(value: TensorLike, filters: TensorLike, rate: int, padding: Any, name: str | None = None) -> Tensor:
    """A convolution whose filter has `rate - 1` holes between its values.

    >>> tf.nn.atrous_conv2d(images, weights, rate=2, padding="SAME")
    """
    return convolution(value, filters, padding, dilation_rate=[rate, rate], name=name)


def atrous_conv2d_transpose(
    value: TensorLike, filters: TensorLike, output_shape: ShapeLike, rate: int, padding: str, name: str | None = None
) -> Tensor:
    """The transpose of `atrous_conv2d`; `filters` is [height, width, out, in].

    >>> tf.nn.atrous_conv2d_transpose(x, weights, output_shape=[8, 28, 28, 3], rate=2, padding="SAME")
    """
    with name_scope(name, "atrous_conv2d_transpose", [value, filters, output_shape]) as name:
        value = convert_to_tensor(value, name="value")
        filters = convert_to_tensor(filters, name="filters")
        if rate < 1:
            raise ValueError(f"atrous_conv2d_transpose: rate must be positive, received {rate}.")
        if rate == 1:
            return conv2d_backprop_input(output_shape, filters, value, strides=ONES, padding=padding)
        sizes: Any = convert_to_tensor(output_shape, name="output_shape")
        known = constant_value(sizes)
        batch, height, width, depth = sizes if known is None else (int(v) for v in known)
        if padding not in ("SAME", "VALID"):
            raise ValueError(f"padding must be 'SAME' or 'VALID', received {padding!r}.")
        around = [0, 0, 0, 0]
        if padding == "SAME":
            kernel = filters.shape.with_rank(4).as_list()
            reach = [(k - 1) * rate for k in kernel[:2]]
            around = [reach[0] // 2, reach[0] - reach[0] // 2, reach[1] // 2, reach[1] - reach[1] // 2]
        top, bottom, left, right = around
        rows, columns = height + top + bottom, width + left + right
        # Both spatial sizes must be multiples of the rate to be divided.
        below, beside = (rate - rows % rate) % rate, (rate - columns % rate) % rate
        shape = value.shape.with_rank(4).as_list()
        if None in shape[1:3]:
            dynamic: Any = reshaping.shape(value)
            seen = [dynamic[1], dynamic[2]]
        else:
            seen = shape[1:3]
        apart = space_to_batch_nd(
            value,
            [rate, rate],
            [[0, (rate - seen[0] % rate) % rate], [0, (rate - seen[1] % rate) % rate]],
            name="SpaceToBatchND",
        )
        inner = [rate * rate * batch, (rows + below) // rate, (columns + beside) // rate, depth]
        image = conv2d_backprop_input(inner, filters, apart, strides=ONES, padding="VALID", name="Conv2DBackpropInput")
        result: Tensor = batch_to_space_nd(
            image, [rate, rate], [[top, bottom + below], [left, right + beside]], name="BatchToSpaceND"
        )
        return result
