"""Linear algebra."""

from penstock.face.missing import guard as _guard
from penstock.ops.arranging import adjoint, matrix_transpose, transpose
from penstock.ops.clip import global_norm
from penstock.ops.diag import (
    diag as tensor_diag,
)
from penstock.ops.diag import (
    diag_part as tensor_diag_part,
)
from penstock.ops.diag import (
    eye,
)
from penstock.ops.diag import (
    matrix_band_part as band_part,
)
from penstock.ops.diag import (
    matrix_diag as diag,
)
from penstock.ops.diag import (
    matrix_diag_part as diag_part,
)
from penstock.ops.diag import (
    matrix_set_diag as set_diag,
)
from penstock.ops.matmul import cross, matmul, matvec, tensordot
from penstock.ops.normalization import l2_normalize

__getattr__ = _guard(__name__)
