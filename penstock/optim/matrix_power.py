"""Powers of symmetric positive matrices, for optimizers that precondition gradients."""

from __future__ import annotations

import math
from typing import Any

from penstock.ops.control.flow import while_loop
from penstock.ops.linalg.decompose import self_adjoint_eig
from penstock.ops.linalg.diag import eye
from penstock.ops.linalg.matmul import matmul
from penstock.ops.linalg.norm import norm
from penstock.ops.math.arithmetic import maximum, pow
from penstock.ops.math.compare import greater, less, logical_and
from penstock.ops.math.reduce import reduce_max
from penstock.ops.math.unary import abs

_MOST_ITERATIONS = 100
_CLOSE_ENOUGH = 1e-6


def power_by_eigenvalues(matrix: Any, epsilon: float, exponent: float) -> Any:
    """`(matrix + epsilon * I) ** exponent` from the eigenvalues, none of which counts as less than `epsilon`."""
    values, vectors = self_adjoint_eig(matrix + epsilon * _identity(matrix))
    return matmul(vectors * pow(maximum(values, epsilon), exponent), vectors, transpose_b=True)


def power_by_iteration(matrix: Any, epsilon: float, exponent: float) -> Any:
    """`(matrix + epsilon * I) ** (-1 / p)` for a whole p, by the coupled Newton iteration of Guo and Higham (2006).

    With `X` starting at a multiple of I and `M = X ** p * matrix`, each step multiplies X by `((p + 1) I - M) / p` and
    M by that factor's p-th power: M goes to I, so X goes to the root. It takes products of matrices only.
    """
    root = round(-1.0 / exponent)
    if root < 1 or not math.isclose(root * exponent, -1.0):
        raise ValueError(f"use_iterative_root needs an exponent -1 / p with a whole p, received {exponent}.")
    identity = _identity(matrix)
    damped = matrix + epsilon * identity
    scale: Any = (1.0 + root) / (2.0 * norm(damped))  # type: ignore[operator]

    def unfinished(i: Any, m: Any, x: Any) -> Any:
        return logical_and(less(i, _MOST_ITERATIONS), greater(reduce_max(abs(m - identity)), _CLOSE_ENOUGH))

    def iterate(i: Any, m: Any, x: Any) -> Any:
        factor: Any = ((root + 1.0) * identity - m) / float(root)
        return i + 1, matmul(_whole_power(factor, root), m), matmul(x, factor)

    start = (0, damped * scale, identity * pow(scale, 1.0 / root))
    return while_loop(unfinished, iterate, start)[2]


def _identity(matrix: Any) -> Any:
    return eye(matrix.get_shape()[0].value, dtype=matrix.dtype.base_dtype)


def _whole_power(matrix: Any, power: int) -> Any:
    """A whole power by repeated squaring."""
    result = None
    while power:
        if power % 2:
            result = matrix if result is None else matmul(matrix, result)
        power //= 2
        matrix = matmul(matrix, matrix) if power else matrix
    return result
