"""Products of matrices and tensors."""

from __future__ import annotations

import math as pymath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.jaxprs.symbols import is_symbol
from penstock.kernel import shapes
from penstock.kernel.types import COMPLEX, FLOATS, REALS, Array, platform
from penstock.ops.array import arranging, gathering, joining, ranges, reshaping, selection
from penstock.ops.math import arithmetic, casting, compare, reduce
from penstock.ops.math.elementwise_gradients import broadcast_gradient_args

_UNSIGNED = (dt.uint8, dt.uint16, dt.uint32, dt.uint64)
_NARROW = Types(dt.float32, dt.bfloat16, default=dt.float32)
_FACTORS = Types(*FLOATS, dt.int32, dt.int64, *_UNSIGNED, *COMPLEX)


def _matmul_grad(op: Operation, grad: Any) -> list[Any]:
    ta, tb = op.attrs["transpose_a"], op.attrs["transpose_b"]
    a, b = casting.conj(op.inputs[0]), casting.conj(op.inputs[1])
    if not ta:
        a_grad = mat_mul(grad, b, transpose_b=not tb, grad_a=True)
    else:
        a_grad = mat_mul(b, grad, transpose_a=tb, transpose_b=True, grad_a=True)
    if not tb:
        b_grad = mat_mul(a, grad, transpose_a=not ta, grad_b=True)
    else:
        b_grad = mat_mul(grad, a, transpose_a=True, transpose_b=ta, grad_b=True)
    return [a_grad, b_grad]


@op("MatMul", "T, T -> product: T", shape=shapes.matmul, grad=_matmul_grad, T=_FACTORS)
def mat_mul(
    a: Array,
    b: Array,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    grad_a: bool = False,
    grad_b: bool = False,
) -> Array:
    return _product(a, b, transpose_a, transpose_b)


