"""Gather and scatter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from penstock.jaxprs.numpy_rules import Kernel, Overwriting, Site, is_integer, rule
from penstock.row_sums import run_starts


class _Windows:
    """The layout of indices and windows in an operand, shared by gather and scatter.

    An operand dimension is *indexed* if the index vectors, or batches, give the start of a window there; the others are
    taken as a whole. With the indexed dimensions moved to the front and merged, an operand is a table of rows. An index
    vector selects one row or, if its window has several elements in indexed dimensions, several.
    """

    def __init__(
        self,
        operand: tuple[int, ...],
        indices: tuple[int, ...],
        window: tuple[int, ...],
        index_map: tuple[int, ...],
        batching: tuple[int, ...],
        index_batching: tuple[int, ...],
        clip: bool,
    ) -> None:
        self.operand, self.window = operand, window
        self.index_map, self.clip = index_map, clip
        self.batch = indices[:-1]
        self.indexed = sorted({*index_map, *batching})
        self.whole = [axis for axis in range(len(operand)) if axis not in self.indexed]
        self.order = (*self.indexed, *self.whole)
        self.table = (math.prod(operand[a] for a in self.indexed), math.prod(operand[a] for a in self.whole))
        strides = {}
        stride = 1
        for axis in reversed(self.indexed):
            strides[axis] = stride
            stride *= operand[axis]
        self._strides = [strides[axis] for axis in index_map]
        # The highest position at which a window can start.
        self._limits = [max(operand[axis] - window[axis], 0) for axis in index_map]
        offset = self._batch_offset(batching, index_batching, strides) + self._window_offset(strides)
        self._offset = offset if offset.any() else None
        self.window_sizes = tuple(window[axis] for axis in self.indexed if window[axis] != 1)
        self.rows_shape = (*self.batch, *self.window_sizes)

    def _batch_offset(
        self, batching: tuple[int, ...], index_batching: tuple[int, ...], strides: dict[int, int]
    ) -> np.ndarray:
        offset = np.zeros(self.batch, np.int64) if batching else np.zeros((), np.int64)
        for axis, place in zip(batching, index_batching, strict=True):
            counts = np.arange(self.batch[place]) * strides[axis]
            offset = offset + counts.reshape((-1,) + (1,) * (len(self.batch) - place - 1))
        return offset.reshape(offset.shape + (1,) * sum(self.window[axis] != 1 for axis in self.indexed))

    def _window_offset(self, strides: dict[int, int]) -> np.ndarray:
        offset = np.zeros((), np.int64)
        for axis in self.indexed:
            if self.window[axis] != 1:
                offset = offset[..., None] + np.arange(self.window[axis]) * strides[axis]
        return offset

    def rows(self, indices: Any) -> tuple[Any, Any]:
        """The row of the table for each element of batch and windows, and a mask of the index vectors out of bounds."""
        begins: Any = np.int64(0)
        outside = None
        for place, (stride, limit) in enumerate(zip(self._strides, self._limits, strict=True)):
            begin = indices[..., place].astype(np.int64)
            # As an unsigned number, a negative one is above all limits.
            beyond = begin.view(np.uint64) > np.uint64(limit)
            if beyond.any():
                begin = np.minimum(np.maximum(begin, 0), limit)
                if not self.clip:
                    outside = beyond if outside is None else outside | beyond
            begin = begin * stride if stride != 1 else begin
            begins = begins + begin if place else begin
        if self.window_sizes:
            begins = np.asarray(begins).reshape(self.batch + (1,) * len(self.window_sizes))
        rows = begins if self._offset is None else begins + self._offset
        return (rows if np.shape(rows) == self.rows_shape else np.broadcast_to(rows, self.rows_shape)), outside


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The inverse of the permutation `order`."""
    return tuple(int(place) for place in np.argsort(order))


@rule("gather")
def gather(site: Site) -> Kernel:
    numbers, mode = site.param("dimension_numbers"), site.param("mode")
    if mode == GatherScatterMode.ONE_HOT:
        raise site.no_rule("mode ONE_HOT")
    operand, indices, sizes = site.shape(0), site.shape(1), site.param("slice_sizes")
    out_shape, dtype = site.out_shape(), site.out_dtype()
    fill = _fill_value(site.node.params.get("fill_value"), dtype)
    if 0 in operand:
        return lambda x, indices: np.full(out_shape, fill, dtype)
    removed = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    # Dimensions that are not indexed start at 0 and are cut to the window's size.
    indexed = (*numbers.start_index_map, *numbers.operand_batching_dims)
    used = tuple(size if axis in indexed else sizes[axis] for axis, size in enumerate(operand))
    cut = tuple(slice(0, size) for size in used) if used != operand else None
    windows = _Windows(
        used,
        indices,
        sizes,
        numbers.start_index_map,
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
        clip=mode != GatherScatterMode.FILL_OR_DROP,
    )
    # The order of the computed result: batch, window dimensions of several elements, whole ones. Window dimensions of
    # one element are inserted by the last reshape.
    kept = [axis for axis in range(len(operand)) if axis not in removed]
    place_of = dict(zip(kept, numbers.offset_dims, strict=True))
    batch_places = [place for place in range(len(out_shape)) if place not in numbers.offset_dims]
    whole = [axis for axis in windows.whole if axis in place_of]
    window_axes = [axis for axis in windows.indexed if sizes[axis] != 1]
    computed_shape = windows.rows_shape + tuple(used[axis] for axis in whole)
    order = _inverse((*batch_places, *(place_of[axis] for axis in (*window_axes, *whole))))
    turned = order != tuple(range(len(order)))
    plain = windows.order == tuple(range(len(operand)))

    def kernel(x: Any, indices: Any) -> Any:
        if cut is not None:
            x = x[cut]
        rows, outside = windows.rows(indices)
        table = (x if plain else x.transpose(windows.order)).reshape(windows.table)
        result = table.take(rows, 0)
        if outside is not None:
            result[outside] = fill
        result = result.reshape(computed_shape)
        if turned:
            result = result.transpose(order)
        return result.reshape(out_shape)

    return kernel


