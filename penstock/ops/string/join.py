"""Ops that join strings, elementwise, along axes and by segments, and that fill templates with tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import OutOfRangeError
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import INDEX, INDEX32
from penstock.ops.array.creation import constant
from penstock.ops.array.ranges import range as range_of
from penstock.ops.array.reshaping import rank as rank_of
from penstock.ops.math.arithmetic import subtract
from penstock.ops.string.forms import invalid, listed, texts


def _join_shape(op: Operation) -> list[TensorShape]:
    parts = [t.shape for t in op.input_list]
    if all(shape.rank == 0 for shape in parts):
        return [TensorShape.of(())]
    joined = TensorShape.of(None)
    for shape in parts:
        if shape.rank:
            joined = shapes.merge(joined, shape)
    return [joined]


@op("StringJoin", "N*string -> output: string", host=True, no_gradient=True, shape=_join_shape)
def string_join_op(inputs: Any, *, separator: str = "") -> Any:
    whole = [np.shape(part) for part in inputs if np.ndim(part)]
    if len(set(whole)) > 1:
        raise invalid(f"StringJoin: inputs that are no scalars must have one shape, received {whole}.")
    glue = separator.encode("utf-8", "surrogateescape")
    if not whole:
        return texts([glue.join(listed(part)[0] for part in inputs)], ())
    count = int(np.prod(whole[0]))
    columns = [listed(part) if np.ndim(part) else listed(part) * count for part in inputs]
    return texts([glue.join(row) for row in zip(*columns, strict=True)], whole[0])


def string_join(inputs: TensorLike, separator: str = "", name: str | None = None) -> Tensor:
    """Joins strings at the same place of several tensors: `tf.string_join([first, last], separator=" ")`."""
    joined: Tensor = string_join_op(inputs, separator=separator, name=name)
    return joined


def _reduced_shape(op: Operation) -> list[TensorShape]:
    shape = op.input_list[0].shape
    axes = constant_value(op.input_list[1])
    if shape.rank is not None and axes is not None and axes.size == 0:
        return [shape]
    return shapes.reduction(op)


@op("ReduceJoin", "string, int32 -> output: string", host=True, no_gradient=True, shape=_reduced_shape)
def reduce_join_op(inputs: Any, reduction_indices: Any, *, keep_dims: bool = False, separator: str = "") -> Any:
    strings = np.asarray(inputs, object)
    axes = []
    for axis in np.asarray(reduction_indices).reshape(-1).tolist():
        if not -strings.ndim <= axis < strings.ndim:
            raise OutOfRangeError(f"Invalid reduction dimension {axis} for input with {strings.ndim} dimension(s)")
        axes.append(axis % strings.ndim)
    if len(set(axes)) < len(axes):
        raise invalid(f"Duplicate reduction dimension in {axes}")
    kept = [axis for axis in range(strings.ndim) if axis not in axes]
    # The first axis is joined first, so it varies fastest.
    rows = strings.transpose(*kept, *reversed(axes)).reshape(
        int(np.prod([strings.shape[a] for a in kept])), int(np.prod([strings.shape[a] for a in axes]))
    )
    glue = separator.encode("utf-8", "surrogateescape")
    shape = [1 if a in axes else strings.shape[a] for a in range(strings.ndim) if keep_dims or a not in axes]
    return texts([glue.join(row) for row in rows.tolist()], tuple(shape))


def reduce_join(
    inputs: TensorLike,
    axis: TensorLike = None,
    keep_dims: bool | None = None,
    separator: str = "",
    name: str | None = None,
    reduction_indices: TensorLike = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Joins the strings along axes, in the order of `axis`; without it, all of them.

    >>> tf.reduce_join([["a", "b"], ["c", "d"]], axis=0, separator="-")  # ["a-c", "b-d"]
    """
    axis = reduction_indices if axis is None else axis
    keep = bool(keep_dims if keepdims is None else keepdims)
    with name_scope(name, "ReduceJoin", [inputs, axis]):
        strings = convert_to_tensor(inputs)
        if axis is None:
            count = strings.shape.rank
            axis = (
                range_of(subtract(rank_of(strings), 1, name="sub"), -1, -1)
                if count is None
                else constant(np.arange(count - 1, -1, -1), "int32")
            )
        # The node repeats the name of its scope: `ReduceJoin/ReduceJoin`.
        joined: Tensor = reduce_join_op(strings, axis, keep_dims=keep, separator=separator, name="ReduceJoin")
    return joined


def _segments_shape(op: Operation) -> list[TensorShape]:
    strings, ids = (t.shape for t in op.input_list[:2])
    count = constant_value(op.input_list[2])
    if strings.rank is None or ids.rank is None:
        return [TensorShape.of(None)]
    if ids.rank == 0 or ids.rank > strings.rank:
        raise ValueError(f"Shape must be at least rank {ids.rank} but is rank {strings.rank}")
    for a, b in zip(strings.as_list(), ids.as_list(), strict=False):
        if a is not None and b is not None and a != b:
            raise ValueError(f"Dimensions must be equal, but are {a} and {b}")
    return [TensorShape.of((None if count is None else int(count), *strings.as_list()[ids.rank :]))]


