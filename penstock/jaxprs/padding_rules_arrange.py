"""Rules of primitives that move positions: broadcasts, transposes, slices, pads, joins; and sizes as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.jaxprs.dims import Dim, is_symbolic
from penstock.jaxprs.padding_frame import Frame, Padded, bind, cut, no_rule, placed, resized, result_shape, rule


@rule("dim_as_value")
def dim_as_value(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    return jnp.asarray(frame.size(equation.params["dim"]), equation.outvars[0].aval.dtype)


@rule("dimension_size")
def dimension_size(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    size = frame.size(operands[0].shape[equation.params["dimension"]])
    return jnp.asarray(size, equation.outvars[0].aval.dtype)


@rule("shape_assertion")
def shape_assertion(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    return []  # compiled code cannot raise; the caller checks the sizes


@rule("iota", "empty")
def iota(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    return bind(equation, shape=frame.padded(equation.params["shape"]))


@rule("broadcast_in_dim")
def broadcast_in_dim(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    shape = result_shape(equation)
    wanted = frame.padded(shape)
    array = value.array
    places = equation.params["broadcast_dimensions"]
    for d, place in enumerate(places):
        if is_symbolic(value.shape[d]):
            array = resized(array, d, wanted[place])
    variable = equation.invars[0]
    if not value.shape and getattr(variable, "val", None) is not None and not np.any(variable.val):
        zero = frozenset(range(len(shape)))
    else:
        zero = frozenset(int(places[d]) for d in value.zero)
    return Padded(bind(equation, array, shape=wanted), shape, zero)


@rule("transpose")
def transpose(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    permutation = equation.params["permutation"]
    zero = frozenset(i for i, d in enumerate(permutation) if d in value.zero)
    return Padded(bind(equation, value.array), result_shape(equation), zero)


@rule("squeeze")
def squeeze(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    kept = [d for d in range(len(value.shape)) if d not in equation.params["dimensions"]]
    # A dimension that is 1 only by a constraint is still padded.
    array = value.array
    for d in equation.params["dimensions"]:
        array = resized(array, d, 1)
    zero = frozenset(kept.index(d) for d in value.zero if d in kept)
    return Padded(bind(equation, array), result_shape(equation), zero)


@rule("stack", "unstack")
def stack(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    return bind(equation, *(operand.array for operand in operands))


@rule("rev")
def rev(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    array = bind(equation, value.array)
    for d in equation.params["dimensions"]:
        if is_symbolic(value.shape[d]):
            # The padding is now at the start, so it is cut off.
            bound = array.shape[d]
            array = placed(array, d, frame.size(value.shape[d]) - bound, (-bound, 0), bound, 0)
    return array


@rule("concatenate")
def concatenate(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    d = equation.params["dimension"]
    if not any(is_symbolic(operand.shape[d]) for operand in operands[:-1]):
        return resized(bind(equation, *(o.array for o in operands)), d, frame.bounds.upper(result_shape(equation)[d]))
    room = sum(operand.array.shape[d] for operand in operands)
    joined = resized(operands[0].array, d, room)
    offset = frame.size(operands[0].shape[d])
    for operand in operands[1:]:  # each covers the padding of the previous one
        joined = lax.dynamic_update_slice_in_dim(joined, operand.array, offset, d)
        offset = offset + frame.size(operand.shape[d])
    return resized(joined, d, frame.bounds.upper(result_shape(equation)[d]))


@rule("tile")
def tile(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    array, shape = value.array, result_shape(equation)
    if len(shape) != len(value.shape):
        raise no_rule(equation, "the result has another rank")
    fixed = list(equation.params["reps"])
    for d, times in enumerate(fixed):
        if is_symbolic(value.shape[d]) or is_symbolic(times):
            fixed[d] = 1
            if isinstance(times, int) and times == 1:
                continue
            positions = jnp.arange(frame.bounds.upper(shape[d]), dtype=np.int32) % frame.size(value.shape[d])
            array = jnp.take(array, positions, axis=d, mode="clip")
    return bind(equation, array, reps=tuple(fixed))


@rule("slice")
def slice_rule(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    array, shape = value.array, result_shape(equation)
    starts: Sequence[Dim] = equation.params["start_indices"]
    strides: Sequence[Dim] = equation.params["strides"] or [1] * len(starts)
    for d, (start, limit, stride) in enumerate(zip(starts, equation.params["limit_indices"], strides, strict=True)):
        if is_symbolic(stride):
            raise no_rule(equation, "a symbolic stride")
        if not any(map(is_symbolic, (start, limit, value.shape[d]))):
            array = lax.slice_in_dim(array, start, limit, stride, d)
            continue
        count = frame.bounds.upper(shape[d])
        array = cut(frame, array, d, start, max((count - 1) * stride + 1, 0))
        array = lax.slice_in_dim(array, 0, array.shape[d], stride, d)
    return array


@rule("split")
def split(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    d = equation.params["axis"]
    parts, start = [], 0
    for size in equation.params["sizes"]:
        parts.append(cut(frame, value.array, d, start, frame.bounds.upper(size)))
        start = start + size
    return parts


@rule("pad")
def pad(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    value, fill = operands
    array, shape = value.array, result_shape(equation)
    for d, (low, high, interior) in enumerate(equation.params["padding_config"]):
        if is_symbolic(interior):
            raise no_rule(equation, "a symbolic interior padding")
        if all(isinstance(n, (int, np.integer)) and n == 0 for n in (low, high, interior)):
            continue
        if is_symbolic(value.shape[d]):
            # The values after the true end then are the program's own padding, regardless of their number.
            array = frame.masked(array, {d: value.shape[d]}, fill.array)
        length = frame.bounds.upper(shape[d])
        array = placed(array, d, frame.size(low), frame.bounds.range(low), length, fill.array, int(interior))
    return array
