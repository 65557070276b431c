"""Variables: the ops that hold, read and change them. A kernel gets values and returns the new ones.

Ops that change only some rows are in `penstock.ops.state.scatter`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.errors import OutOfRangeError
from penstock.graph import dtype as dt
from penstock.graph.checks import require_in_range
from penstock.graph.constant import captured_from
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.types import INDEX, INDEX32, NUMBERS, QUANTIZED, Array, xp
from penstock.ops.array.gathering import scatter_nd
from penstock.ops.array.joining import concat
from penstock.ops.array.reshaping import expand_dims, reshape, size

UPDATABLE = Types(*NUMBERS, *QUANTIZED)


# Holding


@op("VariableV2", "-> ref: &dtype", stateful=True, shape=shapes.from_attr)
def variable_v2(*, shape: TensorShape, dtype: DType, container: str = "", shared_name: str = "") -> None:
    """A variable whose output is a reference; the worker owns its value."""


@op("Variable", "-> ref: &dtype", stateful=True, shape=shapes.from_attr)
def variable_v1(*, shape: TensorShape, dtype: DType, container: str = "", shared_name: str = "") -> None:
    """The name of VariableV2 in old graphs."""


@op("VarHandleOp", "-> resource: resource", stateful=True, shape=shapes.scalar)
def var_handle(
    *,
    container: str = "",
    shared_name: str = "",
    debug_name: str = "",
    dtype: DType,
    shape: TensorShape,
    allowed_devices: list[str] = [],  # noqa: B006
) -> None:
    """A variable whose output is a handle."""


def handle_shape(handle: Tensor) -> TensorShape:
    """The known part of the shape of a handle's variable; parameters of bodies are followed outwards."""
    handle = captured_from(handle)
    if handle.op.type == "VarHandleOp":
        shape: TensorShape = handle.op.attrs["shape"]
        return shape
    return TensorShape.of(None)


# Reading


@op(
    "ReadVariableOp",
    "resource -> value: dtype",
    stateful=True,
    shape=lambda op: [handle_shape(op.input_list[0])],
    grad=lambda op, dy: [dy],
)
def read_variable(resource: Array, *, dtype: DType) -> Array:
    return resource


@op(
    "VariableShape",
    "resource -> output: out_type",
    out_type=INDEX32,
    stateful=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((handle_shape(op.input_list[0]).rank,))],
)
def variable_shape_op(input: Array, *, out_type: DType = dt.int32) -> Array:
    return np.array(input.shape, out_type.as_numpy_dtype)


def variable_shape(handle: Tensor, name: str | None = None) -> Any:
    """The shape of a handle's variable as a tensor; a constant if it is known."""
    known = handle_shape(handle)
    if known.is_fully_defined():
        return convert_to_tensor(known.as_list(), dtype=dt.int32)
    return variable_shape_op(handle, name=name)


