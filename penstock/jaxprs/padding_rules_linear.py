"""Rules of linear algebra and Fourier transforms: the batch may be padded, the matrices may not."""

from __future__ import annotations

from typing import Any

from penstock.jaxprs.dims import is_symbolic
from penstock.jaxprs.padding_frame import Frame, Padded, bind, no_rule, rule

# The number of last dimensions of each operand that form one matrix, or one vector of factors.
_CORE = {
    "cholesky": (2,),
    "cholesky_update": (2, 1),
    "eig": (2,),
    "eigh": (2,),
    "geqrf": (2,),
    "hessenberg": (2,),
    "householder_product": (2, 1),
    "lu": (2,),
    "lu_pivots_to_permutation": (1,),
    "qr": (2,),
    "schur": (2,),
    "svd": (2,),
    "symmetric_product": (2, 2),
    "tridiagonal": (2,),
    "tridiagonal_solve": (1, 1, 1, 2),
}


@rule(*_CORE)
def batched(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    for operand, core in zip(operands, _CORE[equation.primitive.name], strict=True):
        if any(map(is_symbolic, operand.shape[len(operand.shape) - core :])):
            raise no_rule(equation, "a matrix of symbolic size")
    # Zeros replace the padding: LAPACK may search long for the eigenvalues of NaN.
    return bind(equation, *(frame.zeroed(operand) for operand in operands))


@rule("triangular_solve")
def triangular_solve(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    matrix, right = operands
    # Each column of the right side is solved separately (each row, if the matrix is on the right).
    mixed = -2 if equation.params["left_side"] else -1
    if any(map(is_symbolic, (*matrix.shape[-2:], right.shape[mixed]))):
        raise no_rule(equation, "a matrix of symbolic size")
    return bind(equation, matrix.array, right.array)


@rule("fft")
def fft(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    (value,) = operands
    lengths = equation.params["fft_lengths"]
    if any(map(is_symbolic, value.shape[len(value.shape) - len(lengths) :])):
        raise no_rule(equation, "a transform of symbolic length")
    return bind(equation, value.array)
