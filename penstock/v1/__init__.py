"""The graph and session API of TensorFlow 1.x: `import penstock.v1 as tf`.

Public names only, no logic: each comes from the layer that implements it. Namespaces such as `tf.nn` are the modules
beside this one, imported when they are first used.
"""

from tensorboard.compat.proto.attr_value_pb2 import AttrValue, NameAttrList
from tensorboard.compat.proto.config_pb2 import (
    ConfigProto,
    GPUOptions,
    GraphOptions,
    OptimizerOptions,
    RunMetadata,
    RunOptions,
)
from tensorboard.compat.proto.event_pb2 import Event, LogMessage, SessionLog
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef, TensorInfo
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata

from penstock.autodiff import (
    AggregationMethod,
    NoGradient,
    NotDifferentiable,
    RegisterGradient,
    UnconnectedGradients,
    custom_gradient,
    grad_pass_through,
    gradients,
    hessians,
)
from penstock.autodiff import NotDifferentiable as no_gradient
from penstock.client.feeds import SparseTensorValue
from penstock.errors import OpError
from penstock.face.behavior import (
    disable_control_flow_v2,
    disable_eager_execution,
    disable_tensor_equality,
    disable_v2_behavior,
    disable_v2_tensorshape,
    enable_control_flow_v2,
    enable_eager_execution,
    enable_v2_behavior,
    executing_eagerly,
    executing_eagerly_outside_functions,
)
from penstock.face.logging import get_logger
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.graph.constant import constant_value as get_static_value
from penstock.graph.convert import (
    convert_to_tensor,
    convert_to_tensor_or_indexed_slices,
    register_tensor_conversion_function,
)
from penstock.graph.device import DeviceSpec
from penstock.graph.dtype import (
    QUANTIZED_DTYPES,
    DType,
    as_dtype,
    bfloat16,
    bool,
    complex64,
    complex128,
    double,
    float16,
    float32,
    float64,
    half,
    int8,
    int16,
    int32,
    int64,
    qint8,
    qint16,
    qint32,
    quint8,
    quint16,
    resource,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
    variant,
)
from penstock.graph.graph import Graph, get_default_graph, get_default_session, reset_default_graph
from penstock.graph.importer import import_graph_def
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation
from penstock.graph.scopes import (
    add_to_collection,
    add_to_collections,
    colocate_with,
    container,
    control_dependencies,
    device,
    get_collection,
    get_collection_ref,
    get_seed,
    init_scope,
    name_scope,
    op_scope,
    set_random_seed,
)
from penstock.graph.shape import Dimension, TensorShape, dimension_at_index, dimension_value
from penstock.graph.tensor import IndexedSlices, SparseTensor, Tensor
from penstock.graph.tensor_proto import make_ndarray, make_tensor_proto
from penstock.ops.accumulator import ConditionalAccumulator, ConditionalAccumulatorBase, SparseConditionalAccumulator
from penstock.ops.arranging import (
    invert_permutation,
    matrix_transpose,
    meshgrid,
    reverse,
    reverse_sequence,
    reverse_v2,
    roll,
    transpose,
)
from penstock.ops.array import (
    constant,
    fill,
    ones,
    ones_like,
    placeholder,
    placeholder_with_default,
    sparse_placeholder,
    zeros,
    zeros_like,
)
from penstock.ops.assertion import Assert
from penstock.ops.batch_space import (
    batch_to_space,
    batch_to_space_nd,
    required_space_to_batch_paddings,
    space_to_batch,
    space_to_batch_nd,
)
from penstock.ops.blocks import depth_to_space, extract_image_patches, extract_volume_patches, space_to_depth
from penstock.ops.casting import (
    angle,
    bitcast,
    cast,
    complex,
    conj,
    imag,
    real,
    saturate_cast,
    to_bfloat16,
    to_complex64,
    to_complex128,
    to_double,
    to_float,
    to_int32,
    to_int64,
)
from penstock.ops.check_ops import (
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
from penstock.ops.clip import clip_by_average_norm, clip_by_global_norm, clip_by_norm, clip_by_value, global_norm
from penstock.ops.compare import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
)
from penstock.ops.control import group, no_op
from penstock.ops.control import tuple_ as tuple
from penstock.ops.control_flow import case, cond, while_loop
from penstock.ops.decode_csv import decode_csv
from penstock.ops.diag import diag, diag_part, eye, matrix_band_part, matrix_diag, matrix_diag_part, matrix_set_diag
from penstock.ops.einsum import einsum
from penstock.ops.fake_quant import (
    fake_quant_with_min_max_args,
    fake_quant_with_min_max_args_gradient,
    fake_quant_with_min_max_vars,
    fake_quant_with_min_max_vars_gradient,
    fake_quant_with_min_max_vars_per_channel,
    fake_quant_with_min_max_vars_per_channel_gradient,
)
from penstock.ops.files import matching_files, read_file, write_file
from penstock.ops.formulas import is_non_decreasing, is_strictly_increasing, lbeta, log_sigmoid, unravel_index
from penstock.ops.fourier import fft, fft2d, fft3d, ifft, ifft2d, ifft3d
from penstock.ops.gathering import (
    batch_gather,
    gather,
    gather_nd,
    scatter_nd,
    tensor_scatter_add,
    tensor_scatter_nd_add,
    tensor_scatter_nd_max,
    tensor_scatter_nd_min,
    tensor_scatter_nd_sub,
    tensor_scatter_nd_update,
    tensor_scatter_sub,
    tensor_scatter_update,
)
from penstock.ops.histogram import confusion_matrix, histogram_fixed_width, histogram_fixed_width_bins
from penstock.ops.joining import concat, pad, parallel_stack, split, stack, tile, unstack
from penstock.ops.linalg_decompose import matrix_square_root, qr, self_adjoint_eig, self_adjoint_eigvals, svd
from penstock.ops.linalg_norm import norm
from penstock.ops.linalg_solve import (
    cholesky,
    cholesky_solve,
    matrix_determinant,
    matrix_inverse,
    matrix_solve,
    matrix_solve_ls,
    matrix_triangular_solve,
    trace,
)
from penstock.ops.loops import foldl, foldr, map_fn, scan
from penstock.ops.math import (
    accumulate_n,
    add,
    add_n,
    atan2,
    div,
    div_no_nan,
    divide,
    floor_div,
    floordiv,
    floormod,
    maximum,
    minimum,
    mod,
    multiply,
    pow,
    realdiv,
    scalar_mul,
    squared_difference,
    subtract,
    truediv,
    truncatediv,
    truncatemod,
)
from penstock.ops.matmul import cross, matmul, tensordot
from penstock.ops.matmul import sparse_mat_mul as sparse_matmul
from penstock.ops.parse_features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    SparseFeature,
    VarLenFeature,
    parse_example,
    parse_single_example,
    parse_single_sequence_example,
)
from penstock.ops.parsing import decode_compressed, decode_json_example, decode_raw, parse_tensor, serialize_tensor
from penstock.ops.passthrough import (
    add_check_numerics_ops,
    check_numerics,
    ensure_shape,
    guarantee_const,
    identity,
    identity_n,
    stop_gradient,
    timestamp,
    verify_tensor_all_finite,
)
from penstock.ops.printing import Print
from penstock.ops.printing import print_values as print
from penstock.ops.python_function import numpy_function, py_func
from penstock.ops.quantization import dequantize, quantize, quantize_v2, quantized_concat
from penstock.ops.queue import FIFOQueue, PaddingFIFOQueue, PriorityQueue, QueueBase, RandomShuffleQueue
from penstock.ops.random import (
    multinomial,
    random_crop,
    random_gamma,
    random_normal,
    random_poisson,
    random_shuffle,
    random_uniform,
    truncated_normal,
)
from penstock.ops.ranges import bincount, range
from penstock.ops.readers import (
    FixedLengthRecordReader,
    IdentityReader,
    ReaderBase,
    TextLineReader,
    TFRecordReader,
    WholeFileReader,
)
from penstock.ops.reduce import (
    arg_max,
    arg_min,
    argmax,
    argmin,
    count_nonzero,
    cumprod,
    cumsum,
    reduce_all,
    reduce_any,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from penstock.ops.reshaping import (
    broadcast_dynamic_shape,
    broadcast_static_shape,
    broadcast_to,
    expand_dims,
    rank,
    reshape,
    shape,
    shape_n,
    size,
    squeeze,
)
from penstock.ops.segment import (
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    sparse_segment_mean,
    sparse_segment_sqrt_n,
    sparse_segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sqrt_n,
    unsorted_segment_sum,
)
from penstock.ops.selection import (
    boolean_mask,
    dynamic_partition,
    dynamic_stitch,
    one_hot,
    repeat,
    sequence_mask,
    setdiff1d,
    unique,
    unique_with_counts,
    where,
    where_v2,
)
from penstock.ops.serialize_sparse import deserialize_many_sparse, serialize_many_sparse, serialize_sparse
from penstock.ops.sets import edit_distance
from penstock.ops.slicing import newaxis, slice, strided_slice
from penstock.ops.sorting import argsort, searchsorted, sort
from penstock.ops.spacing import lin_space, linspace
from penstock.ops.sparse_arranging import (
    sparse_concat,
    sparse_reorder,
    sparse_reset_shape,
    sparse_reshape,
    sparse_slice,
    sparse_split,
    sparse_transpose,
)
from penstock.ops.sparse_dense import sparse_tensor_dense_matmul, sparse_tensor_to_dense, sparse_to_dense
from penstock.ops.sparse_index import convert_to_tensor_or_sparse_tensor
from penstock.ops.sparse_math import sparse_add, sparse_maximum, sparse_minimum
from penstock.ops.sparse_reduce import (
    sparse_reduce_max,
    sparse_reduce_max_sparse,
    sparse_reduce_sum,
    sparse_reduce_sum_sparse,
    sparse_softmax,
)
from penstock.ops.sparse_rows import (
    sparse_fill_empty_rows,
    sparse_mask,
    sparse_merge,
    sparse_retain,
    sparse_to_indicator,
)
from penstock.ops.special import betainc, digamma, erf, erfc, igamma, igammac, lgamma, polygamma, zeta
from penstock.ops.string_forms import (
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
from penstock.ops.string_join import reduce_join, string_join
from penstock.ops.string_regex import regex_replace
from penstock.ops.string_split import string_split
from penstock.ops.switch_case import switch_case
from penstock.ops.tensor_array import TensorArray
from penstock.ops.unary import (
    abs,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    ceil,
    cos,
    cosh,
    exp,
    expm1,
    floor,
    is_finite,
    is_inf,
    is_nan,
    log,
    log1p,
    negative,
    reciprocal,
    rint,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
)
from penstock.session import InteractiveSession, Session
from penstock.variables.enums import VariableAggregation, VariableSynchronization
from penstock.variables.initialize import (
    all_variables,
    assert_variables_initialized,
    global_variables,
    global_variables_initializer,
    initialize_all_tables,
    initialize_all_variables,
    initialize_local_variables,
    initialize_variables,
    is_variable_initialized,
    local_variables,
    local_variables_initializer,
    model_variables,
    moving_average_variables,
    report_uninitialized_variables,
    tables_initializer,
    trainable_variables,
    variables_initializer,
)
from penstock.variables.initializers import (
    constant_initializer,
    glorot_normal_initializer,
    glorot_uniform_initializer,
    ones_initializer,
    orthogonal_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    truncated_normal_initializer,
    uniform_unit_scaling_initializer,
    variance_scaling_initializer,
    zeros_initializer,
)
from penstock.variables.partitioners import (
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)
from penstock.variables.regularizers import no_regularizer
from penstock.variables.scope import (
    AUTO_REUSE,
    VariableScope,
    get_local_variable,
    get_variable,
    get_variable_scope,
    variable_op_scope,
    variable_scope,
)
from penstock.variables.template import make_template
from penstock.variables.updates import (
    assign,
    assign_add,
    assign_sub,
    batch_scatter_update,
    count_up_to,
    scatter_add,
    scatter_div,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_nd_add,
    scatter_nd_sub,
    scatter_nd_update,
    scatter_sub,
    scatter_update,
)
from penstock.variables.variable import (
    Variable,
    disable_resource_variables,
    enable_resource_variables,
    resource_variables_enabled,
    variable_creator_scope,
)

# Programs branch on the version of the API that they talk to, which is TensorFlow's, not penstock's own.
__version__ = VERSION = "1.15.0"
__git_version__ = GIT_VERSION = "penstock"
__compiler_version__ = COMPILER_VERSION = "XLA"

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
