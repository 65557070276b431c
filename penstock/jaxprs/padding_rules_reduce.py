"""Rules of reductions, cumulative sums, products of arrays and sorting: padding is set to values without effect."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from penstock.jaxprs.dims import is_symbolic
from penstock.jaxprs.padding_frame import Frame, Padded, bind, largest, no_rule, resized, result_shape, rule, smallest


def _identity(name: str, dtype: Any) -> Any:
    """The number that has no effect on a reduction."""
    operation = name.removeprefix("reduce_").removeprefix("cum")
    match operation:
        case "sum" | "or" | "xor":
            return 0
        case "prod":
            return 1
        case "max" | "logsumexp":
            return smallest(dtype)
        case "min":
            return largest(dtype)
        case "and":
            return True if dtype == np.bool_ else ~np.zeros((), dtype)
    raise NotImplementedError(f"no identity of {name}")


def _kept_zero(value: Padded, axes: tuple[int, ...]) -> frozenset[int]:
    """The dimensions whose padding stays zero when some dimensions are summed."""
    kept = [d for d in range(len(value.shape)) if d not in axes]
    return frozenset(kept.index(d) for d in value.zero if d in kept)


@rule("reduce_sum", "reduce_or", "reduce_xor")
def reduce_to_zero(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    axes = equation.params["axes"]
    array = frame.zeroed(value, axes)
    return Padded(bind(equation, array), result_shape(equation), _kept_zero(value, axes))


@rule("reduce_prod", "reduce_max", "reduce_min", "reduce_and")
def reduce(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    identity = _identity(equation.primitive.name, value.array.dtype)
    return bind(equation, frame.filled(value, identity, equation.params["axes"]))


@rule("argmax", "argmin")
def arg_extreme(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    # The first of equal elements counts, and padding comes last.
    (value,) = operands
    extreme = smallest if equation.primitive.name == "argmax" else largest
    return bind(equation, frame.filled(value, extreme(value.array.dtype), equation.params["axes"]))


@rule("reduce")
def general_reduce(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    half = len(operands) // 2
    starts = [start.array for start in operands[half:]]
    axes = equation.params["dimensions"]
    arrays = [frame.filled(value, start, axes) for value, start in zip(operands[:half], starts, strict=True)]
    return bind(equation, *arrays, *starts)


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    if not equation.params["reverse"]:
        return bind(equation, value.array)  # padding comes after all true elements
    identity = _identity(equation.primitive.name, value.array.dtype)
    return bind(equation, frame.filled(value, identity, [equation.params["axis"]]))


@rule("sort")
def sort(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    dimension = equation.params["dimension"]
    arrays = [operand.array for operand in operands]
    length = operands[0].shape[dimension]
    if not is_symbolic(length):
        return bind(equation, *arrays)
    is_padding = lax.broadcasted_iota(np.int32, arrays[0].shape, dimension) >= frame.size(length)
    keys = equation.params["num_keys"] + 1
    return bind(equation, is_padding.astype(np.int8), *arrays, num_keys=keys)[1:]


@rule("top_k", "approx_top_k")
def top_k(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    if equation.primitive.name == "approx_top_k":
        raise no_rule(equation, "approximate results depend on the padded size")
    (value,) = operands
    array = frame.filled(value, smallest(value.array.dtype), [equation.params["axis"]])
    return bind(equation, array, k=frame.bounds.upper(equation.params["k"]))


@rule("dot_general")
def dot_general(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    left, right = operands
    (left_contracted, right_contracted), (left_batch, right_batch) = equation.params["dimension_numbers"]
    # Both sides, since NaN times zero is NaN.
    arrays = [frame.zeroed(left, left_contracted), frame.zeroed(right, right_contracted)]
    for i, j in zip((*left_contracted, *left_batch), (*right_contracted, *right_batch), strict=True):
        arrays[1] = resized(arrays[1], j, arrays[0].shape[i])
    return bind(equation, *arrays)
