"""Convolutions of images: the ops, their gradients, and TensorFlow's functions for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import UnimplementedError
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel.shapes import require_rank, same_as
from penstock.kernel.types import FLOATS, Array, platform
from penstock.ops.array import reshaping
from penstock.ops.conv import lowerings
from penstock.ops.math.reduce import renamed

_CONVOLVED = Types(*FLOATS, dt.int32)
_PADDINGS = ("SAME", "VALID", "EXPLICIT")


# Shapes.


_AXES: dict[str, tuple[int, tuple[int, ...]]] = {
    "NHWC": (3, (1, 2)),
    "NCHW": (1, (2, 3)),
    "NDHWC": (4, (1, 2, 3)),
    "NCDHW": (1, (2, 3, 4)),
}


def axes_of(data_format: str, spatial: int = 2) -> tuple[int, tuple[int, ...]]:
    """The axis of the channels and the axes of space."""
    found = _AXES.get(data_format)
    if found is None or len(found[1]) != spatial:
        known = " or ".join(repr(name) for name, (_, axes) in _AXES.items() if len(axes) == spatial)
        raise ValueError(f"data_format must be {known}, received '{data_format}'")
    return found


def window_count(
    size: int | None, window: int | None, stride: int, dilation: int, padding: str, around: int
) -> int | None:
    """The number of windows that fit into `size`; None if it is unknown."""
    if size is None or (window is None and padding != "SAME"):
        return None
    if padding == "SAME":
        return -(-size // stride)
    assert window is not None
    reach = (window - 1) * dilation + 1
    if size + around < reach:
        raise ValueError(f"Negative dimension size caused by subtracting {reach} from {size + around}")
    return (size + around - reach) // stride + 1


def windows_in(op: Operation, sizes: list[int | None], windows: Sequence[int | None]) -> list[int | None]:
    """The spatial dimensions of a convolution's or pooling's result."""
    attrs = op.attrs
    padding = attrs["padding"]
    allowed = _PADDINGS if "explicit_paddings" in attrs else _PADDINGS[:2]
    if padding not in allowed:
        raise ValueError(f"Attr 'padding' of '{op.type}' Op passed string '{padding}' not in: {', '.join(allowed)}")
    _, axes = axes_of(attrs["data_format"], len(windows))
    for what in ("strides", "ksize", "dilations"):
        if what in attrs and len(attrs[what]) != len(windows) + 2:
            raise ValueError(f"{op.type} requires {what} to have {len(windows) + 2} numbers, received {attrs[what]}")
    explicit = attrs.get("explicit_paddings", ())
    if padding == "EXPLICIT" and len(explicit) != 8:
        raise ValueError(f"explicit_paddings must have 8 numbers, two for each dimension, received {list(explicit)}")
    result = []
    for axis, window in zip(axes, windows, strict=True):
        around = explicit[2 * axis] + explicit[2 * axis + 1] if padding == "EXPLICIT" else 0
        dilation = attrs["dilations"][axis] if "dilations" in attrs else 1
        result.append(window_count(sizes[axis], window, attrs["strides"][axis], dilation, padding, around))
    return result


def placed(data_format: str, batch: int | None, spatial: list[int | None], channels: int | None) -> TensorShape:
    """A shape of images or volumes in that layout."""
    return TensorShape.of((batch, *spatial, channels) if data_format.endswith("C") else (batch, channels, *spatial))


def conv_shape(op: Operation) -> list[TensorShape]:
    """The shape of a convolution's result; the length of the strides tells images from volumes."""
    spatial = len(op.attrs["strides"]) - 2
    image, kernel = (require_rank(t.shape, spatial + 2).as_list() for t in op.input_list)
    channel, _ = axes_of(op.attrs["data_format"], spatial)
    depth, wanted = image[channel], kernel[-2]
    if wanted == 0:
        raise ValueError("Depth of filter must not be 0")
    if depth is not None and wanted and depth % wanted:
        raise ValueError(f"Depth of input ({depth}) is not a multiple of input depth of filter ({wanted})")
    size = windows_in(op, image, kernel[:-2])
    return [placed(op.attrs["data_format"], image[0], size, kernel[-1])]


