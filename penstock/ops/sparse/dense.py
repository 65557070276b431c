"""Ops on sparse and dense tensors together: conversions, products, sums."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.checks import require, require_in_range
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel import shapes
from penstock.kernel.types import INDEX, INDEX64, NUMBERS, QUANTIZED, Array
from penstock.ops.array import arranging, creation, gathering, reshaping, selection
from penstock.ops.math import casting, compare, reduce
from penstock.ops.sparse.indices import as_sparse, invalid, need_in_bounds, need_ordered

_NUMBERS = (*NUMBERS, *QUANTIZED)

# Made dense, and from dense


def _to_dense_grad(op: Operation, grad: Tensor) -> list[Any]:
    values_grad = gathering.gather_nd(grad, op.inputs[0])
    rest: Any = reduce.reduce_sum(grad) - reduce.reduce_sum(values_grad)  # type: ignore[operator]
    return [None, None, values_grad, rest]


@op(
    "SparseToDense",
    "Tindices, Tindices, T, T -> dense: T",
    host=True,
    shape=shapes.from_value(1),
    grad=_to_dense_grad,
    Tindices=INDEX,
)
def sparse_to_dense_op(
    sparse_indices: Array,
    output_shape: Array,
    sparse_values: Array,
    default_value: Array,
    *,
    validate_indices: bool = True,
) -> Array:
    # On the host: the number of entries differs from step to step, and each would need its own compiled code.
    rows, dims, values = np.asarray(sparse_indices), np.asarray(output_shape), np.asarray(sparse_values)
    if rows.ndim > 2 or dims.ndim != 1 or values.ndim > 1 or np.ndim(default_value):
        raise invalid(
            "sparse_indices should be a scalar, vector or matrix, output_shape a vector, sparse_values a "
            f"scalar or vector, default_value a scalar; received shapes {list(rows.shape)}, "
            f"{list(dims.shape)}, {list(values.shape)}, {list(np.shape(default_value))}"
        )
    rows = rows.reshape(-1, 1) if rows.ndim < 2 else rows
    if rows.shape[1] != len(dims):
        raise invalid(f"output_shape has incorrect number of elements: {len(dims)} should be: {rows.shape[1]}")
    if values.ndim and len(values) != len(rows):
        raise invalid(f"sparse_values has incorrect shape {list(values.shape)}, should be [] or [{len(rows)}]")
    if (dims < 0).any():
        raise invalid(f"output_shape must not be negative, received {dims.tolist()}")
    need_in_bounds(rows, dims)
    if validate_indices:
        need_ordered(rows)
    result = np.full(tuple(dims.tolist()), np.asarray(default_value)[()], values.dtype)
    if len(rows):
        result[tuple(rows.T)] = values if len(dims) else values.reshape(-1)[-1]
    return result


def sparse_to_dense(
    sparse_indices: TensorLike,
    output_shape: ShapeLike,
    sparse_values: TensorLike,
    default_value: TensorLike = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """`sparse_values` at `sparse_indices`, `default_value` elsewhere: `tf.sparse_to_dense([1, 3], [5], 1.0)`."""
    result: Tensor = sparse_to_dense_op(
        sparse_indices, output_shape, sparse_values, default_value, validate_indices=validate_indices, name=name
    )
    return result


def sparse_tensor_to_dense(
    sp_input: Any, default_value: TensorLike = None, validate_indices: bool = True, name: str | None = None
) -> Tensor:
    """The dense tensor, with `default_value` (zero, or empty text) where there is no entry.

    >>> tf.sparse.to_dense(tf.SparseTensor([[0, 1]], [2.0], [3, 4]))
    """
    sparse = as_sparse(sp_input)
    default = creation.zeros([], dtype=sparse.dtype) if default_value is None else default_value
    return sparse_to_dense(
        sparse.indices, sparse.dense_shape, sparse.values, default, validate_indices=validate_indices, name=name
    )


def from_dense(tensor: TensorLike, name: str | None = None) -> SparseTensor:
    """The elements that are not zero (or empty text) as a SparseTensor: `tf.sparse.from_dense([[0, 1], [2, 0]])`."""
    with name_scope(name, "dense_to_sparse"):
        dense = convert_to_tensor(tensor)
        places = selection.where(compare.not_equal(dense, creation.zeros_like(dense)))
        values = gathering.gather_nd(dense, places)
        return SparseTensor(places, values, reshaping.shape(dense, out_type=dt.int64))


# Products of matrices


def _product_shape(op: Operation) -> list[TensorShape]:
    dims = constant_value_as_shape(op.input_list[2])
    rows, inner = dims.as_list() if dims.rank == 2 else (None, None)
    if dims.rank not in (None, 2):
        raise ValueError(f"Shape must be rank 2 but is rank {dims.rank}")
    rows, inner = (inner, rows) if op.attrs["adjoint_a"] else (rows, inner)
    b = shapes.require_rank(op.input_list[3].shape, 2).as_list()
    b_inner, columns = (b[1], b[0]) if op.attrs["adjoint_b"] else (b[0], b[1])
    if inner is not None and b_inner is not None and inner != b_inner:
        raise ValueError(f"Dimensions must be equal, but are {inner} and {b_inner}")
    return [TensorShape.of((rows, columns))]


def _product_grad(op: Operation, grad: Tensor) -> list[Any]:
    indices, values, dims, b = op.inputs
    adjoint_a, adjoint_b = op.attrs["adjoint_a"], op.attrs["adjoint_b"]
    b_grad = sparse_tensor_dense_mat_mul(indices, values, dims, grad, adjoint_a=not adjoint_a)
    if adjoint_b:
        b_grad = arranging.matrix_transpose(b_grad, conjugate=True)
    rows, columns = indices[:, 0], indices[:, 1]  # type: ignore[index]
    left: Any = gathering.gather(grad, columns if adjoint_a else rows)
    right: Any = gathering.gather(arranging.transpose(b) if adjoint_b else b, rows if adjoint_a else columns)
    # Entry (i, j) of the sparse matrix meets row i of the gradient and row j of b.
    if adjoint_a:
        left, right = casting.conj(left), casting.conj(right) if adjoint_b else right
    elif not adjoint_b:
        right = casting.conj(right)
    return [None, reduce.reduce_sum(left * right, 1), None, b_grad]


# Limit for entries times columns that are multiplied at once: more would only need more memory.
_AT_ONCE = 1 << 22


@op(
    "SparseTensorDenseMatMul",
    "Tindices, T, int64, T -> product: T",
    static="a_shape",
    shape=_product_shape,
    grad=_product_grad,
    T=NUMBERS,
    Tindices=INDEX64,
)
def sparse_tensor_dense_mat_mul(
    a_indices: Array, a_values: Array, a_shape: Array, b: Array, *, adjoint_a: bool = False, adjoint_b: bool = False
) -> Array:
    """Each entry (i, j) adds its multiple of row j of `b` to row i of the product."""
    if a_indices.ndim != 2 or a_indices.shape[1] != 2 or len(a_shape) != 2 or b.ndim != 2:
        raise ValueError(
            f"Expected a sparse matrix and a dense one, received indices of shape "
            f"{list(a_indices.shape)}, a_shape {list(a_shape)}, b of shape {list(b.shape)}"
        )
    if a_values.shape != a_indices.shape[:1]:
        raise ValueError(
            f"Number of rows of a_indices does not match number of entries in a_values: "
            f"{a_indices.shape[0]} vs. {list(a_values.shape)}"
        )
    rows, inner = map(as_size, a_shape)
    to, source = a_indices[:, 0], a_indices[:, 1]
    if adjoint_a:
        rows, inner, to, source, a_values = inner, rows, source, to, jnp.conj(a_values)
    if adjoint_b:
        b = jnp.conj(b.T)
    if b.shape[0] != inner:
        raise ValueError(f"Cannot multiply A and B because inner dimension does not match: {inner} vs. {b.shape[0]}.")
    side = ("i", "k")[:: -1 if adjoint_a else 1]
    require_in_range(to, rows, message=f"{side[0]} ({{}}) from a_indices is out of bounds (>={rows})")
    require_in_range(source, inner, message=f"{side[1]} ({{}}) from a_indices is out of bounds (>={inner})")
    return _multiplied(jnp.asarray(to), jnp.asarray(source), jnp.asarray(a_values), jnp.asarray(b), rows)


def _multiplied(to: Array, source: Array, values: Array, b: Array, rows: int) -> Array:
    result = jnp.zeros((rows, b.shape[1]), b.dtype)
    count = to.shape[0]
    if not count or not b.size:
        return result

    def add(total: Array, to: Array, source: Array, values: Array) -> Array:
        return total.at[to].add(values[:, None] * b.at[source].get(mode="clip"), mode="drop")

    piece = max(_AT_ONCE // b.shape[1], 1)
    if count <= piece:
        return add(result, to, source, values)
    pieces = -(-count // piece)
    rest = pieces * piece - count
    # The padding of the last piece goes to a row that does not exist.
    columns = [jnp.pad(to, (0, rest), constant_values=rows), jnp.pad(source, (0, rest)), jnp.pad(values, (0, rest))]
    stacked = [c.reshape(pieces, piece) for c in columns]
    return lax.scan(lambda total, part: (add(total, *part), None), result, stacked)[0]


def sparse_tensor_dense_matmul(
    sp_a: Any, b: TensorLike, adjoint_a: bool = False, adjoint_b: bool = False, name: str | None = None
) -> Tensor:
    """The product of a sparse and a dense matrix, in either order.

    >>> tf.sparse.sparse_dense_matmul(sparse_features, weights)
    """
    if isinstance(b, SparseTensor) or (hasattr(b, "dense_shape") and not hasattr(sp_a, "dense_shape")):
        product = sparse_tensor_dense_matmul(as_sparse(b), sp_a, adjoint_a=not adjoint_b, adjoint_b=not adjoint_a)
        return arranging.transpose(product)
    sparse = as_sparse(sp_a)
    with name_scope(name, "SparseTensorDenseMatMul", [sparse.indices, sparse.values, b]):
        dense = convert_to_tensor(b, name="b")
        result: Tensor = sparse_tensor_dense_mat_mul(
            sparse.indices, sparse.values, sparse.dense_shape, dense, adjoint_a=adjoint_a, adjoint_b=adjoint_b
        )
        return result


# Element by element


def _dense_add_grad(op: Operation, grad: Tensor) -> list[Any]:
    return [None, gathering.gather_nd(grad, op.inputs[0]), None, grad]


@op(
    "SparseTensorDenseAdd",
    "Tindices, T, Tindices, T -> output: T",
    shape=shapes.same_as(3),
    grad=_dense_add_grad,
    T=_NUMBERS,
    Tindices=INDEX,
)
def sparse_tensor_dense_add(a_indices: Array, a_values: Array, a_shape: Array, b: Array) -> Array:
    if a_indices.ndim != 2 or a_values.shape != a_indices.shape[:1] or a_indices.shape[1] != b.ndim:
        raise ValueError(
            f"Two operands have different ranks or sizes; received indices of shape "
            f"{list(a_indices.shape)}, values {list(a_values.shape)}, dense {list(b.shape)}"
        )
    for axis, size in enumerate(b.shape):
        require(
            jnp.asarray(a_shape)[axis] == size,
            f"Dimension {axis} does not equal (no broadcasting is supported): "
            f"sparse side {{}} vs dense side shape {size}",
            jnp.asarray(a_shape)[axis],
        )
        require_in_range(a_indices[:, axis], size, message="invalid index {} of the sparse tensor")
    return jnp.asarray(b).at[tuple(a_indices[:, i] for i in range(b.ndim))].add(a_values, mode="drop")


def _matching(sp_indices: Array, sp_values: Array, sp_shape: Array, dense: Array) -> Array:
    """For each entry the element of `dense` at its place after broadcasting."""
    if sp_indices.ndim != 2 or sp_values.shape != sp_indices.shape[:1]:
        raise ValueError(
            f"Inputs sp_indices should be a matrix and sp_values a vector of its rows, received shapes "
            f"{list(sp_indices.shape)} and {list(sp_values.shape)}"
        )
    lead = sp_indices.shape[1] - dense.ndim
    if lead < 0:
        raise ValueError(
            f"SparseDenseBinaryOpShared broadcasts dense to sparse only; got incompatible shapes: "
            f"rank {sp_indices.shape[1]} vs. {list(dense.shape)}"
        )
    place = []
    for axis, size in enumerate(dense.shape):
        whole, column = jnp.asarray(sp_shape)[lead + axis], sp_indices[:, lead + axis]
        if size == 1:
            place.append(jnp.zeros_like(column))
            continue
        require(
            whole == size,
            f"SparseDenseBinaryOpShared broadcasts dense to sparse only; got incompatible shapes: "
            f"dimension {{}} vs. {size}",
            whole,
        )
        require_in_range(column, size, message="Provided index {} is out-of-bounds for dense side")
        place.append(column)
    return jnp.asarray(dense)[tuple(place)] if place else dense


@op("SparseDenseCwiseMul", "int64, T, int64, T -> output: T", shape=shapes.same_as(1), T=_NUMBERS)
def sparse_dense_cwise_mul(sp_indices: Array, sp_values: Array, sp_shape: Array, dense: Array) -> Array:
    return sp_values * _matching(sp_indices, sp_values, sp_shape, dense)


@op("SparseDenseCwiseDiv", "int64, T, int64, T -> output: T", shape=shapes.same_as(1), T=_NUMBERS)
def sparse_dense_cwise_div(sp_indices: Array, sp_values: Array, sp_shape: Array, dense: Array) -> Array:
    divisor = _matching(sp_indices, sp_values, sp_shape, dense)
    if jnp.issubdtype(sp_values.dtype, jnp.integer):
        require(divisor != 0, "Integer division by zero")
        return lax.div(jnp.asarray(sp_values), jnp.broadcast_to(divisor, sp_values.shape).astype(sp_values.dtype))
    return sp_values / divisor


@op("SparseDenseCwiseAdd", "int64, T, int64, T -> output: T", shape=shapes.same_as(1), T=_NUMBERS)
def sparse_dense_cwise_add(sp_indices: Array, sp_values: Array, sp_shape: Array, dense: Array) -> Array:
    return sp_values + _matching(sp_indices, sp_values, sp_shape, dense)


def _times(sparse: SparseTensor, dense: Any) -> SparseTensor:
    return _elementwise("mul", sparse_dense_cwise_mul, sparse, dense)


def _over(sparse: SparseTensor, dense: Any) -> SparseTensor:
    return _elementwise("div", sparse_dense_cwise_div, sparse, dense)


def _elementwise(name: str, function: Any, sparse: SparseTensor, dense: Any) -> SparseTensor:
    with name_scope(None, name, [sparse.indices, sparse.values, sparse.dense_shape, dense]) as scope:
        y = convert_to_tensor(dense, dtype=sparse.dtype.base_dtype, name="y")
        values = function(sparse.indices, sparse.values, sparse.dense_shape, y, name=scope)
        return SparseTensor(sparse.indices, values, sparse.dense_shape)


def _true_divide(sparse: SparseTensor, dense: Any) -> SparseTensor:
    """Division as in Python 3: integers are divided as floating-point numbers."""
    with name_scope(None, "truediv", [sparse.indices, sparse.values, sparse.dense_shape, dense]) as scope:
        values = sparse.values
        y = convert_to_tensor(dense, dtype=values.dtype.base_dtype, name="y")
        if values.dtype.is_integer:
            wider = dt.float32 if values.dtype.size <= 2 else dt.float64
            values, y = casting.cast(values, wider), casting.cast(y, wider)
        values = sparse_dense_cwise_div(sparse.indices, values, sparse.dense_shape, y, name=scope)
        return SparseTensor(sparse.indices, values, sparse.dense_shape)


for _operator, _function in (("mul", _times), ("rmul", _times), ("div", _over), ("truediv", _true_divide)):
    setattr(SparseTensor, f"__{_operator}__", _function)
