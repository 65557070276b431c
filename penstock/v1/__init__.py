"""The graph and session API of TensorFlow 1.x: `import penstock.v1 as tf`.

It has public names only and no logic: each name comes from the layer that implements it. Namespaces such as `tf.nn` are
modules beside this one that are imported when they are first used. So is `more`, with the names that few programs use.
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

from penstock import frames as _frames
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
from penstock.autograph import wrapper as _wrapper
from penstock.client.feeds import SparseTensorValue
from penstock.eager.switch import (
    disable_eager_execution,
    disable_v2_behavior,
    enable_eager_execution,
    enable_v2_behavior,
)
from penstock.errors import OpError
from penstock.face.behavior import disable_control_flow_v2, disable_tensor_equality, enable_control_flow_v2
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.graph.constant import constant_value as get_static_value
from penstock.graph.convert import (
    convert_to_tensor,
    convert_to_tensor_or_indexed_slices,
    register_tensor_conversion_function,
)
from penstock.graph.device import DeviceSpec
from penstock.graph.dimension import Dimension
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
from penstock.graph.graph import MIN_CONSUMER as GRAPH_DEF_VERSION_MIN_CONSUMER
from penstock.graph.graph import MIN_PRODUCER as GRAPH_DEF_VERSION_MIN_PRODUCER
from penstock.graph.graph import PRODUCER as GRAPH_DEF_VERSION
from penstock.graph.graph import (
    Graph,
    executing_eagerly,
    executing_eagerly_outside_functions,
    get_default_graph,
    reset_default_graph,
)
from penstock.graph.importer import import_graph_def
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation, Tensor
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
from penstock.graph.sessions import get_default_session
from penstock.graph.shape import (
    TensorShape,
    dimension_at_index,
    dimension_value,
    disable_v2_tensorshape,
    enable_v2_tensorshape,
)
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.tensor_proto import make_ndarray, make_tensor_proto
from penstock.logging import get_logger
from penstock.ops.array.arranging import (
    invert_permutation,
    matrix_transpose,
    meshgrid,
    reverse,
    reverse_sequence,
    reverse_v2,
    roll,
    transpose,
)
from penstock.ops.array.creation import (
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
from penstock.ops.array.gathering import (
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
from penstock.ops.array.indexing import newaxis
from penstock.ops.array.joining import concat, parallel_stack, split, stack, tile, unstack
from penstock.ops.array.padding import pad
from penstock.ops.array.partitioning import dynamic_partition, dynamic_stitch
from penstock.ops.array.passthrough import (
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
from penstock.ops.array.ranges import range
from penstock.ops.array.reshaping import (
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
from penstock.ops.array.selection import (
    boolean_mask,
    one_hot,
    repeat,
    sequence_mask,
    setdiff1d,
    unique,
    unique_with_counts,
    where,
    where_v2,
)
from penstock.ops.array.slicing import slice, strided_slice
from penstock.ops.control.flow import case, cond, while_loop
from penstock.ops.control.grouping import group, no_op
from penstock.ops.control.grouping import tuple_ as tuple
from penstock.ops.debugging.assertion import Assert
from penstock.ops.linalg.diag import (
    diag,
    diag_part,
    eye,
    matrix_band_part,
    matrix_diag,
    matrix_diag_part,
    matrix_set_diag,
)
from penstock.ops.linalg.matmul import cross, matmul, tensordot
from penstock.ops.linalg.matmul import sparse_mat_mul as sparse_matmul
from penstock.ops.math.argmax import arg_max, arg_min, argmax, argmin
from penstock.ops.math.arithmetic import (
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
from penstock.ops.math.casting import (
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
from penstock.ops.math.clip import clip_by_average_norm, clip_by_global_norm, clip_by_norm, clip_by_value, global_norm
from penstock.ops.math.compare import (
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
from penstock.ops.math.cumulative import cumprod, cumsum
from penstock.ops.math.reduce import (
    count_nonzero,
    reduce_all,
    reduce_any,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from penstock.ops.math.segments import (
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sqrt_n,
    unsorted_segment_sum,
)
from penstock.ops.math.unary import (
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
from penstock.ops.queue.queues import FIFOQueue, PaddingFIFOQueue, PriorityQueue, QueueBase, RandomShuffleQueue
from penstock.ops.random.gamma_poisson import random_gamma, random_poisson
from penstock.ops.random.stateful import (
    multinomial,
    random_crop,
    random_normal,
    random_shuffle,
    random_uniform,
    truncated_normal,
)
from penstock.ops.sparse.segments import sparse_segment_mean, sparse_segment_sqrt_n, sparse_segment_sum
from penstock.session import InteractiveSession, Session
from penstock.variables.creation import (
    disable_resource_variables,
    enable_resource_variables,
    resource_variables_enabled,
    variable_creator_scope,
)
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
from penstock.variables.variable import Variable

# Programs branch on the version of the API that they use: TensorFlow's version, not penstock's.
__version__ = VERSION = "1.15.0"
__git_version__ = GIT_VERSION = "penstock"
__compiler_version__ = COMPILER_VERSION = "XLA"

_frames.install()

__getattr__ = _guard(__name__, more="penstock.v1.more")
__dir__ = _listing(__name__, more="penstock.v1.more")
