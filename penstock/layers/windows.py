"""Arguments of layers that slide windows over their inputs: sizes, padding, order of axes."""

from __future__ import annotations

from typing import Any


def sizes(value: Any, rank: int, name: str) -> tuple[int, ...]:
    """`value` for each of `rank` spatial axes: one number for all, or one for each.

    >>> sizes(3, 2, "kernel_size")
    (3, 3)
    """
    given = (value,) * rank if isinstance(value, int) else tuple(value) if hasattr(value, "__iter__") else None
    if given is None or len(given) != rank:
        raise ValueError(f"The `{name}` argument must be a tuple of {rank} integers. Received: {value}")
    try:
        return tuple(int(v) for v in given)
    except (TypeError, ValueError):
        raise ValueError(f"The `{name}` argument must be a tuple of {rank} integers. Received: {value}") from None


def padding_named(value: Any) -> str:
    """'same' or 'valid', in lower case."""
    padding = str(value).lower()
    if padding not in ("same", "valid"):
        raise ValueError(f"The `padding` argument must be one of 'valid', 'same'. Received: {value}")
    return padding


def format_named(value: Any) -> str:
    """'channels_last' or 'channels_first', in lower case."""
    layout = str(value or "channels_last").lower()
    if layout not in ("channels_first", "channels_last"):
        raise ValueError(f"`data_format` must be 'channels_first' or 'channels_last'. Received: {value}")
    return layout


def layout_of(data_format: str, rank: int) -> str:
    """The order of axes as ops name it: 'NHWC', 'NCDHW' and so on.

    >>> layout_of("channels_first", 2)
    'NCHW'
    """
    spatial = {1: "W", 2: "HW", 3: "DHW"}[rank]
    return f"N{spatial}C" if data_format == "channels_last" else f"NC{spatial}"


def for_all_axes(values: Any, data_format: str) -> list[int]:
    """A setting for all axes, given its values for the spatial ones: 1 for the others."""
    return [1, *values, 1] if data_format == "channels_last" else [1, 1, *values]


def conv_size(size: int | None, window: int, padding: str, stride: int, dilation: int = 1) -> int | None:
    """The number of windows that fit along an axis."""
    if size is None:
        return None
    extent = (window - 1) * dilation + 1
    return -(-(size if padding == "same" else size - extent + 1) // stride)


def transposed_size(size: Any, window: int, padding: str, stride: int) -> Any:
    """The size of an axis after a transposed convolution; `size` is a number, None, or a tensor."""
    if size is None:
        return None
    size = size * stride
    if padding == "valid" and window > stride:
        size = size + (window - stride)
    return size
