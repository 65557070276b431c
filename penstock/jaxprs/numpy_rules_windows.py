"""Windows that slide over arrays: pooling and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.jaxprs.numpy_rules import Kernel, Site, highest, lowest, rule, wider
from penstock.jaxprs.numpy_rules_arrange import padded_shape, padding
from penstock.jaxprs.numpy_rules_reduce import elementwise_block


class _Sliding:
    """The windows of a node: how to pad an operand, and which elements are at each position in a window."""

    def __init__(self, site: Site, operand: int, windows_shape: tuple[int, ...]) -> None:
        shape = self.shape = site.shape(operand)
        ones = (1,) * len(shape)
        window, strides, pads = (site.param(name) for name in ("window_dimensions", "window_strides", "padding"))
        base, apart = (
            site.param(name) if name in site.node.params else ones for name in ("base_dilation", "window_dilation")
        )
        self._config = [(low, high, step - 1) for (low, high), step in zip(pads, base, strict=True)]
        self.padded = padded_shape(shape, self._config)
        self.places = list(_places(window, strides, apart, windows_shape))
        # The position of the operand in the padded one.
        self.inside = tuple(slice(low, low + size) for size, (low, _) in zip(shape, pads, strict=True))

    def pad(self, dtype: Any) -> Kernel:
        if any(any(item) for item in self._config):
            return padding(self.shape, self._config, dtype)
        return lambda x, fill: x


def _places(
    window: Sequence[int], strides: Sequence[int], apart: Sequence[int], count: tuple[int, ...]
) -> Iterator[tuple[slice, ...]]:
    for place in np.ndindex(*window):
        yield tuple(
            slice(at * step, at * step + (number - 1) * stride + 1, stride) if number else slice(0, 0)
            for at, step, stride, number in zip(place, apart, strides, count, strict=True)
        )


def _reduction(site: Site, ufunc: np.ufunc, first: Any) -> Kernel:
    sliding = _Sliding(site, 0, site.out_shape())
    dtype = site.out_dtype()
    wide = wider(dtype)
    shape, places, pad = site.out_shape(), sliding.places, sliding.pad(wide)

    def kernel(x: Any) -> Any:
        padded = pad(x.astype(wide, copy=False), first)
        result = np.full(shape, first, wide)
        for place in places:
            ufunc(result, padded[place], out=result)
        return result.astype(dtype, copy=False)

    return kernel


@rule("reduce_window_sum")
def reduce_window_sum(site: Site) -> Kernel:
    return _reduction(site, np.add, 0)


@rule("reduce_window_max")
def reduce_window_max(site: Site) -> Kernel:
    return _reduction(site, np.maximum, lowest(site.out_dtype()))


@rule("reduce_window_min")
def reduce_window_min(site: Site) -> Kernel:
    return _reduction(site, np.minimum, highest(site.out_dtype()))


@rule("reduce_window")
def reduce_window(site: Site) -> Callable[..., list[Any]]:
    combine = elementwise_block(site, "jaxpr")
    count = len(site.node.outputs)
    shape = site.out_shape()
    slidings = [_Sliding(site, operand, shape) for operand in range(count)]
    pads = [sliding.pad(site.dtype(operand)) for operand, sliding in enumerate(slidings)]
    places = slidings[0].places

    def kernel(*operands: Any) -> list[Any]:
        firsts = operands[count:]
        padded = [pad(x, first) for pad, x, first in zip(pads, operands[:count], firsts, strict=True)]
        results = [np.full(shape, first) for first in firsts]
        for place in places:
            results = combine([*results, *[x[place] for x in padded]])
        return [np.array(result) for result in results]

    return kernel


def _chooses(site: Site) -> tuple[Any, Any]:
    """The comparison that keeps the earlier of two elements, and the fill value of the padding."""
    name = site.node.params["select_prim"].name
    if name not in ("ge", "le"):
        raise site.no_rule(f"selection by {name}")
    return (np.greater_equal, lowest) if name == "ge" else (np.less_equal, highest)


def _chosen(compare: Any, padded: Any, places: list[tuple[slice, ...]]) -> Any:
    """The position, within each window, of its chosen element."""
    best = padded[places[0]]
    chosen = np.zeros(best.shape, np.int32)
    for number, place in enumerate(places[1:], 1):
        candidate = padded[place]
        later = ~compare(best, candidate)
        chosen[later] = number
        best = np.where(later, candidate, best)
    return chosen


@rule("select_and_scatter_add")
def select_and_scatter_add(site: Site) -> Kernel:
    compare, fill_of = _chooses(site)
    sliding = _Sliding(site, 1, site.shape(0))
    dtype = site.out_dtype()
    wide = wider(dtype)
    pad, places, fill = sliding.pad(wide), sliding.places, fill_of(dtype)

    def kernel(source: Any, x: Any) -> Any:
        chosen = _chosen(compare, pad(x.astype(wide, copy=False), fill), places)
        result = np.zeros(sliding.padded, wide)
        for number, place in enumerate(places):
            result[place] += np.where(chosen == number, source, 0).astype(wide, copy=False)
        return np.ascontiguousarray(result[sliding.inside]).astype(dtype, copy=False)

    return kernel


@rule("select_and_gather_add")
def select_and_gather_add(site: Site) -> Kernel:
    compare, fill_of = _chooses(site)
    sliding = _Sliding(site, 1, site.out_shape())
    dtype, shape = site.out_dtype(), site.out_shape()
    wide = wider(dtype)
    pad, places, fill = sliding.pad(wide), sliding.places, fill_of(dtype)

    def kernel(tangents: Any, x: Any) -> Any:
        chosen = _chosen(compare, pad(x.astype(wide, copy=False), fill), places)
        padded = pad(tangents.astype(wide, copy=False), 0)
        result = np.zeros(shape, wide)
        for number, place in enumerate(places):
            np.copyto(result, padded[place], where=chosen == number)
        return result.astype(dtype, copy=False)

    return kernel
