"""Convolution of images as pure JAX functions, with the CPU's lowerings chosen by measurement.

On "gpu" and "tpu" every function is XLA's own. On "cpu" some of XLA's are slow, and windows are lowered by taps
instead. The times below are from two cores; `benchmarks/convolution.py` measures them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from penstock.jaxprs.symbols import is_symbol
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


def conv2d(x: ArrayLike, kernel: ArrayLike, **settings: Unpack[Settings]) -> Array:
    """The convolution of images with a kernel of [height, width, channels / groups, results].

    >>> conv2d(jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8)), padding="VALID").shape
    (1, 2, 2, 8)
    """
    x, kernel = jnp.asarray(x), jnp.asarray(kernel)
    windows = windows_of(x.shape, kernel.shape[2], ksize=kernel.shape[:2], **settings)
    if windows.are_none:
        return no_results(x.shape[0], kernel.shape[3], x.dtype, windows)
    return returned(_conv2d(arranged(x, windows), kernel, windows), windows)


def conv2d_input_grad(x_shape: Shape, kernel: ArrayLike, dy: ArrayLike, **settings: Unpack[Settings]) -> Array:
    """The gradient for the images of `conv2d`, given that for its result.

    >>> conv2d_input_grad((1, 4, 4, 3), jnp.ones((3, 3, 3, 8)), jnp.ones((1, 2, 2, 8)), padding="VALID").shape
    (1, 4, 4, 3)
    """
    kernel = jnp.asarray(kernel)
    windows = windows_of(x_shape, kernel.shape[2], ksize=kernel.shape[:2], **settings)
    if windows.are_none:
        return jnp.zeros(x_shape, kernel.dtype)
    dy = arranged(dy, windows)
    return returned(_lowering(dy.dtype, windows).input_grad(kernel, dy, windows), windows)


def conv2d_filter_grad(x: ArrayLike, kernel_shape: Shape, dy: ArrayLike, **settings: Unpack[Settings]) -> Array:
    """The gradient for the kernel of `conv2d`, given that for its result.

    >>> conv2d_filter_grad(jnp.ones((1, 4, 4, 3)), (3, 3, 3, 8), jnp.ones((1, 2, 2, 8)), padding="VALID").shape
    (3, 3, 3, 8)
    """
    x = jnp.asarray(x)
    windows = windows_of(x.shape, kernel_shape[2], ksize=kernel_shape[:2], **settings)
    if windows.are_none:
        return jnp.zeros(kernel_shape, x.dtype)
    x, dy = arranged(x, windows), arranged(dy, windows)
    return _lowering(dy.dtype, windows).filter_grad(x, dy, windows)


class _Lowering(NamedTuple):
    conv: Callable[[Array, Array, Windows], Array]  # takes the images and the kernel
    input_grad: Callable[[Array, Array, Windows], Array]  # takes the kernel and dy
    filter_grad: Callable[[Array, Array, Windows], Array]  # takes the images and dy


def _lowering(dtype: np.dtype[Any], windows: Windows) -> _Lowering:
    """The fastest lowering for a class of shapes."""
    if not windows.on_cpu:
        return _XLA
    if windows.groups > 1:
        # XLA takes 80 ms for a depthwise 3x3 over 64 channels (1.5 by taps), and 1.9 s for the kernel's gradient of 8
        # groups (10 ms as 8 convolutions).
        return _DEPTHWISE if windows.depth == 1 else _GROUPS
    # A 1x1 kernel is a dot anyway. For other types than float32 XLA has scalar loops.
    if len(windows.taps) == 1 or dtype != jnp.float32:
        return _DOT
    # With few channels Eigen packs its operands slowly for the images' gradient: 5x5 over 3 takes 17 ms against 2.7 by
    # one dot of all taps. With many, writing the taps out costs more: 5x5 over 64 takes 8 ms against 42.
    return _FEW if windows.depth <= 4 else _XLA


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv2d(x: Array, kernel: Array, windows: Windows) -> Array:
    return _lowering(x.dtype, windows).conv(x, kernel, windows)


def _conv2d_backward(windows: Windows, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, kernel = saved
    lowering = _lowering(dy.dtype, windows)
    return lowering.input_grad(kernel, dy, windows), lowering.filter_grad(x, dy, windows)


_conv2d.defvjp(lambda x, kernel, windows: (_conv2d(x, kernel, windows), (x, kernel)), _conv2d_backward)


def _xla_conv(x: Array, kernel: Array, windows: Windows) -> Array:
    rows, cols, layout = windows.rows, windows.cols, windows.layout
    return lax.conv_general_dilated(
        x,
        kernel,
        (rows.stride, cols.stride),
        [(rows.before, rows.after), (cols.before, cols.after)],
        rhs_dilation=(rows.dilation, cols.dilation),
        dimension_numbers=(layout, "HWIO", layout),
        feature_group_count=windows.groups,
    )


def _xla_input_grad(kernel: Array, dy: Array, windows: Windows) -> Array:
    return transposed(lambda x: _xla_conv(x, kernel, windows), windows.images(dy.shape[0], dy.dtype), dy)


def _xla_filter_grad(x: Array, dy: Array, windows: Windows) -> Array:
    shape = (windows.rows.window, windows.cols.window, windows.depth, dy.shape[windows.layout.index("C")])
    return transposed(lambda kernel: _xla_conv(x, kernel, windows), jax.ShapeDtypeStruct(shape, dy.dtype), dy)


def _dot_conv(x: Array, kernel: Array, windows: Windows) -> Array:
    return jnp.concatenate(taps_of(x, windows), 3) @ kernel.reshape(-1, kernel.shape[3])


def _dot_input_grad(kernel: Array, dy: Array, windows: Windows) -> Array:
    spread = (dy @ kernel.reshape(-1, kernel.shape[3]).T).reshape(*dy.shape[:3], len(windows.taps), windows.depth)
    return add_taps(lambda tap, spread: spread[:, :, :, tap], spread, windows=windows)


def _dot_filter_grad(x: Array, dy: Array, windows: Windows) -> Array:
    seen = jnp.concatenate(taps_of(x, windows), 3)  # as in _dot_conv: in one program XLA does this once
    # One dot with few results and long sums leaves a core idle: four dots, added up, take 20% less.
    parts = 1 if is_symbol(x.shape[0]) else math.gcd(4, x.shape[0])
    places = math.prod(seen.shape[:3]) // parts
    a, b = seen.reshape(parts, places, seen.shape[3]), dy.reshape(parts, places, dy.shape[3])
    dk = lax.dot_general(a, b, (((1,), (1,)), ((0,), (0,)))).sum(0)
    return dk.reshape(windows.rows.window, windows.cols.window, windows.depth, dy.shape[3])


def _depthwise_conv(x: Array, kernel: Array, windows: Windows) -> Array:
    weights = kernel.reshape(len(windows.taps), windows.groups, -1)
    if weights.shape[2] == 1:
        return over_taps(lax.add, x, windows, weights=[w[:, 0] for w in weights])
    y = over_taps(lax.add, x[..., None], windows, weights=list(weights))
    return y.reshape(*y.shape[:3], kernel.shape[3])


def _depthwise_input_grad(kernel: Array, dy: Array, windows: Windows) -> Array:
    weights = kernel.reshape(len(windows.taps), windows.groups, -1)
    results = dy.reshape(*dy.shape[:3], windows.groups, dy.shape[3] // windows.groups)
    return add_taps(lambda tap, results: (results * weights[tap]).sum(4), results, windows=windows)


def _depthwise_filter_grad(x: Array, dy: Array, windows: Windows) -> Array:
    """Takes the images one by one: each stays in the cache while all taps are summed at once (3 ms against 18)."""
    results = dy.reshape(*dy.shape[:3], windows.groups, dy.shape[3] // windows.groups)

    def add(total: Array, image: tuple[Array, Array]) -> tuple[Array, None]:
        seen, wanted = image[0][None], image[1][None]
        products = [tap[..., None] * wanted for tap in taps_of(seen, windows)]
        zeros = [np.zeros((), dy.dtype)] * len(products)
        sums = lax.reduce(products, zeros, lambda a, b: [p + q for p, q in zip(a, b, strict=True)], (0, 1, 2))
        return total + jnp.stack(sums), None

    shape = (len(windows.taps), *results.shape[3:])
    dk, _ = lax.scan(add, jnp.zeros(shape, dy.dtype), (x, results))
    return dk.reshape(windows.rows.window, windows.cols.window, 1, dy.shape[3])


def _each_group(function: int, a: Array, b: Array, windows: Windows) -> Array:
    windows, groups = windows._replace(groups=1), windows.groups
    parts = zip(jnp.split(a, groups, -1), jnp.split(b, groups, -1), strict=True)
    return jnp.concatenate([_lowering(a.dtype, windows)[function](a, b, windows) for a, b in parts], -1)


_XLA = _Lowering(_xla_conv, _xla_input_grad, _xla_filter_grad)
_DOT = _Lowering(_dot_conv, _dot_input_grad, _dot_filter_grad)
_FEW = _Lowering(_xla_conv, _dot_input_grad, _xla_filter_grad)
_DEPTHWISE = _Lowering(_depthwise_conv, _depthwise_input_grad, _depthwise_filter_grad)
_GROUPS = _Lowering(*(functools.partial(_each_group, function) for function in range(3)))
