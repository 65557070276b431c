"""Shapes: reshaping, broadcasting, slicing, joining, padding, counting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.jaxprs.numpy_rules import SAME, VIEW, Kernel, Overwriting, Site, rule
from penstock.jaxprs.sizes import dimension_key


@rule("broadcast_in_dim", memory=VIEW)
def broadcast_in_dim(site: Site) -> Kernel:
    axes = tuple(int(axis) for axis in site.param("broadcast_dimensions"))
    if len(site.node.inputs) > 1:
        raise site.no_rule("sizes that are values")
    shape, source, dtype = site.out_shape(), site.shape(0), site.out_dtype()
    expanded = tuple(source[axes.index(axis)] if axis in axes else 1 for axis in range(len(shape)))
    if expanded == shape:
        return lambda x: x.reshape(shape)
    strides = tuple(
        step if size == new_size else 0
        for step, size, new_size in zip(_contiguous_strides(expanded, dtype.itemsize), expanded, shape, strict=True)
    )
    # Arrays with types of ml_dtypes do not export their memory.
    lends = dtype.kind != "V" and 0 not in shape

    def kernel(x: Any) -> Any:
        if lends and x.flags.c_contiguous:
            # This takes 0.8 us; broadcast_to takes 5 to 10.
            return np.ndarray(shape, dtype, x, 0, strides)
        return np.broadcast_to(x.reshape(expanded), shape)

    return kernel


def _contiguous_strides(shape: tuple[int, ...], itemsize: int) -> list[int]:
    return [itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


@rule("reshape", memory=SAME)
def reshape(site: Site) -> Kernel:
    if len(site.node.inputs) > 1:
        raise site.no_rule("sizes that are values")
    order, shape = site.param("dimensions"), site.out_shape()
    if order is None or tuple(order) == tuple(range(len(order))):
        return lambda x: x.reshape(shape)
    return lambda x: x.transpose(order).reshape(shape)


@rule("squeeze", memory=SAME)
def squeeze(site: Site) -> Kernel:
    axes = tuple(site.param("dimensions"))
    return lambda x: x.squeeze(axes)


@rule("expand_dims", memory=SAME)
def expand_dims(site: Site) -> Kernel:
    axes = tuple(site.param("dimensions"))
    return lambda x: np.expand_dims(x, axes)


@rule("transpose", memory=VIEW)
def transpose(site: Site) -> Kernel:
    permutation = tuple(site.param("permutation"))
    return lambda x: x.transpose(permutation)


@rule("rev", memory=VIEW)
def rev(site: Site) -> Kernel:
    axes = site.param("dimensions")
    index = tuple(slice(None, None, -1) if axis in axes else slice(None) for axis in range(site.ndim(0)))
    return lambda x: x[index]


@rule("slice", memory=VIEW)
def slice_(site: Site) -> Kernel:
    starts, limits, strides = site.param("start_indices"), site.param("limit_indices"), site.param("strides")
    index = tuple(map(slice, starts, limits, strides or (1,) * len(starts)))
    return lambda x: x[index]


@rule("concatenate")
def concatenate(site: Site) -> Kernel:
    axis = site.param("dimension")
    return lambda *operands: np.concatenate(operands, axis)


@rule("stack")
def stack(site: Site) -> Kernel:
    axis = site.param("axis")
    return lambda *operands: np.stack(operands, axis)


@rule("unstack", memory=VIEW)
def unstack(site: Site) -> Kernel:
    axis = site.param("axis")
    return lambda x: list(np.moveaxis(x, axis, 0))


@rule("split", memory=VIEW)
def split(site: Site) -> Kernel:
    axis = site.param("axis")
    ends = [0, *np.cumsum(site.param("sizes")).tolist()]
    parts = [(slice(None),) * axis + (slice(*bounds),) for bounds in itertools.pairwise(ends)]
    return lambda x: [x[part] for part in parts]


@rule("tile")
def tile(site: Site) -> Kernel:
    repeats = site.param("reps")
    return lambda x: np.tile(x, repeats)


def padded_shape(shape: tuple[int, ...], config: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
    return tuple(
        max(0, low + high + ((size - 1) * (between + 1) + 1 if size else 0))
        for size, (low, high, between) in zip(shape, config, strict=True)
    )


def padding(shape: tuple[int, ...], config: Sequence[tuple[int, int, int]], dtype: Any) -> Kernel:
    """A function of an array and a fill value that adds (before, after, between elements) to each axis."""
    new_shape = padded_shape(shape, config)
    source, target = [], []
    for (low, _, interior), size, new_size in zip(config, shape, new_shape, strict=True):
        step = interior + 1
        # Elements `first` to `last` of the operand lie inside the result; the others are cut off.
        first = max(0, -(low // step))
        last = min(size, -((low - new_size) // step))
        last = max(first, last)
        source.append(slice(first, last))
        target.append(slice(low + first * step, low + (last - 1) * step + 1, step) if last > first else slice(0, 0))
    taken, put = tuple(source), tuple(target)

    def kernel(x: Any, fill: Any) -> Any:
        result = np.full(new_shape, fill, dtype)
        result[put] = x[taken]
        return result

    return kernel


@rule("pad")
def pad(site: Site) -> Kernel:
    return padding(site.shape(0), site.param("padding_config"), site.out_dtype())


@rule("iota")
def iota(site: Site) -> Kernel:
    if site.node.inputs:
        raise site.no_rule("sizes that are values")
    shape, axis, dtype = site.out_shape(), site.param("dimension"), site.out_dtype()
    column = (1,) * axis + (-1,) + (1,) * (len(shape) - axis - 1)
    # Via int64: arange supports neither bool nor the types of ml_dtypes.
    return lambda: np.broadcast_to(np.arange(shape[axis]).astype(dtype).reshape(column), shape)


@rule("empty", "empty2")
def empty(site: Site) -> Kernel:
    shape, dtype = site.out_shape(), site.out_dtype()
    return lambda: np.zeros(shape, dtype)


@rule("dim_as_value")
def dim_as_value(site: Site) -> Kernel:
    value = np.asarray(site.param("dim"), site.out_dtype())
    return lambda: value


@rule("dimension_size")
def dimension_size(site: Site) -> Kernel:
    axis, dtype = site.param("dimension"), site.out_dtype()
    return lambda x: dtype.type(x.shape[axis])


@rule("dynamic_slice", memory=VIEW)
def dynamic_slice(site: Site) -> Kernel:
    moving = _moving(site, site.node.params["slice_sizes"])
    sizes = site.param("slice_sizes")

    def kernel(x: Any, *starts: Any) -> Any:
        return x[_window(x.shape, sizes, starts, moving)]

    return kernel


def _moving(site: Site, sizes: Sequence[Any]) -> list[int]:
    """The axes of operand 0 that a window does not fill, so that its start matters."""
    whole = site.node.inputs[0].shape_key
    return [axis for axis, size in enumerate(sizes) if dimension_key(size) != whole[axis]]


def _window(
    shape: tuple[int, ...], sizes: Sequence[int], starts: Sequence[Any], moving: list[int]
) -> tuple[slice, ...]:
    """The index of a window, which is shifted to fit if it starts too early or too late."""
    index = [slice(None)] * len(shape)
    for axis in moving:
        size = sizes[axis]
        first = min(max(int(starts[axis]), 0), shape[axis] - size)
        index[axis] = slice(first, first + size)
    return tuple(index)


@rule("dynamic_update_slice", overwrites=True)
def dynamic_update_slice(site: Site) -> Overwriting:
    moving = _moving(site, site.node.inputs[1].shape)

    def into_first(x: Any, update: Any, *starts: Any) -> Any:
        x[_window(x.shape, update.shape, starts, moving)] = update
        return x

    return Overwriting(lambda x, *rest: into_first(np.array(x), *rest), into_first)
