"""Shape rules that several ops share, and helpers for rules.

A rule takes the new Operation and returns one shape per output.
"""

from __future__ import annotations

from typing import Any

from penstock.graph.constant import constant_value, constant_value_as_shape
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape, broadcast_shape

Shapes = list[TensorShape]


def scalar(op: Operation) -> Shapes:
    """Every output is a scalar."""
    return [TensorShape.of(()) for _ in op.outputs]


def unknown(op: Operation) -> Shapes:
    """Nothing is known."""
    return [TensorShape.of(None) for _ in op.outputs]


def unchanged(op: Operation) -> Shapes:
    """Every output has the shape of the first input."""
    return [op.input_list[0].shape for _ in op.outputs]


def broadcast(op: Operation) -> Shapes:
    """The inputs broadcast against each other."""
    shape = op.input_list[0].shape
    for tensor in op.input_list[1:]:
        shape = broadcast_pair(shape, tensor.shape)
    return [shape]


def broadcast_pair(a: TensorShape, b: TensorShape) -> TensorShape:
    """`broadcast_shape` with an error message that names the two sizes."""
    if a._dims is not None and a._dims == b._dims and None not in a._dims:
        return a
    try:
        return broadcast_shape(a, b)
    except ValueError:
        x, y = next(
            (x, y)
            for x, y in zip(reversed(a._dims or ()), reversed(b._dims or ()), strict=False)
            if None not in (x, y) and x != y and 1 not in (x, y)
        )
        raise ValueError(f"Dimensions must be equal, but are {x} and {y}") from None


def merged(op: Operation) -> Shapes:
    """All inputs have one shape, which is also the output's."""
    shape = op.input_list[0].shape
    for tensor in op.input_list[1:]:
        shape = shape.merge_with(tensor.shape)
    return [shape]


def same_as(index: int) -> Any:
    """Every output has the shape of input `index`."""

    def rule(op: Operation) -> Shapes:
        return [op.input_list[index].shape for _ in op.outputs]

    return rule


def from_attr(op: Operation) -> Shapes:
    """The shape is the attr `shape`."""
    return [op.attrs["shape"]]


def from_value(index: int) -> Any:
    """The shape is the value of input `index`."""

    def rule(op: Operation) -> Shapes:
        return [constant_value_as_shape(op.input_list[index])]

    return rule


def matmul(op: Operation) -> Shapes:
    """[m, k] x [k, n], either transposed by its attr."""
    a, b = (t.shape.with_rank(2) if t.shape.rank in (None, 2) else _not_rank_2(t.shape) for t in op.input_list)
    (m, k1), (k2, n) = a.as_list(), b.as_list()
    if op.attrs["transpose_a"]:
        m, k1 = k1, m
    if op.attrs["transpose_b"]:
        k2, n = n, k2
    if k1 is not None and k2 is not None and k1 != k2:
        raise ValueError(f"Dimensions must be equal, but are {k1} and {k2}")
    return [TensorShape.of((m, n))]


def _not_rank_2(shape: TensorShape) -> TensorShape:
    raise ValueError(f"Shape must be rank 2 but is rank {shape.rank}")


def reduction(op: Operation) -> Shapes:
    """The axes of input 1 are removed, or become 1 with keep_dims."""
    shape = op.input_list[0].shape
    keep = op.attrs.get("keep_dims", False)
    axes = constant_value(op.input_list[1])
    if shape.rank is None:
        if axes is not None and axes.ndim > 1:
            raise ValueError("Shape must be at most rank 1 but is rank 2")
        return [TensorShape.of(None)]
    if axes is None:
        # Not even the rank is known: the axes may name one axis twice.
        return [TensorShape.of((None,) * shape.rank if keep else None)]
    chosen = set()
    for axis in axes.reshape(-1).tolist():
        if not -shape.rank <= axis < shape.rank:
            raise ValueError(f"Invalid reduction dimension {axis} for input with {shape.rank} dimensions.")
        chosen.add(axis % shape.rank)
    dims = shape.as_list()
    if keep:
        return [TensorShape.of(tuple(1 if i in chosen else d for i, d in enumerate(dims)))]
    return [TensorShape.of(tuple(d for i, d in enumerate(dims) if i not in chosen))]


# Helpers for rules


def merge(a: TensorShape, b: TensorShape) -> TensorShape:
    """Combines two shapes of one tensor; ValueError in TensorFlow's words if they contradict."""
    left, right = a._dims, b._dims
    if left is None or right is None or left == right:
        return b if left is None else a
    if len(left) != len(right):
        raise ValueError(f"Shapes must be equal rank, but are {len(left)} and {len(right)}")
    for i, (x, y) in enumerate(zip(left, right, strict=True)):
        if x is not None and y is not None and x != y:
            raise ValueError(
                f"Dimension {i} in both shapes must be equal, but are {x} and {y}. "
                f"Shapes are {brief(a)} and {brief(b)}."
            )
    return TensorShape.of(tuple(y if x is None else x for x, y in zip(left, right, strict=True)))


def brief(shape: Any) -> str:
    """A shape as error messages show it: `[?,3]`."""
    dims = shape.as_list() if isinstance(shape, TensorShape) else list(shape)
    return "[" + ",".join("?" if d is None else str(d) for d in dims) + "]"


def require_rank(shape: TensorShape, rank: int) -> TensorShape:
    """`shape` with rank `rank`; ValueError if it has another."""
    if shape.rank is not None and shape.rank != rank:
        raise ValueError(f"Shape must be rank {rank} but is rank {shape.rank}")
    return shape.with_rank(rank)
