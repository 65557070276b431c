"""TF-Slim: layers, losses and training in few lines."""

from penstock.contrib.arg_scope import add_arg_scope, arg_scope, arg_scoped_arguments, current_arg_scope, has_arg_scope
from penstock.contrib.layers.connected import (
    bias_add,
    dropout,
    embed_sequence,
    flatten,
    fully_connected,
    linear,
    maxout,
    one_hot_encoding,
    relu,
    relu6,
    repeat,
    softmax,
    stack,
    unit_norm,
)
from penstock.contrib.layers.convolution import (
    avg_pool2d,
    avg_pool3d,
    conv1d,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    convolution,
    convolution1d,
    convolution2d,
    convolution2d_transpose,
    convolution3d,
    convolution3d_transpose,
    max_pool2d,
    max_pool3d,
    separable_conv2d,
    separable_convolution2d,
)
from penstock.contrib.layers.initializers import (
    variance_scaling_initializer,
    xavier_initializer,
    xavier_initializer_conv2d,
)
from penstock.contrib.layers.normalization import batch_norm, group_norm, instance_norm, layer_norm
from penstock.contrib.layers.optimizers import optimize_loss
from penstock.contrib.layers.summaries import (
    summarize_activation,
    summarize_activations,
    summarize_biases,
    summarize_collection,
    summarize_tensor,
    summarize_tensors,
    summarize_variables,
    summarize_weights,
)
from penstock.contrib.variables import (
    VariableDeviceChooser,
    add_model_variable,
    assign_from_checkpoint,
    assign_from_checkpoint_fn,
    assign_from_values,
    assign_from_values_fn,
    filter_variables,
    get_local_variables,
    get_model_variables,
    get_trainable_variables,
    get_unique_variable,
    get_variable_full_name,
    get_variables,
    get_variables_by_name,
    get_variables_by_suffix,
    get_variables_to_restore,
    global_variable,
    local_variable,
    model_variable,
    variable,
)
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.v1.contrib import layers, losses, metrics
from penstock.variables.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
)
from penstock.variables.regularizers import (
    apply_regularization,
    l1_l2_regularizer,
    l1_regularizer,
    l2_regularizer,
    sum_regularizer,
)

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
