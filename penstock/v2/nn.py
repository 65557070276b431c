"""Neural networks: activations, losses, convolutions, pooling, normalization."""

from penstock.distribute.losses import compute_average_loss, scale_regularization_loss
from penstock.face.missing import guard as _guard
from penstock.ops.conv.conv1d import conv1d_transpose
from penstock.ops.conv.conv3d import conv_transpose
from penstock.ops.conv.depthwise import depthwise_conv2d_native_backprop_filter as depthwise_conv2d_backprop_filter
from penstock.ops.conv.depthwise import depthwise_conv2d_native_backprop_input as depthwise_conv2d_backprop_input
from penstock.ops.conv.dilated import atrous_conv2d, atrous_conv2d_transpose, with_space_to_batch
from penstock.ops.conv.pool import avg_pool1d, max_pool1d, max_pool2d
from penstock.ops.conv.pool import avg_pool_v2 as avg_pool
from penstock.ops.conv.pool import max_pool_v2 as max_pool
from penstock.ops.conv.pool3d import avg_pool3d, max_pool3d
from penstock.ops.conv.v2 import (
    avg_pool2d,
    conv1d,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    convolution,
    depth_to_space,
    depthwise_conv2d,
    dilation2d,
    erosion2d,
    fractional_avg_pool,
    fractional_max_pool,
    max_pool_with_argmax,
    pool,
    separable_conv2d,
    space_to_batch,
    space_to_depth,
)
from penstock.ops.math.unary import sigmoid, tanh
from penstock.ops.nn.activation import elu, gelu, leaky_relu, relu, relu6, selu, softplus, softsign
from penstock.ops.nn.cross_entropy import (
    l2_loss,
    log_poisson_loss,
    sigmoid_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits,
)
from penstock.ops.nn.ctc import ctc_beam_search_decoder_v2 as ctc_beam_search_decoder
from penstock.ops.nn.ctc import ctc_greedy_decoder
from penstock.ops.nn.embedding_v2 import embedding_lookup_sparse, safe_embedding_lookup_sparse
from penstock.ops.nn.layer_parts import bias_add, log_softmax, top_k, zero_fraction
from penstock.ops.nn.normalization import (
    batch_normalization,
    l2_normalize,
    local_response_normalization,
    lrn,
    normalize_moments,
)
from penstock.ops.nn.v2 import (
    batch_norm_with_global_normalization,
    crelu,
    in_top_k,
    moments,
    nce_loss,
    sampled_softmax_loss,
    softmax_cross_entropy_with_logits,
    sufficient_statistics,
    weighted_moments,
)
from penstock.ops.ragged.layers import dropout, embedding_lookup, silu, softmax, swish
from penstock.ops.random.accidental_hits import compute_accidental_hits
from penstock.ops.random.candidate_sampling import (
    all_candidate_sampler,
    fixed_unigram_candidate_sampler,
    learned_unigram_candidate_sampler,
)

__getattr__ = _guard(__name__)
