"""Layers as functions, with variables called weights and biases."""

from penstock.contrib.layers.connected import (
    bias_add,
    dropout,
    embed_sequence,
    embedding_lookup_unique,
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
from penstock.contrib.layers.optimizers import (
    OPTIMIZER_CLS_NAMES,
    OPTIMIZER_SUMMARIES,
    adaptive_clipping_fn,
    optimize_loss,
)
from penstock.contrib.layers.summaries import (
    summarize_activation,
    summarize_activations,
    summarize_collection,
    summarize_tensor,
    summarize_tensors,
)
from penstock.face.missing import guard as _guard
from penstock.ops.nn.embedding import safe_embedding_lookup_sparse
from penstock.variables.regularizers import (
    apply_regularization,
    l1_l2_regularizer,
    l1_regularizer,
    l2_regularizer,
    sum_regularizer,
)

__getattr__ = _guard(__name__)
