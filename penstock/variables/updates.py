"""Functions that change variables: `tf.assign(v, x)` and the like, for both kinds of variable."""

from __future__ import annotations

from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op_of
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, joining, reshaping
from penstock.ops.math import casting
from penstock.ops.state import variable_ops
from penstock.ops.state.scatter import SCATTER, SCATTER_ND


def _is_ref(ref: Any) -> bool:
    return not hasattr(ref, "_handle")


def assign(
    ref: Any,
    value: TensorLike,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Any:
    """Replaces the value of a variable and returns it. `validate_shape=False` lets the shape change.

    >>> update = tf.assign(v, v + 1.0)
    """
    if not _is_ref(ref):
        return ref.assign(value, name=name)
    return variable_ops.assign(
        ref, value, validate_shape=validate_shape is not False, use_locking=use_locking is not False, name=name
    )


def assign_add(ref: Any, value: TensorLike, use_locking: bool | None = None, name: str | None = None) -> Any:
    """Adds to a variable and returns the new value."""
    if not _is_ref(ref):
        return ref.assign_add(value)
    return variable_ops.assign_add(ref, value, use_locking=bool(use_locking), name=name)


def assign_sub(ref: Any, value: TensorLike, use_locking: bool | None = None, name: str | None = None) -> Any:
    """Subtracts from a variable and returns the new value."""
    if not _is_ref(ref):
        return ref.assign_sub(value)
    return variable_ops.assign_sub(ref, value, use_locking=bool(use_locking), name=name)


def count_up_to(ref: Any, limit: int, name: str | None = None) -> Any:
    """Increments the variable and returns the value before; OutOfRangeError once it has reached `limit`."""
    if _is_ref(ref):
        return variable_ops.count_up_to(ref, limit=limit, name=name)
    return variable_ops.resource_count_up_to(ref.handle, limit=limit, T=ref.dtype, name=name)


def _scatter(kind: str, ref: Any, indices: Any, updates: Any, use_locking: bool, name: str | None) -> Any:
    if _is_ref(ref):
        return SCATTER[kind][0](ref, indices, updates, use_locking=use_locking, name=name)
    return ref._scatter_rows(kind, indices, updates, name)


def _scatter_nd(kind: str, ref: Any, indices: Any, updates: Any, use_locking: bool, name: str | None) -> Any:
    if _is_ref(ref):
        return SCATTER_ND[kind][0](ref, indices, updates, use_locking=use_locking, name=name)
    return ref._scatter_nd(kind, indices, updates, name)


def scatter_update(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> Any:
    """Replaces rows of a variable: `ref[indices] = updates`."""
    return _scatter("Update", ref, indices, updates, use_locking, name)


def batch_scatter_update(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> Any:
    """Replaces rows in each batch of a variable: all dimensions of `indices` but the last are batches.

    >>> tf.batch_scatter_update(v, [[0], [1]], [[5.0], [6.0]])
    """
    with name_scope(name):
        places: Any = convert_to_tensor(indices, name="indices")
        dims: Any = reshaping.shape(places)
        rank = places.shape.rank
        if rank is None:
            raise ValueError("batch_scatter_update: the rank of indices must be known.")
        address = single = reshaping.expand_dims(places, -1)
        for axis in range(rank - 2, -1, -1):
            count = dims[axis]
            numbers = op_of("Range")(0, casting.cast(count, "int32"), 1, name="Range")
            place: Any = reshaping.reshape(numbers, [1] * axis + [count] + [1] * (rank - axis))
            spread = creation.ones_like(single, dtype="int32")
            address = joining.concat([casting.cast(place * spread, places.dtype), address], -1)
        return _scatter_nd("Update", ref, address, updates, use_locking, None)


def scatter_add(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Any:
    """Adds to rows of a variable; an index that occurs twice is added twice."""
    return _scatter("Add", ref, indices, updates, use_locking, name)


def scatter_sub(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Any:
    """Subtracts from rows of a variable."""
    return _scatter("Sub", ref, indices, updates, use_locking, name)


def scatter_mul(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Any:
    """Multiplies rows of a variable."""
    return _scatter("Mul", ref, indices, updates, use_locking, name)


def scatter_div(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Any:
    """Divides rows of a variable."""
    return _scatter("Div", ref, indices, updates, use_locking, name)


def scatter_min(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Any:
    """Replaces rows of a variable by the minimum of them and `updates`."""
    return _scatter("Min", ref, indices, updates, use_locking, name)


def scatter_max(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Any:
    """Replaces rows of a variable by the maximum of them and `updates`."""
    return _scatter("Max", ref, indices, updates, use_locking, name)


def scatter_nd_update(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> Any:
    """Replaces the slices of a variable that the last axis of `indices` addresses."""
    return _scatter_nd("Update", ref, indices, updates, use_locking, name)


def scatter_nd_add(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Any:
    """Adds to the slices of a variable that the last axis of `indices` addresses."""
    return _scatter_nd("Add", ref, indices, updates, use_locking, name)


def scatter_nd_sub(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Any:
    """Subtracts from the slices of a variable that the last axis of `indices` addresses."""
    return _scatter_nd("Sub", ref, indices, updates, use_locking, name)
