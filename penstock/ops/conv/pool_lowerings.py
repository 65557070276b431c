"""Pooling of images as pure JAX functions: by taps on the CPU, XLA's own elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from penstock.ops.conv.windowing import (
    Settings,
    Shape,
    Windows,
    add_taps,
    arranged,
    no_results,
    over_taps,
    returned,
    taps_of,
    transposed,
    windows_of,
)


def max_pool(x: ArrayLike, *, ksize: Shape, **settings: Unpack[Settings]) -> Array:
    """The maximum of each window.

    >>> max_pool(jnp.arange(4.0).reshape(1, 2, 2, 1), ksize=(2, 2), padding="VALID")
    Array([[[[3.]]]], dtype=float32)
    """
    x = jnp.asarray(x)
    windows = windows_of(x.shape, None, ksize=ksize, **settings)
    if windows.are_none:
        return no_results(x.shape[0], windows.depth, x.dtype, windows)
    return returned(_max_pool(arranged(x, windows), windows), windows)


def max_pool_grad(x: ArrayLike, y: ArrayLike, dy: ArrayLike, *, ksize: Shape, **settings: Unpack[Settings]) -> Array:
    """The gradient for the images `x` of `max_pool`, whose result is `y`: it goes to the first maximum of a window.

    >>> one = jnp.ones((1, 1, 1, 1))
    >>> max_pool_grad(jnp.ones((1, 2, 2, 1)), one, one, ksize=(2, 2), padding="VALID").ravel()
    Array([1., 0., 0., 0.], dtype=float32)
    """
    x = jnp.asarray(x)
    windows = windows_of(x.shape, None, ksize=ksize, **settings)
    if windows.are_none:
        return jnp.zeros_like(x)
    x, y, dy = (arranged(a, windows) for a in (x, y, dy))
    return returned(_max_pool_grad(x, y, dy, windows), windows)


def max_pool_places(x: ArrayLike, *, ksize: Shape, **settings: Unpack[Settings]) -> Array:
    """The place of each window's first maximum in its NHWC image, as an index into [height, width, channels].

    >>> max_pool_places(jnp.arange(4.0).reshape(1, 2, 2, 1), ksize=(2, 2), padding="VALID").ravel()
    Array([3], dtype=int64)
    """
    x = jnp.asarray(x)
    windows = windows_of(x.shape, None, ksize=ksize, **settings)
    rows, cols, *_ = windows
    largest = jnp.full((x.shape[0], rows.out, cols.out, x.shape[3]), lowest(x.dtype), x.dtype)
    place = jnp.full(largest.shape, -1, jnp.int64)
    row = jnp.arange(rows.out)[:, None, None] * rows.stride - rows.before
    col = jnp.arange(cols.out)[None, :, None] * cols.stride - cols.before
    for (i, j), tap in zip(windows.taps, taps_of(x, windows, lowest(x.dtype)), strict=True):
        inside = (row + i >= 0) & (row + i < rows.size) & (col + j >= 0) & (col + j < cols.size)
        # NaN never wins, and padding is never the maximum, even if all values are the lowest there is.
        better = inside & ((place < 0) | (tap > largest))
        at = ((row + i) * cols.size + col + j) * x.shape[3] + jnp.arange(x.shape[3])
        place, largest = jnp.where(better, at, place), jnp.where(better, tap, largest)
    return place


def avg_pool(x: ArrayLike, *, ksize: Shape, **settings: Unpack[Settings]) -> Array:
    """The mean of each window, over those of its elements that are not padding.

    >>> avg_pool(jnp.arange(4.0).reshape(1, 2, 2, 1), ksize=(2, 2), padding="VALID")
    Array([[[[1.5]]]], dtype=float32)
    """
    x = jnp.asarray(x)
    windows = windows_of(x.shape, None, ksize=ksize, **settings)
    if windows.are_none:
        return no_results(x.shape[0], windows.depth, x.dtype, windows)
    x = arranged(x, windows)
    return returned(_pooled(x, 0, lax.add, windows) / _counts(x.dtype, windows), windows)


def avg_pool_grad(x_shape: Shape, dy: ArrayLike, *, ksize: Shape, **settings: Unpack[Settings]) -> Array:
    """The gradient for the images of `avg_pool`.

    >>> avg_pool_grad((1, 2, 2, 1), jnp.ones((1, 1, 1, 1)), ksize=(2, 2), padding="VALID").ravel()
    Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    dy = jnp.asarray(dy)
    windows = windows_of(x_shape, None, ksize=ksize, **settings)
    if windows.are_none:
        return jnp.zeros(x_shape, dy.dtype)
    dy = arranged(dy, windows)
    dy = dy / _counts(dy.dtype, windows)
    if windows.pools_by_taps:
        dx = add_taps(lambda _, dy: dy, dy, windows=windows)
    else:
        dx = transposed(lambda x: _pooled(x, 0, lax.add, windows), windows.images(dy.shape[0], dy.dtype), dy)
    return returned(dx, windows)