def _product(a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> Array:
    left, right = (a.T if transpose_a else a), (b.T if transpose_b else b)
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise ValueError(f"Matrix size-incompatible: In[0]: {list(left.shape)}, In[1]: {list(right.shape)}")
    if transpose_a and not transpose_b and _is_narrow(b, *a.shape):
        # Without the barrier XLA undoes this.
        return jax.lax.optimization_barrier(jnp.matmul(b.T, a)).T
    return jnp.matmul(left, right)


def _is_narrow(b: Array, rows: Any, columns: Any) -> bool:
    """Tells if a CPU multiplies a transposed matrix of this size by `b` faster the other way round.

    Gradients of the weights of narrow layers are such products. XLA's code for them takes up to 20 times as long as
    that for the product of the transposed `b` and the matrix.
    """
    narrow = b.shape[1]
    if platform() != "cpu" or b.dtype.kind != "f" or is_symbol(narrow) or is_symbol(columns):
        return False
    return 8 * narrow <= columns and (is_symbol(rows) or 8 * narrow <= rows)


@op("SparseMatMul", "Ta, Tb -> product: float", shape=shapes.matmul, Ta=_NARROW, Tb=_NARROW)
def sparse_mat_mul(
    a: Array,
    b: Array,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
) -> Array:
    """A product of matrices with many zeros; the hint makes no difference here."""
    return _product(a.astype(jnp.float32), b.astype(jnp.float32), transpose_a, transpose_b)


def _batch_shape(op: Operation) -> list[TensorShape]:
    a, b = (t.shape for t in op.input_list)
    for shape in (a, b):
        if shape.rank is not None and shape.rank < 2:
            raise ValueError(f"Shape must be at least rank 2 but is rank {shape.rank}")
    (m, k1), (k2, n) = (s.as_list()[-2:] if s.rank is not None else (None, None) for s in (a, b))
    m, k1 = (k1, m) if op.attrs["adj_x"] else (m, k1)
    k2, n = (n, k2) if op.attrs["adj_y"] else (k2, n)
    if k1 is not None and k2 is not None and k1 != k2:
        raise ValueError(f"Dimensions must be equal, but are {k1} and {k2}")
    if a.rank is None or b.rank is None:
        return [TensorShape.of(None)]
    batch = shapes.broadcast_pair(TensorShape.of(tuple(a.as_list()[:-2])), TensorShape.of(tuple(b.as_list()[:-2])))
    return [TensorShape.of((*batch.as_list(), m, n))]


def _batch_grad(op: Operation, grad: Any) -> list[Any]:
    (x, y), adj_x, adj_y = op.inputs, op.attrs["adj_x"], op.attrs["adj_y"]
    if not adj_x:
        x_grad = matmul(grad, y, adjoint_b=not adj_y)
    else:
        x_grad = matmul(y, grad, adjoint_a=adj_y, adjoint_b=True)
    if not adj_y:
        y_grad = matmul(x, grad, adjoint_a=not adj_x)
    else:
        y_grad = matmul(grad, x, adjoint_a=True, adjoint_b=adj_x)
    if x.shape.rank is not None and y.shape.rank is not None:
        x_batch, y_batch = x.shape.as_list()[:-2], y.shape.as_list()[:-2]
        if x_batch == y_batch and None not in x_batch:
            return [x_grad, y_grad]
    x_shape, y_shape = reshaping.shape(x), reshaping.shape(y)
    x_axes, y_axes = broadcast_gradient_args(_batch_of(x_shape), _batch_of(y_shape))
    return [
        reshaping.reshape(reduce.reduce_sum(x_grad, x_axes), x_shape),
        reshaping.reshape(reduce.reduce_sum(y_grad, y_axes), y_shape),
    ]


def _batch_of(shape: Tensor) -> Tensor:
    batch: Tensor = shape[:-2]  # type: ignore[index]
    return batch


@op("BatchMatMulV2", "T, T -> output: T", shape=_batch_shape, grad=_batch_grad, T=Types(*_FACTORS, dt.int16))
def batch_mat_mul_v2(
    x: Array, y: Array, *, adj_x: bool = False, adj_y: bool = False, grad_x: bool = False, grad_y: bool = False
) -> Array:
    return _batch_product(x, y, adj_x, adj_y)


@op(
    "BatchMatMul",
    "T, T -> output: T",
    shape=_batch_shape,
    grad=_batch_grad,
    T=Types(*FLOATS, dt.int32, dt.int64, *COMPLEX),
)
def batch_mat_mul(
    x: Array, y: Array, *, adj_x: bool = False, adj_y: bool = False, grad_x: bool = False, grad_y: bool = False
) -> Array:
    return _batch_product(x, y, adj_x, adj_y)


def _batch_product(x: Array, y: Array, adj_x: bool, adj_y: bool) -> Array:
    if min(x.ndim, y.ndim) < 2:
        raise ValueError(f"In[0] and In[1] must have at least 2 dimensions, received {x.shape} and {y.shape}")
    x = jnp.conj(jnp.swapaxes(x, -1, -2)) if adj_x else x
    y = jnp.conj(jnp.swapaxes(y, -1, -2)) if adj_y else y
    return jnp.matmul(x, y)


def matmul(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The product of two matrices, or of each pair in two batches of them.

    >>> tf.matmul(x, w, transpose_b=True)
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError("matmul: only one of transpose and adjoint may be True for each of `a` and `b`.")
    with name_scope(name, "MatMul", [a, b]) as scope:
        a = convert_to_tensor(a, name="a")
        b = convert_to_tensor(b, dtype_hint=a.dtype.base_dtype, name="b")
        flat = a.shape.rank in (0, 1, 2) and b.shape.rank in (0, 1, 2)
        product: Tensor
        if not flat and not a_is_sparse and not b_is_sparse:
            # The batched op only has adjoints: conjugating first gives a transpose.
            a, adjoint_a = (casting.conj(a), True) if transpose_a else (a, adjoint_a)
            b, adjoint_b = (casting.conj(b), True) if transpose_b else (b, adjoint_b)
            product = batch_mat_mul_v2(a, b, adj_x=adjoint_a, adj_y=adjoint_b, name=scope)
            return product
        a, transpose_a = (casting.conj(a), True) if adjoint_a else (a, transpose_a)
        b, transpose_b = (casting.conj(b), True) if adjoint_b else (b, transpose_b)
        narrow = all(t.dtype.base_dtype in _NARROW for t in (a, b))
        if (a_is_sparse or b_is_sparse) and narrow:
            product = sparse_mat_mul(
                a,
                b,
                transpose_a=transpose_a,
                transpose_b=transpose_b,
                a_is_sparse=a_is_sparse,
                b_is_sparse=b_is_sparse,
                name=scope,
            )
        else:
            product = mat_mul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, name=scope)
        return product


def matvec(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """A matrix times a vector, or each pair in two batches of them: `tf.linalg.matvec(w, x)`."""
    with name_scope(name, "MatVec", [a, b]):
        column = reshaping.expand_dims(b, axis=-1)
        product = matmul(
            a, column, transpose_a=transpose_a, adjoint_a=adjoint_a, a_is_sparse=a_is_sparse, b_is_sparse=b_is_sparse
        )
        vector: Tensor = reshaping.squeeze(product, axis=-1)
        return vector


@op("Cross", "T, T -> product: T", shape=shapes.merged, T=REALS)
def cross(a: Array, b: Array) -> Array:
    return jnp.cross(a, b)


def tensordot(a: TensorLike, b: TensorLike, axes: TensorLike, name: str | None = None) -> Tensor:
    """Sums the products of `a` and `b` over axes of both; `axes` is a number of axes, or a list for each.

    >>> tf.tensordot(a, b, [[2], [0]])
    """
    with name_scope(name, "Tensordot", [a, b, axes]) as scope:
        a = convert_to_tensor(a, name="a")
        b = convert_to_tensor(b, name="b")
        a_axes, b_axes = _dot_axes(a, axes)
        a_matrix, a_free, a_static = _as_matrix(a, a_axes, last=True)
        b_matrix, b_free, b_static = _as_matrix(b, b_axes, last=False)
        product = matmul(a_matrix, b_matrix)
        if isinstance(a_free, list) and isinstance(b_free, list):
            whole = a_free + b_free
            if product.shape.is_fully_defined() and product.shape.as_list() == whole:
                return product
            return reshaping.reshape(product, whole, name=scope)
        parts = [make_constant(f, dt.int32) if isinstance(f, list) else f for f in (a_free, b_free)]
        result: Tensor = reshaping.reshape(product, joining.concat(parts, 0), name=scope)
        if a_static is not None and b_static is not None:
            result.set_shape(a_static + b_static)
        return result


def _dot_axes(a: Tensor, axes: Any) -> tuple[Any, Any]:
    if isinstance(axes, (int, np.integer)):
        if axes < 0:
            raise ValueError(f"tensordot: `axes` must be at least 0, received {axes}.")
        rank = a.shape.rank
        if rank is not None:
            if axes > rank:
                raise ValueError(f"tensordot: `axes` must not exceed the rank {rank} of `a`, received {axes}.")
            return list(range(rank - axes, rank)), list(range(axes))
        end = reshaping.rank(a)
        return ranges.range(arithmetic.sub(end, axes, name="sub"), end), ranges.range(axes)
    if isinstance(axes, (list, tuple)):
        if len(axes) != 2:
            raise ValueError(f"tensordot: `axes` must be a number or have length 2, received {axes!r}.")
        first, second = ([x] if isinstance(x, (int, np.integer)) else x for x in axes)
        if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)) and len(first) != len(second):
            raise ValueError(f"tensordot: as many axes are needed for `a` as for `b`, received {axes!r}.")
        return first, second
    both = convert_to_tensor(axes, name="axes", dtype=dt.int32)
    return both[0], both[1]  # type: ignore[index]