def from_sizes(index: int, batch_from: int | None = None, rank: int = 4) -> Any:
    """A shape rule: the shape is the value of input `index`, with the batch size of input `batch_from`, if given."""

    def rule(op: Operation) -> list[TensorShape]:
        sizes = op.input_list[index]
        if sizes.op.type == "ShapeN":
            shape = sizes.op.input_list[sizes.value_index].shape
        else:
            shape = constant_value_as_shape(sizes)
        shape = require_rank(shape, rank)
        if batch_from is not None:
            batch = require_rank(op.input_list[batch_from].shape, rank).as_list()[0]
            shape = TensorShape.of((batch, *shape.as_list()[1:]))
        return [shape]

    return rule


# Convolution.


def _settings(attrs: dict[str, Any]) -> dict[str, Any]:
    """The attrs that a convolution shares with its gradients."""
    names = ("strides", "use_cudnn_on_gpu", "padding", "explicit_paddings", "data_format", "dilations")
    return {name: attrs[name] for name in names}


def lowering(
    strides: list[int], padding: str, explicit_paddings: list[int], data_format: str, dilations: list[int]
) -> dict[str, Any]:
    """TensorFlow's attrs, four numbers each, as the two spatial ones that the lowerings take."""
    channel, (h, w) = axes_of(data_format)
    if any(v[i] != 1 for v in (strides, dilations) for i in (0, channel)):
        raise UnimplementedError(
            f"strides and dilations in the batch and depth dimensions must be 1, received {strides} and {dilations}"
        )
    around: Any = padding
    if padding == "EXPLICIT":
        around = tuple((explicit_paddings[2 * a], explicit_paddings[2 * a + 1]) for a in (h, w))
    return {
        "strides": (strides[h], strides[w]),
        "padding": around,
        "dilations": (dilations[h], dilations[w]),
        "data_format": data_format,
        "platform": platform(),
    }


ONES = [1, 1, 1, 1]


def _conv2d_gradient(op: Operation, dy: Tensor) -> list[Any]:
    image, kernel = op.input_list
    image_sizes, kernel_sizes = reshaping.shape_n([image, kernel])
    attrs = _settings(op.attrs)
    return [
        conv2d_backprop_input_op(image_sizes, kernel, dy, **attrs),
        conv2d_backprop_filter_op(image, kernel_sizes, dy, **attrs),
    ]


@op("Conv2D", "T, T -> output: T", shape=conv_shape, grad=_conv2d_gradient, T=_CONVOLVED)
def conv2d_op(
    input: Array,
    filter: Array,
    *,
    strides: list[int],
    use_cudnn_on_gpu: bool = True,
    padding: str,
    explicit_paddings: list[int] = [],  # noqa: B006
    data_format: str = "NHWC",
    dilations: list[int] = ONES,
) -> Array:
    settings = lowering(strides, padding, explicit_paddings, data_format, dilations)
    return lowerings.conv2d(input, filter, **settings)


def _backprop_input_gradient(op: Operation, dy: Tensor) -> list[Any]:
    _, kernel, upstream = op.input_list
    attrs = _settings(op.attrs)
    d_kernel = conv2d_backprop_filter_op(dy, reshaping.shape(kernel), upstream, **attrs)
    return [None, d_kernel, conv2d_op(dy, kernel, **attrs)]


