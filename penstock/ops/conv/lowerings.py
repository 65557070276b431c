"""Convolution and pooling of images as pure JAX functions, with the CPU's lowerings chosen by measurement.

On "gpu" and "tpu" every function is XLA's own. On "cpu" XLA's own is slow in places, and windows are lowered by taps
there: tap (i, j) is the strided slice of the image that kernel position (i, j) sees, and its adjoint adds values of
the result's size back to the image. The times below are of two cores; `benchmarks/convolution.py` measures them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from penstock.jaxprs.symbols import is_symbol

Shape = Sequence[int]

# XLA sends float32 convolutions to YNNPACK, which runs each on one thread (50 to 140 GFLOP/s). Left out of this list
# they go to Eigen, which uses all (150 to 280 on two cores); dots and sums stay with YNNPACK, as by default.
_CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"}


@functools.cache
def cpu_compiler_options() -> dict[str, str]:
    """The `compiler_options` of `jax.jit` for programs on the CPU that have convolutions in them.

    Without these all is correct, but most convolutions take twice as long. Empty where XLA does not know them.

    >>> step = jax.jit(jnp.negative, compiler_options=cpu_compiler_options())
    """
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            jax.jit(jnp.negative, compiler_options=_CPU_OPTIONS)(0)
    except RuntimeError:
        return {}
    return _CPU_OPTIONS


class Settings(TypedDict, total=False):
    """Of a convolution or a pool; all but `padding` have defaults. Pairs are for (height, width)."""

    padding: Required[str | Sequence[Shape]]  # "SAME", "VALID", or (before, after) for height and for width
    strides: Shape
    dilations: Shape
    data_format: str
    platform: str


class Axis(NamedTuple):  # the windows along one spatial axis
    size: int
    window: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int

    def span(self, tap: int) -> slice:  # what the windows see at one of their places
        if not self.out:
            return slice(0)
        return slice(tap * self.dilation, tap * self.dilation + (self.out - 1) * self.stride + 1, self.stride)

    @property
    def steps(self) -> int:  # how many strides cover the padded axis
        return -(-(self.before + self.size + self.after) // self.stride)

    @property
    def reach(self) -> int:  # how many whole strides lie between a window's first tap and its last
        return (self.window - 1) * self.dilation // self.stride


class _Windows(NamedTuple):  # over images; hashable, as JAX wants settings to be
    rows: Axis
    cols: Axis
    depth: int  # channels in each group
    groups: int
    data_format: str
    on_cpu: bool

    @property
    def layout(self) -> str:  # of the arrays that lowerings see
        return "NHWC" if self.on_cpu else self.data_format

    @property
    def taps(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.rows.window) for j in range(self.cols.window)]

    @property
    def are_none(self) -> bool:  # so that the result is empty
        return not (self.rows.out and self.cols.out)

    @property
    def pools_by_taps(self) -> bool:  # unless they are so many that compiling them takes seconds
        return self.on_cpu and len(self.taps) <= 64

    def images(self, batch: int, dtype: np.dtype[Any]) -> jax.ShapeDtypeStruct:
        sizes = {"N": batch, "H": self.rows.size, "W": self.cols.size, "C": self.depth * self.groups}
        return jax.ShapeDtypeStruct(tuple(sizes[axis] for axis in self.layout), dtype)


def axis_of(name: str, size: int, window: int, stride: int, dilation: int, padding: str | Shape) -> Axis:
    """The windows along an axis of that size.

    >>> axis_of("height", 28, 3, 2, 1, "SAME").out
    14
    """
    extent = (window - 1) * dilation + 1
    if isinstance(padding, str):
        around = max((-(-size // stride) - 1) * stride + extent - size, 0) if padding == "SAME" else 0
        padding = (around // 2, around - around // 2)
    before, after = padding
    padded = before + size + after
    # As in TensorFlow, a window that is too large by less than two strides has no result, but is no error.
    # A size that is a symbol stands for those with results only.
    known = not is_symbol(padded)
    out = math.trunc((padded - extent + stride) / stride) if known else (padded - extent + stride) // stride
    if out < (0 if known else 1):
        raise ValueError(f"windows must fit into the padded {name} of {padded}, received windows of {extent}.")
    return Axis(size, window, stride, dilation, before, after, out)


def _windows(
    x_shape: Shape, depth: int | None, *, ksize: Shape, padding: str | Sequence[Shape], strides: Shape = (1, 1),
    dilations: Shape = (1, 1), data_format: str = "NHWC", platform: str = "cpu",
) -> _Windows:  # fmt: skip
    if data_format not in ("NHWC", "NCHW"):
        raise ValueError(f"data_format must be 'NHWC' or 'NCHW', received '{data_format}'.")
    if isinstance(padding, str) and padding not in ("SAME", "VALID"):
        raise ValueError(f"padding must be 'SAME', 'VALID' or two pairs of numbers, received '{padding}'.")
    height, width, channels = (x_shape[data_format.index(axis)] for axis in "HWC")
    if depth is not None and channels % depth:
        raise ValueError(f"the kernel's channels must divide those of the images, received {depth} and {channels}.")
    above, beside = (padding, padding) if isinstance(padding, str) else padding
    rows = axis_of("height", height, ksize[0], strides[0], dilations[0], above)
    cols = axis_of("width", width, ksize[1], strides[1], dilations[1], beside)
    groups = 1 if depth is None else channels // depth
    return _Windows(rows, cols, channels // groups, groups, data_format, platform == "cpu")


def _arranged(x: ArrayLike, windows: _Windows) -> Array:
    x = jnp.asarray(x)
    return x if windows.layout == windows.data_format else x.transpose(0, 2, 3, 1)


def _returned(y: Array, windows: _Windows) -> Array:
    return y if windows.layout == windows.data_format else y.transpose(0, 3, 1, 2)


def _nothing(batch: int, channels: int, dtype: np.dtype[Any], windows: _Windows) -> Array:
    sizes = {"N": batch, "H": windows.rows.out, "W": windows.cols.out, "C": channels}
    return jnp.zeros([sizes[axis] for axis in windows.data_format], dtype)


def _taps(x: Array, windows: _Windows, fill: float = 0) -> list[Array]:
    """What each kernel position sees, row by row: arrays of [batch, rows.out, cols.out, channels]."""
    rows, cols, *_ = windows
    around = [(0, 0), (rows.before, rows.after), (cols.before, cols.after)] + [(0, 0)] * (x.ndim - 3)
    x = jnp.pad(x, around, constant_values=fill)
    return [x[:, rows.span(i), cols.span(j)] for i, j in windows.taps]


def _over_taps(
    reducer: Callable[[Any, Any], Any], x: Array, windows: _Windows, fill: float = 0,
    weights: Sequence[Array] | None = None,
) -> Array:  # fmt: skip
    """The taps, each times its weights, reduced to one array of the result's size.

    It is computed with one column more, which a slice takes off again. XLA puts a reduction that follows, such as a
    mean over the pixels, and all the arithmetic before it into one call of YNNPACK, where so many operands are slow
    (50 ms against 1 for a depthwise 3x3 over 8 x 28 x 28 x 128). A slice ends such a call; it costs nothing by itself.
    """
    cols = windows.cols
    wider = windows._replace(cols=cols._replace(after=cols.after + cols.stride, out=cols.out + 1))
    taps = _taps(x, wider, fill)
    parts = taps if weights is None else [tap * w for tap, w in zip(taps, weights, strict=True)]
    return jnp.asarray(functools.reduce(reducer, parts))[:, :, : cols.out]


def _add_taps(term: Callable[..., Array], *sources: Array, windows: _Windows) -> Array:
    """The adjoint of `_taps`: adds `term(tap, *sources)` of each result to what that tap saw of the image.

    `sources` are of the result's size; beyond it they are 0. The image is put together from its phases, one for each
    place within a stride, and a phase is a sum of slices: XLA emits vector code for that, and none for scatters,
    interior padding or select_and_scatter (44 ms against 1.5 for the 3x3 pool by twos of 64 x 24 x 24 x 64).
    """
    rows, cols, *_ = windows
    around = [(0, 0), (rows.reach, rows.steps - rows.out), (cols.reach, cols.steps - cols.out)]
    sources = tuple(jnp.pad(s, around + [(0, 0)] * (s.ndim - 3)) for s in sources)
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


def conv2d(x: ArrayLike, kernel: ArrayLike, **settings: Unpack[Settings]) -> Array:
    """The convolution of images with a kernel of [height, width, channels / groups, results].

    >>> conv2d(jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8)), padding="VALID").shape
    (1, 2, 2, 8)
    """
    x, kernel = jnp.asarray(x), jnp.asarray(kernel)
    windows = _windows(x.shape, kernel.shape[2], ksize=kernel.shape[:2], **settings)
    if windows.are_none:
        return _nothing(x.shape[0], kernel.shape[3], x.dtype, windows)
    return _returned(_conv2d(_arranged(x, windows), kernel, windows), windows)


def conv2d_input_grad(x_shape: Shape, kernel: ArrayLike, dy: ArrayLike, **settings: Unpack[Settings]) -> Array:
    """The gradient for the images of `conv2d`, given that for its result.

    >>> conv2d_input_grad((1, 4, 4, 3), jnp.ones((3, 3, 3, 8)), jnp.ones((1, 2, 2, 8)), padding="VALID").shape
    (1, 4, 4, 3)
    """
    kernel = jnp.asarray(kernel)
    windows = _windows(x_shape, kernel.shape[2], ksize=kernel.shape[:2], **settings)
    if windows.are_none:
        return jnp.zeros(x_shape, kernel.dtype)
    dy = _arranged(dy, windows)
    return _returned(_lowering(dy.dtype, windows).input_grad(kernel, dy, windows), windows)


def conv2d_filter_grad(x: ArrayLike, kernel_shape: Shape, dy: ArrayLike, **settings: Unpack[Settings]) -> Array:
    """The gradient for the kernel of `conv2d`, given that for its result.

    >>> conv2d_filter_grad(jnp.ones((1, 4, 4, 3)), (3, 3, 3, 8), jnp.ones((1, 2, 2, 8)), padding="VALID").shape
    (3, 3, 3, 8)
    """
    x = jnp.asarray(x)
    windows = _windows(x.shape, kernel_shape[2], ksize=kernel_shape[:2], **settings)
    if windows.are_none:
        return jnp.zeros(kernel_shape, x.dtype)
    x, dy = _arranged(x, windows), _arranged(dy, windows)
    return _lowering(dy.dtype, windows).filter_grad(x, dy, windows)


class _Lowering(NamedTuple):
    conv: Callable[[Array, Array, _Windows], Array]  # of the images and the kernel
    input_grad: Callable[[Array, Array, _Windows], Array]  # of the kernel and dy
    filter_grad: Callable[[Array, Array, _Windows], Array]  # of the images and dy


def _lowering(dtype: np.dtype[Any], windows: _Windows) -> _Lowering:
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
def _conv2d(x: Array, kernel: Array, windows: _Windows) -> Array:
    return _lowering(x.dtype, windows).conv(x, kernel, windows)


def _conv2d_backward(windows: _Windows, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, kernel = saved
    lowering = _lowering(dy.dtype, windows)
    return lowering.input_grad(kernel, dy, windows), lowering.filter_grad(x, dy, windows)


_conv2d.defvjp(lambda x, kernel, windows: (_conv2d(x, kernel, windows), (x, kernel)), _conv2d_backward)


def _xla_conv(x: Array, kernel: Array, windows: _Windows) -> Array:
    rows, cols, layout = windows.rows, windows.cols, windows.layout
    return lax.conv_general_dilated(
        x, kernel, (rows.stride, cols.stride), [(rows.before, rows.after), (cols.before, cols.after)],
        rhs_dilation=(rows.dilation, cols.dilation), dimension_numbers=(layout, "HWIO", layout),
        feature_group_count=windows.groups,
    )  # fmt: skip


def _xla_input_grad(kernel: Array, dy: Array, windows: _Windows) -> Array:
    return _transposed(lambda x: _xla_conv(x, kernel, windows), windows.images(dy.shape[0], dy.dtype), dy)


def _xla_filter_grad(x: Array, dy: Array, windows: _Windows) -> Array:
    shape = (windows.rows.window, windows.cols.window, windows.depth, dy.shape[windows.layout.index("C")])
    return _transposed(lambda kernel: _xla_conv(x, kernel, windows), jax.ShapeDtypeStruct(shape, dy.dtype), dy)


def _transposed(linear: Callable[[Array], Array], x: jax.ShapeDtypeStruct, dy: Array) -> Array:
    return jnp.asarray(jax.linear_transpose(linear, x)(dy)[0])


def _dot_conv(x: Array, kernel: Array, windows: _Windows) -> Array:
    return jnp.concatenate(_taps(x, windows), 3) @ kernel.reshape(-1, kernel.shape[3])


def _dot_input_grad(kernel: Array, dy: Array, windows: _Windows) -> Array:
    spread = (dy @ kernel.reshape(-1, kernel.shape[3]).T).reshape(*dy.shape[:3], len(windows.taps), windows.depth)
    return _add_taps(lambda tap, spread: spread[:, :, :, tap], spread, windows=windows)


def _dot_filter_grad(x: Array, dy: Array, windows: _Windows) -> Array:
    seen = jnp.concatenate(_taps(x, windows), 3)  # as in _dot_conv: in one program XLA does this once
    # So few results of such long sums leave a core idle: four dots, added up, take 20% less.
    parts = 1 if is_symbol(x.shape[0]) else math.gcd(4, x.shape[0])
    places = math.prod(seen.shape[:3]) // parts
    a, b = seen.reshape(parts, places, seen.shape[3]), dy.reshape(parts, places, dy.shape[3])
    dk = lax.dot_general(a, b, (((1,), (1,)), ((0,), (0,)))).sum(0)
    return dk.reshape(windows.rows.window, windows.cols.window, windows.depth, dy.shape[3])


def _depthwise_conv(x: Array, kernel: Array, windows: _Windows) -> Array:
    weights = kernel.reshape(len(windows.taps), windows.groups, -1)
    if weights.shape[2] == 1:
        return _over_taps(lax.add, x, windows, weights=[w[:, 0] for w in weights])
    y = _over_taps(lax.add, x[..., None], windows, weights=list(weights))
    return y.reshape(*y.shape[:3], kernel.shape[3])


def _depthwise_input_grad(kernel: Array, dy: Array, windows: _Windows) -> Array:
    weights = kernel.reshape(len(windows.taps), windows.groups, -1)
    results = dy.reshape(*dy.shape[:3], windows.groups, dy.shape[3] // windows.groups)
    return _add_taps(lambda tap, results: (results * weights[tap]).sum(4), results, windows=windows)


def _depthwise_filter_grad(x: Array, dy: Array, windows: _Windows) -> Array:
    """One image after the other, which stays in the cache while all taps are summed at once (3 ms against 18)."""
    results = dy.reshape(*dy.shape[:3], windows.groups, dy.shape[3] // windows.groups)

    def add(total: Array, image: tuple[Array, Array]) -> tuple[Array, None]:
        seen, wanted = image[0][None], image[1][None]
        products = [tap[..., None] * wanted for tap in _taps(seen, windows)]
        zeros = [np.zeros((), dy.dtype)] * len(products)
        sums = lax.reduce(products, zeros, lambda a, b: [p + q for p, q in zip(a, b, strict=True)], (0, 1, 2))
        return total + jnp.stack(sums), None

    shape = (len(windows.taps), *results.shape[3:])
    dk, _ = lax.scan(add, jnp.zeros(shape, dy.dtype), (x, results))
    return dk.reshape(windows.rows.window, windows.cols.window, 1, dy.shape[3])


def _each_group(function: int, a: Array, b: Array, windows: _Windows) -> Array:
    windows, groups = windows._replace(groups=1), windows.groups
    parts = zip(jnp.split(a, groups, -1), jnp.split(b, groups, -1), strict=True)
    return jnp.concatenate([_lowering(a.dtype, windows)[function](a, b, windows) for a, b in parts], -1)


_XLA = _Lowering(_xla_conv, _xla_input_grad, _xla_filter_grad)
_DOT = _Lowering(_dot_conv, _dot_input_grad, _dot_filter_grad)
_FEW = _Lowering(_xla_conv, _dot_input_grad, _xla_filter_grad)
_DEPTHWISE = _Lowering(_depthwise_conv, _depthwise_input_grad, _depthwise_filter_grad)
_GROUPS = _Lowering(*(functools.partial(_each_group, function) for function in range(3)))


# Pooling.


def max_pool(x: ArrayLike, *, ksize: Shape, **settings: Unpack[Settings]) -> Array:
    """The maximum of each window.

    >>> max_pool(jnp.arange(4.0).reshape(1, 2, 2, 1), ksize=(2, 2), padding="VALID")
    Array([[[[3.]]]], dtype=float32)
    """
    x = jnp.asarray(x)
    windows = _windows(x.shape, None, ksize=ksize, **settings)
    if windows.are_none:
        return _nothing(x.shape[0], windows.depth, x.dtype, windows)
    return _returned(_max_pool(_arranged(x, windows), windows), windows)


def max_pool_grad(x: ArrayLike, y: ArrayLike, dy: ArrayLike, *, ksize: Shape, **settings: Unpack[Settings]) -> Array:
    """The gradient for the images `x` of `max_pool`, whose result is `y`: it goes to the first maximum of a window.

    >>> one = jnp.ones((1, 1, 1, 1))
    >>> max_pool_grad(jnp.ones((1, 2, 2, 1)), one, one, ksize=(2, 2), padding="VALID").ravel()
    Array([1., 0., 0., 0.], dtype=float32)
    """
    x = jnp.asarray(x)
    windows = _windows(x.shape, None, ksize=ksize, **settings)
    if windows.are_none:
        return jnp.zeros_like(x)
    x, y, dy = (_arranged(a, windows) for a in (x, y, dy))
    return _returned(_max_pool_grad(x, y, dy, windows), windows)


def max_pool_places(x: ArrayLike, *, ksize: Shape, **settings: Unpack[Settings]) -> Array:
    """Where the first maximum of each window lies in its NHWC image, as an index into [height, width, channels].

    >>> max_pool_places(jnp.arange(4.0).reshape(1, 2, 2, 1), ksize=(2, 2), padding="VALID").ravel()
    Array([3], dtype=int64)
    """
    x = jnp.asarray(x)
    windows = _windows(x.shape, None, ksize=ksize, **settings)
    rows, cols, *_ = windows
    largest = jnp.full((x.shape[0], rows.out, cols.out, x.shape[3]), lowest(x.dtype), x.dtype)
    place = jnp.full(largest.shape, -1, jnp.int64)
    row = jnp.arange(rows.out)[:, None, None] * rows.stride - rows.before
    col = jnp.arange(cols.out)[None, :, None] * cols.stride - cols.before
    for (i, j), tap in zip(windows.taps, _taps(x, windows, lowest(x.dtype)), strict=True):
        inside = (row + i >= 0) & (row + i < rows.size) & (col + j >= 0) & (col + j < cols.size)
        # NaN never wins, and padding never takes a place, not even where all values are the lowest there is.
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
    windows = _windows(x.shape, None, ksize=ksize, **settings)
    if windows.are_none:
        return _nothing(x.shape[0], windows.depth, x.dtype, windows)
    x = _arranged(x, windows)
    return _returned(_pooled(x, 0, lax.add, windows) / _counts(x.dtype, windows), windows)


def avg_pool_grad(x_shape: Shape, dy: ArrayLike, *, ksize: Shape, **settings: Unpack[Settings]) -> Array:
    """The gradient for the images of `avg_pool`.

    >>> avg_pool_grad((1, 2, 2, 1), jnp.ones((1, 1, 1, 1)), ksize=(2, 2), padding="VALID").ravel()
    Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    dy = jnp.asarray(dy)
    windows = _windows(x_shape, None, ksize=ksize, **settings)
    if windows.are_none:
        return jnp.zeros(x_shape, dy.dtype)
    dy = _arranged(dy, windows)
    dy = dy / _counts(dy.dtype, windows)
    if windows.pools_by_taps:
        dx = _add_taps(lambda _, dy: dy, dy, windows=windows)
    else:
        dx = _transposed(lambda x: _pooled(x, 0, lax.add, windows), windows.images(dy.shape[0], dy.dtype), dy)
    return _returned(dx, windows)


