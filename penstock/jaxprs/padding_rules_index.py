"""Rules of primitives that read and write at computed positions: they use true ends, and never write padding."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import GatherScatterMode

from penstock.jaxprs.dims import Dim, is_symbolic
from penstock.jaxprs.padding_frame import Array, Frame, Padded, bind, largest, no_rule, resized, rule, smallest


def _never_clamped(frame: Frame, whole: Dim, part: Dim) -> bool:
    """True if XLA, which sees padded sizes, does not clamp any start at which the true part fits the true whole."""
    if not is_symbolic(part):
        return True
    slack = whole - part
    return not is_symbolic(slack) and frame.bounds.upper(whole) - frame.bounds.upper(part) == slack


def _with_room(frame: Frame, array: Array, d: int, whole: Dim, part: Dim) -> Array:
    """`array` with enough padding for a padded part to fit where the true one does."""
    if _never_clamped(frame, whole, part):
        return array
    return resized(array, d, array.shape[d] + frame.bounds.upper(part))


def _clamped(frame: Frame, start: Array, whole: Dim, part: Dim) -> Array:
    if not is_symbolic(whole) and not is_symbolic(part):
        return start  # XLA clamps it
    # In this program XLA would clamp by the padded sizes.
    return jnp.clip(start, 0, jnp.asarray(frame.size(whole) - frame.size(part), start.dtype))


@rule("dynamic_slice")
def dynamic_slice(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    value, *starts = operands
    array = value.array
    parts = equation.params["slice_sizes"]
    clamped = []
    for d, (whole, part, start) in enumerate(zip(value.shape, parts, starts, strict=True)):
        array = _with_room(frame, array, d, whole, part)
        clamped.append(_clamped(frame, start.array, whole, part))
    return bind(equation, array, *clamped, slice_sizes=frame.padded(parts))


@rule("dynamic_update_slice")
def dynamic_update_slice(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    value, update, *starts = operands
    array = value.array
    clamped = []
    partial = {}  # dimensions in which padding of the update would cover true elements
    for d, (whole, part, start) in enumerate(zip(value.shape, update.shape, starts, strict=True)):
        clamped.append(_clamped(frame, start.array, whole, part))
        if is_symbolic(part) and not (is_symbolic(whole) and whole == part):
            array = _with_room(frame, array, d, whole, part)
            partial[d] = part
    new = update.array
    if partial:
        old = lax.dynamic_slice(array, clamped, new.shape)
        new = _merged(frame, new, old, partial)
    array = bind(equation, array, new, *clamped)
    for d in partial:
        array = resized(array, d, frame.bounds.upper(value.shape[d]))
    return array


def _merged(frame: Frame, new: Array, old: Array, dims: dict[int, Dim]) -> Array:
    """`new` in its true part, `old` elsewhere."""
    inside = frame.masked(jnp.ones(new.shape, np.bool_), dims, False)
    return jnp.where(inside, new, old)


def _wide_enough(indices: Array) -> Array:
    """Indices in a type that can hold every size."""
    return indices if np.dtype(indices.dtype).itemsize >= 4 else indices.astype(np.int32)


def _limits(frame: Frame, wholes: list[Dim], parts: list[Dim], dtype: Any) -> Array:
    """The last start at which a part fits, for each indexed dimension."""
    ends = [frame.size(whole) - frame.size(part) for whole, part in zip(wholes, parts, strict=True)]
    return jnp.stack([jnp.asarray(end, dtype) for end in ends])


def _outside(indices: Array, limits: Array) -> Array:
    """Marks the starts that do not fit; the last dimension, the components of a start, is kept with size 1."""
    return jnp.any((indices < 0) | (indices > limits), axis=-1, keepdims=True)


@rule("gather")
def gather(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    value, places = operands
    if is_symbolic(places.shape[-1]):
        raise no_rule(equation, "a symbolic number of indexed dimensions")
    array, indices = value.array, _wide_enough(places.array)
    params = equation.params
    parts = params["slice_sizes"]
    indexed = [int(d) for d in params["dimension_numbers"].start_index_map]
    changed: dict[str, Any] = {"slice_sizes": frame.padded(parts)}
    for d, part in enumerate(parts):
        array = _with_room(frame, array, d, value.shape[d], part)
    if any(is_symbolic(value.shape[d]) or is_symbolic(parts[d]) for d in indexed):
        limits = _limits(frame, [value.shape[d] for d in indexed], [parts[d] for d in indexed], indices.dtype)
        if params["mode"] == GatherScatterMode.FILL_OR_DROP:
            # No array is this large, so XLA fills.
            indices = jnp.where(_outside(indices, limits), np.iinfo(indices.dtype).max, indices)
        else:  # clipped, or promised to be inside, in which case XLA clips as well
            indices = jnp.clip(indices, 0, limits)
        changed["indices_are_sorted"] = False
    return bind(equation, array, indices, **changed)


_UPDATE_IDENTITY = {
    "scatter-add": lambda dtype: 0,
    "scatter-sub": lambda dtype: 0,
    "scatter-mul": lambda dtype: 1,
    "scatter-max": smallest,
    "scatter-min": largest,
}


@rule("scatter", *_UPDATE_IDENTITY)
def scatter(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    value, places, updates = operands
    if is_symbolic(places.shape[-1]):
        raise no_rule(equation, "a symbolic number of indexed dimensions")
    array, indices, new = value.array, _wide_enough(places.array), updates.array
    params = equation.params
    numbers = params["dimension_numbers"]
    indexed = [int(d) for d in numbers.scatter_dims_to_operand_dims]
    windows = {int(d) for d in numbers.update_window_dims}
    absent = {int(d) for d in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)}
    window_of = dict(zip([d for d in range(array.ndim) if d not in absent], sorted(windows), strict=True))

    parts: list[Dim] = [updates.shape[window_of[d]] if d in window_of else 1 for d in range(array.ndim)]
    partial: dict[int, Dim] = {}  # window dimensions whose padding would cover true elements
    for d, window in window_of.items():
        part = parts[d]
        if is_symbolic(part) and (d in indexed or not (is_symbolic(value.shape[d]) and part == value.shape[d])):
            array = _with_room(frame, array, d, value.shape[d], part)
            partial[window] = part

    changed: dict[str, Any] = {}
    if any(map(is_symbolic, (*places.shape, *(value.shape[d] for d in indexed), *(parts[d] for d in indexed)))):
        if not indexed:
            raise no_rule(equation, "a symbolic number of updates at no index")
        limits = _limits(frame, [value.shape[d] for d in indexed], [parts[d] for d in indexed], indices.dtype)
        if params["mode"] == GatherScatterMode.CLIP:
            indices = jnp.clip(indices, 0, limits)
        nowhere = _outside(indices, limits)
        for d, dim in enumerate(places.shape[:-1]):
            if is_symbolic(dim):
                nowhere |= lax.broadcasted_iota(np.int32, nowhere.shape, d) >= frame.size(dim)
        # No array is this large, so XLA drops the update.
        indices = jnp.where(nowhere, np.iinfo(indices.dtype).max, indices)
        changed = {"mode": GatherScatterMode.FILL_OR_DROP, "indices_are_sorted": False}

    if partial and equation.primitive.name in _UPDATE_IDENTITY:
        new = frame.masked(new, partial, _UPDATE_IDENTITY[equation.primitive.name](new.dtype))
    elif partial:
        if indices.size != len(indexed):
            raise no_rule(equation, "several windows of symbolic size that replace what was there")
        new = _merged(frame, new, _window(array, indices, numbers, new.shape, window_of), partial)
    array = bind(equation, array, indices, new, **changed)
    for d in range(array.ndim):
        array = resized(array, d, frame.bounds.upper(value.shape[d]))
    return array


def _window(array: Array, indices: Array, numbers: Any, shape: tuple[int, ...], window_of: dict[int, int]) -> Array:
    """The elements that the only window of a scatter covers."""
    starts: list[Any] = [0] * array.ndim
    flat = indices.reshape(-1)
    for i, d in enumerate(numbers.scatter_dims_to_operand_dims):
        starts[d] = flat[i]
    sizes = [shape[window_of[d]] if d in window_of else 1 for d in range(array.ndim)]
    return lax.dynamic_slice(array, [jnp.asarray(s, flat.dtype) for s in starts], sizes).reshape(shape)
