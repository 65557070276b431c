"""Decompositions and solvers, using the same LAPACK routines that jax calls on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are needed

from penstock.blas import one_thread
from penstock.jaxprs.numpy_rules import Kernel, Site, rule


def _per_matrix(site: Site, function: Callable[..., tuple[Any, ...]], ranks: tuple[int, ...]) -> Kernel:
    """Applies `function`, which takes arrays of the last `ranks` dimensions, to each element of the batch."""
    if any(
        site.dtype(operand).name not in ("float32", "float64", "complex64", "complex128")
        for operand in range(len(ranks))
        if site.dtype(operand).kind not in "iu"
    ):
        raise site.no_rule(f"type {site.dtype()}")
    results = [(site.out_shape(position), site.out_dtype(position)) for position in range(len(site.node.outputs))]
    batch = site.shape(0)[: site.ndim(0) - ranks[0]]

    def kernel(*operands: Any) -> list[Any]:
        one_thread.limit()
        out = [np.empty(shape, dtype) for shape, dtype in results]
        for index in np.ndindex(*batch):
            for into, part in zip(out, function(*[operand[index] for operand in operands]), strict=True):
                into[index] = part
        return out

    if site.node.several:
        return kernel
    return lambda *operands: kernel(*operands)[0]


@rule("cholesky")
def cholesky(site: Site) -> Kernel:
    def one(x: Any) -> tuple[Any]:
        try:
            return (np.tril(np.linalg.cholesky(x)),)
        except np.linalg.LinAlgError:
            return (np.nan,)

    return _per_matrix(site, one, (2,))


@rule("triangular_solve")
def triangular_solve(site: Site) -> Kernel:
    left, lower, unit = (site.param(name) for name in ("left_side", "lower", "unit_diagonal"))
    transposed, conjugated = site.param("transpose_a"), site.param("conjugate_a")

    def one(a: Any, b: Any) -> tuple[Any]:
        matrix = np.conj(a) if conjugated else a
        # x a = b is the same as a' x' = b'.
        turned = transposed == left
        solution = _solve(matrix, b if left else b.T, turned, lower, unit)
        return (solution if left else solution.T,)

    return _per_matrix(site, one, (2, 2))


def _solve(a: Any, b: Any, turned: bool, lower: bool, unit: bool) -> Any:
    if not a.size or not b.size:
        return np.zeros_like(b)
    (trtrs,) = scipy.linalg.lapack.get_lapack_funcs(("trtrs",), (a, b))
    solution, info = trtrs(a, b, lower=lower, trans=1 if turned else 0, unitdiag=unit)
    # trtrs solves nothing if the diagonal has a zero; XLA divides by it.
    return solution if info == 0 else _divided(a.T if turned else a, b, lower != turned, unit)


def _divided(a: Any, b: Any, lower: bool, unit: bool) -> Any:
    x = np.array(b)
    size = len(a)
    for row in range(size) if lower else range(size - 1, -1, -1):
        known = slice(0, row) if lower else slice(row + 1, size)
        x[row] = b[row] - a[row, known] @ x[known]
        if not unit:
            x[row] /= a[row, row]
    return x


@rule("lu")
def lu(site: Site) -> Kernel:
    def one(x: Any) -> tuple[Any, Any, Any]:
        if not x.size:
            return x, np.zeros(0, np.int32), np.arange(len(x))
        (getrf,) = scipy.linalg.lapack.get_lapack_funcs(("getrf",), (x,))
        factors, pivots, _ = getrf(x)
        return factors, pivots, _permutation(pivots, len(x))

    return _per_matrix(site, one, (2,))


def _permutation(pivots: Any, size: int) -> Any:
    order = np.arange(size)
    for row, other in enumerate(pivots):
        order[row], order[other] = order[other], order[row]
    return order


@rule("lu_pivots_to_permutation")
def lu_pivots_to_permutation(site: Site) -> Kernel:
    size = int(site.param("permutation_size"))
    return _per_matrix(site, lambda pivots: (_permutation(pivots, size),), (1,))


@rule("qr")
def qr(site: Site) -> Kernel:
    if site.param("pivoting"):
        raise site.no_rule("pivoting")
    mode = "full" if site.param("full_matrices") else "economic"
    return _per_matrix(site, lambda x: scipy.linalg.qr(x, mode=mode, check_finite=False), (2,))


@rule("eigh")
def eigh(site: Site) -> Kernel:
    if site.param("subset_by_index") is not None:
        raise site.no_rule("a subset of the eigenvalues")
    lower = site.param("lower")

    def one(x: Any) -> tuple[Any, Any]:
        if not np.isfinite(x).all():
            return np.nan, np.nan
        values, vectors = scipy.linalg.eigh(x, lower=lower, driver="evd", check_finite=False)
        return vectors, values

    return _per_matrix(site, one, (2,))


@rule("svd")
def svd(site: Site) -> Kernel:
    if site.param("subset_by_index") is not None:
        raise site.no_rule("a subset of the singular values")
    full, vectors = site.param("full_matrices"), site.param("compute_uv")

    def one(x: Any) -> tuple[Any, ...]:
        if not np.isfinite(x).all():
            return (np.nan,) * len(site.node.outputs)
        if not vectors:
            return (scipy.linalg.svdvals(x, check_finite=False),)
        left, values, right = scipy.linalg.svd(x, full_matrices=full, check_finite=False)
        return values, left, right

    return _per_matrix(site, one, (2,))


@rule("tridiagonal_solve")
def tridiagonal_solve(site: Site) -> Kernel:
    def one(below: Any, diagonal: Any, above: Any, b: Any) -> tuple[Any]:
        if len(diagonal) < 2:
            return (b / diagonal[:, None],)
        (gtsv,) = scipy.linalg.lapack.get_lapack_funcs(("gtsv",), (diagonal, b))
        *_, solution, info = gtsv(below[1:], diagonal, above[:-1], b)
        return (solution if info == 0 else np.nan,)

    return _per_matrix(site, one, (1, 1, 1, 2))
