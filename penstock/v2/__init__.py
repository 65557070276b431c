"""The API of TensorFlow 2: `import penstock as tf`. Ops run at once; `tf.function` makes graphs of Python functions.

It has public names only and no logic: each name comes from the layer that implements it. Namespaces such as `tf.nn` are
modules beside this one that are imported when they are first used.
"""

from penstock import frames as _frames
from penstock.autodiff import (
    AggregationMethod,
    RegisterGradient,
    UnconnectedGradients,
    custom_gradient,
    grad_pass_through,
)
from penstock.autodiff import NotDifferentiable as no_gradient
from penstock.autodiff.v2 import gradients, hessians
from penstock.data.structure import RaggedTensorSpec, SparseTensorSpec, TensorSpec, TypeSpec
from penstock.data.value_specs import IndexedSlicesSpec, TensorArraySpec, type_spec_from_value
from penstock.eager.function import function, inside_function
from penstock.eager.module import Module
from penstock.eager.python_function import py_function
from penstock.eager.recompute import recompute_grad
from penstock.eager.switch import enable_v2_behavior as _enable_v2_behavior
from penstock.eager.tape import GradientTape
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.graph.constant import constant_value as get_static_value
from penstock.graph.convert import register_tensor_conversion_function
from penstock.graph.device import DeviceSpecV2 as DeviceSpec
from penstock.graph.dtype import (
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
from penstock.graph.graph import Graph, executing_eagerly
from penstock.graph.importer import import_graph_def
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation, Tensor, is_symbolic_tensor
from penstock.graph.scopes import control_dependencies, get_current_name_scope, init_scope, name_scope
from penstock.graph.scopes import device_v2 as device
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.tensor_proto import make_ndarray, make_tensor_proto
from penstock.logging import get_logger
from penstock.ops.array.arranging import meshgrid, reverse, reverse_sequence, roll
from penstock.ops.array.creation import constant
from penstock.ops.array.gathering import (
    tensor_scatter_nd_add,
    tensor_scatter_nd_max,
    tensor_scatter_nd_min,
    tensor_scatter_nd_sub,
)
from penstock.ops.array.indexing import newaxis
from penstock.ops.array.joining import concat, parallel_stack, split, stack, tile, unstack
from penstock.ops.array.partitioning import dynamic_partition, dynamic_stitch
from penstock.ops.array.passthrough import ensure_shape, guarantee_const, identity, identity_n, stop_gradient, timestamp
from penstock.ops.array.ranges import range
from penstock.ops.array.reshaping import (
    broadcast_dynamic_shape,
    broadcast_static_shape,
    broadcast_to,
    expand_dims,
    rank,
    reshape,
    shape_n,
)
from penstock.ops.array.selection import one_hot, repeat, sequence_mask, unique, unique_with_counts
from penstock.ops.array.selection import where_v2 as where
from penstock.ops.array.slicing import slice, strided_slice
from penstock.ops.array.sorting import argsort, searchsorted, sort
from penstock.ops.array.spacing import linspace
from penstock.ops.array.v2 import (
    boolean_mask,
    convert_to_tensor,
    fill,
    gather,
    gather_nd,
    ones,
    ones_like,
    pad,
    scatter_nd,
    shape,
    size,
    squeeze,
    tensor_scatter_nd_update,
    transpose,
    zeros,
    zeros_like,
)
from penstock.ops.control.flow import case_v2 as case
from penstock.ops.control.flow import cond_v2 as cond
from penstock.ops.control.flow import while_loop_v2 as while_loop
from penstock.ops.control.folds import foldl, foldr, scan, vectorized_map
from penstock.ops.control.folds import map_fn_v2 as map_fn
from penstock.ops.control.grouping import group, no_op
from penstock.ops.control.jax_function import from_jax
from penstock.ops.control.python_function import numpy_function
from penstock.ops.control.switch_case import switch_case
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.control.v2 import tuple_ as tuple
from penstock.ops.conv.batch_space import required_space_to_batch_paddings, space_to_batch_nd
from penstock.ops.conv.blocks import extract_volume_patches
from penstock.ops.conv.v2 import batch_to_space, space_to_batch
from penstock.ops.debugging.check_ops import is_tensor
from penstock.ops.debugging.printing import print_values as print
from penstock.ops.debugging.v2 import Assert, assert_equal, assert_greater, assert_less, assert_rank
from penstock.ops.linalg.decompose import matrix_square_root
from penstock.ops.linalg.diag import eye
from penstock.ops.linalg.einsum import einsum
from penstock.ops.linalg.matmul import tensordot
from penstock.ops.linalg.v2 import matmul, norm
from penstock.ops.math.arithmetic import (
    add,
    atan2,
    divide,
    maximum,
    minimum,
    multiply,
    pow,
    realdiv,
    scalar_mul,
    subtract,
    truediv,
    truncatediv,
    truncatemod,
)
from penstock.ops.math.casting import bitcast, cast, complex, saturate_cast
from penstock.ops.math.clip import clip_by_global_norm, clip_by_norm
from penstock.ops.math.compare import greater, greater_equal, less, less_equal, logical_and, logical_not, logical_or
from penstock.ops.math.cumulative import cumsum
from penstock.ops.math.formulas import unravel_index
from penstock.ops.math.histogram import histogram_fixed_width, histogram_fixed_width_bins
from penstock.ops.math.reduce import (
    reduce_all,
    reduce_any,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from penstock.ops.math.unary import (
    abs,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cos,
    cosh,
    exp,
    floor,
    negative,
    round,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
)
from penstock.ops.math.v2 import argmax, argmin, equal, not_equal
from penstock.ops.ragged.functions import add_n, clip_by_value
from penstock.ops.ragged.ragged_tensor import RaggedTensor
from penstock.ops.sparse.sets import edit_distance
from penstock.ops.string.forms import as_string, fingerprint
from penstock.variables.creation import variable_creator_scope
from penstock.variables.enums import VariableAggregation, VariableSynchronization
from penstock.variables.initializers_v2 import (
    constant_initializer,
    ones_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    zeros_initializer,
)
from penstock.variables.variable import Variable

# Programs branch on the version of the API that they use: TensorFlow's version, not penstock's.
__version__ = "2.21.0"
__git_version__ = "penstock"
__compiler_version__ = "XLA"

_frames.install()
_enable_v2_behavior()

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
