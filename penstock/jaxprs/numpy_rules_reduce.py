"""Reductions, running reductions, sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend import core

from penstock.jaxprs.flat import FlatJaxpr
from penstock.jaxprs.numpy_block import block_of
from penstock.jaxprs.numpy_rules import RULES, Kernel, Site, highest, is_narrow_float, lowest, rule, wider


def _axes(site: Site) -> tuple[int, ...]:
    return tuple(int(axis) for axis in site.param("axes"))


def _reduction(site: Site, ufunc: np.ufunc, **options: Any) -> Kernel:
    axes, dtype = _axes(site), site.out_dtype()
    reduce = ufunc.reduce
    if is_narrow_float(dtype):
        return lambda x: reduce(x.astype(np.float32), axes, **options).astype(dtype)
    return lambda x: reduce(x, axes, dtype, **options)


@rule("reduce_sum")
def reduce_sum(site: Site) -> Kernel:
    return _reduction(site, np.add)


@rule("reduce_prod")
def reduce_prod(site: Site) -> Kernel:
    return _reduction(site, np.multiply)


@rule("reduce_max")
def reduce_max(site: Site) -> Kernel:
    return _reduction(site, np.maximum, initial=lowest(site.out_dtype()))


@rule("reduce_min")
def reduce_min(site: Site) -> Kernel:
    return _reduction(site, np.minimum, initial=highest(site.out_dtype()))


@rule("reduce_and")
def reduce_and(site: Site) -> Kernel:
    return _reduction(site, np.bitwise_and)


@rule("reduce_or")
def reduce_or(site: Site) -> Kernel:
    return _reduction(site, np.bitwise_or)


@rule("reduce_xor")
def reduce_xor(site: Site) -> Kernel:
    return _reduction(site, np.bitwise_xor)


@rule("argmax")
def argmax(site: Site) -> Kernel:
    return _arg(site, np.argmax)


@rule("argmin")
def argmin(site: Site) -> Kernel:
    return _arg(site, np.argmin)


def _arg(site: Site, find: Kernel) -> Kernel:
    (axis,) = _axes(site)
    dtype = site.out_dtype()
    if is_narrow_float(site.dtype()):
        return lambda x: find(x.astype(np.float32), axis).astype(dtype)
    return lambda x: find(x, axis).astype(dtype)


@rule("reduce")
def reduce(site: Site) -> Kernel:
    """Any reduction: combines the two halves of the array, repeatedly, with the function of two elements."""
    combine = elementwise_block(site, "jaxpr")
    axes = tuple(int(axis) for axis in site.param("dimensions"))
    count = len(site.node.outputs)
    shape, out_shape = site.shape(0), site.out_shape()
    order = axes + tuple(axis for axis in range(len(shape)) if axis not in axes)
    length = int(np.prod([shape[axis] for axis in axes]))

    def kernel(*operands: Any) -> list[Any]:
        values = [x.transpose(order).reshape(length, *out_shape) for x in operands[:count]]
        first = operands[count:]
        left = length
        while left > 1:
            half = left // 2
            rest = [value[2 * half :] for value in values]
            joined = combine([value[:half] for value in values] + [value[half : 2 * half] for value in values])
            values = [np.concatenate(pair) for pair in zip(joined, rest, strict=True)]
            left = len(values[0])
        if not left:
            return [np.full(out_shape, value) for value in first]
        whole = [np.broadcast_to(value, out_shape) for value in first]
        return [np.array(value) for value in combine(whole + [value[0] for value in values])]

    return kernel


def elementwise_block(site: Site, name: str) -> Any:
    """Makes a function of lists of arrays of one shape from the jaxpr of a param, which is for single elements."""
    jaxpr = site.node.params[name]
    if "consts" in site.node.params:
        jaxpr = core.ClosedJaxpr(jaxpr, site.node.params["consts"])
    for inner in sorted({node.primitive for node in FlatJaxpr(jaxpr).nodes}):
        if inner not in RULES or not RULES[inner].broadcasts:
            raise site.no_rule(f"{inner!r} in what combines two elements")
    return block_of(site, name, jaxpr).bind(None)


def _cumulative(site: Site, ufunc: np.ufunc) -> Kernel:
    axis, dtype = site.param("axis"), site.out_dtype()
    wide = wider(dtype)

    def kernel(x: Any) -> Any:
        return ufunc.accumulate(x.astype(wide, copy=False), axis, wide).astype(dtype, copy=False)

    if not site.param("reverse"):
        return kernel
    back = (slice(None),) * axis + (slice(None, None, -1),)
    return lambda x: kernel(x[back])[back]


@rule("cumsum")
def cumsum(site: Site) -> Kernel:
    return _cumulative(site, np.add)


@rule("cumprod")
def cumprod(site: Site) -> Kernel:
    return _cumulative(site, np.multiply)


@rule("cummax")
def cummax(site: Site) -> Kernel:
    return _cumulative(site, np.maximum)


@rule("cummin")
def cummin(site: Site) -> Kernel:
    return _cumulative(site, np.minimum)


@rule("cumlogsumexp")
def cumlogsumexp(site: Site) -> Kernel:
    if site.out_dtype().kind == "c":
        raise site.no_rule("complex numbers")
    return _cumulative(site, np.logaddexp)


def _sortable(x: Any) -> Any:
    """`x` in a type that NumPy can sort, with NaN last."""
    return x.astype(np.float32) if is_narrow_float(x.dtype) else x


@rule("sort")
def sort(site: Site) -> Kernel:
    axis, keys = site.param("dimension"), site.param("num_keys")

    def several(*operands: Any) -> list[Any]:
        if keys == 1:
            order = np.argsort(_sortable(operands[0]), axis, kind="stable")
        else:
            # The last key of lexsort is the first to sort by.
            order = np.lexsort([_sortable(x) for x in operands[keys - 1 :: -1]], axis)
        return [np.take_along_axis(x, order, axis) for x in operands]

    def one(x: Any) -> list[Any]:
        return [np.sort(_sortable(x), axis, kind="stable").astype(x.dtype, copy=False)]

    return several if len(site.node.inputs) > 1 else one


@rule("top_k")
def top_k(site: Site) -> Kernel:
    k, dtype = site.param("k"), site.out_dtype(1)
    axis = site.node.params.get("axis", site.ndim(0) - 1)

    def kernel(x: Any) -> tuple[Any, Any]:
        x = np.moveaxis(x, axis, -1)
        # Sorted from the back, so that the first of equal elements in x comes last.
        order = np.argsort(_sortable(x[..., ::-1]), -1, kind="stable")[..., ::-1][..., :k]
        places = x.shape[-1] - 1 - order
        values = np.take_along_axis(x, places, -1)
        return np.moveaxis(values, -1, axis), np.moveaxis(places.astype(dtype), -1, axis)

    return kernel