@op(
    "Conv2DBackpropInput",
    "int32, T, T -> output: T",
    static="input_sizes",
    shape=from_sizes(0, 2),
    grad=_backprop_input_gradient,
    T=_CONVOLVED,
)
def conv2d_backprop_input_op(
    input_sizes: Array,
    filter: Array,
    out_backprop: Array,
    *,
    strides: list[int],
    use_cudnn_on_gpu: bool = True,
    padding: str,
    explicit_paddings: list[int] = [],  # noqa: B006
    data_format: str = "NHWC",
    dilations: list[int] = ONES,
) -> Array:
    settings = lowering(strides, padding, explicit_paddings, data_format, dilations)
    return lowerings.conv2d_input_grad(tuple(map(as_size, input_sizes)), filter, out_backprop, **settings)


def _backprop_filter_gradient(op: Operation, dy: Tensor) -> list[Any]:
    image, _, upstream = op.input_list
    attrs = _settings(op.attrs)
    d_image = conv2d_backprop_input_op(reshaping.shape(image), dy, upstream, **attrs)
    return [d_image, None, conv2d_op(image, dy, **attrs)]


@op(
    "Conv2DBackpropFilter",
    "T, int32, T -> output: T",
    static="filter_sizes",
    shape=from_sizes(1),
    grad=_backprop_filter_gradient,
    T=FLOATS,
)
def conv2d_backprop_filter_op(
    input: Array,
    filter_sizes: Array,
    out_backprop: Array,
    *,
    strides: list[int],
    use_cudnn_on_gpu: bool = True,
    padding: str,
    explicit_paddings: list[int] = [],  # noqa: B006
    data_format: str = "NHWC",
    dilations: list[int] = ONES,
) -> Array:
    settings = lowering(strides, padding, explicit_paddings, data_format, dilations)
    return lowerings.conv2d_filter_grad(input, tuple(map(as_size, filter_sizes)), out_backprop, **settings)


@op("Conv2DBackpropInputV2", "T, T, T -> output: T", shape=same_as(0), T=_CONVOLVED)
def conv2d_backprop_input_v2(
    input: Array,
    filter: Array,
    out_backprop: Array,
    *,
    strides: list[int],
    use_cudnn_on_gpu: bool = True,
    padding: str,
    explicit_paddings: list[int] = [],  # noqa: B006
    data_format: str = "NHWC",
    dilations: list[int] = ONES,
) -> Array:
    settings = lowering(strides, padding, explicit_paddings, data_format, dilations)
    return lowerings.conv2d_input_grad(input.shape, filter, out_backprop, **settings)


@op("Conv2DBackpropFilterV2", "T, T, T -> output: T", shape=same_as(1), T=FLOATS)
def conv2d_backprop_filter_v2(
    input: Array,
    filter: Array,
    out_backprop: Array,
    *,
    strides: list[int],
    use_cudnn_on_gpu: bool = True,
    padding: str,
    explicit_paddings: list[int] = [],  # noqa: B006
    data_format: str = "NHWC",
    dilations: list[int] = ONES,
) -> Array:
    settings = lowering(strides, padding, explicit_paddings, data_format, dilations)
    return lowerings.conv2d_filter_grad(input, filter.shape, out_backprop, **settings)


# TensorFlow's functions.


def per_dimension(value: Any, data_format: str | None, what: str, spatial: int = 2) -> list[int]:
    """A setting for every dimension, from one number, one for each spatial dimension, or all of them."""
    if value is None:
        value = 1
    given = [int(v) for v in value] if isinstance(value, (list, tuple)) or hasattr(value, "__len__") else [int(value)]
    if len(given) == spatial + 2:
        return given
    if len(given) not in (1, spatial):
        raise ValueError(f"{what} should be of length 1, {spatial} or {spatial + 2} but was {len(given)}")
    inner = given * spatial if len(given) == 1 else given
    return [1, 1, *inner] if data_format is not None and data_format.startswith("NC") else [1, *inner, 1]