def _pooled(x: Array, start: float, reducer: Callable[[Any, Any], Any], windows: _Windows) -> Array:
    if windows.pools_by_taps:
        return _over_taps(reducer, x, windows, start)
    axes = {"H": windows.rows, "W": windows.cols}
    ksize = [axes[a].window if a in axes else 1 for a in windows.layout]
    strides = [axes[a].stride if a in axes else 1 for a in windows.layout]
    padding = [(axes[a].before, axes[a].after) if a in axes else (0, 0) for a in windows.layout]
    return jnp.asarray(lax.reduce_window(x, np.array(start, x.dtype), reducer, ksize, strides, padding))


def lowest(dtype: np.dtype[Any]) -> float:
    """Where the search for a maximum starts: the lowest finite number, as in TensorFlow."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return int(np.iinfo(dtype).min)
    return float(ml_dtypes.finfo(dtype).min)  # type: ignore[no-untyped-call]


def _least(dtype: np.dtype[Any]) -> float:
    """As `lowest`, for the gradient of XLA's own pooling, which it has only with this start."""
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else lowest(dtype)


def larger(a: Array, b: Array) -> Array:
    """The larger of two, but never a NaN in `b`; one instruction, where `lax.max` takes several to pass NaN on."""
    return jnp.where(b > a, b, a)


