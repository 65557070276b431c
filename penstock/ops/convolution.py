"""Convolution and pooling of images as pure JAX functions, with the CPU's lowerings chosen by measurement.

On "gpu" and "tpu" every function is XLA's own. On "cpu" XLA's own is slow in places, and windows are lowered by taps
there: tap (i, j) is the strided slice of the image that kernel position (i, j) sees, and its adjoint adds values of
the result's size back to the image. The times below are of two cores; `benchmarks/convolution.py` measures them.

>>> x, kernel = jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8))
>>> conv2d(x, kernel, strides=(2, 2), padding="SAME").shape
(1, 2, 2, 8)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

Shape = Sequence[int]

# XLA sends float32 convolutions to YNNPACK, which reaches 50 to 130 GFLOP/s here where Eigen reaches 150 to 250. Left
# out of this list they go to Eigen; dots and sums stay with YNNPACK, where they are by default.
_CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"}


@functools.cache
def cpu_compiler_options() -> dict[str, str]:
    """The `compiler_options` of `jax.jit` for programs on the CPU that have convolutions in them.

    Without these all is correct, but most convolutions take twice as long. Empty where XLA does not know them.

    >>> jax.jit(step, compiler_options=cpu_compiler_options())
    """
    probe = jax.jit(lambda x: x + 1, compiler_options=_CPU_OPTIONS)
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            probe.lower(np.float32(0)).compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return dict(_CPU_OPTIONS)


# Where windows lie.


class Settings(TypedDict, total=False):
    """Of a convolution or a pool; all but `padding` have defaults. Sizes are those of (height, width)."""

    padding: Required[str | Sequence[Shape]]  # "SAME", "VALID", or (before, after) for height and for width
    strides: Shape
    dilations: Shape
    data_format: str
    platform: str


class PoolSettings(Settings, total=False):
    ksize: Required[Shape]


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

    @property
    def reach(self) -> int:
        """How many whole strides lie between a window's first tap and its last."""
        return (self.window - 1) * self.dilation // self.stride


class _Windows(NamedTuple):
    """The windows over images; hashable, as JAX wants settings to be."""

    rows: _Axis
    cols: _Axis
    depth: int  # channels in each group
    groups: int
    layout: str  # of the arrays that lowerings see: always "NHWC" on the CPU
    on_cpu: bool

    @property
    def taps(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.rows.window) for j in range(self.cols.window)]

    def images(self, batch: int, dtype: np.dtype[Any]) -> jax.ShapeDtypeStruct:
        sizes = {"N": batch, "H": self.rows.size, "W": self.cols.size, "C": self.depth * self.groups}
        return jax.ShapeDtypeStruct(tuple(sizes[axis] for axis in self.layout), dtype)


