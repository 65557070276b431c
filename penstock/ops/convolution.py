"""Convolution and pooling of images as pure JAX functions, with the CPU's lowering chosen by measurement.

On "gpu" and "tpu" every function is XLA's own. On "cpu" XLA's own is slow in several places, so windows are also
lowered by taps: tap (i, j) is the strided slice of the image that kernel position (i, j) sees, and its adjoint adds
values of the result's shape back to the image. `benchmarks/convolution.py` measures what is claimed here.

>>> x, kernel = jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8))
>>> conv2d(x, kernel, strides=(2, 2), padding="SAME").shape
(1, 2, 2, 8)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

Pair = tuple[int, int]
Shape = Sequence[int]
Padding = str | Sequence[Pair]  # "SAME", "VALID", or how much to add (before, after) height and width

# XLA 0.10 sends float32 convolutions to YNNPACK, which here reaches 50 to 110 GFLOP/s where Eigen reaches 150 to 250.
# Leaving convolutions out of this list sends them to Eigen; dots and sums stay with YNNPACK, as is the default.
_CPU_OPTIONS = {
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
}

# Up to here one dot over gathered taps beats a convolution: Eigen packs such short runs of channels slowly.
_FEW_CHANNELS = 8
# Windows with more taps than this would make programs that take long to compile.
_MANY_TAPS = 64


@functools.cache
def cpu_compiler_options() -> dict[str, str]:
    """What to give `jax.jit` as `compiler_options` for programs on the CPU with convolutions in them.

    Without it all is correct, and convolutions take about twice as long. Empty where XLA does not know the option.

    >>> jax.jit(step, compiler_options=cpu_compiler_options())
    """
    device = jax.local_devices(backend="cpu")[0]
    try:
        with jax.default_device(device):
            jax.jit(lambda: jnp.zeros(()), compiler_options=_CPU_OPTIONS).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return dict(_CPU_OPTIONS)


# Where windows lie.


class _Axis(NamedTuple):
    """The windows along one spatial axis."""

    size: int
    window: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int

    @property
    def steps(self) -> int:
        """How many strides cover the padded axis."""
        return -(-(self.before + self.size + self.after) // self.stride)


class _Windows(NamedTuple):
    """The windows over an image; hashable, as JAX wants settings to be."""

    rows: _Axis
    cols: _Axis
    data_format: str
    platform: str

    @property
    def taps(self) -> list[Pair]:
        return [(i, j) for i in range(self.rows.window) for j in range(self.cols.window)]

    @property
    def overlap(self) -> bool:
        return self.rows.stride == 1 and self.cols.stride == 1


def _axis(name: str, size: int, window: int, stride: int, dilation: int, padding: str | Pair) -> _Axis:
    reach = (window - 1) * dilation + 1
    if padding == "SAME":
        out = -(-size // stride)
        around = max((out - 1) * stride + reach - size, 0)
        return _Axis(size, window, stride, dilation, around // 2, around - around // 2, out)
    if isinstance(padding, str) and padding != "VALID":
        raise ValueError(f"padding must be 'SAME', 'VALID' or pairs of numbers, received '{padding}'.")
    before, after = (0, 0) if isinstance(padding, str) else padding
    if before + size + after < reach:
        raise ValueError(
            f"window must fit into the padded {name}: received a reach of {reach} over {before + size + after}."
        )
    return _Axis(size, window, stride, dilation, before, after, (before + size + after - reach) // stride + 1)


def _windows(
    x_shape: Shape, ksize: Pair, strides: Pair, padding: Padding, dilations: Pair, data_format: str, platform: str
) -> _Windows:
    if data_format not in ("NHWC", "NCHW"):
        raise ValueError(f"data_format must be 'NHWC' or 'NCHW', received '{data_format}'.")
    height, width = x_shape[1:3] if data_format == "NHWC" else x_shape[2:4]
    pads = (padding, padding) if isinstance(padding, str) else (tuple(padding[0]), tuple(padding[1]))
    rows = _axis("height", height, ksize[0], strides[0], dilations[0], pads[0])
    cols = _axis("width", width, ksize[1], strides[1], dilations[1], pads[1])
    return _Windows(rows, cols, data_format, platform)


def _channels_last(x: jax.Array, windows: _Windows) -> jax.Array:
    return x if windows.data_format == "NHWC" else x.transpose(0, 2, 3, 1)


def _as_given(x: jax.Array, windows: _Windows) -> jax.Array:
    return x if windows.data_format == "NHWC" else x.transpose(0, 3, 1, 2)


# Taps, channels last.


def _pad(x: jax.Array, rows: Pair, cols: Pair, fill: ArrayLike = 0) -> jax.Array:
    return lax.pad(x, jnp.asarray(fill, x.dtype), [(0, 0, 0), (*rows, 0), (*cols, 0), (0, 0, 0)])


def _taps(x: jax.Array, windows: _Windows, fill: ArrayLike = 0) -> list[jax.Array]:
    """What each kernel position sees, row by row: arrays of [batch, rows.out, cols.out, channels]."""
    rows, cols, *_ = windows
    x = _pad(x, (rows.before, rows.after), (cols.before, cols.after), fill)

    def span(axis: _Axis, tap: int) -> slice:
        start = tap * axis.dilation
        return slice(start, start + (axis.out - 1) * axis.stride + 1, axis.stride)

    return [x[:, span(rows, i), span(cols, j)] for i, j in windows.taps]


def _add_taps(
    term: Callable[..., jax.Array], *sources: jax.Array, windows: _Windows, fills: Sequence[ArrayLike] = (0,)
) -> jax.Array:
    """The adjoint of `_taps`: adds what `term(tap, *sources)` sends from each result to what the tap saw of it.

    `sources` are of the result's shape; outside of it they are padded with `fills`. The image is put together from
    its stride[0] * stride[1] phases, each a sum of slices: XLA emits loops with vectors for that, and for scatters,
    interior padding or select_and_scatter it emits none (44 ms against 1.4 ms for the pool in the benchmark).
    """
    rows, cols, *_ = windows

    def above(axis: _Axis) -> int:
        return (axis.window - 1) * axis.dilation // axis.stride

    padded = [
        _pad(s, (above(rows), rows.steps - rows.out), (above(cols), cols.steps - cols.out), fill)
        for s, fill in zip(sources, fills, strict=True)
    ]
    phases: dict[Pair, jax.Array] = {}
    for tap, (i, j) in enumerate(windows.taps):
        down, row = divmod(i * rows.dilation, rows.stride)
        right, col = divmod(j * cols.dilation, cols.stride)
        top, left = above(rows) - down, above(cols) - right
        part = term(tap, *(p[:, top : top + rows.steps, left : left + cols.steps] for p in padded))
        phases[row, col] = phases[row, col] + part if (row, col) in phases else part
    some = next(iter(phases.values()))
    grid = [[phases.get((i, j), jnp.zeros_like(some)) for j in range(cols.stride)] for i in range(rows.stride)]
    image = jnp.stack([jnp.stack(line, 3) for line in grid], 2)
    image = image.reshape(some.shape[0], rows.steps * rows.stride, cols.steps * cols.stride, some.shape[3])
    return image[:, rows.before : rows.before + rows.size, cols.before : cols.before + cols.size]


def _gathered(x: jax.Array, windows: _Windows) -> jax.Array:
    """The taps side by side: [batch, rows.out, cols.out, taps * channels]."""
    return jnp.concatenate(_taps(x, windows), 3)


# Convolution.


def conv2d(
    x: ArrayLike, kernel: ArrayLike, *, strides: Pair = (1, 1), padding: Padding, dilations: Pair = (1, 1),
    data_format: str = "NHWC", platform: str = "cpu",
) -> jax.Array:  # fmt: skip
    """The convolution of images with a kernel [height, width, channels / groups, results].

    There are as many groups as the kernel's channels fit into those of `x`.

    >>> conv2d(jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8)), padding="VALID").shape
    (1, 2, 2, 8)
    """
    x, kernel = jnp.asarray(x), jnp.asarray(kernel)
    return _conv2d(x, kernel, _kernel_windows(x.shape, kernel.shape, strides, padding, dilations, data_format, platform))


def conv2d_input_grad(
    x_shape: Shape, kernel: ArrayLike, dy: ArrayLike, *, strides: Pair = (1, 1), padding: Padding,
    dilations: Pair = (1, 1), data_format: str = "NHWC", platform: str = "cpu",
) -> jax.Array:  # fmt: skip
    """The gradient for the images of `conv2d`, given that of its result.

    >>> conv2d_input_grad((1, 4, 4, 3), jnp.ones((3, 3, 3, 8)), jnp.ones((1, 2, 2, 8)), padding="VALID").shape
    (1, 4, 4, 3)
    """
    kernel, dy = jnp.asarray(kernel), jnp.asarray(dy)
    windows = _kernel_windows(x_shape, kernel.shape, strides, padding, dilations, data_format, platform)
    return _input_grad(x_shape, kernel, dy, windows)


def conv2d_filter_grad(
    x: ArrayLike, kernel_shape: Shape, dy: ArrayLike, *, strides: Pair = (1, 1), padding: Padding,
    dilations: Pair = (1, 1), data_format: str = "NHWC", platform: str = "cpu",
) -> jax.Array:  # fmt: skip
    """The gradient for the kernel of `conv2d`, given that of its result.

    >>> conv2d_filter_grad(jnp.ones((1, 4, 4, 3)), (3, 3, 3, 8), jnp.ones((1, 2, 2, 8)), padding="VALID").shape
    (3, 3, 3, 8)
    """
    x, dy = jnp.asarray(x), jnp.asarray(dy)
    windows = _kernel_windows(x.shape, kernel_shape, strides, padding, dilations, data_format, platform)
    return _filter_grad(x, kernel_shape, dy, windows)


def _kernel_windows(
    x_shape: Shape, kernel_shape: Shape, strides: Pair, padding: Padding, dilations: Pair, data_format: str,
    platform: str,
) -> _Windows:  # fmt: skip
    height, width, depth, results = kernel_shape
    windows = _windows(x_shape, (height, width), strides, padding, dilations, data_format, platform)
    channels = x_shape[3 if data_format == "NHWC" else 1]
    if channels % depth or results % (channels // depth):
        raise ValueError(
            f"kernel must divide the {channels} channels into groups of equal size, received a kernel of "
            f"{list(kernel_shape)}."
        )
    return windows


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv2d(x: jax.Array, kernel: jax.Array, windows: _Windows) -> jax.Array:
    if windows.platform != "cpu":
        return _xla_conv(x, kernel, windows)
    return _as_given(_cpu_conv(_channels_last(x, windows), kernel, _nhwc(windows)), windows)


def _conv2d_forward(x: jax.Array, kernel: jax.Array, windows: _Windows) -> tuple[jax.Array, Any]:
    return _conv2d(x, kernel, windows), (x, kernel)


def _conv2d_backward(windows: _Windows, saved: Any, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    return _input_grad(x.shape, kernel, dy, windows), _filter_grad(x, kernel.shape, dy, windows)


_conv2d.defvjp(_conv2d_forward, _conv2d_backward)


def _input_grad(x_shape: Shape, kernel: jax.Array, dy: jax.Array, windows: _Windows) -> jax.Array:
    if windows.platform != "cpu":
        return _xla_input_grad(x_shape, kernel, dy, windows)
    dy = _channels_last(dy, windows)
    n, channels = x_shape[0], x_shape[3 if windows.data_format == "NHWC" else 1]
    x_shape = (n, windows.rows.size, windows.cols.size, channels)
    return _as_given(_cpu_input_grad(x_shape, kernel, dy, _nhwc(windows)), windows)


def _filter_grad(x: jax.Array, kernel_shape: Shape, dy: jax.Array, windows: _Windows) -> jax.Array:
    if windows.platform != "cpu":
        return _xla_filter_grad(x, kernel_shape, dy, windows)
    x, dy = _channels_last(x, windows), _channels_last(dy, windows)
    return _cpu_filter_grad(x, kernel_shape, dy, _nhwc(windows))


# XLA's own convolution.


def _xla_conv(x: jax.Array, kernel: jax.Array, windows: _Windows) -> jax.Array:
    rows, cols, data_format, _ = windows
    return lax.conv_general_dilated(
        x,
        kernel,
        (rows.stride, cols.stride),
        [(rows.before, rows.after), (cols.before, cols.after)],
        rhs_dilation=(rows.dilation, cols.dilation),
        dimension_numbers=(data_format, "HWIO", data_format),
        feature_group_count=x.shape[data_format.index("C")] // kernel.shape[2],
    )


def _xla_input_grad(x_shape: Shape, kernel: jax.Array, dy: jax.Array, windows: _Windows) -> jax.Array:
    x = jax.ShapeDtypeStruct(tuple(x_shape), dy.dtype)
    return jax.linear_transpose(lambda x: _xla_conv(x, kernel, windows), x)(dy)[0]


def _xla_filter_grad(x: jax.Array, kernel_shape: Shape, dy: jax.Array, windows: _Windows) -> jax.Array:
    kernel = jax.ShapeDtypeStruct(tuple(kernel_shape), dy.dtype)
    return jax.linear_transpose(lambda kernel: _xla_conv(x, kernel, windows), kernel)(dy)[0]
