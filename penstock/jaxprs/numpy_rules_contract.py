"""Products of matrices and convolutions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.blas import product
from penstock.jaxprs.numpy_rules import Kernel, Site, rule, wider
from penstock.jaxprs.numpy_rules_arrange import padding


@rule("dot_general")
def dot_general(site: Site) -> Kernel:
    (left_contracted, right_contracted), (left_batch, right_batch) = site.param("dimension_numbers")
    dtype = site.out_dtype()
    multiply = _product(site.dtype(0), site.dtype(1), dtype)
    if not left_batch and site.ndim(0) == site.ndim(1) == 2 and len(left_contracted) == 1:
        return _matrices(multiply, left_contracted[0], right_contracted[0])
    left_shape, right_shape = site.shape(0), site.shape(1)
    left_free = [a for a in range(len(left_shape)) if a not in left_contracted and a not in left_batch]
    right_free = [a for a in range(len(right_shape)) if a not in right_contracted and a not in right_batch]
    left_order = (*left_batch, *left_free, *left_contracted)
    right_order = (*right_batch, *right_contracted, *right_free)
    batch = tuple(left_shape[axis] for axis in left_batch)
    rows = tuple(left_shape[axis] for axis in left_free)
    columns = tuple(right_shape[axis] for axis in right_free)
    depth = math.prod(left_shape[axis] for axis in left_contracted)
    left_form = (*batch, math.prod(rows), depth)
    right_form = (*batch, depth, math.prod(columns))
    out_form = (*batch, *rows, *columns)

    def kernel(x: Any, y: Any) -> Any:
        left = x.transpose(left_order).reshape(left_form)
        right = y.transpose(right_order).reshape(right_form)
        return multiply(left, right).reshape(out_form)

    return kernel


def _matrices(multiply: Kernel, left_axis: int, right_axis: int) -> Kernel:
    if left_axis == 1:
        return multiply if right_axis == 0 else lambda x, y: multiply(x, y.T)
    return (lambda x, y: multiply(x.T, y)) if right_axis == 0 else lambda x, y: multiply(x.T, y.T)


def _product(left: np.dtype[Any], right: np.dtype[Any], out: np.dtype[Any]) -> Kernel:
    """matmul with operands and result of these types."""
    wide = wider(out)
    if left == right == out == wide:
        return product
    return lambda x, y: product(x.astype(wide, copy=False), y.astype(wide, copy=False)).astype(out, copy=False)


# Bytes of image patches that are copied at a time.
_PATCHES_BYTES = 1 << 25


@rule("conv_general_dilated")
def conv_general_dilated(site: Site) -> Kernel:
    """Multiplies image patches, as rows of a matrix, by the kernel as a matrix; groups are a batch of such products."""
    numbers = site.param("dimension_numbers")
    groups, batch_groups = site.param("feature_group_count"), site.param("batch_group_count")
    strides, dilation = site.param("window_strides"), site.param("rhs_dilation")
    dtype = site.out_dtype()
    wide = wider(dtype)
    image_shape, kernel_shape, out_shape = site.shape(0), site.shape(1), site.out_shape()
    # Orders with the channels last.
    image_order = (numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1])
    kernel_order = (*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0])
    out_order = (numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1])
    batch, *sizes, channels = (image_shape[axis] for axis in image_order)
    *window, depth, features = (kernel_shape[axis] for axis in kernel_order)
    counts = [out_shape[axis] for axis in out_order[1:-1]]
    around = zip(site.param("padding"), site.param("lhs_dilation"), strict=True)
    config = [(0, 0, 0), *((low, high, step - 1) for (low, high), step in around), (0, 0, 0)]
    pad = padding((batch, *sizes, channels), config, wide)
    empty = 0 in out_shape or 0 in (batch, channels, *window)
    group_count = max(groups, batch_groups)
    order = tuple(int(axis) for axis in np.argsort(out_order))
    rows = batch // batch_groups
    taps = math.prod(window)
    one_image = taps * channels * math.prod(counts) * wide.itemsize
    at_once = max(1, _PATCHES_BYTES // max(1, one_image * batch_groups))

    def patches(image: Any) -> Any:
        n, *middle, c = image.strides
        shape = (image.shape[0], *counts, *window, channels)
        steps = [step * stride for step, stride in zip(middle, strides, strict=True)]
        apart = [step * distance for step, distance in zip(middle, dilation, strict=True)]
        return np.lib.stride_tricks.as_strided(image, shape, (n, *steps, *apart, c), writeable=False)

    def kernel(image: Any, weights: Any) -> Any:
        if empty:
            return np.zeros(out_shape, dtype)
        image = pad(image.transpose(image_order), 0)
        # Per group: (taps and input channels, output channels).
        matrix = weights.transpose(kernel_order).astype(wide, copy=False)
        matrix = matrix.reshape(taps * depth, group_count, features // group_count).transpose(1, 0, 2)
        images = image.reshape(batch_groups, rows, *image.shape[1:])
        parts = []
        for first in range(0, rows, at_once):
            some = images[:, first : first + at_once]
            n = some.shape[1]
            columns = patches(some.reshape(batch_groups * n, *image.shape[1:]))
            if groups > 1:
                columns = columns.reshape(-1, taps, groups, depth).transpose(2, 0, 1, 3)
            product = columns.reshape(group_count, -1, taps * depth) @ matrix
            parts.append(product.reshape(group_count, n, *counts, features // group_count))
        result = np.moveaxis(np.concatenate(parts, 1) if len(parts) > 1 else parts[0], 0, -2)
        return result.reshape(rows, *counts, features).transpose(order).astype(dtype, copy=False)

    return kernel