def _axis(name: str, size: int, window: int, stride: int, dilation: int, padding: str | Shape) -> _Axis:
    reach = (window - 1) * dilation + 1
    if padding == "SAME":
        out = -(-size // stride)
        around = max((out - 1) * stride + reach - size, 0)
        return _Axis(size, window, stride, dilation, around // 2, around - around // 2, out)
    if isinstance(padding, str) and padding != "VALID":
        raise ValueError(f"padding must be 'SAME', 'VALID' or a pair for height and for width, received '{padding}'.")
    before, after = (0, 0) if isinstance(padding, str) else padding
    padded = before + size + after
    if padded < reach:
        raise ValueError(f"windows must fit into the padded {name} of {padded}, received windows of {reach}.")
    return _Axis(size, window, stride, dilation, before, after, (padded - reach) // stride + 1)


def _windows(x_shape: Shape, ksize: Shape, depth: int | None, settings: Settings) -> _Windows:
    data_format, padding = settings.get("data_format", "NHWC"), settings["padding"]
    if data_format not in ("NHWC", "NCHW"):
        raise ValueError(f"data_format must be 'NHWC' or 'NCHW', received '{data_format}'.")
    height, width, channels = (x_shape[data_format.index(axis)] for axis in "HWC")
    if depth is not None and channels % depth:
        raise ValueError(f"the kernel's channels must divide those of the images, received {depth} and {channels}.")
    ones = (1, 1)
    strides, dilations = settings.get("strides", ones), settings.get("dilations", ones)
    above, beside = (padding, padding) if isinstance(padding, str) else padding
    rows = _axis("height", height, ksize[0], strides[0], dilations[0], above)
    cols = _axis("width", width, ksize[1], strides[1], dilations[1], beside)
    on_cpu = settings.get("platform", "cpu") == "cpu"
    groups = 1 if depth is None else channels // depth
    return _Windows(rows, cols, channels // groups, groups, "NHWC" if on_cpu else data_format, on_cpu)


def _arranged(x: ArrayLike, windows: _Windows, settings: Settings) -> Array:
    """`x` as lowerings want it: on the CPU with the channels last."""
    x = jnp.asarray(x)
    return x.transpose(0, 2, 3, 1) if windows.on_cpu and settings.get("data_format") == "NCHW" else x


def _returned(y: Array, windows: _Windows, settings: Settings) -> Array:
    return y.transpose(0, 3, 1, 2) if windows.on_cpu and settings.get("data_format") == "NCHW" else y


# Taps, channels last.


def _pad(x: Array, rows: tuple[int, int], cols: tuple[int, int], fill: ArrayLike) -> Array:
    return lax.pad(x, jnp.asarray(fill, x.dtype), [(0, 0, 0), (*rows, 0), (*cols, 0), (0, 0, 0)])


def _taps(x: Array, windows: _Windows, fill: ArrayLike = 0) -> list[Array]:
    """What each kernel position sees, row by row: arrays of [batch, rows.out, cols.out, channels]."""
    rows, cols, *_ = windows
    x = _pad(x, (rows.before, rows.after), (cols.before, cols.after), fill)

    def span(axis: _Axis, tap: int) -> slice:
        start = tap * axis.dilation
        return slice(start, start + (axis.out - 1) * axis.stride + 1, axis.stride)

    return [x[:, span(rows, i), span(cols, j)] for i, j in windows.taps]


def _add_taps(term: Callable[..., Array], *sources: Array, windows: _Windows, fill: int = 0) -> Array:
    """The adjoint of `_taps`: adds `term(tap, *sources)` of each result to what that tap saw of the image.

    `sources` are of the result's size; beyond it they are `fill`. The image is put together from its phases, one for
    each place within a stride, and a phase is a sum of slices: XLA emits vector code for that, and none for scatters,
    interior padding or select_and_scatter (44 ms against 1.5 for the 3x3 pool by twos of 64 x 24 x 24 x 64).
    """
    rows, cols, *_ = windows
    below, right = rows.steps - rows.out, cols.steps - cols.out
    sources = tuple(_pad(source, (rows.reach, below), (cols.reach, right), fill) for source in sources)
    phases: dict[tuple[int, int], Array] = {}
    for tap, (i, j) in enumerate(windows.taps):
        down, row = divmod(i * rows.dilation, rows.stride)
        along, col = divmod(j * cols.dilation, cols.stride)
        top, left = rows.reach - down, cols.reach - along
        part = term(tap, *(s[:, top : top + rows.steps, left : left + cols.steps] for s in sources))
        phases[row, col] = phases[row, col] + part if (row, col) in phases else part
    some = next(iter(phases.values()))
    lines = [[phases.get((i, j), jnp.zeros_like(some)) for j in range(cols.stride)] for i in range(rows.stride)]
    image = jnp.stack([jnp.stack(line, 3) for line in lines], 2)
    image = image.reshape(some.shape[0], rows.steps * rows.stride, cols.steps * cols.stride, some.shape[3])
    return image[:, rows.before : rows.before + rows.size, cols.before : cols.before + cols.size]


# Convolution.


def conv2d(x: ArrayLike, kernel: ArrayLike, **settings: Unpack[Settings]) -> Array:
    """The convolution of images with a kernel of [height, width, channels / groups, results].

    >>> conv2d(jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8)), padding="VALID").shape
    (1, 2, 2, 8)
    """
    kernel = jnp.asarray(kernel)
    windows = _windows(np.shape(x), kernel.shape[:2], kernel.shape[2], settings)
    return _returned(_conv2d(_arranged(x, windows, settings), kernel, windows), windows, settings)


def conv2d_input_grad(x_shape: Shape, kernel: ArrayLike, dy: ArrayLike, **settings: Unpack[Settings]) -> Array:
    """The gradient for the images of `conv2d`, given that for its result.

    >>> conv2d_input_grad((1, 4, 4, 3), jnp.ones((3, 3, 3, 8)), jnp.ones((1, 2, 2, 8)), padding="VALID").shape
    (1, 4, 4, 3)
    """
    kernel = jnp.asarray(kernel)
    windows = _windows(x_shape, kernel.shape[:2], kernel.shape[2], settings)
    return _returned(_input_grad(kernel, _arranged(dy, windows, settings), windows), windows, settings)


def conv2d_filter_grad(x: ArrayLike, kernel_shape: Shape, dy: ArrayLike, **settings: Unpack[Settings]) -> Array:
    """The gradient for the kernel of `conv2d`, given that for its result.

    >>> conv2d_filter_grad(jnp.ones((1, 4, 4, 3)), (3, 3, 3, 8), jnp.ones((1, 2, 2, 8)), padding="VALID").shape
    (3, 3, 3, 8)
    """
    windows = _windows(np.shape(x), kernel_shape[:2], kernel_shape[2], settings)
    return _filter_grad(_arranged(x, windows, settings), _arranged(dy, windows, settings), windows)


def _lowering(dtype: np.dtype[Any], windows: _Windows) -> _Lowering:
    """The fastest lowering for a class of shapes."""
    if not windows.on_cpu:
        return _XLA
    if windows.groups > 1:
        # XLA takes 80 ms for a depthwise 3x3 over 64 channels (1.5 by taps), and 1.9 s for the kernel's gradient of 8
        # groups (10 ms as 8 convolutions).
        return _DEPTHWISE if windows.depth == 1 else _GROUPS
    # With few channels Eigen packs its operands slowly: 5x5 over 3 takes 3.6 ms against 3.2 for one dot of all taps,
    # 5.2 against 4.3 for the kernel's gradient and 17 against 2.7 for the images'. With many, writing the taps out
    # costs more than it saves: 5x5 over 64 takes 8.6 ms against 42. A 1x1 kernel is a dot, and Eigen's convolution is
    # for float32 (XLA has scalar loops for the rest).
    if windows.depth <= 8 or len(windows.taps) == 1 or dtype != jnp.float32:
        return _DOT
    if windows.rows.stride > 1 or windows.cols.stride > 1:
        # XLA convolves with dy spread out between zeros for the images' gradient.
        return _XLA._replace(input_grad=_dot_input_grad)
    return _XLA


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv2d(x: Array, kernel: Array, windows: _Windows) -> Array:
    return _lowering(x.dtype, windows).conv(x, kernel, windows)


def _input_grad(kernel: Array, dy: Array, windows: _Windows) -> Array:
    return _lowering(dy.dtype, windows).input_grad(kernel, dy, windows)


def _filter_grad(x: Array, dy: Array, windows: _Windows) -> Array:
    return _lowering(dy.dtype, windows).filter_grad(x, dy, windows)


def _conv2d_backward(windows: _Windows, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, kernel = saved
    return _input_grad(kernel, dy, windows), _filter_grad(x, dy, windows)


_conv2d.defvjp(lambda x, kernel, windows: (_conv2d(x, kernel, windows), (x, kernel)), _conv2d_backward)


def _xla_conv(x: Array, kernel: Array, windows: _Windows) -> Array:
    rows, cols, _, groups, layout, _ = windows
    return lax.conv_general_dilated(
        x, kernel, (rows.stride, cols.stride), [(rows.before, rows.after), (cols.before, cols.after)],
        rhs_dilation=(rows.dilation, cols.dilation), dimension_numbers=(layout, "HWIO", layout),
        feature_group_count=groups,
    )  # fmt: skip


def _xla_input_grad(kernel: Array, dy: Array, windows: _Windows) -> Array:
    x = windows.images(dy.shape[0], dy.dtype)
    return _transposed(lambda x: _xla_conv(x, kernel, windows), x, dy)


def _xla_filter_grad(x: Array, dy: Array, windows: _Windows) -> Array:
    shape = (windows.rows.window, windows.cols.window, windows.depth, dy.shape[windows.layout.index("C")])
    kernel = jax.ShapeDtypeStruct(shape, dy.dtype)
    return _transposed(lambda kernel: _xla_conv(x, kernel, windows), kernel, dy)


def _transposed(linear: Callable[[Array], Array], x: jax.ShapeDtypeStruct, dy: Array) -> Array:
    (dx,) = jax.linear_transpose(linear, x)(dy)
    return jnp.asarray(dx)


def _dot(x: Array, matrix: Array) -> Array:
    return lax.dot_general(x, matrix, (((3,), (0,)), ((), ())))


def _dot_conv(x: Array, kernel: Array, windows: _Windows) -> Array:
    return _dot(jnp.concatenate(_taps(x, windows), 3), kernel.reshape(-1, kernel.shape[3]))


def _dot_input_grad(kernel: Array, dy: Array, windows: _Windows) -> Array:
    depth = windows.depth
    spread = _dot(dy, kernel.reshape(-1, kernel.shape[3]).T)
    return _add_taps(lambda tap, s: s[..., tap * depth : (tap + 1) * depth], spread, windows=windows)


def _dot_filter_grad(x: Array, dy: Array, windows: _Windows) -> Array:
    # The same taps as those of the convolution: in one program XLA computes them once.
    seen = jnp.concatenate(_taps(x, windows), 3)
    # So few results of such long sums leave a core idle: four dots, added up, take 20% less.
    parts = math.gcd(4, x.shape[0])
    places = math.prod(seen.shape[:3]) // parts
    a, b = seen.reshape(parts, places, seen.shape[3]), dy.reshape(parts, places, dy.shape[3])
    dk = lax.dot_general(a, b, (((1,), (1,)), ((0,), (0,)))).sum(0)
    return dk.reshape(windows.rows.window, windows.cols.window, windows.depth, dy.shape[3])


def _depthwise_conv(x: Array, kernel: Array, windows: _Windows) -> Array:
    weights = kernel.reshape(len(windows.taps), windows.groups, -1)
    terms = [tap[..., None] * weight for tap, weight in zip(_taps(x, windows), weights, strict=True)]
    y = functools.reduce(jnp.add, terms)
    return y.reshape(*y.shape[:3], kernel.shape[3])


def _depthwise_input_grad(kernel: Array, dy: Array, windows: _Windows) -> Array:
    weights = kernel.reshape(len(windows.taps), windows.groups, -1)

    def term(tap: int, dy: Array) -> Array:
        return (dy.reshape(*dy.shape[:3], *weights.shape[1:]) * weights[tap]).sum(4)

    return _add_taps(term, dy, windows=windows)


def _depthwise_filter_grad(x: Array, dy: Array, windows: _Windows) -> Array:
    split = dy.reshape(*dy.shape[:3], windows.groups, -1)
    dk = [(tap[..., None] * split).sum((0, 1, 2)) for tap in _taps(x, windows)]
    return jnp.stack(dk).reshape(windows.rows.window, windows.cols.window, 1, dy.shape[3])


def _each_group(lowering: Callable[[Array, Array, _Windows], Array], a: Array, b: Array, windows: _Windows) -> Array:
    parts = zip(jnp.split(a, windows.groups, -1), jnp.split(b, windows.groups, -1), strict=True)
    return jnp.concatenate([lowering(a, b, windows._replace(groups=1)) for a, b in parts], -1)


class _Lowering(NamedTuple):
    conv: Callable[[Array, Array, _Windows], Array]  # of the images and the kernel
    input_grad: Callable[[Array, Array, _Windows], Array]  # of the kernel and dy
    filter_grad: Callable[[Array, Array, _Windows], Array]  # of the images and dy


_XLA = _Lowering(_xla_conv, _xla_input_grad, _xla_filter_grad)
_DOT = _Lowering(_dot_conv, _dot_input_grad, _dot_filter_grad)
_DEPTHWISE = _Lowering(_depthwise_conv, _depthwise_input_grad, _depthwise_filter_grad)
_GROUPS = _Lowering(*(functools.partial(_each_group, lowering) for lowering in (_conv2d, _input_grad, _filter_grad)))


# Pooling.


def max_pool(x: ArrayLike, **settings: Unpack[PoolSettings]) -> Array:
    """The maximum of each window.

    >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1), ksize=(2, 2), strides=(2, 2), padding="SAME")[0, :, :, 0]
    Array([[ 5.,  7.],
           [13., 15.]], dtype=float32)
    """
    windows = _windows(np.shape(x), settings["ksize"], None, settings)
    return _returned(_max_pool(_arranged(x, windows, settings), windows), windows, settings)


def max_pool_grad(x: ArrayLike, y: ArrayLike, dy: ArrayLike, **settings: Unpack[PoolSettings]) -> Array:
    """The gradient for the images `x` of `max_pool`, whose result is `y`: it goes to the first maximum of a window.

    >>> x = jnp.ones((1, 2, 2, 1))
    >>> max_pool_grad(x, x[:, :1, :1], x[:, :1, :1], ksize=(2, 2), strides=(2, 2), padding="SAME")[0, :, :, 0]
    Array([[1., 0.],
           [0., 0.]], dtype=float32)
    """
    windows = _windows(np.shape(x), settings["ksize"], None, settings)
    x, y, dy = (_arranged(a, windows, settings) for a in (x, y, dy))
    return _returned(_max_pool_grad(x, y, dy, windows), windows, settings)


def avg_pool(x: ArrayLike, **settings: Unpack[PoolSettings]) -> Array:
    """The mean of each window, over those of its elements that are not padding.

    >>> avg_pool(jnp.arange(16.0).reshape(1, 4, 4, 1), ksize=(2, 2), strides=(2, 2), padding="SAME")[0, :, :, 0]
    Array([[ 2.5,  4.5],
           [10.5, 12.5]], dtype=float32)
    """
    windows = _windows(np.shape(x), settings["ksize"], None, settings)
    return _returned(_avg_pool(_arranged(x, windows, settings), windows), windows, settings)


def avg_pool_grad(x_shape: Shape, dy: ArrayLike, **settings: Unpack[PoolSettings]) -> Array:
    """The gradient for the images of `avg_pool`.

    >>> avg_pool_grad((1, 2, 2, 1), jnp.ones((1, 1, 1, 1)), ksize=(2, 2), strides=(2, 2), padding="SAME")[0, :, :, 0]
    Array([[0.25, 0.25],
           [0.25, 0.25]], dtype=float32)
    """
    windows = _windows(x_shape, settings["ksize"], None, settings)
    return _returned(_avg_pool_grad(_arranged(dy, windows, settings), windows), windows, settings)


def _by_taps(windows: _Windows) -> bool:
    """Whether a pool goes by taps: on the CPU, unless there are so many that compiling them takes seconds."""
    return windows.on_cpu and len(windows.taps) <= 64


def _reduced(x: Array, start: np.ndarray, reducer: Callable[[Any, Any], Any], windows: _Windows) -> Array:
    axes = {"H": windows.rows, "W": windows.cols}
    ksize = [axes[a].window if a in axes else 1 for a in windows.layout]
    strides = [axes[a].stride if a in axes else 1 for a in windows.layout]
    padding = [(axes[a].before, axes[a].after) if a in axes else (0, 0) for a in windows.layout]
    return jnp.asarray(lax.reduce_window(x, start, reducer, ksize, strides, padding))


def _lowest(dtype: np.dtype[Any]) -> np.ndarray:
    return np.array(-np.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min, dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max_pool(x: Array, windows: _Windows) -> Array:
    if not _by_taps(windows):
        return _reduced(x, _lowest(x.dtype), lax.max, windows)
    return functools.reduce(jnp.maximum, _taps(x, windows, _lowest(x.dtype)))


def _max_pool_forward(x: Array, windows: _Windows) -> tuple[Array, tuple[Array, Array]]:
    y = _max_pool(x, windows)
    return y, (x, y)


def _max_pool_grad(x: Array, y: Array, dy: Array, windows: _Windows) -> Array:
    if not _by_taps(windows):
        (dx,) = jax.vjp(lambda x: _reduced(x, _lowest(x.dtype), lax.max, windows), x)[1](dy)
        return jnp.asarray(dx)
    taps = _taps(x, windows, _lowest(x.dtype))
    first = jnp.full(y.shape, len(taps) - 1)
    for tap in reversed(range(len(taps) - 1)):
        first = jnp.where(taps[tap] == y, tap, first)
    return _add_taps(lambda tap, first, dy: jnp.where(first == tap, dy, 0), first, dy, windows=windows, fill=-1)


_max_pool.defvjp(_max_pool_forward, lambda windows, saved, dy: (_max_pool_grad(*saved, dy, windows),))


def _avg_pool(x: Array, windows: _Windows) -> Array:
    return _total(x, windows) / _counts(x.dtype, windows)


def _avg_pool_grad(dy: Array, windows: _Windows) -> Array:
    dy = dy / _counts(dy.dtype, windows)
    if _by_taps(windows):
        return _add_taps(lambda _, dy: dy, dy, windows=windows)
    return _transposed(lambda x: _total(x, windows), windows.images(dy.shape[0], dy.dtype), dy)


def _total(x: Array, windows: _Windows) -> Array:
    if not _by_taps(windows):
        return _reduced(x, np.zeros((), x.dtype), lax.add, windows)
    return functools.reduce(jnp.add, _taps(x, windows))


def _counts(dtype: np.dtype[Any], windows: _Windows) -> np.ndarray:
    """How many elements of each window are not padding."""

    def along(axis: _Axis) -> np.ndarray:
        starts = np.arange(axis.out) * axis.stride - axis.before
        return np.minimum(starts + axis.window, axis.size) - np.maximum(starts, 0)

    counts = np.outer(along(windows.rows), along(windows.cols)).astype(dtype)
    return counts[:, :, None] if windows.layout == "NHWC" else counts
