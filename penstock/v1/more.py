"""Names of `penstock.v1` that few programs use. They are imported when one of them is first used."""

from penstock.data.structure import RaggedTensorSpec, SparseTensorSpec, TensorSpec, TypeSpec
from penstock.eager.function import function
from penstock.eager.module import Module
from penstock.eager.python_function import py_function
from penstock.eager.tape import GradientTape
from penstock.ops.array.sorting import argsort, searchsorted, sort
from penstock.ops.array.spacing import lin_space, linspace
from penstock.ops.control.folds import foldl, foldr, map_fn, scan
from penstock.ops.control.python_function import numpy_function, py_func
from penstock.ops.control.switch_case import switch_case
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.conv.batch_space import (
    batch_to_space,
    batch_to_space_nd,
    required_space_to_batch_paddings,
    space_to_batch,
    space_to_batch_nd,
)
from penstock.ops.conv.blocks import depth_to_space, extract_image_patches, extract_volume_patches, space_to_depth
from penstock.ops.debugging.check_ops import (
    assert_equal,
    assert_greater,
    assert_greater_equal,
    assert_integer,
    assert_less,
    assert_less_equal,
    assert_near,
    assert_negative,
    assert_non_negative,
    assert_non_positive,
    assert_none_equal,
    assert_positive,
    assert_proper_iterable,
    assert_rank,
    assert_rank_at_least,
    assert_rank_in,
    assert_same_float_dtype,
    assert_scalar,
    assert_type,
    is_numeric_tensor,
    is_tensor,
)
from penstock.ops.debugging.printing import Print
from penstock.ops.debugging.printing import print_values as print
from penstock.ops.io.decode_csv import decode_csv
from penstock.ops.io.decoding import decode_compressed, decode_json_example, decode_raw, parse_tensor, serialize_tensor
from penstock.ops.io.files import matching_files, read_file, write_file
from penstock.ops.io.parse_features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    SparseFeature,
    VarLenFeature,
    parse_example,
    parse_single_example,
    parse_single_sequence_example,
)
from penstock.ops.io.readers import (
    FixedLengthRecordReader,
    IdentityReader,
    ReaderBase,
    TextLineReader,
    TFRecordReader,
    WholeFileReader,
)
from penstock.ops.linalg.decompose import matrix_square_root, qr, self_adjoint_eig, self_adjoint_eigvals, svd
from penstock.ops.linalg.einsum import einsum
from penstock.ops.linalg.norm import norm
from penstock.ops.linalg.solve import (
    cholesky,
    cholesky_solve,
    matrix_determinant,
    matrix_inverse,
    matrix_solve,
    matrix_solve_ls,
    matrix_triangular_solve,
    trace,
)
from penstock.ops.math.formulas import is_non_decreasing, is_strictly_increasing, lbeta, log_sigmoid, unravel_index
from penstock.ops.math.fourier import fft, fft2d, fft3d, ifft, ifft2d, ifft3d
from penstock.ops.math.histogram import bincount, confusion_matrix, histogram_fixed_width, histogram_fixed_width_bins
from penstock.ops.math.special import betainc, digamma, erf, erfc, igamma, igammac, lgamma, polygamma, zeta
from penstock.ops.nn.fake_quant import (
    fake_quant_with_min_max_args,
    fake_quant_with_min_max_args_gradient,
    fake_quant_with_min_max_vars,
    fake_quant_with_min_max_vars_gradient,
    fake_quant_with_min_max_vars_per_channel,
    fake_quant_with_min_max_vars_per_channel_gradient,
)
from penstock.ops.nn.quantization import dequantize, quantize, quantize_v2, quantized_concat
from penstock.ops.queue.accumulator import (
    ConditionalAccumulator,
    ConditionalAccumulatorBase,
    SparseConditionalAccumulator,
)
from penstock.ops.ragged.ragged_tensor import RaggedTensor
from penstock.ops.sparse.arranging import (
    sparse_concat,
    sparse_reorder,
    sparse_reset_shape,
    sparse_reshape,
    sparse_slice,
    sparse_split,
    sparse_transpose,
)
from penstock.ops.sparse.dense import sparse_tensor_dense_matmul, sparse_tensor_to_dense, sparse_to_dense
from penstock.ops.sparse.elementwise import sparse_add, sparse_maximum, sparse_minimum
from penstock.ops.sparse.indices import convert_to_tensor_or_sparse_tensor
from penstock.ops.sparse.reduce import (
    sparse_reduce_max,
    sparse_reduce_max_sparse,
    sparse_reduce_sum,
    sparse_reduce_sum_sparse,
    sparse_softmax,
)
from penstock.ops.sparse.rows import (
    sparse_fill_empty_rows,
    sparse_mask,
    sparse_merge,
    sparse_retain,
    sparse_to_indicator,
)
from penstock.ops.sparse.serialize import deserialize_many_sparse, serialize_many_sparse, serialize_sparse
from penstock.ops.sparse.sets import edit_distance
from penstock.ops.state.session_tensors import delete_session_tensor, get_session_handle, get_session_tensor
from penstock.ops.string.forms import (
    as_string,
    decode_base64,
    encode_base64,
    fingerprint,
    string_strip,
    string_to_hash_bucket,
    string_to_hash_bucket_fast,
    string_to_hash_bucket_strong,
    string_to_number,
    substr,
)
from penstock.ops.string.join import reduce_join, string_join
from penstock.ops.string.regex import regex_replace
from penstock.ops.string.split import string_split
