"""Neural networks: activations, losses, convolutions, pooling, normalization."""

from penstock.face.missing import guard as _guard
from penstock.ops.conv.batch_space import space_to_batch
from penstock.ops.conv.blocks import depth_to_space, space_to_depth
from penstock.ops.conv.conv1d import conv1d, conv1d_transpose
from penstock.ops.conv.conv2d import conv2d, conv2d_backprop_filter, conv2d_backprop_input, conv2d_transpose
from penstock.ops.conv.conv3d import conv3d, conv3d_backprop_filter, conv3d_transpose, conv_transpose
from penstock.ops.conv.conv3d import conv3d_backprop_filter as conv3d_backprop_filter_v2
from penstock.ops.conv.depthwise import (
    depthwise_conv2d,
    depthwise_conv2d_native,
    depthwise_conv2d_native_backprop_filter,
    depthwise_conv2d_native_backprop_input,
    separable_conv2d,
)
from penstock.ops.conv.depthwise import depthwise_conv2d_native_backprop_filter as depthwise_conv2d_backprop_filter
from penstock.ops.conv.depthwise import depthwise_conv2d_native_backprop_input as depthwise_conv2d_backprop_input
from penstock.ops.conv.dilated import atrous_conv2d, atrous_conv2d_transpose, convolution, with_space_to_batch
from penstock.ops.conv.fractional_pool import fractional_avg_pool, fractional_max_pool
from penstock.ops.conv.morphology import dilation2d, erosion2d
from penstock.ops.conv.pool import (
    avg_pool,
    avg_pool1d,
    avg_pool2d,
    avg_pool_v2,
    max_pool,
    max_pool1d,
    max_pool2d,
    max_pool_v2,
    pool,
)
from penstock.ops.conv.pool3d import avg_pool3d, max_pool3d
from penstock.ops.conv.pool_argmax import max_pool_with_argmax
from penstock.ops.math.unary import sigmoid, tanh
from penstock.ops.nn.activation import crelu, elu, leaky_relu, relu, relu6, selu, silu, softplus, softsign, swish
from penstock.ops.nn.cross_entropy import (
    l2_loss,
    log_poisson_loss,
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits,
)
from penstock.ops.nn.ctc import ctc_beam_search_decoder, ctc_beam_search_decoder_v2, ctc_greedy_decoder, ctc_loss
from penstock.ops.nn.embedding import embedding_lookup, embedding_lookup_sparse, safe_embedding_lookup_sparse
from penstock.ops.nn.fused_batch_norm import fused_batch_norm
from penstock.ops.nn.layer_parts import (
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
from penstock.ops.nn.normalization import (
    batch_norm_with_global_normalization,
    batch_normalization,
    l2_normalize,
    local_response_normalization,
    lrn,
    moments,
    normalize_moments,
    sufficient_statistics,
    weighted_moments,
)
from penstock.ops.nn.sampled_loss import nce_loss, sampled_softmax_loss
from penstock.ops.random.accidental_hits import compute_accidental_hits
from penstock.ops.random.candidate_sampling import (
    all_candidate_sampler,
    fixed_unigram_candidate_sampler,
    learned_unigram_candidate_sampler,
    log_uniform_candidate_sampler,
    uniform_candidate_sampler,
)
from penstock.rnn.dynamic import bidirectional_dynamic_rnn, dynamic_rnn, raw_rnn
from penstock.rnn.static import static_bidirectional_rnn, static_rnn, static_state_saving_rnn
from penstock.v1 import rnn_cell

__getattr__ = _guard(__name__)
