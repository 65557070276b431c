"""Assigning to a slice of a variable: `v[0:2].assign(...)`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from penstock.graph.opdef import op
from penstock.kernel.types import INDEX, Array
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.array.slicing import index_of, slice_of


def _assigned(variable: Array, begin: Array, end: Array, strides: Array, value: Array, attrs: dict[str, int]) -> Array:
    items, index, _ = index_of(attrs, variable.shape, begin, end, strides)
    dims = iter(zip(variable.shape, index, strict=True))
    shown: list[int] = []  # the shape of the slice
    kept: list[int] = []  # the same without new axes
    for item in items:
        if item.dim is None:
            shown.append(1)
            continue
        dim, at = next(dims)
        if isinstance(at, slice_of):
            kept.append(len(range(dim)[at]))
            shown.append(kept[-1])
    if value.ndim and tuple(value.shape) != tuple(shown):
        raise ValueError(f"the slice has shape {shown} and the value {list(value.shape)}: they must be the same")
    if variable.dtype == object:  # strings, which stay on the host
        changed = variable.copy()
        changed[tuple(index)] = np.broadcast_to(value, shown).reshape(kept)
        return changed
    new = jnp.broadcast_to(value, shown).reshape(kept)
    return jnp.asarray(variable).at[tuple(index)].set(new)


@op(
    "StridedSliceAssign",
    "&T, Index, Index, Index, T -> output_ref: &T",
    static="strides",
    writes="ref",
    grad=refuse_gradient,
    shape=lambda op: [op.input_list[0].shape],
    Index=INDEX,
)
def strided_slice_assign(
    ref: Array,
    begin: Array,
    end: Array,
    strides: Array,
    value: Array,
    *,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Array:
    attrs = {
        "begin_mask": begin_mask,
        "end_mask": end_mask,
        "ellipsis_mask": ellipsis_mask,
        "new_axis_mask": new_axis_mask,
        "shrink_axis_mask": shrink_axis_mask,
    }
    return _assigned(ref, begin, end, strides, value, attrs)


@op(
    "ResourceStridedSliceAssign",
    "resource, Index, Index, Index, T ->",
    static="strides",
    writes="ref",
    no_gradient=True,
    Index=INDEX,
)
def resource_strided_slice_assign(
    ref: Array,
    begin: Array,
    end: Array,
    strides: Array,
    value: Array,
    *,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Array:
    attrs = {
        "begin_mask": begin_mask,
        "end_mask": end_mask,
        "ellipsis_mask": ellipsis_mask,
        "new_axis_mask": new_axis_mask,
        "shrink_axis_mask": shrink_axis_mask,
    }
    return _assigned(ref, begin, end, strides, value, attrs)
