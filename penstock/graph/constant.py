"""Constants: finds the values of tensors that are known before a step runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import OpError
from penstock.graph.arrays import MAX_RANK
from penstock.graph.opdef import grouped
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import TensorLike

MAX_FOLDED_ELEMENTS = 4096


def captured_from(tensor: Tensor) -> Tensor:
    """The tensor of an outer graph that a parameter of a body was captured from; any other tensor as it is."""
    while (outer := tensor.graph.stands_for(tensor)) is not None:
        tensor = outer
    return tensor


def constant_value(tensor: TensorLike, partial: bool = False) -> np.ndarray | None:
    """The value of `tensor` if it follows from constants and static shapes alone, else None.

    >>> constant_value(tf.shape(tf.zeros([2, 3])))
    array([2, 3], dtype=int32)
    """
    if not isinstance(tensor, Tensor):
        return np.asarray(tensor)
    tensor = captured_from(tensor)
    op: Operation = tensor.op
    kind = op.op_def.name
    if kind == "Const":
        value: np.ndarray = op.attrs["value"]
        return value
    if kind in ("Shape", "Size", "Rank"):
        return _value_of_shape_op(op, kind)
    if not op.op_def.numpy or not op.input_list:
        return None
    size = tensor.shape.num_elements()
    if size is not None and size > MAX_FOLDED_ELEMENTS:
        return None
    inputs = []
    for source in op.input_list:
        known = constant_value(source)
        if known is None or known.size > MAX_FOLDED_ELEMENTS:
            return None
        inputs.append(known)
    try:
        results = evaluate_kernel(op.op_def, op.attrs, [t.dtype for t in op.outputs], inputs)
        return results[int(tensor.value_index)]
    except OpError:
        return None  # such as a division by zero: an error of the step, not of building the graph


def _value_of_shape_op(op: Any, kind: str) -> np.ndarray | None:
    shape = op.input_list[0].shape
    if kind == "Rank":
        return None if shape.rank is None else np.array(shape.rank, np.int32)
    if not shape.is_fully_defined():
        return None
    out_type = op.attrs["out_type"].as_numpy_dtype
    return np.array(shape.num_elements() if kind == "Size" else shape.as_list(), out_type)


def evaluate_kernel(op_def: Any, attrs: dict[str, Any], dtypes: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Runs the kernel of a NumPy-capable op on arrays."""
    wanted = {k: v for k, v in attrs.items() if k in op_def.wants}
    with np.errstate(all="ignore"):  # infinities and wrap-around are values, as in compiled code
        result = op_def.kernel(*grouped(op_def, attrs, inputs), **wanted)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    return [np.asarray(r, t.base_dtype.as_numpy_dtype) for r, t in zip(results, dtypes, strict=True)]


def constant_value_as_shape(tensor: Any) -> TensorShape:
    """A shape given as an integer vector, as far as it is known; -1 stands for unknown.

    >>> constant_value_as_shape(tf.stack([tf.shape(x)[0], 3]))
    TensorShape([None, 3])
    """
    if not isinstance(tensor, Tensor):
        return as_shape([None if int(d) < 0 else int(d) for d in np.asarray(tensor).reshape(-1)])
    known = constant_value(tensor)
    if known is not None:
        if known.size > MAX_RANK:
            raise ValueError(f"A shape has at most {MAX_RANK} dimensions, received {known.size}.")
        return TensorShape.of(tuple(None if d < 0 else int(d) for d in known.reshape(-1).tolist()))
    tensor = captured_from(tensor)
    op: Operation = tensor.op
    kind = op.type
    if kind == "Shape":
        return op.input_list[0].shape
    if kind in ("Cast", "Identity"):
        return constant_value_as_shape(op.input_list[0])
    if kind == "Pack":
        dims = [constant_value(t) for t in op.input_list]
        return TensorShape.of(tuple(None if d is None or d < 0 else int(d) for d in dims))
    if kind == "ConcatV2":
        result = TensorShape.of(())
        for part in op.input_list[:-1]:
            result = result.concatenate(constant_value_as_shape(part))
        return result
    if kind == "StridedSlice":
        sliced = _sliced_shape(op)
        if sliced is not None:
            return sliced
    length = tensor.shape.num_elements()
    return TensorShape.of(None if length is None else (None,) * length)


def _sliced_shape(op: Any) -> TensorShape | None:
    begin, end, strides = (constant_value(t) for t in op.input_list[1:])
    attrs = op.attrs
    if begin is None or end is None or strides is None or begin.size != 1:
        return None
    if attrs["ellipsis_mask"] or attrs["new_axis_mask"] or attrs["shrink_axis_mask"]:
        return None
    whole = constant_value_as_shape(op.input_list[0])
    if whole.rank is None:
        return None
    first = None if attrs["begin_mask"] & 1 else int(begin[0])
    last = None if attrs["end_mask"] & 1 else int(end[0])
    return TensorShape.of(tuple(whole.as_list()[first : last : int(strides[0])]))
