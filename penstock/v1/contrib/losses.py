"""Losses with predictions before labels."""

from penstock.contrib.losses import (
    absolute_difference,
    add_loss,
    compute_weighted_loss,
    cosine_distance,
    get_losses,
    get_regularization_losses,
    get_total_loss,
    hinge_loss,
    log_loss,
    mean_pairwise_squared_error,
    mean_squared_error,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
    sparse_softmax_cross_entropy,
)
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