@op(
    "IsVariableInitialized",
    "&dtype -> is_initialized: bool",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def is_variable_initialized(ref: Any) -> Any:
    return np.array(ref.held is not None)


@op(
    "VarIsInitializedOp",
    "resource -> is_initialized: bool",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def var_is_initialized(resource: Any) -> Any:
    return np.array(resource.held is not None)


def _gather_shape(op: Operation) -> list[TensorShape]:
    params, indices = handle_shape(op.input_list[0]), op.input_list[1].shape
    batch = op.attrs["batch_dims"]
    if params.rank is None or indices.rank is None:
        return [TensorShape.of(None)]
    return [TensorShape.of(tuple(indices.as_list() + params.as_list()[batch + 1 :]))]


def _gather_grad(op: Operation, dy: Any) -> list[Any]:
    handle, indices = op.input_list
    shape = variable_shape(handle)
    count = expand_dims(size(indices), 0)
    values = reshape(dy, concat([count, shape[1:]], 0))
    return [IndexedSlices(values, reshape(indices, count), shape), None]


@op(
    "ResourceGather",
    "resource, Tindices -> output: dtype",
    Tindices=INDEX,
    stateful=True,
    shape=_gather_shape,
    grad=_gather_grad,
)
def resource_gather(
    resource: Array, indices: Array, *, batch_dims: int = 0, validate_indices: bool = True, dtype: DType
) -> Array:
    require_in_range(indices, resource.shape[batch_dims])
    if batch_dims == 0:
        return xp(resource, indices).take(resource, indices, axis=0, mode="clip")
    rest = resource.ndim - batch_dims - 1
    flat = indices.reshape(*indices.shape[:batch_dims], -1, *([1] * rest))
    rows = jnp.take_along_axis(resource, flat, axis=batch_dims, mode="clip")
    return rows.reshape(*indices.shape, *resource.shape[batch_dims + 1 :])


def _gather_nd_shape(op: Operation) -> list[TensorShape]:
    params, indices = handle_shape(op.input_list[0]), op.input_list[1].shape
    depth = indices.as_list()[-1] if indices.rank else None
    if params.rank is None or depth is None:
        return [TensorShape.of(None)]
    return [TensorShape.of(tuple(indices.as_list()[:-1] + params.as_list()[depth:]))]


def _gather_nd_grad(op: Operation, dy: Any) -> list[Any]:
    handle, indices = op.input_list
    return [scatter_nd(indices, dy, variable_shape(handle)), None]


@op(
    "ResourceGatherNd",
    "resource, Tindices -> output: dtype",
    Tindices=INDEX,
    stateful=True,
    shape=_gather_nd_shape,
    grad=_gather_nd_grad,
)
def resource_gather_nd(resource: Array, indices: Array, *, dtype: DType) -> Array:
    parts = tuple(jnp.moveaxis(indices, -1, 0))
    for part, limit in zip(parts, resource.shape, strict=False):
        require_in_range(part, limit)
    return resource.at[parts].get(mode="clip")


# Changing as a whole


def merged_shapes(op: Operation) -> list[TensorShape]:
    """The common shape of variable and value. Raises ValueError that names the dimension that differs."""
    a, b = op.input_list[0].shape, op.input_list[1].shape
    if a.rank is not None and b.rank is not None and a.rank != b.rank:
        raise ValueError(f"Shapes must be equal rank, but are {a.rank} and {b.rank}")
    for i, (x, y) in enumerate(zip(a._dims or (), b._dims or (), strict=False)):
        if None not in (x, y) and x != y:
            raise ValueError(
                f"Dimension {i} in both shapes must be equal, but are {x} and {y}. Shapes are {a} and {b}."
            )
    return [a.merge_with(b)]


def _assigned_shape(op: Operation) -> list[TensorShape]:
    return merged_shapes(op) if op.attrs["validate_shape"] else [op.input_list[1].shape]


@op("Assign", "&T, T -> output_ref: &T", writes="ref", overwrites=True, no_gradient=True, shape=_assigned_shape)
def assign(ref: Array, value: Array, *, validate_shape: bool = True, use_locking: bool = True) -> Array:
    return value


@op("AssignAdd", "&T, T -> output_ref: &T", writes="ref", no_gradient=True, shape=merged_shapes, T=UPDATABLE)
def assign_add(ref: Array, value: Array, *, use_locking: bool = False) -> Array:
    _require_same_shape(ref, value)
    return ref + value


@op("AssignSub", "&T, T -> output_ref: &T", writes="ref", no_gradient=True, shape=merged_shapes, T=UPDATABLE)
def assign_sub(ref: Array, value: Array, *, use_locking: bool = False) -> Array:
    _require_same_shape(ref, value)
    return ref - value


@op("AssignVariableOp", "resource, dtype ->", writes="resource", overwrites=True, no_gradient=True)
def assign_variable(resource: Array, value: Array, *, validate_shape: bool = False) -> Array:
    return value


@op("AssignAddVariableOp", "resource, dtype ->", writes="resource", no_gradient=True)
def assign_add_variable(resource: Array, value: Array) -> Array:
    _require_same_shape(resource, value)
    return resource + value


@op("AssignSubVariableOp", "resource, dtype ->", writes="resource", no_gradient=True)
def assign_sub_variable(resource: Array, value: Array) -> Array:
    _require_same_shape(resource, value)
    return resource - value


def _require_same_shape(variable: Array, value: Array) -> None:
    if tuple(variable.shape) != tuple(value.shape):
        raise ValueError(
            f"the variable has shape {list(variable.shape)} and the value {list(value.shape)}: they must be the same"
        )


def _count_up(variable: Any, limit: int) -> np.ndarray:
    with variable.lock:
        before = np.asarray(variable.read())
        if int(before) >= limit:
            raise OutOfRangeError(f"Reached limit of {limit}")
        variable.value = jnp.asarray(before + 1)
        return before


@op("CountUpTo", "&T -> output: T", host=True, stateful=True, no_gradient=True, shape=shapes.scalar, T=INDEX)
def count_up_to(ref: Any, *, limit: int) -> np.ndarray:
    return _count_up(ref, limit)


@op(
    "ResourceCountUpTo",
    "resource -> output: T",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
    T=INDEX,
)
def resource_count_up_to(resource: Any, *, limit: int, T: DType) -> np.ndarray:
    return _count_up(resource, limit)


@op("DestroyResourceOp", "resource ->", host=True, stateful=True, no_gradient=True)
def destroy_resource(resource: Any, *, ignore_lookup_error: bool = True) -> None:
    with resource.lock:
        resource.value = None