def _as_matrix(t: Tensor, axes: Any, last: bool) -> tuple[Tensor, Any, list[int | None] | None]:
    """`t` as a matrix of free by summed axes (or summed by free), and the sizes of the free ones."""
    rank = t.shape.rank
    if rank is not None and isinstance(axes, (list, tuple)):
        summed = [int(i) % rank if rank else int(i) for i in axes]
        free = [i for i in range(rank) if i not in summed]
        order = free + summed if last else summed + free
        dims = t.shape.as_list()
        if t.shape.is_fully_defined():
            rows, columns = (pymath.prod(dims[i] or 0 for i in group) for group in (free, summed))
            moved = t if order == list(range(rank)) else arranging.transpose(t, order)
            shape = [rows, columns] if last else [columns, rows]
            matrix = moved if moved.shape.as_list() == shape else reshaping.reshape(moved, shape)
            return matrix, [dims[i] for i in free], [dims[i] for i in free]
        summed_axes = make_constant(summed, dt.int32, name="axes")
        free_axes = make_constant(free, dt.int32, name="free")
        shape_t = reshaping.shape(t)
        static: list[int | None] | None = [dims[i] for i in free]
    else:
        shape_t, rank_t = reshaping.shape(t), reshaping.rank(t)
        summed_axes = convert_to_tensor(axes, dtype=dt.int32, name="axes")
        counted = arithmetic.add_v2(summed_axes, rank_t, name="add")
        summed_axes = selection.select(compare.greater_equal(summed_axes, 0), summed_axes, counted)
        free_axes = selection.list_diff(ranges.range(0, rank_t), summed_axes)[0]
        static = None
    free_dims, summed_dims = gathering.gather(shape_t, free_axes), gathering.gather(shape_t, summed_axes)
    rows_t, columns_t = reduce.reduce_prod(free_dims), reduce.reduce_prod(summed_dims)
    if last:
        perm, shape_m = joining.concat([free_axes, summed_axes], 0), joining.stack([rows_t, columns_t])
    else:
        perm, shape_m = joining.concat([summed_axes, free_axes], 0), joining.stack([columns_t, rows_t])
    return reshaping.reshape(arranging.transpose(t, perm), shape_m), free_dims, static
