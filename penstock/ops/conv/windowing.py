"""Windows over images: their places, the taps of their positions, and the adjoint of the taps.

Tap (i, j) is the strided slice of the image that kernel position (i, j) sees, and its adjoint adds values of the
result's size back to the image.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Required, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from penstock.jaxprs.symbols import is_symbol

Shape = Sequence[int]


class Settings(TypedDict, total=False):
    """Settings of a convolution or a pool; all but `padding` have defaults. Pairs are for (height, width)."""

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

    def span(self, tap: int) -> slice:  # the part of the axis under one tap of all windows
        if not self.out:
            return slice(0)
        return slice(tap * self.dilation, tap * self.dilation + (self.out - 1) * self.stride + 1, self.stride)

    @property
    def steps(self) -> int:  # the number of strides that cover the padded axis
        return -(-(self.before + self.size + self.after) // self.stride)

    @property
    def reach(self) -> int:  # the number of whole strides between a window's first tap and its last
        return (self.window - 1) * self.dilation // self.stride


class Windows(NamedTuple):  # windows over images; hashable, as JAX requires of settings
    rows: Axis
    cols: Axis
    depth: int  # channels in each group
    groups: int
    data_format: str
    on_cpu: bool

    @property
    def layout(self) -> str:  # the layout of the arrays that lowerings get
        return "NHWC" if self.on_cpu else self.data_format

    @property
    def taps(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.rows.window) for j in range(self.cols.window)]

    @property
    def are_none(self) -> bool:  # True if the result is empty
        return not (self.rows.out and self.cols.out)

    @property
    def pools_by_taps(self) -> bool:  # not if there are so many that compiling them takes seconds
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
    # As in TensorFlow, a window that is too large by less than two strides gives no result, but no error.
    # A symbolic size stands only for sizes that have results.
    known = not is_symbol(padded)
    out = math.trunc((padded - extent + stride) / stride) if known else (padded - extent + stride) // stride
    if out < (0 if known else 1):
        raise ValueError(f"windows must fit into the padded {name} of {padded}, received windows of {extent}.")
    return Axis(size, window, stride, dilation, before, after, out)


def windows_of(
    x_shape: Shape,
    depth: int | None,
    *,
    ksize: Shape,
    padding: str | Sequence[Shape],
    strides: Shape = (1, 1),
    dilations: Shape = (1, 1),
    data_format: str = "NHWC",
    platform: str = "cpu",
) -> Windows:
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
    return Windows(rows, cols, channels // groups, groups, data_format, platform == "cpu")


def arranged(x: ArrayLike, windows: Windows) -> Array:
    x = jnp.asarray(x)
    return x if windows.layout == windows.data_format else x.transpose(0, 2, 3, 1)


def returned(y: Array, windows: Windows) -> Array:
    return y if windows.layout == windows.data_format else y.transpose(0, 3, 1, 2)


def no_results(batch: int, channels: int, dtype: np.dtype[Any], windows: Windows) -> Array:
    sizes = {"N": batch, "H": windows.rows.out, "W": windows.cols.out, "C": channels}
    return jnp.zeros([sizes[axis] for axis in windows.data_format], dtype)


def taps_of(x: Array, windows: Windows, fill: float = 0) -> list[Array]:
    """The taps of all kernel positions, row by row: arrays of [batch, rows.out, cols.out, channels]."""
    rows, cols, *_ = windows
    around = [(0, 0), (rows.before, rows.after), (cols.before, cols.after)] + [(0, 0)] * (x.ndim - 3)
    x = jnp.pad(x, around, constant_values=fill)
    return [x[:, rows.span(i), cols.span(j)] for i, j in windows.taps]


def over_taps(
    reducer: Callable[[Any, Any], Any],
    x: Array,
    windows: Windows,
    fill: float = 0,
    weights: Sequence[Array] | None = None,
) -> Array:
    """The taps, each times its weights, reduced to one array of the result's size.

    It computes one extra column, which a slice removes. XLA would otherwise put a following reduction, such as a mean
    over the pixels, and all the arithmetic before it into one call of YNNPACK, which is slow with so many operands
    (50 ms against 1 for a depthwise 3x3 over 8 x 28 x 28 x 128). A slice ends such a call and costs nothing by itself.
    """
    cols = windows.cols
    wider = windows._replace(cols=cols._replace(after=cols.after + cols.stride, out=cols.out + 1))
    taps = taps_of(x, wider, fill)
    parts = taps if weights is None else [tap * w for tap, w in zip(taps, weights, strict=True)]
    return jnp.asarray(functools.reduce(reducer, parts))[:, :, : cols.out]


def add_taps(term: Callable[..., Array], *sources: Array, windows: Windows) -> Array:
    """The adjoint of `taps_of`: adds `term(tap, *sources)` of each result to that tap's part of the image.

    `sources` have the result's size; outside it they are 0. The image is assembled from its phases, one for each
    place within a stride. A phase is a sum of slices: XLA emits vector code for that, but not for scatters,
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


def transposed(linear: Callable[[Array], Array], x: jax.ShapeDtypeStruct, dy: Array) -> Array:
    return jnp.asarray(jax.linear_transpose(linear, x)(dy)[0])
