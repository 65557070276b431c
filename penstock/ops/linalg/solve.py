"""Cholesky factors, inverses, determinants, and the solution of linear equations."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.jaxprs.symbols import broadcast_shapes
from penstock.kernel.types import COMPLEX, Array
from penstock.ops.array import joining, padding, reshaping
from penstock.ops.array.arranging import matrix_transpose
from penstock.ops.control import flow
from penstock.ops.linalg import diag, rules
from penstock.ops.linalg.matmul import matmul
from penstock.ops.linalg.rules import FACTORED, adjoint, need_matrix, need_square, widened
from penstock.ops.math import casting, reduce, unary
from penstock.ops.math.elementwise_gradients import broadcast_gradient_args

# Cholesky


def _cholesky_grad(op: Operation, grad: Tensor) -> list[Any]:
    return [cholesky_grad(op.outputs[0], grad)]


@op("Cholesky", "T -> output: T", shape=rules.square, grad=_cholesky_grad, T=FACTORED)
def cholesky_op(input: Array) -> Array:
    """Lower triangular L with L L^H = input; NaN if there is none. Only the lower triangle of the input is read."""
    need_square(input)
    if not input.size:
        return input
    return lax.linalg.cholesky(widened(input), symmetrize_input=False).astype(input.dtype)


@op("CholeskyGrad", "T, T -> output: T", shape=rules.square, T=Types(dt.float16, dt.float32, dt.float64, *COMPLEX))
def cholesky_grad(l: Array, grad: Array) -> Array:  # noqa: E741 (the input's name in TensorFlow)
    """The gradient for the factored matrix, given that for its factor `l`; it is symmetric, as the matrix is."""
    if not l.size:
        return l
    low, upstream = widened(l), widened(grad)
    middle = jnp.tril(adjoint(low) @ upstream)
    middle = middle - jnp.eye(low.shape[-1], dtype=low.dtype) * middle / 2
    inverse = _triangular(low, jnp.broadcast_to(jnp.eye(low.shape[-1], dtype=low.dtype), low.shape), True, False)
    result = adjoint(inverse) @ middle @ inverse
    return ((result + adjoint(result)) / 2).astype(l.dtype)


def cholesky(input: TensorLike, name: str | None = None) -> Tensor:
    """The lower triangular factor of (a batch of) positive definite matrices: `tf.linalg.cholesky(covariance)`."""
    result: Tensor = cholesky_op(input, name=name)
    return result


# Equations


def _solve_by_lu(a: Array, b: Array, message: str) -> Array:
    factors, _, order = lax.linalg.lu(a)
    require(jnp.all(jnp.abs(jnp.diagonal(factors, axis1=-2, axis2=-1)) > 0), message)
    rows = jnp.take_along_axis(b, order[..., None], axis=-2)
    middle = lax.linalg.triangular_solve(factors, rows, left_side=True, lower=True, unit_diagonal=True)
    return lax.linalg.triangular_solve(factors, middle, left_side=True, lower=False)


def _inverse_grad(op: Operation, grad: Tensor) -> list[Any]:
    inverse = op.outputs[0]
    if op.attrs["adjoint"]:
        return [-matmul(inverse, matmul(grad, inverse, adjoint_a=True))]  # type: ignore[operator]
    return [-matmul(inverse, matmul(grad, inverse, adjoint_b=True), adjoint_a=True)]  # type: ignore[operator]


@op("MatrixInverse", "T -> output: T", shape=rules.square, grad=_inverse_grad, T=FACTORED)
def matrix_inverse_op(input: Array, *, adjoint: bool = False) -> Array:
    need_square(input)
    if not input.size:
        return input
    a = rules.adjoint(widened(input)) if adjoint else widened(input)
    eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    return _solve_by_lu(a, eye, "Input is not invertible.").astype(input.dtype)


def matrix_inverse(input: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """The inverses of square matrices, or of their adjoints: `tf.linalg.inv(x)`."""
    result: Tensor = matrix_inverse_op(input, adjoint=adjoint, name=name)
    return result


def _solve_grad(op: Operation, grad: Tensor) -> list[Any]:
    a, adjoint_a, c = op.inputs[0], op.attrs["adjoint"], op.outputs[0]
    b_grad = matrix_solve(a, grad, adjoint=not adjoint_a)
    a_grad = matmul(c, b_grad, adjoint_b=True) if adjoint_a else matmul(b_grad, c, adjoint_b=True)
    return [-a_grad, b_grad]  # type: ignore[operator]


@op("MatrixSolve", "T, T -> output: T", shape=rules.solve, grad=_solve_grad, T=FACTORED)
def matrix_solve_op(matrix: Array, rhs: Array, *, adjoint: bool = False) -> Array:
    need_square(matrix)
    need_matrix(rhs)
    if matrix.shape[:-1] != rhs.shape[:-1]:
        raise ValueError(f"Input matrix and rhs are incompatible: {list(matrix.shape)} and {list(rhs.shape)}")
    if not rhs.size:
        return rhs
    a = rules.adjoint(widened(matrix)) if adjoint else widened(matrix)
    return _solve_by_lu(a, widened(rhs), "Input matrix is not invertible.").astype(rhs.dtype)


def matrix_solve(matrix: TensorLike, rhs: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """X with `matrix` X = `rhs`: `tf.linalg.solve(a, b)`."""
    result: Tensor = matrix_solve_op(matrix, rhs, adjoint=adjoint, name=name)
    return result


def _triangular(a: Array, b: Array, lower: bool, adjointed: bool) -> Array:
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=adjointed, conjugate_a=adjointed and jnp.iscomplexobj(a)
    )


def _triangular_solve_grad(op: Operation, grad: Tensor) -> list[Any]:
    (a, b), c = op.inputs, op.outputs[0]
    lower, adjoint_a = op.attrs["lower"], op.attrs["adjoint"]
    b_grad = matrix_triangular_solve_op(a, grad, lower=lower, adjoint=not adjoint_a)
    product = matmul(c, b_grad, adjoint_b=True) if adjoint_a else matmul(b_grad, c, adjoint_b=True)
    a_grad = diag.matrix_band_part(-product, -1 if lower else 0, 0 if lower else -1)  # type: ignore[operator]
    if a.shape.rank is not None and b.shape.rank is not None:
        a_batch, b_batch = a.shape.as_list()[:-2], b.shape.as_list()[:-2]
        if a_batch == b_batch and None not in a_batch:
            return [a_grad, b_grad]
    a_shape, b_shape = reshaping.shape(a), reshaping.shape(b)
    a_axes, b_axes = broadcast_gradient_args(a_shape[:-2], b_shape[:-2])  # type: ignore[index]
    return [
        reshaping.reshape(reduce.reduce_sum(a_grad, a_axes), a_shape),
        reshaping.reshape(reduce.reduce_sum(b_grad, b_axes), b_shape),
    ]


@op(
    "MatrixTriangularSolve",
    "T, T -> output: T",
    shape=rules.triangular_solve,
    grad=_triangular_solve_grad,
    T=Types(dt.bfloat16, *FACTORED),
)
def matrix_triangular_solve_op(matrix: Array, rhs: Array, *, lower: bool = True, adjoint: bool = False) -> Array:
    need_square(matrix)
    need_matrix(rhs)
    if matrix.shape[-1] != rhs.shape[-2]:
        raise ValueError(f"Input matrix and rhs are incompatible: {list(matrix.shape)} and {list(rhs.shape)}")
    batch = broadcast_shapes(matrix.shape[:-2], rhs.shape[:-2])
    a, b = widened(matrix), widened(rhs)
    if not a.size or not b.size:
        return jnp.zeros((*batch, *b.shape[-2:]), rhs.dtype)
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return _triangular(a, b, lower, adjoint).astype(rhs.dtype)


def matrix_triangular_solve(
    matrix: TensorLike, rhs: TensorLike, lower: bool = True, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """X with `matrix` X = `rhs`, where one triangle of `matrix` counts: `tf.linalg.triangular_solve(l, b)`."""
    with name_scope(name, "triangular_solve", [matrix, rhs]):
        result: Tensor = matrix_triangular_solve_op(matrix, rhs, lower=lower, adjoint=adjoint)
        return result


def cholesky_solve(chol: TensorLike, rhs: TensorLike, name: str | None = None) -> Tensor:
    """X with A X = `rhs`, given the Cholesky factor of A: `tf.linalg.cholesky_solve(tf.linalg.cholesky(a), b)`."""
    with name_scope(name, "cholesky_solve", [chol, rhs]):
        middle = matrix_triangular_solve_op(chol, rhs, adjoint=False, lower=True)
        result: Tensor = matrix_triangular_solve_op(chol, middle, adjoint=True, lower=True)
        return result


# Determinants


def _sign_and_diagonal(x: Array) -> tuple[Array, Array]:
    """The sign of the row swaps and the diagonal of the upper factor: their product is the determinant."""
    factors, swaps, _ = lax.linalg.lu(x)
    swapped = (swaps != jnp.arange(x.shape[-1])).sum(-1)
    return jnp.where(swapped % 2 == 1, -1, 1).astype(x.dtype), jnp.diagonal(factors, axis1=-2, axis2=-1)


def _per_matrix(x: Tensor) -> Tensor:
    return reshaping.reshape(x, joining.concat([reshaping.shape(x), [1, 1]], 0))


def _determinant_grad(op: Operation, grad: Tensor) -> list[Any]:
    factor: Any = _per_matrix(grad * casting.conj(op.outputs[0]))  # type: ignore[operator]
    return [factor * matrix_inverse(op.inputs[0], adjoint=True)]


@op("MatrixDeterminant", "T -> output: T", shape=rules.number_each, grad=_determinant_grad, T=FACTORED)
def matrix_determinant(input: Array) -> Array:
    """The determinants of square matrices."""
    need_square(input)
    if not input.size:
        return jnp.ones(input.shape[:-2], input.dtype)
    sign, diagonal = _sign_and_diagonal(widened(input))
    return (sign * jnp.prod(diagonal, axis=-1)).astype(input.dtype)


def _log_determinant_grad(op: Operation, _: Tensor, grad: Tensor) -> list[Any]:
    factor: Any = _per_matrix(grad)
    return [factor * matrix_inverse(op.inputs[0], adjoint=True)]


@op(
    "LogMatrixDeterminant",
    "T -> sign: T, log_abs_determinant: T",
    shape=rules.number_each,
    grad=_log_determinant_grad,
    T=FACTORED,
)
def log_matrix_determinant(input: Array) -> tuple[Array, Array]:
    need_square(input)
    if not input.size:
        return jnp.ones(input.shape[:-2], input.dtype), jnp.zeros(input.shape[:-2], input.dtype)
    sign, diagonal = _sign_and_diagonal(widened(input))
    sizes = jnp.abs(diagonal)
    unit = diagonal / jnp.where(sizes == 0, 1, sizes).astype(diagonal.dtype)
    return (sign * jnp.prod(unit, axis=-1)).astype(input.dtype), jnp.log(sizes).sum(-1).astype(input.dtype)


class LogMatrixDeterminant(NamedTuple):
    """Sign and logarithm of the absolute value of a determinant."""

    sign: Tensor
    log_abs_determinant: Tensor


def slogdet(input: TensorLike, name: str | None = None) -> LogMatrixDeterminant:
    """The signs of the determinants and the logarithms of their absolute values."""
    return LogMatrixDeterminant(*log_matrix_determinant(input, name=name))


def logdet(matrix: TensorLike, name: str | None = None) -> Tensor:
    """The logarithms of the determinants of positive definite matrices."""
    with name_scope(name, "logdet", [matrix]):
        factor = cholesky(matrix)
        logs = unary.log(casting.real(diag.matrix_diag_part(factor)))
        half: Any = reduce.reduce_sum(logs, axis=[-1])
        result: Tensor = 2.0 * half
        return result


# Least squares


@op("MatrixSolveLs", "T, T, double -> output: T", shape=rules.least_squares, T=FACTORED)
def matrix_solve_ls_op(matrix: Array, rhs: Array, l2_regularizer: Array, *, fast: bool = True) -> Array:
    """The X that minimises |matrix X - rhs|^2 + l2 |X|^2, and the smallest such X."""
    need_matrix(matrix, rhs)
    if matrix.shape[:-1] != rhs.shape[:-1]:
        raise ValueError(f"Input matrix and rhs are incompatible: {list(matrix.shape)} and {list(rhs.shape)}")
    a, b = widened(matrix), widened(rhs)
    if not a.size or not b.size:
        return jnp.zeros((*a.shape[:-2], a.shape[-1], b.shape[-1]), rhs.dtype)
    if not fast:
        return (jnp.linalg.pinv(a) @ b).astype(rhs.dtype)
    tall = a.shape[-2] >= a.shape[-1]
    gramian = adjoint(a) @ a if tall else a @ adjoint(a)
    gramian = gramian + jnp.asarray(l2_regularizer).astype(a.dtype) * jnp.eye(gramian.shape[-1], dtype=a.dtype)
    factor = lax.linalg.cholesky(gramian, symmetrize_input=False)
    middle = _triangular(factor, adjoint(a) @ b if tall else b, True, False)
    solution = _triangular(factor, middle, True, True)
    return (solution if tall else adjoint(a) @ solution).astype(rhs.dtype)


def matrix_solve_ls(
    matrix: TensorLike, rhs: TensorLike, l2_regularizer: TensorLike = 0.0, fast: bool = True, name: str | None = None
) -> Tensor:
    """The least-squares solutions of (a batch of) linear equations: `tf.linalg.lstsq(a, b)`.

    The fast way solves the normal equations; the other way also works for matrices without full rank.
    """
    result: Tensor
    if not fast:
        result = matrix_solve_ls_op(matrix, rhs, l2_regularizer, fast=False, name=name)
        return result
    with name_scope(name, "matrix_solve_ls", [matrix, rhs, l2_regularizer]):
        a = convert_to_tensor(matrix, name="matrix")
        b = convert_to_tensor(rhs, name="rhs")
        rows, columns = a.shape.as_list()[-2:] if a.shape.rank is not None else (None, None)
        if rows is not None and columns is not None:
            return _overdetermined(a, b, l2_regularizer) if rows >= columns else _underdetermined(a, b, l2_regularizer)
        sides: Any = reshaping.shape(a)[-2:]  # type: ignore[index]
        result = flow.cond(
            sides[-2] >= sides[-1],
            lambda: _overdetermined(a, b, l2_regularizer),
            lambda: _underdetermined(a, b, l2_regularizer),
        )
        return result


def _gramian_factor(matrix: Tensor, l2_regularizer: Any, first_kind: bool) -> Tensor:
    gramian: Any = matmul(matrix, matrix, adjoint_a=first_kind, adjoint_b=not first_kind)
    if isinstance(l2_regularizer, Tensor) or l2_regularizer != 0:
        sides: Any = reshaping.shape(matrix)
        batch = sides[:-2]
        identity = diag.eye(sides[-1] if first_kind else sides[-2], batch_shape=batch, dtype=matrix.dtype.base_dtype)
        factor = casting.cast(l2_regularizer, matrix.dtype) if isinstance(l2_regularizer, Tensor) else l2_regularizer
        gramian = gramian + factor * identity
    return cholesky(gramian)


def _overdetermined(matrix: Tensor, rhs: Tensor, l2_regularizer: Any) -> Tensor:
    factor = _gramian_factor(matrix, l2_regularizer, True)
    return cholesky_solve(factor, matmul(matrix, rhs, adjoint_a=True))


def _underdetermined(matrix: Tensor, rhs: Tensor, l2_regularizer: Any) -> Tensor:
    factor = _gramian_factor(matrix, l2_regularizer, False)
    return matmul(matrix, cholesky_solve(factor, rhs), adjoint_a=True)


# Tridiagonal matrices


@op(
    "TridiagonalSolve",
    "T, T -> output: T",
    shape=lambda op: [op.input_list[1].shape],
    T=Types(dt.float64, dt.float32, *COMPLEX),
)
def tridiagonal_solve_op(
    diagonals: Array, rhs: Array, *, partial_pivoting: bool = True, perturb_singular: bool = False
) -> Array:
    """`diagonals` has three rows: above (its last element unused), on, and below (its first unused) the diagonal."""
    need_matrix(diagonals, rhs)
    if diagonals.shape[-2] != 3 or diagonals.shape[-1] != rhs.shape[-2] or diagonals.shape[:-2] != rhs.shape[:-2]:
        raise ValueError(
            f"Expected diagonals and rhs of [..., 3, m] and [..., m, k], received "
            f"{list(diagonals.shape)} and {list(rhs.shape)}"
        )
    above, on, below = (diagonals[..., i, :] for i in range(3))
    if diagonals.shape[-1] < 3 or jnp.iscomplexobj(diagonals):
        side = jnp.arange(diagonals.shape[-1])
        matrix = jnp.where(side[:, None] == side, on[..., None], 0)
        matrix = matrix + jnp.where(side[:, None] == side - 1, above[..., None], 0)
        matrix = matrix + jnp.where(side[:, None] == side + 1, below[..., None], 0)
        return _solve_by_lu(matrix, rhs, "The first element of diagonal or a pivot is zero.")
    zero = jnp.zeros_like(on[..., :1])
    below, above = jnp.concatenate([zero, below[..., 1:]], -1), jnp.concatenate([above[..., :-1], zero], -1)
    return lax.linalg.tridiagonal_solve(below, on, above, rhs)


def tridiagonal_solve(
    diagonals: TensorLike,
    rhs: TensorLike,
    diagonals_format: str = "compact",
    transpose_rhs: bool = False,
    conjugate_rhs: bool = False,
    name: str | None = None,
    partial_pivoting: bool = True,
) -> Tensor:
    """X with A X = `rhs` for tridiagonal A, given as [superdiagonal, diagonal, subdiagonal], or as a whole matrix.

    >>> tf.linalg.tridiagonal_solve([[1.0, 1.0, 0.0], [4.0, 4.0, 4.0], [0.0, 1.0, 1.0]], [1.0, 2.0, 3.0])
    """
    if diagonals_format == "sequence":
        above, on, below = (convert_to_tensor(d) for d in diagonals)
        lines = joining.stack([_padded(above, on, after=True), on, _padded(below, on, after=False)], axis=-2)
    elif diagonals_format == "matrix":
        whole = convert_to_tensor(diagonals)
        if whole.shape.rank is not None and whole.shape.as_list()[-1] != whole.shape.as_list()[-2]:
            raise ValueError(f"Expected last two dimensions of diagonals to be same, got {whole.shape}")
        lines = diag.matrix_diag_part(whole, k=(-1, 1), align="LEFT_RIGHT")
    elif diagonals_format == "compact":
        lines = convert_to_tensor(diagonals)
    else:
        raise ValueError(f"Unrecognized diagonals_format: {diagonals_format}")
    right = convert_to_tensor(rhs)
    vector = right.shape.rank is not None and lines.shape.rank is not None and right.shape.rank == lines.shape.rank - 1
    if vector:
        if transpose_rhs:
            raise ValueError("transpose_rhs is not supported for a vector as the right-hand side.")
        right = reshaping.expand_dims(right, -1)
    elif transpose_rhs:
        right = matrix_transpose(right, conjugate=conjugate_rhs)
    if conjugate_rhs and not transpose_rhs:
        right = casting.conj(right)
    result: Tensor = tridiagonal_solve_op(lines, right, partial_pivoting=partial_pivoting, name=name)
    return reshaping.squeeze(result, axis=[-1]) if vector else result


def _padded(line: Tensor, main: Tensor, after: bool) -> Tensor:
    """Adds a zero to a diagonal that has one element less than the main one."""
    if line.shape.rank is None or main.shape.rank is None or line.shape.as_list()[-1] == main.shape.as_list()[-1]:
        return line
    ends = [[0, 0]] * (main.shape.rank - 1) + [[0, 1] if after else [1, 0]]
    result: Tensor = padding.pad(line, ends)
    return result


def trace(x: TensorLike, name: str | None = None) -> Tensor:
    """The sums of the main diagonals."""
    with name_scope(name, "Trace", [x]) as scope:
        matrix = convert_to_tensor(x, name="x")
        result: Tensor = reduce.reduce_sum(diag.matrix_diag_part(matrix), [-1], name=scope)
        return result