def _fill_value(given: Any, dtype: np.dtype[Any]) -> Any:
    if given is not None:
        return given
    if dtype.kind == "b":
        return True
    if is_integer(dtype):
        return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return np.nan


@rule("scatter", "scatter-update", overwrites=True)
def scatter(site: Site) -> Overwriting:
    return _scatter(site, None)


@rule("scatter-add", "scatter_add", overwrites=True)
def scatter_add(site: Site) -> Overwriting:
    return _scatter(site, np.add)


@rule("scatter-sub", "scatter_sub", overwrites=True)
def scatter_sub(site: Site) -> Overwriting:
    return _scatter(site, np.subtract)


@rule("scatter-mul", "scatter_mul", overwrites=True)
def scatter_mul(site: Site) -> Overwriting:
    return _scatter(site, np.multiply)


@rule("scatter-min", "scatter_min", overwrites=True)
def scatter_min(site: Site) -> Overwriting:
    return _scatter(site, np.minimum)


@rule("scatter-max", "scatter_max", overwrites=True)
def scatter_max(site: Site) -> Overwriting:
    return _scatter(site, np.maximum)


def _scatter(site: Site, ufunc: np.ufunc | None) -> Overwriting:
    numbers, mode = site.param("dimension_numbers"), site.param("mode")
    if mode == GatherScatterMode.ONE_HOT:
        raise site.no_rule("mode ONE_HOT")
    operand, indices, updates = site.shape(0), site.shape(1), site.shape(2)
    removed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    kept = [axis for axis in range(len(operand)) if axis not in removed]
    update_axis = dict(zip(kept, numbers.update_window_dims, strict=True))
    window = tuple(updates[update_axis[axis]] if axis in update_axis else 1 for axis in range(len(operand)))
    index_map = numbers.scatter_dims_to_operand_dims
    # A dimension that windows cover only in part is indexed by zeros.
    partial = tuple(axis for axis in kept if axis not in index_map and window[axis] != operand[axis])
    windows = _Windows(
        operand,
        (*indices[:-1], indices[-1] + len(partial)),
        window,
        (*index_map, *partial),
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
        clip=mode == GatherScatterMode.CLIP,
    )
    batch_axes = [axis for axis in range(len(updates)) if axis not in numbers.update_window_dims]
    order = (*batch_axes, *(update_axis[a] for a in (*windows.indexed, *windows.whole) if a in update_axis))
    width = windows.table[1]
    rows_form = (math.prod(windows.batch), math.prod(windows.window_sizes))
    inverse = _inverse(windows.order)
    transposed = tuple(operand[axis] for axis in windows.order)
    plain = windows.order == tuple(range(len(operand)))

    def put(table: Any, indices: Any, updates: Any) -> None:
        if not table.size:
            return
        if partial:
            zeros = np.zeros((*indices.shape[:-1], len(partial)), indices.dtype)
            indices = np.concatenate([indices, zeros], -1)
        rows, outside = windows.rows(indices)
        rows = rows.reshape(rows_form)
        values = updates.transpose(order).reshape(*rows_form, width)
        if outside is not None:
            inside = ~outside.reshape(-1)
            rows, values = rows[inside], values[inside]
        combine_rows(ufunc, table, rows.reshape(-1), values.reshape(-1, width))

    def keeping(x: Any, indices: Any, updates: Any) -> Any:
        turned = np.array(x if plain else x.transpose(windows.order), order="C")
        put(turned.reshape(windows.table), indices, updates)
        return turned if plain else turned.reshape(transposed).transpose(inverse)

    def into_first(x: Any, indices: Any, updates: Any) -> Any:
        if not plain or not x.flags.c_contiguous:
            return keeping(x, indices, updates)
        put(x.reshape(windows.table), indices, updates)
        return x

    return Overwriting(keeping, into_first)


# A row with up to so many updates is updated one by one; with more, its updates are summed first.
_FEW = 8


def combine_rows(ufunc: np.ufunc | None, table: Any, rows: Any, values: Any) -> None:
    """table[rows] = ufunc(table[rows], values), even if rows occur several times. None assigns: the last value wins."""
    if ufunc is None:
        table[rows] = values
        return
    if len(rows) < 2:
        table[rows] = ufunc(table[rows], values)
        return
    if values.shape[1] == 1:
        ufunc.at(table.reshape(-1), rows, values.reshape(-1))
        return
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.flatnonzero(run_starts(ordered))
    counts = np.diff(first, append=len(rows))
    most = counts.max()
    if most <= _FEW:
        # This applies the first update of each row, then the second of each that has two, and so on.
        number = np.arange(len(rows)) - np.repeat(first, counts)
        for turn in range(most):
            some = order[number == turn] if most > 1 else order
            table[rows[some]] = ufunc(table[rows[some]], values[some])
        return
    # Subtracting several values from a row equals subtracting their sum.
    within = np.add if ufunc is np.subtract else ufunc
    distinct = ordered[first]
    table[distinct] = ufunc(table[distinct], within.reduceat(values[order], first, axis=0))
