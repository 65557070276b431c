"""Eigenvalues, singular values, QR and LU factors, and functions of matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel.types import COMPLEX, Array
from penstock.ops.array import creation, joining, reshaping, selection
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.engine.vjp import vjp_gradient
from penstock.ops.linalg import diag, rules
from penstock.ops.linalg.matmul import matmul
from penstock.ops.linalg.rules import FACTORED, adjoint, need_matrix, need_square, widened
from penstock.ops.linalg.solve import matrix_triangular_solve
from penstock.ops.math import casting, compare, reduce

# Eigenvalues of self-adjoint matrices


def _eig_shape(op: Operation) -> list[TensorShape]:
    batch, rows, columns = rules.split_matrix(op.input_list[0].shape)
    side = rules.side_of(rows, columns)
    vectors = rules.join_matrix(batch, side, side) if op.attrs["compute_v"] else TensorShape.of((0,))
    return [rules.join_matrix(batch, side), vectors]


def _eig_grad(op: Operation, e_grad: Tensor, v_grad: Tensor) -> list[Any]:
    if op.attrs["compute_v"]:
        return [self_adjoint_eig_grad(*op.outputs, e_grad, v_grad)]
    values, vectors = self_adjoint_eig(op.inputs[0])
    return [self_adjoint_eig_grad(values, vectors, e_grad, creation.zeros_like(vectors))]


@op("SelfAdjointEigV2", "T -> e: T, v: T", shape=_eig_shape, grad=_eig_grad, T=FACTORED)
def self_adjoint_eig_v2(input: Array, *, compute_v: bool = True) -> tuple[Array, Array]:
    """Eigenvalues in rising order and, as columns, eigenvectors; only the lower triangle is read."""
    need_square(input)
    if not input.size:
        return jnp.zeros(input.shape[:-1], input.dtype), input if compute_v else jnp.zeros((0,), input.dtype)
    lower = jnp.tril(widened(input))
    whole = lower + adjoint(jnp.tril(lower, -1))
    vectors, values = lax.linalg.eigh(whole, symmetrize_input=False)
    kept = vectors if compute_v else jnp.zeros((0,))
    return values.astype(input.dtype), kept.astype(input.dtype)


@op("SelfAdjointEigGrad", "T, T, T, T -> output: T", shape=lambda op: [op.input_list[1].shape], T=FACTORED)
def self_adjoint_eig_grad(e: Array, v: Array, e_grad: Array, v_grad: Array) -> Array:
    """The gradient with respect to the lower triangle of the decomposed matrix."""
    if not v.size:
        return v
    values, vectors, de, dv = (widened(x) for x in (e, v, e_grad, v_grad))
    apart = values[..., None, :] - values[..., :, None]
    # Equal eigenvalues have no unique eigenvectors to differentiate.
    inverse = apart / (apart * apart + 1e-20)
    inverse = jnp.where(np.eye(values.shape[-1], dtype=bool), 0, inverse)
    inner = jnp.where(np.eye(values.shape[-1], dtype=bool), de[..., None, :], inverse * (adjoint(vectors) @ dv))
    grad = vectors @ inner @ adjoint(vectors)
    both = jnp.tril(grad + adjoint(grad))
    return jnp.where(np.eye(values.shape[-1], dtype=bool), both / 2, both).astype(v.dtype)


def self_adjoint_eig(tensor: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of self-adjoint matrices: `e, v = tf.linalg.eigh(x)`."""
    values, vectors = self_adjoint_eig_v2(tensor, compute_v=True, name=name)
    return values, vectors


