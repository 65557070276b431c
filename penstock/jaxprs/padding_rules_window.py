"""Rules of convolutions and windows: padding gets values that a window ignores; the program's own padding follows."""

from __future__ import annotations

from typing import Any

from penstock.jaxprs.dims import Dim, is_symbolic
from penstock.jaxprs.padding_frame import (
    Array,
    Frame,
    Padded,
    bind,
    cut,
    largest,
    no_rule,
    placed,
    resized,
    result_shape,
    rule,
    smallest,
)


def _windowed(
    frame: Frame, array: Array, d: int, low: Dim, fill: Any, windows: int, stride: int, window: int, dilation: int
) -> tuple[Array, tuple[int, int]]:
    """The array and its padding along a dimension, so that `windows` windows fit.

    The values after the true end of the array must already be `fill`, so that the end of the program's padding does not
    matter. A start that is only known at run time is padded here; a number is left to XLA.
    """
    length = (windows - 1) * stride + window
    if is_symbolic(low):
        return placed(array, d, frame.size(low), frame.bounds.range(low), length, fill, dilation - 1), (0, 0)
    extent = max((array.shape[d] - 1) * dilation + 1, 0)
    return array, (int(low), length - extent - int(low))


@rule("conv_general_dilated")
def conv_general_dilated(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    value, kernel = operands
    params = equation.params
    numbers = params["dimension_numbers"]
    result = result_shape(equation)
    (batch, features, *space) = numbers.lhs_spec
    (made, taken, *kernel_space) = numbers.rhs_spec
    out_space = numbers.out_spec[2:]
    if params["feature_group_count"] != 1 and any(
        map(is_symbolic, (value.shape[features], kernel.shape[made], kernel.shape[taken]))
    ):
        raise no_rule(equation, "groups of a symbolic number of features")
    if params["batch_group_count"] != 1 and any(map(is_symbolic, (value.shape[batch], kernel.shape[made]))):
        raise no_rule(equation, "groups of a symbolic batch")

    # Both sides, since NaN times zero is NaN.
    array = frame.zeroed(value, [features, *space])
    weights = frame.zeroed(kernel, [taken, *kernel_space])
    weights = resized(weights, taken, array.shape[features] // params["feature_group_count"])
    padding, dilation = list(params["padding"]), list(params["lhs_dilation"])
    for i, (d, k, o) in enumerate(zip(space, kernel_space, out_space, strict=True)):
        if not any(map(is_symbolic, (value.shape[d], kernel.shape[k], result[o], *padding[i]))):
            continue
        window = (weights.shape[k] - 1) * params["rhs_dilation"][i] + 1
        windows = frame.bounds.upper(result[o])
        low = padding[i][0]
        array, padding[i] = _windowed(
            frame, array, d, low, 0, windows, params["window_strides"][i], window, dilation[i]
        )
        if is_symbolic(low):
            dilation[i] = 1
    return bind(equation, array, weights, padding=tuple(padding), lhs_dilation=tuple(dilation))


def _reduce_windows(frame: Frame, equation: Any, operands: list[Padded], fills: list[Any]) -> tuple[list[Array], Any]:
    """The operands with `fills` in their padding, and the parameters of the padded reduction."""
    params, result = equation.params, result_shape(equation)
    arrays = [operand.array for operand in operands]
    padding, dilation = list(params["padding"]), list(params["base_dilation"])
    for d, (low, high) in enumerate(padding):
        dim = operands[0].shape[d]
        trivial = params["window_dimensions"][d] == 1 and params["window_strides"][d] == 1 and dilation[d] == 1
        if not any(map(is_symbolic, (dim, low, high))) or (trivial and low == 0 and high == 0):
            continue
        if is_symbolic(params["window_dimensions"][d]):
            raise no_rule(equation, "a window of symbolic size")
        window = (params["window_dimensions"][d] - 1) * params["window_dilation"][d] + 1
        windows, stride = frame.bounds.upper(result[d]), params["window_strides"][d]
        masks = {d: dim} if is_symbolic(dim) else {}
        for i, fill in enumerate(fills):
            array = frame.masked(arrays[i], masks, fill)
            arrays[i], padding[d] = _windowed(frame, array, d, low, fill, windows, stride, window, dilation[d])
        if is_symbolic(low):
            dilation[d] = 1
    return arrays, {"padding": tuple(padding), "base_dilation": tuple(dilation)}


@rule("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def reduce_window(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    dtype = operands[0].array.dtype
    fill = {"sum": 0, "max": smallest(dtype), "min": largest(dtype)}[equation.primitive.name[-3:]]
    arrays, changed = _reduce_windows(frame, equation, operands, [fill])
    return bind(equation, *arrays, **changed)


@rule("reduce_window")
def general_reduce_window(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    half = len(operands) // 2
    starts = [start.array for start in operands[half:]]
    arrays, changed = _reduce_windows(frame, equation, operands[:half], starts)
    return bind(equation, *arrays, *starts, **changed)


@rule("select_and_scatter_add")
def select_and_scatter_add(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    source, value = operands
    params = equation.params
    dtype = value.array.dtype
    never_chosen = smallest(dtype) if params["select_prim"].name == "ge" else largest(dtype)
    array, padding = value.array, list(params["padding"])
    moved: dict[int, Dim] = {}  # by dimension, the start of the array among the windows
    for d, (low, high) in enumerate(padding):
        window, stride = params["window_dimensions"][d], params["window_strides"][d]
        trivial = window == 1 and stride == 1 and low == 0 and high == 0
        if trivial or not any(map(is_symbolic, (value.shape[d], low, high))):
            continue
        masks = {d: value.shape[d]} if is_symbolic(value.shape[d]) else {}
        length = (source.array.shape[d] - 1) * stride + window
        array = frame.masked(array, masks, never_chosen)
        array = placed(array, d, frame.size(low), frame.bounds.range(low), length, never_chosen)
        padding[d] = (0, 0)
        moved[d] = low
    result = bind(equation, frame.zeroed(source, moved), array, padding=tuple(padding))
    for d, low in moved.items():
        result = cut(frame, result, d, low, value.array.shape[d])
    return result
