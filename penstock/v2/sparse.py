"""Sparse tensors."""

from penstock.face.missing import guard as _guard
from penstock.graph.sparse_tensor import SparseTensor
from penstock.ops.sparse.arranging import sparse_expand_dims as expand_dims
from penstock.ops.sparse.arranging import sparse_reorder as reorder
from penstock.ops.sparse.arranging import sparse_reset_shape as reset_shape
from penstock.ops.sparse.arranging import sparse_reshape as reshape
from penstock.ops.sparse.arranging import sparse_slice as slice
from penstock.ops.sparse.arranging import sparse_transpose as transpose
from penstock.ops.sparse.cross import sparse_cross as cross
from penstock.ops.sparse.cross import sparse_cross_hashed as cross_hashed
from penstock.ops.sparse.dense import from_dense
from penstock.ops.sparse.dense import sparse_tensor_dense_matmul as sparse_dense_matmul
from penstock.ops.sparse.dense import sparse_tensor_to_dense as to_dense
from penstock.ops.sparse.elementwise import sparse_add as add
from penstock.ops.sparse.elementwise import sparse_maximum as maximum
from penstock.ops.sparse.elementwise import sparse_minimum as minimum
from penstock.ops.sparse.reduce import sparse_softmax as softmax
from penstock.ops.sparse.rows import sparse_eye as eye
from penstock.ops.sparse.rows import sparse_fill_empty_rows as fill_empty_rows
from penstock.ops.sparse.rows import sparse_mask as mask
from penstock.ops.sparse.rows import sparse_retain as retain
from penstock.ops.sparse.rows import sparse_to_indicator as to_indicator
from penstock.ops.sparse.v2 import concat, reduce_max, reduce_sum, segment_mean, segment_sqrt_n, segment_sum, split

__getattr__ = _guard(__name__)
