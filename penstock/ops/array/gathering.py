"""Elements by their positions: gathers, and their opposites, scatters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.checks import require, require_in_range
from penstock.graph.constant import constant_value, constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import op, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.jaxprs.symbols import as_size, is_symbol
from penstock.kernel import shapes
from penstock.kernel.shapes import brief, merge
from penstock.kernel.types import INDEX, INDEX16, Array, xp
from penstock.ops.array import reshaping
from penstock.ops.array.arranging import meshgrid, transpose
from penstock.ops.array.creation import ones, zeros
from penstock.ops.array.joining import concat, stack, tile, unstack
from penstock.ops.array.passthrough import identity
from penstock.ops.array.reshaping import expand_dims, reshape, shape, size, squeeze
from penstock.ops.engine.vjp import vjp_gradient

# Gather


def _gather_shape(op: Operation) -> list[TensorShape]:
    params, indices = op.input_list[0].shape, op.input_list[1].shape
    axis, batch = constant_value(op.input_list[2]), op.attrs["batch_dims"]
    if params.rank is None or indices.rank is None or axis is None:
        if params.rank is not None and axis is not None:
            _axis(int(axis), params.rank)
        known = params.rank is not None and indices.rank is not None
        return [TensorShape.of((None,) * (params.rank + indices.rank - 1 - batch) if known else None)]  # type: ignore[operator]
    at = _axis(int(axis), params.rank)
    batch = batch + indices.rank if batch < 0 else batch
    if batch > at:
        raise ValueError(f"batch_dims ({batch}) must be less than or equal to axis ({at})")
    own, chosen = params.as_list(), indices.as_list()
    merge(TensorShape.of(tuple(own[:batch])), TensorShape.of(tuple(chosen[:batch])))
    return [TensorShape.of((*own[:at], *chosen[batch:], *own[at + 1 :]))]


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        need = axis + 1 if axis >= 0 else -axis
        raise ValueError(f"Shape must be at least rank {need} but is rank {rank}")
    return axis % rank


def _gather(params: Array, indices: Array, axis: int, batch: int) -> Array:
    if not batch:
        if params.__class__ is np.ndarray and indices.__class__ is np.ndarray:  # without np.take, which calls this
            return params.take(indices, axis=axis, mode="clip")
        return xp(params, indices).take(params, indices, axis=axis, mode="clip")
    if xp(params, indices) is np:
        rows = [_gather(p, i, axis - 1, batch - 1) for p, i in zip(params, indices, strict=True)]
        return np.stack(rows)
    return jax.vmap(lambda p, i: _gather(p, i, axis - 1, batch - 1))(params, indices)


def _rows_grad(op: Operation, grad: Tensor) -> IndexedSlices:
    """The gradient of taking whole rows: the rows of `grad`, at the indices they came from."""
    params, indices = op.input_list[:2]
    dims = shape(params)
    inner = params.shape.as_list()[1:] if params.shape.rank is not None else [None]
    if all(inner):  # known now, which saves ops
        return IndexedSlices(reshape(grad, [-1, *inner]), reshape(indices, [-1]), dims)
    count = expand_dims(size(indices), 0)
    values = reshape(grad, concat([count, dims[1:]], 0))  # type: ignore[index]
    return IndexedSlices(values, reshape(indices, count), dims)


def _gather_grad(op: Operation, grad: Tensor) -> list[Any]:
    axis = constant_value(op.input_list[2])
    if axis is not None and int(axis) == 0 and not op.attrs["batch_dims"]:
        return [_rows_grad(op, grad), None, None]
    return vjp_gradient(op, grad)


@op(
    "GatherV2",
    "Tparams, Tindices, Taxis -> output: Tparams",
    static="axis",
    numpy=True,
    shape=_gather_shape,
    grad=_gather_grad,
    Tindices=INDEX16,
    Taxis=INDEX,
)
def gather_v2(params: Array, indices: Array, axis: Array, *, batch_dims: int = 0) -> Array:
    at = _axis(int(axis), params.ndim)
    require_in_range(indices, params.shape[at])
    return _gather(params, indices, at, batch_dims + indices.ndim if batch_dims < 0 else batch_dims)


@op(
    "Gather",
    "Tparams, Tindices -> output: Tparams",
    numpy=True,
    Tindices=INDEX,
    shape=lambda op: [op.input_list[1].shape.concatenate(op.input_list[0].shape.with_rank_at_least(1)[1:])],
    grad=lambda op, grad: [_rows_grad(op, grad), None],
)
def gather_v1(params: Array, indices: Array, *, validate_indices: bool = True) -> Array:
    require_in_range(indices, params.shape[0])
    return _gather(params, indices, 0, 0)


def gather(
    params: TensorLike,
    indices: TensorLike,
    validate_indices: Any = None,
    name: str | None = None,
    axis: TensorLike = None,
    batch_dims: int = 0,
) -> Tensor:
    """The slices of `params` at `indices` along `axis`: `tf.gather(embeddings, ids)`."""
    at = batch_dims if axis is None else axis
    # Only the wanted rows of a resource variable are read, on its own device; a sharded one takes indices of any rank.
    sparse_read = getattr(params, "_rows_at", None) or getattr(params, "sparse_read", None)
    result: Tensor
    if sparse_read is not None and not isinstance(at, Tensor) and at == 0 and not batch_dims:
        result = sparse_read(indices, name=name)
        return result
    result = gather_v2(params, indices, at, batch_dims=batch_dims, name=name)
    return result


def _gather_nd_shape(op: Operation) -> list[TensorShape]:
    params, indices = op.input_list[0].shape, op.input_list[1].shape
    depth = indices.as_list()[-1] if indices.rank else None
    if params.rank is None or depth is None:
        return [TensorShape.of(None)]
    if depth > params.rank:
        raise ValueError(
            "indices.shape[-1] must be <= params.rank, but saw indices shape: "
            f"{brief(indices)} and params shape: {brief(params)}"
        )
    return [TensorShape.of((*indices.as_list()[:-1], *params.as_list()[depth:]))]


def _nd_index(indices: Array, dims: tuple[int, ...], what: str) -> tuple[Array, ...]:
    """The checked columns of `indices`, as an index for `x[...]` of NumPy and jax."""
    depth = indices.shape[-1]
    if depth > len(dims):
        raise ValueError(f"indices.shape[-1] must be <= {what}.rank, but saw indices of shape {brief(indices.shape)}")
    columns = tuple(indices[..., i] for i in range(depth))
    for column, dim in zip(columns, dims, strict=False):
        column = jnp.asarray(column) if is_symbol(dim) else column
        fits = (column >= 0) & (column < dim)
        worst: Any = 0
        if math.prod(column.shape):
            flat = column.reshape(-1)
            worst = flat[xp(flat).argmin(fits.reshape(-1))]
        require(fits, f"indices = {{}} does not index into {what} shape {brief(dims)}", worst)
    return columns


def _gather_nd_grad(op: Operation, grad: Tensor) -> list[Any]:
    params, indices = op.input_list
    dims = shape(params, out_type=indices.dtype)
    if indices.shape.rank == 2 and indices.shape.as_list()[-1] == 1:
        return [IndexedSlices(grad, squeeze(indices, axis=-1), dims), None]
    return [scatter_nd(indices, grad, dims), None]


@op(
    "GatherNd",
    "Tparams, Tindices -> output: Tparams",
    numpy=True,
    shape=_gather_nd_shape,
    grad=_gather_nd_grad,
    Tindices=INDEX16,
)
def gather_nd_op(params: Array, indices: Array, *, bad_indices_policy: str = "") -> Array:
    return xp(params, indices).asarray(params)[(*_nd_index(indices, params.shape, "param"), ...)]


def gather_nd(
    params: TensorLike, indices: TensorLike, name: str | None = None, batch_dims: int = 0, bad_indices_policy: str = ""
) -> Tensor:
    """The elements (or slices) of `params` whose positions are the last dimension of `indices`.

    >>> tf.gather_nd(x, [[0, 0], [1, 2]])
    """
    if batch_dims:
        return _batch_gather_nd(params, indices, batch_dims, name)
    result: Tensor
    read = getattr(params, "gather_nd", None)
    if read is not None:
        result = read(indices, name=name)
        return result
    result = gather_nd_op(params, indices, name=name)
    return result


def _batch_gather_nd(params: Any, indices: Any, batch_dims: int, name: str | None) -> Tensor:
    """Prefixes each index with its position in the batch, then calls `gather_nd`."""
    with name_scope(name, "BatchGatherND", [params, indices]):
        positions: Any = convert_to_tensor(indices, name="indices")
        values: Any = convert_to_tensor(params, name="params")
        rank = positions.shape.rank
        if not isinstance(batch_dims, int) or batch_dims < 0 or (rank is not None and rank <= batch_dims):
            raise ValueError(f"gather_nd: batch_dims must be in [0, {rank}), the rank of indices; got {batch_dims!r}.")
        if values.shape.rank is not None and values.shape.rank <= batch_dims:
            raise ValueError(f"gather_nd: batch_dims must be less than {values.shape.rank}, got {batch_dims}.")
        dims: Any = shape(values)
        places: Any = shape(positions)
        batches = dims[:batch_dims]
        count = op_of("Prod")(batches, [0], name="Prod")
        inner_rank: Any = reshaping.rank(positions) - 1 - batch_dims  # type: ignore[operator]
        inner = places[batch_dims:-1]
        kind = positions.dtype.base_dtype
        axes = [_batch_range(size, kind) for size in unstack(batches, axis=0)]
        columns = [reshape(grid, [-1]) for grid in meshgrid(*axes, indexing="ij")]
        grid = transpose(stack(columns, axis=0))
        width: Any = shape(grid)
        lengths = [width[:1], _ones(inner_rank, width.dtype), width[1:]]
        grid = tile(reshape(grid, concat(lengths, 0)), concat([[1], inner, [1]], 0))
        flat = reshape(positions, concat([[count], places[batch_dims:]], 0))
        found: Any = gather_nd(values, concat([grid, flat], -1))
        sizes: Any = shape(found)
        return reshape(found, concat([batches, sizes[1:]], 0))


def _batch_range(size: Tensor, kind: DType) -> Any:
    cast = op_of("Cast")
    numbers = op_of("Range")(0, cast(size, DstT=dt.int32, name="Cast"), 1, name="Range")
    return cast(numbers, DstT=kind, name="Cast")


def _ones(count: Tensor, kind: DType) -> Tensor:
    return ones(count, dtype=kind)


def batch_gather(params: TensorLike, indices: TensorLike, name: str | None = None) -> Tensor:
    """`gather` in each batch: all dimensions of `indices` but the last are batches."""
    with name_scope(name, "BatchGather", [params, indices]):
        positions: Any = convert_to_tensor(indices, name="indices")
        values: Any = convert_to_tensor(params, name="params")
        if positions.shape.rank is None:
            raise ValueError("batch_gather does not allow indices with unknown shape.")
        batch_dims = positions.shape.rank - 1
        places: Any = shape(positions)
        dims: Any = shape(values)
        kind = positions.dtype.base_dtype
        at, step = positions, ones([], dtype=kind)
        sizes: Any = op_of("Cast")(dims, DstT=kind, name="Cast")
        # All batches become one: each index is moved by the number of rows in the batches before its own.
        for dim in range(batch_dims, 0, -1):
            size = sizes[dim - 1]
            step = step * sizes[dim]
            offsets = op_of("Range")(zeros([], dtype=kind), size, ones([], dtype=kind), name="Range") * step
            at = at + reshape(offsets, stack([1] * (dim - 1) + [size] + [1] * (positions.shape.rank - dim), axis=0))
        flat = reshape(at, [-1])
        outer = dims[batch_dims + 1 :]
        rows = op_of("Prod")(dims[: batch_dims + 1], [0], name="Prod")
        found = gather(reshape(values, concat([[rows], outer], 0)), flat)
        result = reshape(found, concat([places, outer], 0))
        if values.shape.rank is not None:
            own, chosen = values.shape, positions.shape
            batch = merge(own[:batch_dims], chosen[:batch_dims])
            result.set_shape(batch.concatenate(chosen[batch_dims:]).concatenate(own[batch_dims + 1 :]))
        return result


# Scatter


def _scatter_shape(op: Operation) -> list[TensorShape]:
    return [constant_value_as_shape(op.input_list[2])]


def _scatter_grad(op: Operation, grad: Tensor) -> list[Any]:
    return [None, gather_nd(grad, op.input_list[0]), None]


@op(
    "ScatterNd",
    "Tindices, T, Tindices -> output: T",
    static="shape",
    shape=_scatter_shape,
    grad=_scatter_grad,
    Tindices=INDEX16,
)
def scatter_nd_op(indices: Array, updates: Array, shape: Array, *, bad_indices_policy: str = "") -> Array:
    dims = tuple(as_size(d) for d in shape)
    at = _nd_index(indices, dims, "")
    if updates.dtype == object:  # strings at the same place are joined
        joined = np.full(dims, b"", object)
        np.add.at(joined, at, updates)
        return joined
    place = jnp.zeros(dims, updates.dtype).at[at]
    return place.max(updates, mode="drop") if updates.dtype == bool else place.add(updates, mode="drop")


def scatter_nd(indices: TensorLike, updates: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Zeros of `shape` with `updates` added at `indices`: `tf.scatter_nd([[4], [3]], [9, 10], [8])`."""
    result: Tensor = scatter_nd_op(indices, updates, shape, name=name)
    return result