def _larger_number(a: Array, b: Array) -> Array:
    """As `larger`, but never a NaN in `a` either: XLA's own pooling may swap the two."""
    return lax.select((b > a) | (a != a), b, a)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max_pool(x: Array, windows: _Windows) -> Array:
    if not windows.pools_by_taps:
        return _pooled(x, lowest(x.dtype), _larger_number, windows)
    taps = _taps(x, windows, lowest(x.dtype))
    return functools.reduce(larger, taps, jnp.full((), lowest(x.dtype), x.dtype))


def _max_pool_grad(x: Array, y: Array, dy: Array, windows: _Windows) -> Array:
    if not windows.pools_by_taps:
        numbers = jnp.where(x == x, x, lowest(x.dtype))  # without NaN, which XLA would send gradients to
        return jnp.asarray(jax.vjp(lambda x: _pooled(x, _least(x.dtype), lax.max, windows), numbers)[1](dy)[0])
    taps = _taps(x, windows, lowest(x.dtype))
    first = jnp.full(y.shape, len(taps), jnp.int32)  # counted from 1: 0 is beyond the results
    for tap in reversed(range(1, len(taps))):
        first = jnp.where(taps[tap - 1] == y, tap, first)
    return _add_taps(lambda tap, first, dy: jnp.where(first == tap + 1, dy, 0), first, dy, windows=windows)


_max_pool.defvjp(
    lambda x, windows: (_max_pool(x, windows), x),
    lambda windows, x, dy: (_max_pool_grad(x, _max_pool(x, windows), dy, windows),),
)


def _counts(dtype: np.dtype[Any], windows: _Windows) -> Array:
    """How many elements of each window are not padding."""
    one = windows._replace(depth=1).images(1, dtype)
    return _pooled(jnp.ones(one.shape, dtype), 0, lax.add, windows)
