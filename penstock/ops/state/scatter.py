"""Ops that change rows of a variable, such as ScatterAdd, for references and for handles.

An index that occurs twice counts twice; where a row is replaced, the last one wins. An index out of range is an error
that leaves the variable as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.checks import require_in_range, rows_to_write
from penstock.graph.opdef import OpDef, Types, op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel.types import FLOATS, INDEX, Array
from penstock.ops.state.variable_ops import UPDATABLE

ORDERED = Types(*FLOATS, dt.int32, dt.int64)

Change = Callable[[Array, Array, Array], Array]  # (rows, positions, updates) -> rows


def _replace(rows: Array, at: Array, updates: Array) -> Array:
    if rows.dtype == object:  # strings, which stay on the host
        changed = rows.copy()
        changed[at] = updates
        return changed
    if at.shape[0] < 2:
        return rows.at[at].set(updates)
    # XLA does not define which of two equal positions wins, so only the last of each is kept.
    order = jnp.argsort(at, stable=True)
    ordered = at[order]
    last = jnp.concatenate([ordered[1:] != ordered[:-1], jnp.ones(1, bool)])
    return rows.at[jnp.where(last, ordered, rows.shape[0])].set(updates[order], mode="drop")


def _divide(rows: Array, at: Array, updates: Array) -> Array:
    product = jnp.ones_like(rows).at[at].multiply(updates)
    return jax.lax.div(rows, product)


CHANGES: dict[str, Change] = {
    "Update": _replace,
    "Add": lambda rows, at, updates: rows.at[at].add(updates),
    "Sub": lambda rows, at, updates: rows.at[at].add(-updates),
    "Mul": lambda rows, at, updates: rows.at[at].multiply(updates),
    "Div": _divide,
    "Min": lambda rows, at, updates: rows.at[at].min(updates),
    "Max": lambda rows, at, updates: rows.at[at].max(updates),
}


def scatter_rows(change: Change, variable: Array, indices: Array, updates: Array) -> Array:
    """`variable` with rows `indices` changed; `updates` has a row for each index, or is a scalar."""
    if updates.ndim and tuple(updates.shape) != (*indices.shape, *variable.shape[1:]):
        raise ValueError(
            f"Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], received updates.shape "
            f"{list(updates.shape)}, indices.shape {list(indices.shape)}, params.shape {list(variable.shape)}"
        )
    require_in_range(indices, variable.shape[0])
    module = _module(change, variable)
    at = rows_to_write(module.asarray(indices).reshape(-1), variable.shape[0])
    wide = module.broadcast_to(updates, (*indices.shape, *variable.shape[1:]))
    return change(module.asarray(variable), at, wide.reshape(at.shape[0], *variable.shape[1:]))


def _module(change: Change, variable: Array) -> Any:
    """NumPy for strings, which can only be replaced, else jax.numpy."""
    if variable.dtype != object:
        return jnp
    if change is not _replace:
        raise InvalidArgumentError("strings can be replaced; there is no other kernel for them")
    return np


def scatter_nd(change: Change, variable: Array, indices: Array, updates: Array) -> Array:
    """`variable` with the slices changed that the last axis of `indices` addresses."""
    depth = indices.shape[-1]
    if depth > variable.ndim:
        raise ValueError(f"indices address {depth} dimensions of a variable of shape {list(variable.shape)}")
    expected = (*indices.shape[:-1], *variable.shape[depth:])
    if tuple(updates.shape) != expected:
        raise ValueError(f"updates must have shape {list(expected)}, received {list(updates.shape)}")
    module = _module(change, variable)
    at = module.zeros(indices.shape[:-1], indices.dtype)
    count = 1
    for i in range(depth):
        size = variable.shape[i]
        require_in_range(indices[..., i], size)
        at = at * size + module.clip(indices[..., i], 0, max(size - 1, 0))
        count *= size
    rows = module.asarray(variable).reshape(count, *variable.shape[depth:])
    at = rows_to_write(at.reshape(-1), count)
    changed = change(rows, at, module.asarray(updates).reshape(-1, *variable.shape[depth:]))
    return changed.reshape(variable.shape)


def _rows_shape(op: Operation) -> list[TensorShape]:
    variable, indices, updates = (t.shape for t in op.input_list)
    if updates.rank != 0 and variable.rank is not None and indices.rank is not None:
        expected = indices.concatenate(variable.as_list()[1:])
        if not updates.is_compatible_with(expected):
            raise ValueError(
                f"Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], received "
                f"updates.shape {updates}, indices.shape {indices}, params.shape {variable}"
            )
    return [variable]


def _nd_shape(op: Operation) -> list[TensorShape]:
    return [op.input_list[0].shape]


def _declare_rows(kind: str) -> tuple[OpDef, OpDef]:
    change = CHANGES[kind]
    allowed = {"Update": (), "Min": ORDERED, "Max": ORDERED}.get(kind, UPDATABLE)

    def kernel(ref: Array, indices: Array, updates: Array, *, use_locking: bool = kind == "Update") -> Array:
        return scatter_rows(change, ref, indices, updates)

    def resource_kernel(resource: Array, indices: Array, updates: Array) -> Array:
        return scatter_rows(change, resource, indices, updates)

    declare = op(
        f"Scatter{kind}",
        "&T, Tindices, T -> output_ref: &T",
        writes="ref",
        no_gradient=True,
        shape=_rows_shape,
        T=allowed,
        Tindices=INDEX,
    )
    declare_resource = op(
        f"ResourceScatter{kind}",
        "resource, Tindices, dtype ->",
        writes="resource",
        no_gradient=True,
        dtype=() if kind == "Update" else UPDATABLE,
        Tindices=INDEX,
    )
    return declare(kernel), declare_resource(resource_kernel)


def _declare_nd(kind: str) -> tuple[OpDef, OpDef]:
    change = CHANGES[kind]

    def kernel(
        ref: Array,
        indices: Array,
        updates: Array,
        *,
        use_locking: bool = kind == "Update",
        bad_indices_policy: str = "",
    ) -> Array:
        return scatter_nd(change, ref, indices, updates)

    def resource_kernel(
        ref: Array, indices: Array, updates: Array, *, use_locking: bool = True, bad_indices_policy: str = ""
    ) -> Array:
        return scatter_nd(change, ref, indices, updates)

    declare = op(
        f"ScatterNd{kind}",
        "&T, Tindices, T -> output_ref: &T",
        writes="ref",
        no_gradient=True,
        shape=_nd_shape,
        T=() if kind == "Update" else UPDATABLE,
        Tindices=INDEX,
    )
    declare_resource = op(
        f"ResourceScatterNd{kind}", "resource, Tindices, T ->", writes="ref", no_gradient=True, Tindices=INDEX
    )
    return declare(kernel), declare_resource(resource_kernel)


# kind -> (op on a reference, op on a handle)
SCATTER: dict[str, tuple[Any, Any]] = {kind: _declare_rows(kind) for kind in CHANGES}
SCATTER_ND: dict[str, tuple[Any, Any]] = {kind: _declare_nd(kind) for kind in ("Update", "Add", "Sub", "Min", "Max")}