def _update_grad(op: Operation, grad: Tensor) -> list[Any]:
    indices, updates = op.input_list[1:]
    kept: Tensor = op_of("TensorScatterUpdate")(grad, indices, op_of("ZerosLike")(updates))
    return [kept, None, gather_nd(grad, indices)]


def _add_grad(op: Operation, grad: Tensor) -> list[Any]:
    return [identity(grad), None, gather_nd(grad, op.input_list[1])]


def _sub_grad(op: Operation, grad: Tensor) -> list[Any]:
    return [identity(grad), None, -gather_nd(grad, op.input_list[1])]  # type: ignore[operator]


def _tensor_scatter(name: str, method: str, grad: Callable[..., Any] | None) -> Any:
    @op(name, "T, Tindices, T -> output: T", shape=shapes.unchanged, grad=grad, Tindices=INDEX)
    def kernel(tensor: Array, indices: Array, updates: Array, *, bad_indices_policy: str = "") -> Array:
        at = _nd_index(indices, tensor.shape, "")
        if tensor.dtype == object:
            if method != "set":
                raise InvalidArgumentError("strings can be replaced; there is no other kernel for them")
            changed = tensor.copy()
            changed[at] = updates
            return changed
        place = jnp.asarray(tensor).at[at]
        return place.add(-updates) if method == "sub" else getattr(place, method)(updates)

    return kernel


tensor_scatter_nd_update = tensor_scatter_update = _tensor_scatter("TensorScatterUpdate", "set", _update_grad)
tensor_scatter_nd_add = tensor_scatter_add = _tensor_scatter("TensorScatterAdd", "add", _add_grad)
tensor_scatter_nd_sub = tensor_scatter_sub = _tensor_scatter("TensorScatterSub", "sub", _sub_grad)
tensor_scatter_nd_min = _tensor_scatter("TensorScatterMin", "min", None)
tensor_scatter_nd_max = _tensor_scatter("TensorScatterMax", "max", None)
