"""Ops that pad tensors with a constant or with reflected values."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph.constant import constant_value
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel.shapes import merge, require_rank
from penstock.kernel.types import INDEX32, Array, xp
from penstock.ops.array.joining import stack
from penstock.ops.array.reshaping import rank, reshape, shape
from penstock.ops.array.slicing import slice as slice_


def _pad_shape(op: Operation) -> list[TensorShape]:
    source, paddings = op.input_list[0].shape, op.input_list[1]
    rows = merge(require_rank(paddings.shape, 2), TensorShape.of((None, 2))).as_list()[0]
    if source.rank is not None and rows is not None and source.rank != rows:
        raise ValueError(f"Shape must be rank {rows} but is rank {source.rank}")
    count = rows if source.rank is None else source.rank
    if count is None:
        return [TensorShape.of(None)]
    known = constant_value(paddings)
    if known is None:
        return [TensorShape.of((None,) * count)]
    if (known < 0).any():
        raise ValueError("Paddings must be non-negative")
    dims = source.with_rank(count).as_list()
    return [TensorShape.of(tuple(None if d is None else d + int(k) for d, k in zip(dims, known.sum(1), strict=True)))]


def _pad_grad(op: Operation, grad: Tensor) -> list[Any]:
    tensor, paddings = op.input_list[:2]
    before = slice_(paddings, [0, 0], stack([rank(tensor), 1]))
    begin = reshape(before, [-1])
    inner = slice_(grad, begin, shape(tensor, out_type=begin.dtype))
    return [inner, None, None] if op.type == "PadV2" else [inner, None]


def _pad_values(input: Array, paddings: Array, value: Any) -> Array:
    if paddings.shape != (input.ndim, 2):
        raise ValueError(
            "The first dimension of paddings must be the rank of inputs: "
            f"{list(paddings.shape)} for {list(input.shape)}"
        )
    module = xp(input, value)
    return module.pad(input, [(int(a), int(b)) for a, b in paddings], constant_values=value)


@op(
    "Pad",
    "T, Tpaddings -> output: T",
    static="paddings",
    numpy=True,
    shape=_pad_shape,
    grad=_pad_grad,
    Tpaddings=INDEX32,
)
def pad_op(input: Array, paddings: Array) -> Array:
    zero = np.array(b"", object) if input.dtype == object else np.zeros((), input.dtype)
    return _pad_values(input, paddings, zero)


@op(
    "PadV2",
    "T, Tpaddings, T -> output: T",
    static="paddings",
    numpy=True,
    shape=_pad_shape,
    grad=_pad_grad,
    Tpaddings=INDEX32,
)
def pad_v2(input: Array, paddings: Array, constant_values: Array) -> Array:
    return _pad_values(input, paddings, constant_values)


@op("MirrorPad", "T, Tpaddings -> output: T", static="paddings", numpy=True, shape=_pad_shape, Tpaddings=INDEX32)
def mirror_pad(input: Array, paddings: Array, *, mode: str) -> Array:
    widths = [(int(a), int(b)) for a, b in paddings]
    for (before, after), dim in zip(widths, input.shape, strict=True):
        if max(before, after) > dim - (mode == "REFLECT"):
            raise ValueError(f"paddings must be no greater than the dimension: {before}, {after} greater than {dim}")
    return xp(input).pad(input, widths, mode=mode.lower())


def pad(
    tensor: TensorLike,
    paddings: TensorLike,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: TensorLike = 0,
) -> Tensor:
    """`tensor` padded before and after in every dimension: `tf.pad(x, [[1, 1], [0, 2]])`."""
    kind = mode.upper()
    result: Tensor
    if kind == "CONSTANT":
        # Only a Python number 0 selects Pad: a tensor of zeros is a value like any other.
        if not isinstance(constant_values, Tensor) and np.ndim(constant_values) == 0 and constant_values == 0:
            result = pad_op(tensor, paddings, name=name)
        else:
            result = pad_v2(tensor, paddings, constant_values, name=name)
    elif kind in ("REFLECT", "SYMMETRIC"):
        result = mirror_pad(tensor, paddings, mode=kind, name=name)
    else:
        raise ValueError(
            'Value of argument `mode` expected to be one of "CONSTANT", "REFLECT", or "SYMMETRIC". '
            f"Received `mode` = {mode}"
        )
    return result