def self_adjoint_eigvals(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Eigenvalues of self-adjoint matrices, in rising order."""
    values: Tensor = self_adjoint_eig_v2(tensor, compute_v=False, name=name)[0]
    return values


# Singular values


def _least(rows: int | None, columns: int | None) -> int | None:
    return None if rows is None or columns is None else min(rows, columns)


def _svd_shape(op: Operation) -> list[TensorShape]:
    batch, rows, columns = rules.split_matrix(op.input_list[0].shape)
    least = _least(rows, columns)
    values = rules.join_matrix(batch, least)
    if not op.attrs["compute_uv"]:
        return [values, TensorShape.of((0,)), TensorShape.of((0,))]
    u, v = (rows, columns) if op.attrs["full_matrices"] else (least, least)
    return [values, rules.join_matrix(batch, rows, u), rules.join_matrix(batch, columns, v)]


def _svd_grad(op: Operation, *grads: Tensor) -> list[Any]:
    _, rows, columns = rules.split_matrix(op.input_list[0].shape)
    if op.attrs["compute_uv"] and op.attrs["full_matrices"] and rows != columns:
        raise NotImplementedError("svd gradient is not implemented for full_matrices=True and a matrix not square.")
    return vjp_gradient(op, *grads)


@op("Svd", "T -> s: T, u: T, v: T", shape=_svd_shape, grad=_svd_grad, T=FACTORED)
def svd_op(input: Array, *, compute_uv: bool = True, full_matrices: bool = False) -> tuple[Array, Array, Array]:
    need_matrix(input)
    rows, columns = input.shape[-2:]
    nothing = jnp.zeros((0,), input.dtype)
    if not input.size:
        least = min(rows, columns)
        u, v = (rows, columns) if full_matrices else (least, least)
        sides = ((rows, u), (columns, v))
        uv = (jnp.broadcast_to(jnp.eye(m, n, dtype=input.dtype), (*input.shape[:-2], m, n)) for m, n in sides)
        left, right = uv if compute_uv else (nothing, nothing)
        return jnp.zeros((*input.shape[:-2], least), input.dtype), left, right
    if not compute_uv:
        values = jnp.linalg.svd(widened(input), compute_uv=False)
        return values.astype(input.dtype), nothing, nothing
    # jax has a gradient only for the reduced form, which for square matrices is the full one.
    left, values, right = jnp.linalg.svd(widened(input), full_matrices=full_matrices and rows != columns)
    return values.astype(input.dtype), left.astype(input.dtype), adjoint(right).astype(input.dtype)


def svd(tensor: TensorLike, full_matrices: bool = False, compute_uv: bool = True, name: str | None = None) -> Any:
    """Singular values, largest first, and the left and right singular vectors as columns.

    >>> s, u, v = tf.linalg.svd(x)  # x = u * diag(s) * v^H
    """
    values, left, right = svd_op(tensor, compute_uv=compute_uv, full_matrices=full_matrices, name=name)
    return (values, left, right) if compute_uv else values


def pinv(a: TensorLike, rcond: TensorLike = None, validate_args: bool = False, name: str | None = None) -> Tensor:
    """The pseudo-inverse of matrices; singular values below `rcond` times the largest count as zero."""
    with name_scope(name or "pinv"):
        matrix = convert_to_tensor(a, name="a")
        kind = matrix.dtype.base_dtype.as_numpy_dtype
        if not np.issubdtype(kind, np.floating):
            raise TypeError(f"Input `a` must have `float`-like `dtype` (saw {matrix.dtype.name}).")
        if rcond is None:
            if matrix.shape.rank is not None and None not in matrix.shape.as_list()[-2:]:
                rcond = 10.0 * max(d or 0 for d in matrix.shape.as_list()[-2:]) * np.finfo(kind).eps
            else:
                sides: Any = reshaping.shape(matrix)[-2:]  # type: ignore[index]
                rcond = 10.0 * np.finfo(kind).eps * casting.cast(reduce.reduce_max(sides), matrix.dtype)
        limit: Any = convert_to_tensor(rcond, dtype=matrix.dtype, name="rcond")
        values, left, right = svd(matrix, full_matrices=False, compute_uv=True)
        cut = reshaping.expand_dims(limit * reduce.reduce_max(values, axis=-1), -1)
        safe = selection.where_v2(compare.greater(values, cut), values, np.array(np.inf, kind))
        return matmul(right / reshaping.expand_dims(safe, -2), left, adjoint_b=True)


# QR and LU


def _qr_shape(op: Operation) -> list[TensorShape]:
    batch, rows, columns = rules.split_matrix(op.input_list[0].shape)
    inner = rows if op.attrs["full_matrices"] else _least(rows, columns)
    return [rules.join_matrix(batch, rows, inner), rules.join_matrix(batch, inner, columns)]


def _qr_grad(op: Operation, *grads: Tensor) -> list[Any]:
    _, rows, columns = rules.split_matrix(op.input_list[0].shape)
    if op.attrs["full_matrices"] and (rows is None or columns is None or rows > columns):
        raise NotImplementedError("QrGrad is not implemented for full_matrices=True and more rows than columns.")
    return vjp_gradient(op, *grads)


@op("Qr", "T -> q: T, r: T", shape=_qr_shape, grad=_qr_grad, T=FACTORED)
def qr_op(input: Array, *, full_matrices: bool = False) -> tuple[Array, Array]:
    need_matrix(input)
    rows, columns = input.shape[-2:]
    if not input.size:
        inner = rows if full_matrices else min(rows, columns)
        q = jnp.broadcast_to(jnp.eye(rows, inner, dtype=input.dtype), (*input.shape[:-2], rows, inner))
        return q, jnp.zeros((*input.shape[:-2], inner, columns), input.dtype)
    x = widened(input)
    if rows >= columns:
        q, r = lax.linalg.qr(x, full_matrices=full_matrices and rows > columns)
    else:
        # The first columns, as a square matrix, determine q: in this form jax has a gradient.
        q, first = lax.linalg.qr(x[..., :rows], full_matrices=False)
        r = jnp.concatenate([first, adjoint(q) @ x[..., rows:]], axis=-1)
    return q.astype(input.dtype), r.astype(input.dtype)


class Qr(NamedTuple):
    """An orthonormal and an upper triangular factor."""

    q: Tensor
    r: Tensor


def qr(input: TensorLike, full_matrices: bool = False, name: str | None = None) -> Qr:
    """QR factors of matrices: `q, r = tf.linalg.qr(x)`."""
    return Qr(*qr_op(input, full_matrices=full_matrices, name=name))


def _lu_shape(op: Operation) -> list[TensorShape]:
    batch, rows, columns = rules.split_matrix(op.input_list[0].shape)
    side = rules.side_of(rows, columns)
    return [rules.join_matrix(batch, side, side), rules.join_matrix(batch, side)]


@op("Lu", "T -> lu: T, p: output_idx_type", shape=_lu_shape, grad=refuse_gradient, T=FACTORED)
def lu_op(input: Array, *, output_idx_type: DType = dt.int32) -> tuple[Array, Array]:
    need_square(input)
    kind = output_idx_type.as_numpy_dtype
    if not input.size:
        return input, jnp.zeros(input.shape[:-1], kind)
    factors, _, order = lax.linalg.lu(widened(input))
    return factors.astype(input.dtype), order.astype(kind)


class Lu(NamedTuple):
    """Both triangular factors in one matrix, and the order of the rows."""

    lu: Tensor
    p: Tensor


def lu(input: TensorLike, output_idx_type: DTypeLike = dt.int32, name: str | None = None) -> Lu:
    """LU factors of square matrices with permuted rows: `tf.linalg.lu(x).p`."""
    return Lu(*lu_op(input, output_idx_type=as_dtype(output_idx_type), name=name))


def lu_reconstruct(
    lower_upper: TensorLike, perm: TensorLike, validate_args: bool = False, name: str | None = None
) -> Tensor:
    """The matrix that `lu` came from: `tf.linalg.lu_reconstruct(*tf.linalg.lu(x))`."""
    with name_scope(name or "lu_reconstruct"):
        factors = convert_to_tensor(lower_upper, name="lower_upper")
        product = matmul(_unit_lower(factors), diag.matrix_band_part(factors, 0, -1))
        return matmul(_permutation(perm, factors), product, transpose_a=True)


def lu_solve(
    lower_upper: TensorLike, perm: TensorLike, rhs: TensorLike, validate_args: bool = False, name: str | None = None
) -> Tensor:
    """X with A X = `rhs`, given `tf.linalg.lu` of A."""
    with name_scope(name or "lu_solve"):
        factors = convert_to_tensor(lower_upper, name="lower_upper")
        right = convert_to_tensor(rhs, name="rhs", dtype=factors.dtype)
        permuted = matmul(_permutation(perm, factors), right)
        return matrix_triangular_solve(factors, matrix_triangular_solve(_unit_lower(factors), permuted), lower=False)


def _unit_lower(factors: Tensor) -> Tensor:
    unit = creation.ones_like(diag.matrix_diag_part(factors))
    return diag.matrix_set_diag(diag.matrix_band_part(factors, -1, 0), unit)


def _permutation(perm: Any, factors: Tensor) -> Tensor:
    """The matrices that permute rows to the order `perm`."""
    order = convert_to_tensor(perm, name="perm")
    return selection.one_hot(order, reshaping.shape(factors)[-1], dtype=factors.dtype.base_dtype)  # type: ignore[index]


# Functions of matrices


@op("MatrixExponential", "T -> output: T", shape=rules.square, T=FACTORED)
def matrix_exponential(input: Array) -> Array:
    import jax.scipy.linalg as jsl  # start-up

    need_square(input)
    return jsl.expm(widened(input), max_squarings=64).astype(input.dtype) if input.size else input


def expm(input: TensorLike, name: str | None = None) -> Tensor:
    """The exponentials of square matrices: `tf.linalg.expm(x)`."""
    with name_scope(name, "matrix_exponential", [input]):
        matrix = convert_to_tensor(input, name="input")
        if matrix.shape.rank is not None and matrix.shape.as_list()[-2:] == [0, 0]:
            return matrix
        whole: Any = reshaping.shape(matrix)
        flat = reshaping.reshape(matrix, joining.concat([[-1], whole[-2:]], 0))
        return reshaping.reshape(matrix_exponential(flat), whole)


def _each(function: Any, input: Array) -> np.ndarray:
    """Applies a function of one matrix to each matrix of a batch."""
    need_square(input)
    matrices = np.asarray(input)
    wide = matrices.astype(np.float32) if matrices.dtype == np.float16 else matrices
    result = np.empty_like(matrices)
    for place in np.ndindex(matrices.shape[:-2]):
        found = function(wide[place]) if wide[place].size else wide[place]
        if np.iscomplexobj(found) and not np.iscomplexobj(result):
            # If the result of a real matrix is not real, it is NaN.
            found = np.full_like(wide[place], np.nan)
        result[place] = found
    return result


@op("MatrixLogarithm", "T -> output: T", host=True, shape=rules.square, grad=refuse_gradient, T=COMPLEX)
def matrix_logarithm(input: Array) -> Array:
    """The principal logarithms of complex matrices."""
    import scipy.linalg  # start-up

    return _each(scipy.linalg.logm, input)


def _square_root_grad(op: Operation, grad: Tensor) -> list[Any]:
    return [matrix_square_root_grad(op.outputs[0], grad)]


@op("MatrixSquareRoot", "T -> output: T", host=True, shape=rules.square, grad=_square_root_grad, T=FACTORED)
def matrix_square_root(input: Array) -> Array:
    """The principal square roots of invertible matrices."""
    import scipy.linalg  # start-up

    return _each(scipy.linalg.sqrtm, input)


@op("MatrixSquareRootGrad", "T, T -> output: T", shape=rules.square, T=FACTORED)
def matrix_square_root_grad(root: Array, grad: Array) -> Array:
    """The X with root^H X + X root^H = grad, solved as one system of linear equations."""
    if not root.size:
        return root
    r, g = widened(root), widened(grad)
    side = r.shape[-1]
    eye = jnp.eye(side, dtype=r.dtype)
    left = jnp.einsum("...ij,kl->...ikjl", adjoint(r), eye)
    right = jnp.einsum("ij,...kl->...ikjl", eye, jnp.conj(r))
    system = (left + right).reshape(*r.shape[:-2], side * side, side * side)
    found = jnp.linalg.solve(system, g.reshape(*g.shape[:-2], side * side, 1))
    return found.reshape(g.shape).astype(root.dtype)


def matrix_rank(a: TensorLike, tol: TensorLike = None, validate_args: bool = False, name: str | None = None) -> Tensor:
    """The number of singular values of each matrix that are above `tol`."""
    with name_scope(name or "matrix_rank"):
        matrix = convert_to_tensor(a, name="a")
        values = svd(matrix, compute_uv=False)
        if tol is None:
            sides: Any = reshaping.shape(matrix)[-2:]  # type: ignore[index]
            longest: Any = casting.cast(reduce.reduce_max(sides), matrix.dtype)
            eps = np.finfo(matrix.dtype.base_dtype.as_numpy_dtype).eps
            tol = eps * longest * reduce.reduce_max(values, axis=-1, keepdims=True)
        counted: Tensor = reduce.reduce_sum(casting.cast(compare.greater(values, tol), dt.int32), axis=-1)
        return counted
