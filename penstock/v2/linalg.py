"""Linear algebra."""

from penstock.face.missing import guard as _guard
from penstock.ops.array.arranging import adjoint, matrix_transpose
from penstock.ops.linalg.decompose import expm, lu, lu_reconstruct, lu_solve, matrix_rank, pinv, qr, svd
from penstock.ops.linalg.decompose import matrix_logarithm as logm
from penstock.ops.linalg.decompose import matrix_square_root as sqrtm
from penstock.ops.linalg.decompose import self_adjoint_eig as eigh
from penstock.ops.linalg.decompose import self_adjoint_eigvals as eigvalsh
from penstock.ops.linalg.diag import diag as tensor_diag
from penstock.ops.linalg.diag import diag_part as tensor_diag_part
from penstock.ops.linalg.diag import eye
from penstock.ops.linalg.diag import matrix_band_part as band_part
from penstock.ops.linalg.diag import matrix_diag as diag
from penstock.ops.linalg.diag import matrix_diag_part as diag_part
from penstock.ops.linalg.diag import matrix_set_diag as set_diag
from penstock.ops.linalg.einsum import einsum
from penstock.ops.linalg.matmul import cross, matvec, tensordot
from penstock.ops.linalg.norm import normalize
from penstock.ops.linalg.solve import cholesky, cholesky_solve, logdet, slogdet, trace
from penstock.ops.linalg.solve import matrix_determinant as det
from penstock.ops.linalg.solve import matrix_inverse as inv
from penstock.ops.linalg.solve import matrix_solve as solve
from penstock.ops.linalg.solve import matrix_solve_ls as lstsq
from penstock.ops.linalg.solve import matrix_triangular_solve as triangular_solve
from penstock.ops.linalg.v2 import matmul, norm, tridiagonal_solve
from penstock.ops.math.clip import global_norm
from penstock.ops.nn.normalization import l2_normalize

__getattr__ = _guard(__name__)
