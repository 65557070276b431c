"""Python's indexing of tensors: `x[1:, ..., tf.newaxis]`."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dimension import Dimension
from penstock.graph.opdef import op_of
from penstock.graph.operation import Tensor, overload
from penstock.graph.scopes import name_scope
from penstock.kernel.types import INDEX16
from penstock.ops.array.joining import stack
from penstock.ops.array.selection import boolean_mask
from penstock.ops.array.slicing import strided_slice

newaxis = None
_INDEX_ERROR = (
    "Only integers, slices (`:`), ellipsis (`...`), tf.newaxis (`None`) and scalar tf.int32/tf.int64 tensors are "
    "valid indices, got {!r}"
)


def _check_index(value: Any) -> Any:
    if isinstance(value, Dimension):
        return value.value
    if isinstance(value, Tensor):
        if value.dtype.base_dtype not in INDEX16 or value.shape.rank not in (None, 0):
            raise TypeError(_INDEX_ERROR.format(value))
        return value
    if hasattr(value, "_as_tensor"):
        return _check_index(convert_to_tensor(value))
    if isinstance(value, (bool, np.bool_, str, bytes)) or not hasattr(value, "__index__"):
        raise TypeError(_INDEX_ERROR.format(value))
    return int(value)


def _widest(values: list[Any]) -> Any:
    """The widest type of the tensors among `values`; None if there are no tensors."""
    found = {v.dtype.base_dtype for v in values if isinstance(v, Tensor)}
    return next((d for d in (dt.int64, dt.int32, dt.int16) if d in found), None)


def get_item(tensor: Any, slice_spec: Any, var: Any = None) -> Tensor:
    """`tensor[slice_spec]`: integers, slices, `...`, `tf.newaxis`, scalar tensors, or a bool tensor as a mask.

    >>> x[:, 1:, tf.newaxis]
    """
    if _is_mask(slice_spec):
        return boolean_mask(tensor, slice_spec)
    spec = list(slice_spec) if isinstance(slice_spec, (list, tuple)) else [slice_spec]
    kinds = ("begin_mask", "end_mask", "shrink_axis_mask", "new_axis_mask", "ellipsis_mask")
    masks: dict[str, Any] = dict.fromkeys(kinds, 0)
    begin: list[Any] = []
    end: list[Any] = []
    strides: list[Any] = []
    for i, item in enumerate(spec):
        bit = 1 << i
        if isinstance(item, slice):
            parts = [None if _absent(p) else _check_index(p) for p in (item.start, item.stop, item.step)]
            kind = _widest(parts)
            masks["begin_mask"] |= bit * (parts[0] is None)
            masks["end_mask"] |= bit * (parts[1] is None)
            for into, part, default in zip((begin, end, strides), parts, (0, 0, 1), strict=True):
                if part is None:
                    # As in TensorFlow, a missing bound becomes a tensor of the type of the other bounds.
                    part = default if kind is None else make_constant(default, kind)
                into.append(part)
        elif item is Ellipsis or item is None:
            masks["ellipsis_mask" if item is Ellipsis else "new_axis_mask"] |= bit
            begin.append(0)
            end.append(0 if item is Ellipsis else 1)
            strides.append(1)
        else:
            index = _check_index(item)
            masks["shrink_axis_mask"] |= bit
            begin.append(index)
            end.append(index + 1)
            wide = isinstance(index, Tensor) and index.dtype.base_dtype != dt.int32
            strides.append(make_constant(1, index.dtype.base_dtype) if wide else 1)
    with name_scope(None, "strided_slice", [tensor, *begin, *end, *strides]) as name:
        first, last, step = _packed_bounds(begin, end, strides)
        return strided_slice(convert_to_tensor(tensor), first, last, step, var=var, name=name, **masks)


def _packed_bounds(*bounds: list[Any]) -> list[Tensor]:
    if not bounds[0]:
        empty = make_constant([], dt.int32)
        return [empty] * 3
    vectors = [stack(b) for b in bounds]
    widest = _widest(vectors)
    return [v if v.dtype == widest else op_of("Cast")(v, DstT=widest, name="Cast") for v in vectors]


def _absent(part: Any) -> bool:
    return part is None or (isinstance(part, Dimension) and part.value is None)


def _is_mask(spec: Any) -> bool:
    if isinstance(spec, (Tensor, np.ndarray)):
        return bool(spec.dtype == (dt.bool if isinstance(spec, Tensor) else np.bool_)) and len(spec.shape) > 0
    return False


overload("getitem", get_item)
