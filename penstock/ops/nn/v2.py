"""The functions of this room under the parameters of TensorFlow 2, where these differ."""

from penstock.graph.adapted import adapted
from penstock.ops.nn import activation, cross_entropy, layer_parts, normalization, sampled_loss

batch_norm_with_global_normalization = adapted(
    normalization.batch_norm_with_global_normalization,
    "input, mean, variance, beta, gamma, variance_epsilon, scale_after_normalization, name=None",
)
crelu = adapted(activation.crelu, "features, axis=-1, name=None")
dropout = adapted(layer_parts.dropout, "x, rate, noise_shape=None, seed=None, name=None")
in_top_k = adapted(layer_parts.in_top_k, "targets, predictions, k, name=None")
moments = adapted(normalization.moments, "x, axes, shift=None, keepdims=False, name=None")
nce_loss = adapted(
    sampled_loss.nce_loss,
    "weights, biases, labels, inputs, num_sampled, num_classes, num_true=1, sampled_values=None, "
    "remove_accidental_hits=False, name='nce_loss'",
    partition_strategy="div",
)
sampled_softmax_loss = adapted(
    sampled_loss.sampled_softmax_loss,
    "weights, biases, labels, inputs, num_sampled, num_classes, num_true=1, sampled_values=None, "
    "remove_accidental_hits=True, seed=None, name='sampled_softmax_loss'",
    partition_strategy="div",
)
softmax_cross_entropy_with_logits = adapted(
    cross_entropy.softmax_cross_entropy_with_logits_v2, "labels, logits, axis=-1, name=None"
)
sufficient_statistics = adapted(normalization.sufficient_statistics, "x, axes, shift=None, keepdims=False, name=None")
weighted_moments = adapted(normalization.weighted_moments, "x, axes, frequency_weights, keepdims=False, name=None")
