"""The functions of this room under the parameters of TensorFlow 2, where these differ."""

from penstock.graph.adapted import adapted
from penstock.ops.linalg import matmul as products
from penstock.ops.linalg import norm as norms
from penstock.ops.linalg import solve

matmul = adapted(
    products.matmul,
    "a, b, transpose_a=False, transpose_b=False, adjoint_a=False, adjoint_b=False, a_is_sparse=False, "
    "b_is_sparse=False, output_type: _ = None, grad_a: _ = False, grad_b: _ = False, name=None",
)
norm = adapted(norms.norm, "tensor, ord='euclidean', axis=None, keepdims=None, name=None")
tridiagonal_solve = adapted(
    solve.tridiagonal_solve,
    "diagonals, rhs, diagonals_format='compact', transpose_rhs=False, conjugate_rhs=False, name=None, "
    "partial_pivoting=True, perturb_singular: _ = False",
)