def _pooled(x: Array, start: float, reducer: Callable[[Any, Any], Any], windows: Windows) -> Array:
    if windows.pools_by_taps:
        return over_taps(reducer, x, windows, start)
    axes = {"H": windows.rows, "W": windows.cols}
    ksize = [axes[a].window if a in axes else 1 for a in windows.layout]
    strides = [axes[a].stride if a in axes else 1 for a in windows.layout]
    padding = [(axes[a].before, axes[a].after) if a in axes else (0, 0) for a in windows.layout]
    return jnp.asarray(lax.reduce_window(x, np.array(start, x.dtype), reducer, ksize, strides, padding))


def lowest(dtype: np.dtype[Any]) -> float:
    """The start value of a search for the maximum: the lowest finite number, as in TensorFlow."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return int(np.iinfo(dtype).min)
    return float(ml_dtypes.finfo(dtype).min)  # type: ignore[no-untyped-call]


def _least(dtype: np.dtype[Any]) -> float:
    """As `lowest`, for XLA's own pooling: only with this start does it have a gradient."""
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else lowest(dtype)


def larger(a: Array, b: Array) -> Array:
    """The larger of two, but never a NaN in `b`. It is one instruction; `lax.max` takes several to propagate NaN."""
    return jnp.where(b > a, b, a)


def _larger_number(a: Array, b: Array) -> Array:
    """As `larger`, but never a NaN in `a` either: XLA's own pooling may swap the two."""
    return lax.select((b > a) | (a != a), b, a)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max_pool(x: Array, windows: Windows) -> Array:
    if not windows.pools_by_taps:
        return _pooled(x, lowest(x.dtype), _larger_number, windows)
    taps = taps_of(x, windows, lowest(x.dtype))
    return functools.reduce(larger, taps, jnp.full((), lowest(x.dtype), x.dtype))


def _max_pool_grad(x: Array, y: Array, dy: Array, windows: Windows) -> Array:
    if not windows.pools_by_taps:
        numbers = jnp.where(x == x, x, lowest(x.dtype))  # XLA would send gradients to a NaN
        return jnp.asarray(jax.vjp(lambda x: _pooled(x, _least(x.dtype), lax.max, windows), numbers)[1](dy)[0])
    taps = taps_of(x, windows, lowest(x.dtype))
    first = jnp.full(y.shape, len(taps), jnp.int32)  # counted from 1, since 0 means outside the results
    for tap in reversed(range(1, len(taps))):
        first = jnp.where(taps[tap - 1] == y, tap, first)
    return add_taps(lambda tap, first, dy: jnp.where(first == tap + 1, dy, 0), first, dy, windows=windows)


_max_pool.defvjp(
    lambda x, windows: (_max_pool(x, windows), x),
    lambda windows, x, dy: (_max_pool_grad(x, _max_pool(x, windows), dy, windows),),
)


def _counts(dtype: np.dtype[Any], windows: Windows) -> Array:
    """The number of elements of each window that are not padding."""
    one = windows._replace(depth=1).images(1, dtype)
    return _pooled(jnp.ones(one.shape, dtype), 0, lax.add, windows)