@op(
    "UnsortedSegmentJoin",
    "string, Tindices, Tnumsegments -> output: string",
    host=True,
    no_gradient=True,
    shape=_segments_shape,
    Tindices=INDEX,
    Tnumsegments=INDEX32,
)
def unsorted_segment_join_op(inputs: Any, segment_ids: Any, num_segments: Any, *, separator: str = "") -> Any:
    strings, ids, count = np.asarray(inputs, object), np.asarray(segment_ids), int(num_segments)
    if ids.ndim == 0 or strings.shape[: ids.ndim] != ids.shape:
        raise invalid(f"segment_ids of shape {ids.shape} must be a prefix of the strings' shape {strings.shape}.")
    if count < 0:
        raise invalid(f"num_segments must not be negative, received {count}.")
    if ((ids < 0) | (ids >= count)).any():
        raise invalid(f"segment_ids must be in [0, {count}), received {ids[(ids < 0) | (ids >= count)][0]}.")
    inner = strings.shape[ids.ndim :]
    rows = strings.reshape(ids.size, int(np.prod(inner)))
    gathered: list[list[list[bytes]]] = [[[] for _ in range(rows.shape[1])] for _ in range(count)]
    for segment, row in zip(ids.reshape(-1).tolist(), rows.tolist(), strict=True):
        for cell, text in zip(gathered[segment], row, strict=True):
            cell.append(text)
    glue = separator.encode("utf-8", "surrogateescape")
    return texts([glue.join(cell) for row in gathered for cell in row], (count, *inner))


def unsorted_segment_join(
    inputs: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, separator: str = "", name: str | None = None
) -> Tensor:
    """Joins the strings with the same segment number: `tf.strings.unsorted_segment_join(["a", "b"], [1, 1], 2)`."""
    joined: Tensor = unsorted_segment_join_op(inputs, segment_ids, num_segments, separator=separator, name=name)
    return joined


# Templates


@op("StringFormat", "list(T) -> output: string", host=True, no_gradient=True, shape=shapes.scalar, T=Types())
def string_format_op(
    inputs: Any, *, T: list[DType], template: str = "%s", placeholder: str = "%s", summarize: int = 3
) -> Any:
    pieces = template.split(placeholder)
    if len(pieces) - 1 != len(inputs):
        raise invalid(f"StringFormat: {len(pieces) - 1} placeholders in {template!r}, but {len(inputs)} tensors.")
    text = pieces[0]
    for value, piece in zip(inputs, pieces[1:], strict=True):
        text += summary_of(np.asarray(value), summarize) + piece
    return texts([text.encode("utf-8", "surrogateescape")], ())


def string_format(
    template: str, inputs: Any, placeholder: str = "{}", summarize: int = 3, name: str | None = None
) -> Tensor:
    """`template` with its placeholders replaced by the values of tensors; the middle of long tensors is left out.

    >>> tf.strings.format("step {}: {}", (step, loss))
    """
    given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if template.count(placeholder) != len(given):
        raise ValueError(
            f"The template expects {template.count(placeholder)} tensors, but the inputs only has {len(given)}. "
            "Please ensure the number of placeholders in template matches inputs length."
        )
    text: Tensor = string_format_op(given, template=template, placeholder=placeholder, summarize=summarize, name=name)
    return text


def summary_of(array: np.ndarray, ends: int) -> str:
    """An array as text, with at most `ends` elements at both ends of each axis; all of them if `ends` is negative.

    >>> summary_of(np.arange(10), 2)
    '[0 1 ... 8 9]'
    """
    ends = array.size if ends < 0 else min(ends, array.size)

    def text_of(part: Any, axis: int) -> str:
        if axis == array.ndim:
            return _element(part, array.dtype)
        inner = array.ndim - 1 - axis
        gap = "\n" * inner + " " * (axis + 1) if inner else " "
        count = array.shape[axis]
        found = [text_of(part[i], axis + 1) for i in range(min(ends, count))]
        text = gap.join(found)
        if count > 2 * ends:
            text += gap + "..."
        for i in range(max(ends, count - ends), count):
            text += gap + text_of(part[i], axis + 1)
        return f"[{text}]"

    return text_of(array if array.ndim else array[()], 0)


_ESCAPES = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}


def _element(value: Any, dtype: np.dtype) -> str:
    if dtype.kind == "O":
        return '"' + "".join(_ESCAPES.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in value) + '"'
    if dtype.kind == "b":
        return str(int(value))
    if dtype.kind == "c":
        return "?"  # as TensorFlow shows them
    if dtype.kind in "iu":
        return str(int(value))
    number = float(value)
    few, many = (15, 17) if dtype.itemsize == 8 else (6, 9)
    short = f"{number:.{few}g}"
    exact = np.float64 if dtype.itemsize == 8 else np.float32  # narrower floats are shown as float32
    return short if exact(float(short)) == exact(value) or number != number else f"{number:.{many}g}"
