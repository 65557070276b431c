"""Ops that move entries to other indices: reorder, reshape, transpose, concat, split, slice."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.kernel.shapes import require_rank
from penstock.kernel.types import NUMBERS, QUANTIZED, Array
from penstock.ops.array import (
    arranging,
    creation,
    gathering,
    joining,
    passthrough,
    ranges,
    reshaping,
    selection,
    slicing,
)
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.debugging import check_ops
from penstock.ops.math import arithmetic, casting, compare, reduce
from penstock.ops.sparse.indices import (
    as_sparse,
    flat_indices,
    invalid,
    length_of,
    need_in_bounds,
    parts,
    places_of,
    row_major,
    sparse_shapes,
    spread_indices,
)

# Order


def _reorder_grad(op: Operation, _: Any, grad: Tensor) -> list[Any]:
    indices, _values, dims = op.inputs
    count: Any = reshaping.shape(indices)[0]  # type: ignore[index]
    order = sparse_reorder(SparseTensor(indices, ranges.range(count), dims)).values
    return [None, gathering.gather(grad, arranging.invert_permutation(order)), None]


@op(
    "SparseReorder",
    "int64, T, int64 -> output_indices: int64, output_values: T",
    host=True,
    grad=_reorder_grad,
    shape=lambda op: [require_rank(t.shape, rank) for t, rank in zip(op.input_list, (2, 1), strict=False)],
)
def sparse_reorder_op(input_indices: Array, input_values: Array, input_shape: Array) -> tuple[Array, Array]:
    rows, values, _ = parts(input_indices, input_values, input_shape)
    order = row_major(rows)
    return rows[order], values[order]


def sparse_reorder(sp_input: Any, name: str | None = None) -> SparseTensor:
    """The entries in row-major order, as most other ops need them: `tf.sparse.reorder(x)`."""
    sparse = as_sparse(sp_input)
    indices, values = sparse_reorder_op(sparse.indices, sparse.values, sparse.dense_shape, name=name)
    known = sparse.shape
    dims: Any = known.as_list() if known.is_fully_defined() else passthrough.identity(sparse.dense_shape)
    return SparseTensor(indices, values, dims)


def sparse_transpose(sp_input: Any, perm: TensorLike = None, name: str | None = None) -> SparseTensor:
    """The axes in the order `perm`, or reversed: `tf.sparse.transpose(x, [1, 0])`."""
    with name_scope(name, "SparseTranspose"):
        sparse = as_sparse(sp_input)
        if perm is None:
            rank = sparse.shape.rank
            if rank is not None:
                perm = rank - 1 - np.arange(rank)
            else:
                count: Any = reshaping.rank(sparse)
                perm = count - 1 - ranges.range(0, count, 1)
        columns = gathering.gather(arranging.transpose(sparse.indices, [1, 0]), perm)
        indices = arranging.transpose(columns, [1, 0])
        order = constant_value(convert_to_tensor(perm))
        dims: Any
        if order is not None and sparse.shape.is_fully_defined():
            sizes = sparse.shape.as_list()
            dims = [sizes[int(p)] for p in order]
        else:
            dims = gathering.gather(sparse.dense_shape, perm)
        return sparse_reorder(SparseTensor(indices, sparse.values, dims))


# Shape


def _reshape_shape(op: Operation) -> list[TensorShape]:
    rank = op.input_list[2].shape.num_elements()
    return [TensorShape.of((length_of(op.input_list[0]), rank)), TensorShape.of((rank,))]


@op(
    "SparseReshape",
    "int64, int64, int64 -> output_indices: int64, output_shape: int64",
    host=True,
    no_gradient=True,
    shape=_reshape_shape,
)
def sparse_reshape_op(input_indices: Array, input_shape: Array, new_shape: Array) -> tuple[Array, Array]:
    rows, dims, wanted = np.asarray(input_indices), np.asarray(input_shape), np.array(new_shape)
    parts(rows, np.empty(len(rows) if rows.ndim else 0), dims)
    if wanted.ndim != 1:
        raise invalid(f"Target shape should be a vector but received shape {list(wanted.shape)}")
    total = int(np.prod(dims))
    free = np.flatnonzero(wanted == -1)
    if len(free) > 1:
        raise invalid(f"only one output dimension may be -1, not both {free[0]} and {free[1]}")
    if (wanted < -1).any():
        raise invalid(f"size {int(wanted[wanted < -1][0])} must be non-negative, not -1 or more")
    if len(free):
        rest = int(np.prod(wanted[wanted != -1]))
        if rest <= 0:
            raise invalid(
                "reshape cannot infer the missing input size for an empty tensor unless all specified "
                "input sizes are non-zero"
            )
        wanted[free[0]] = total // rest
    if int(np.prod(wanted)) != total:
        raise invalid(
            f"Input to reshape is a tensor with {total} dense values, but the requested shape "
            f"{wanted.tolist()} has {int(np.prod(wanted))}"
        )
    need_in_bounds(rows, dims)
    return spread_indices(flat_indices(rows, dims), wanted), wanted


def sparse_reshape(sp_input: Any, shape: ShapeLike, name: str | None = None) -> SparseTensor:
    """The same entries in another dense shape, where one size may be -1: `tf.sparse.reshape(x, [-1, 3])`."""
    sparse = as_sparse(sp_input)
    wanted = casting.cast(shape, dt.int64)
    with name_scope(name, "SparseReshape", [sparse.indices, sparse.values]) as scope:
        indices, dims = sparse_reshape_op(sparse.indices, sparse.dense_shape, wanted, name=scope)
        known = _reshaped_statically(sparse.shape, constant_value(wanted))
        if known is not None:
            dims = make_constant(known, dt.int64)
        return SparseTensor(indices, passthrough.identity(sparse.values), dims)


def _reshaped_statically(before: TensorShape, wanted: np.ndarray | None) -> list[int] | None:
    """The new shape if it is known; raises ValueError if it is impossible."""
    if wanted is None:
        return None
    sizes = [int(d) for d in wanted]
    if sizes.count(-1) > 1:
        return None
    total = before.num_elements()
    if -1 not in sizes:
        if total is not None and total != int(np.prod(sizes)):
            raise ValueError(
                f"Cannot reshape a tensor with {total} elements to shape {sizes} ({int(np.prod(sizes))} elements)."
            )
        return sizes
    rest = int(np.prod([d for d in sizes if d != -1]))
    if total is None or rest == 0:
        return None
    if total % rest:
        raise ValueError(f"Cannot reshape a tensor with {total} elements to shape {sizes}.")
    sizes[sizes.index(-1)] = total // rest
    return sizes


def sparse_expand_dims(sp_input: Any, axis: TensorLike = None, name: str | None = None) -> SparseTensor:
    """One more axis of length 1, the last one by default: `tf.sparse.expand_dims(x, 0)`."""
    sparse = as_sparse(sp_input)
    rank = sparse.dense_shape.shape.num_elements()
    if rank is None:
        raise ValueError("sparse.expand_dims: the rank of the SparseTensor must be known.")
    where = -1 if axis is None else axis
    with name_scope(name, "expand_dims", [sparse]):
        if isinstance(where, int) and not -rank - 1 <= where <= rank:
            raise ValueError(f"sparse.expand_dims: axis must be in [{-rank - 1}, {rank}], received {where}.")
        at: Any = convert_to_tensor(where, dtype=dt.int32, name="axis")
        at = selection.where_v2(compare.greater_equal(at, 0), at, at + rank + 1)
        indices, dims = sparse.indices, sparse.dense_shape
        count: Any = reshaping.shape(indices)[0]  # type: ignore[index]
        column = creation.zeros([count, 1], dtype=dt.int64)
        before, after = slicing.slice(indices, [0, 0], [-1, at]), slicing.slice(indices, [0, at], [-1, -1])
        columns = joining.concat([before, column, after], 1)
        outer, inner = slicing.slice(dims, [0], [at]), slicing.slice(dims, [at], [-1])
        one = make_constant([1], dt.int64, name="new_shape")
        return SparseTensor(columns, sparse.values, joining.concat([outer, one, inner], 0))


def sparse_reset_shape(sp_input: Any, new_shape: ShapeLike = None) -> SparseTensor:
    """The same entries in a larger dense shape, or in the smallest that holds them."""
    sparse = as_sparse(sp_input)
    indices, values = passthrough.identity(sparse.indices), passthrough.identity(sparse.values)
    if new_shape is None:
        top: Any = reduce.reduce_max(indices, axis=0)
        least = top + make_constant(1, dt.int64)
        return SparseTensor(indices, values, arithmetic.maximum(make_constant(0, dt.int64), least))
    wanted = convert_to_tensor(new_shape, dtype=dt.int64)
    if wanted.shape.rank not in (None, 1):
        raise ValueError(f"new_shape must be a vector, received shape {wanted.shape}.")
    known = constant_value(wanted)
    before = sparse.shape
    if known is not None and before.rank is not None:
        if len(known) != before.rank:
            raise ValueError(f"New shape has {len(known)} dimensions, the SparseTensor {before.rank}.")
        if any(d is not None and d > n for d, n in zip(before.as_list(), known.tolist(), strict=True)):
            raise ValueError(f"Requested new_shape should have dimension sizes >= those of {before}, received {known}.")
    same_rank = check_ops.assert_equal(reshaping.shape(sparse.dense_shape), reshaping.shape(wanted))
    with control_dependencies([same_rank]):
        wanted = passthrough.identity(wanted)
    with control_dependencies([check_ops.assert_less_equal(sparse.dense_shape, wanted)]):
        wanted = passthrough.identity(wanted)
    return SparseTensor(indices, values, wanted)


# Joining and splitting


def _concat_shape(op: Operation) -> list[TensorShape]:
    count: int = op.attrs["N"]
    tensors = op.input_list
    total: int | None = 0
    rank: int | None = None
    for indices, values, dims in zip(tensors[:count], tensors[count : 2 * count], tensors[2 * count :], strict=True):
        found = length_of(indices) if length_of(indices) is not None else length_of(values)
        total = None if total is None or found is None else total + found
        for candidate in (indices.shape.as_list()[1] if indices.shape.rank == 2 else None, length_of(dims)):
            if rank is not None and candidate is not None and rank != candidate:
                raise ValueError(f"Dimensions must be equal, but are {rank} and {candidate}")
            rank = candidate if rank is None else rank
    return sparse_shapes(total, rank)


@op(
    "SparseConcat",
    "N*int64, N*T, N*int64 -> output_indices: int64, output_values: T, output_shape: int64",
    host=True,
    no_gradient=True,
    shape=_concat_shape,
)
def sparse_concat_op(
    indices: list[Array], values: list[Array], shapes: list[Array], *, concat_dim: int
) -> tuple[Array, Array, Array]:
    pieces = [parts(*piece) for piece in zip(indices, values, shapes, strict=True)]
    rank = len(pieces[0][2])
    if not -rank <= concat_dim < rank:
        raise invalid(f"Concat dimension must be in range [{-rank}, {rank}), got {concat_dim}")
    axis, at = concat_dim % rank, 0
    final = pieces[0][2].copy()
    moved = []
    for rows, _, dims in pieces:
        if len(dims) != rank:
            raise invalid(f"Ranks of all input tensors must match: expected {rank} but got {len(dims)}")
        if (np.delete(dims, axis) != np.delete(final, axis)).any():
            raise invalid(
                f"Input shapes must match: expected {final.tolist()} but got {dims.tolist()}, all but dimension {axis}"
            )
        shifted = rows.copy()
        shifted[:, axis] += at
        at += int(dims[axis])
        moved.append(shifted)
    final[axis] = at
    joined = np.concatenate(moved)
    order = row_major(joined)
    return joined[order], np.concatenate([p[1] for p in pieces])[order], final


def sparse_concat(
    axis: int,
    sp_inputs: Any,
    name: str | None = None,
    expand_nonconcat_dim: bool = False,
    concat_dim: int | None = None,
    expand_nonconcat_dims: bool | None = None,
) -> SparseTensor:
    """Sparse tensors one after the other along `axis`; their other sizes may differ if `expand_nonconcat_dims`.

    >>> tf.sparse.concat(0, [x, y])
    """
    axis = axis if concat_dim is None else concat_dim
    expand = expand_nonconcat_dim if expand_nonconcat_dims is None else expand_nonconcat_dims
    if not isinstance(sp_inputs, (list, tuple)) or not sp_inputs:
        raise TypeError(f"sparse.concat: a list of SparseTensors is needed, received {sp_inputs!r}.")
    inputs = [as_sparse(x) for x in sp_inputs]
    if len(inputs) == 1:
        return inputs[0]
    dims: list[Any] = [x.dense_shape for x in inputs]
    if expand:
        top: Any = reduce.reduce_max(joining.concat([reshaping.reshape(d, [1, -1]) for d in dims], 0), 0)
        dims = [
            joining.concat(
                [top[:axis], d[-1:] if axis == -1 else d[axis : axis + 1], [] if axis == -1 else top[axis + 1 :]], 0
            )
            for d in dims
        ]
    indices, values, shape = sparse_concat_op(
        [x.indices for x in inputs], [x.values for x in inputs], dims, concat_dim=axis, name=name
    )
    known = _concat_statically([x.shape for x in inputs], axis)
    if known is not None:
        shape = make_constant(known, dt.int64)
    return SparseTensor(indices, values, shape)


def _concat_statically(known: list[TensorShape], axis: int) -> list[int] | None:
    if not all(shape.is_fully_defined() for shape in known):
        return None
    sizes = np.array([shape.as_list() for shape in known if shape.rank == known[0].rank])
    if len(sizes) != len(known) or not -sizes.shape[1] <= axis < sizes.shape[1]:
        return None
    final = sizes.max(axis=0)
    final[axis] = sizes[:, axis].sum()
    return [int(d) for d in final]


def _split_shape(op: Operation) -> list[TensorShape]:
    rank = op.input_list[3].shape.num_elements()
    return [shape for shape in sparse_shapes(None, rank) for _ in range(op.attrs["num_split"])]


@op(
    "SparseSplit",
    "int64, int64, T, int64 -> output_indices: num_split*int64, output_values: num_split*T, "
    "output_shape: num_split*int64",
    host=True,
    grad=refuse_gradient,
    shape=_split_shape,
)
def sparse_split_op(split_dim: Array, indices: Array, values: Array, shape: Array, *, num_split: int) -> list[Array]:
    rows, entries, dims = parts(indices, values, shape)
    axis = int(split_dim)
    if not -len(dims) <= axis < len(dims):
        raise invalid(f"Input split_dim should be between {-len(dims)} and {len(dims) - 1}, received {axis}")
    axis %= len(dims)
    size = int(dims[axis])
    if not 1 <= num_split <= size:
        raise invalid(f"Input num_split should be between 1 and the splitting dimension size ({size}), got {num_split}")
    need_in_bounds(rows, dims)
    each, extra = divmod(size, num_split)
    starts = np.array([i * each + min(i, extra) for i in range(num_split + 1)])
    piece = np.searchsorted(starts, rows[:, axis], side="right") - 1
    results: list[list[Array]] = [[], [], []]
    for i in range(num_split):
        moved, sizes = rows[piece == i].copy(), dims.copy()
        moved[:, axis] -= starts[i]
        sizes[axis] = starts[i + 1] - starts[i]
        for result, found in zip(results, (moved, entries[piece == i], sizes), strict=True):
            result.append(found)
    return [array_ for result in results for array_ in result]


def sparse_split(
    keyword_required: Any = None,
    sp_input: Any = None,
    num_split: int | None = None,
    axis: TensorLike = None,
    name: str | None = None,
    split_dim: Any = None,
) -> list[SparseTensor]:
    """A sparse tensor cut into `num_split` parts along `axis`: `tf.sparse.split(sp_input=x, num_split=2, axis=1)`."""
    if keyword_required is not None:
        raise ValueError("Keyword arguments are required for this function.")
    axis = split_dim if axis is None else axis
    if sp_input is None or num_split is None or axis is None:
        raise ValueError("sparse.split: sp_input, num_split and axis are needed.")
    sparse = as_sparse(sp_input)
    cut = sparse_split_op(axis, sparse.indices, sparse.values, sparse.dense_shape, num_split=num_split, name=name)
    return [SparseTensor(*piece) for piece in zip(*cut, strict=True)]


def _slice_grad(op: Operation, _: Any, grad: Tensor, __: Any) -> list[Any]:
    result = sparse_slice_grad(grad, op.inputs[0], op.inputs[3], op.outputs[0])
    result.set_shape(op.inputs[1].shape)
    return [None, result, None, None, None]


@op(
    "SparseSlice",
    "int64, T, int64, int64, int64 -> output_indices: int64, output_values: T, output_shape: int64",
    host=True,
    grad=_slice_grad,
    shape=lambda op: sparse_shapes(None, op.input_list[2].shape.num_elements()),
)
def sparse_slice_op(
    indices: Array, values: Array, shape: Array, start: Array, size: Array
) -> tuple[Array, Array, Array]:
    rows, entries, dims = parts(indices, values, shape)
    first, count = np.asarray(start), np.asarray(size)
    if first.shape != dims.shape or count.shape != dims.shape:
        raise invalid(
            f"Expected start and size to be vectors of {len(dims)} numbers, received shapes "
            f"{list(first.shape)} and {list(count.shape)}"
        )
    if (count < 0).any():
        raise invalid(f"size must not be negative, received {count.tolist()}")
    inside = ((rows >= first) & (rows < first + count)).all(axis=1)
    return rows[inside] - first, entries[inside], np.clip(dims - first, 0, count)


@op(
    "SparseSliceGrad",
    "T, int64, int64, int64 -> val_grad: T",
    host=True,
    grad=refuse_gradient,
    shape=lambda op: [TensorShape.of((length_of(op.input_list[1]),))],
    T=(*NUMBERS, *QUANTIZED),
)
def sparse_slice_grad(
    backprop_val_grad: Array, input_indices: Array, input_start: Array, output_indices: Array
) -> Array:
    upstream = np.asarray(backprop_val_grad)
    padded = np.concatenate([upstream, np.zeros(1, upstream.dtype)])  # place -1 means not in the slice
    return padded[places_of(np.asarray(input_indices), np.asarray(output_indices) + np.asarray(input_start))]


def sparse_slice(sp_input: Any, start: TensorLike, size: TensorLike, name: str | None = None) -> SparseTensor:
    """The part of `size` from `start` on: `tf.sparse.slice(x, [0, 0], [2, 3])`."""
    sparse = as_sparse(sp_input)
    first, count = convert_to_tensor(start, dt.int64), convert_to_tensor(size, dt.int64)
    with name_scope(name, "SparseSlice", [sparse.indices, sparse.values]) as scope:
        return SparseTensor(
            *sparse_slice_op(sparse.indices, sparse.values, sparse.dense_shape, first, count, name=scope)
        )