def padding_attrs(padding: Any) -> dict[str, Any]:
    if isinstance(padding, (list, tuple)):
        pairs = [list(pair) for pair in padding]
        if len(pairs) != 4 or any(len(pair) != 2 for pair in pairs):
            raise ValueError(f"explicit padding must have a pair of sizes for each of 4 dimensions, received {padding}")
        return {"padding": "EXPLICIT", "explicit_paddings": [int(v) for pair in pairs for v in pair]}
    if padding == "EXPLICIT":
        raise ValueError("Give explicit padding as a list of pairs, not as the string 'EXPLICIT'.")
    return {"padding": padding}


def conv2d(
    input: TensorLike,
    filter: TensorLike = None,
    strides: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
    filters: TensorLike = None,
) -> Tensor:
    """Slides `filter` [height, width, in, out] over images.

    >>> tf.nn.conv2d(images, weights, strides=[1, 1, 1, 1], padding="SAME")
    """
    filter = renamed(filters, "filters", filter, "filter")
    if padding is None:
        raise ValueError("conv2d: `padding` must be given: 'SAME', 'VALID' or a list of pairs.")
    result: Tensor = conv2d_op(
        input,
        filter,
        strides=per_dimension(strides, data_format, "strides"),
        use_cudnn_on_gpu=use_cudnn_on_gpu,
        data_format=data_format or "NHWC",
        dilations=per_dimension(dilations, data_format, "dilations"),
        name=name,
        **padding_attrs(padding),
    )
    return result


def conv2d_backprop_input(
    input_sizes: ShapeLike,
    filter: TensorLike = None,
    out_backprop: TensorLike = None,
    strides: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
    filters: TensorLike = None,
) -> Tensor:
    """The gradient of a convolution with respect to its images, which have shape `input_sizes`.

    >>> tf.nn.conv2d_backprop_input([1, 5, 5, 2], weights, grad, strides=[1, 1, 1, 1], padding="SAME")
    """
    filter = renamed(filters, "filters", filter, "filter")
    result: Tensor = conv2d_backprop_input_op(
        input_sizes,
        filter,
        out_backprop,
        strides=per_dimension(strides, data_format, "strides"),
        use_cudnn_on_gpu=use_cudnn_on_gpu,
        data_format=data_format,
        dilations=per_dimension(dilations, data_format, "dilations"),
        name=name,
        **padding_attrs(padding),
    )
    return result


def conv2d_backprop_filter(
    input: TensorLike,
    filter_sizes: ShapeLike,
    out_backprop: TensorLike,
    strides: Any,
    padding: Any,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The gradient of a convolution with respect to its filter, which has shape `filter_sizes`.

    >>> tf.nn.conv2d_backprop_filter(images, [3, 3, 2, 3], grad, strides=[1, 1, 1, 1], padding="SAME")
    """
    result: Tensor = conv2d_backprop_filter_op(
        input,
        filter_sizes,
        out_backprop,
        strides=per_dimension(strides, data_format, "strides"),
        use_cudnn_on_gpu=use_cudnn_on_gpu,
        data_format=data_format,
        dilations=per_dimension(dilations, data_format, "dilations"),
        name=name,
        **padding_attrs(padding),
    )
    return result


def conv2d_transpose(
    value: TensorLike = None,
    filter: TensorLike = None,
    output_shape: ShapeLike = None,
    strides: Any = None,
    padding: Any = "SAME",
    data_format: str = "NHWC",
    name: str | None = None,
    input: TensorLike = None,
    filters: TensorLike = None,
    dilations: Any = None,
) -> Tensor:
    """The transpose of conv2d; `filter` is [height, width, out, in].

    >>> tf.nn.conv2d_transpose(x, weights, output_shape=[8, 28, 28, 1], strides=[1, 2, 2, 1])
    """
    value, filter = renamed(input, "input", value, "value"), renamed(filters, "filters", filter, "filter")
    with name_scope(name, "conv2d_transpose", [value, filter, output_shape]) as name:
        return conv2d_backprop_input(
            output_shape,
            filter,
            value,
            strides=strides,
            padding=padding,
            data_format=data_format or "NHWC",
            dilations=dilations,
            name=name,
        )
