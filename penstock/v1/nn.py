"""Neural networks: activations, losses, convolutions, pooling, normalization."""

from penstock.face.missing import guard as _guard
from penstock.ops.activation import crelu, elu, leaky_relu, relu, relu6, selu, softplus, softsign, swish
from penstock.ops.conv import (
    atrous_conv2d,
    conv1d,
    conv2d,
    conv2d_backprop_filter,
    conv2d_backprop_input,
    conv2d_transpose,
    convolution,
    depthwise_conv2d,
    depthwise_conv2d_native,
    separable_conv2d,
)
from penstock.ops.embedding import embedding_lookup, embedding_lookup_sparse
from penstock.ops.loss import (
    l2_loss,
    log_poisson_loss,
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits,
)
from penstock.ops.nn import (
    bias_add,
    dropout,
    in_top_k,
    log_softmax,
    relu_layer,
    softmax,
    top_k,
    xw_plus_b,
    zero_fraction,
)
from penstock.ops.normalization import (
    batch_norm_with_global_normalization,
    batch_normalization,
    fused_batch_norm,
    l2_normalize,
    local_response_normalization,
    lrn,
    moments,
    normalize_moments,
    sufficient_statistics,
    weighted_moments,
)
from penstock.ops.pool import avg_pool, max_pool, pool
from penstock.ops.unary import sigmoid, tanh

__getattr__ = _guard(__name__)
