"""Functions that clip values and norms, mostly of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.graph.scopes import colocate_with, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, joining, passthrough, ranges, reshaping
from penstock.ops.array.selection import select
from penstock.ops.math import arithmetic, casting, compare, reduce, unary
from penstock.ops.nn import cross_entropy


def _values(t: Any, name: str) -> Tensor:
    return convert_to_tensor(t.values if isinstance(t, IndexedSlices) else t, name=name)


def _like(t: Any, values: Tensor) -> Any:
    return IndexedSlices(values, t.indices, t.dense_shape) if isinstance(t, IndexedSlices) else values


def clip_by_value(
    t: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> Any:
    """Each element brought into [clip_value_min, clip_value_max].

    >>> tf.clip_by_value(gradient, -1.0, 1.0)
    """
    with name_scope(name, "clip_by_value", [t, clip_value_min, clip_value_max]) as scope:
        values = _values(t, "t")
        below = arithmetic.minimum(values, clip_value_max)
        values.shape.assert_is_compatible_with(below.shape)
        within = arithmetic.maximum(below, clip_value_min, name=scope)
        values.shape.assert_is_compatible_with(within.shape)
        return _like(t, within)


def clip_by_norm(t: TensorLike, clip_norm: TensorLike, axes: TensorLike = None, name: str | None = None) -> Any:
    """`t`, scaled down if necessary so that its L2 norm (along `axes`) is at most `clip_norm`."""
    with name_scope(name, "clip_by_norm", [t, clip_norm]) as scope:
        values = _values(t, "t")
        squares = reduce.reduce_sum(arithmetic.mul(values, values, name="mul"), axes, keepdims=True)
        positive = compare.greater(squares, 0)
        # The square root has no derivative at 0.
        safe = select(positive, squares, creation.ones_like(squares))
        norm = select(positive, unary.sqrt(safe), squares)
        scaled = arithmetic.mul(values, clip_norm, name="mul")
        values.shape.assert_is_compatible_with(scaled.shape)
        clipped = arithmetic.truediv(scaled, arithmetic.maximum(norm, clip_norm))
        return _like(t, passthrough.identity(clipped, name=scope))


def global_norm(t_list: TensorLike, name: str | None = None) -> Tensor:
    """The L2 norm of all elements of a list of tensors; None in the list is skipped."""
    tensors = _list(t_list)
    with name_scope(name, "global_norm", tensors):
        halves = []
        for i, t in enumerate(tensors):
            if t is not None:
                values = _values(t, f"t_{i}")
                with colocate_with(values):
                    halves.append(cross_entropy.l2_loss(values))
        half = reduce.reduce_sum(joining.stack(halves))
        two = make_constant(2.0, half.dtype.base_dtype)
        norm: Tensor = unary.sqrt(arithmetic.mul(half, two, name="mul"), name="global_norm")
        return norm


def clip_by_global_norm(
    t_list: TensorLike, clip_norm: TensorLike, use_norm: TensorLike = None, name: str | None = None
) -> tuple[list[Any], Tensor]:
    """A list of tensors scaled down together so that their global norm is at most `clip_norm`, and that norm.

    >>> clipped, norm = tf.clip_by_global_norm(gradients, 5.0)
    """
    tensors = _list(t_list)
    norm: Tensor = global_norm(tensors, name) if use_norm is None else use_norm
    with name_scope(name, "clip_by_global_norm", [*tensors, clip_norm]) as scope:
        norm = convert_to_tensor(norm)
        inverse = 1.0 / norm  # type: ignore[operator]
        limit = arithmetic.truediv(make_constant(1.0, norm.dtype.base_dtype), clip_norm)
        factor = clip_norm * arithmetic.minimum(inverse, limit)
        # norm - norm is NaN if the norm is infinite: then all gradients become NaN and the error is visible.
        scale = arithmetic.add(factor, arithmetic.sub(norm, norm, name="sub"), name="add")
        clipped: list[Any] = []
        for i, t in enumerate(tensors):
            if t is None:
                clipped.append(None)
                continue
            values = _values(t, f"t_{i}")
            with colocate_with(values):
                scaled = arithmetic.mul(values, casting.cast(scale, values.dtype.base_dtype), name="mul")
                clipped.append(_like(t, passthrough.identity(scaled, name=f"{scope}_{i}")))
        return clipped, norm


def clip_by_average_norm(t: TensorLike, clip_norm: TensorLike, name: str | None = None) -> Tensor:
    """`t`, scaled down if necessary so that its L2 norm divided by its size is at most `clip_norm`."""
    with name_scope(name, "clip_by_average_norm", [t, clip_norm]) as scope:
        t = convert_to_tensor(t, name="t")
        count = casting.cast(reshaping.size(t), dt.float32)
        squares = reduce.reduce_sum(arithmetic.mul(t, t, name="mul"), ranges.range(reshaping.rank(t)))
        inverse = unary.rsqrt(squares)
        scaled = arithmetic.mul(t, clip_norm, name="mul")
        by_size = arithmetic.mul(inverse, count, name="mul")
        limit = arithmetic.truediv(make_constant(1.0, dt.float32), clip_norm)
        product = arithmetic.mul(scaled, arithmetic.minimum(by_size, limit), name="mul")
        clipped: Tensor = passthrough.identity(product, name=scope)
        return clipped


def _list(t_list: Any) -> list[Any]:
    if not isinstance(t_list, Sequence) or isinstance(t_list, str):
        raise TypeError(f"`t_list` must be a list of tensors, received {t_list!r}.")
    return list(t_list)
