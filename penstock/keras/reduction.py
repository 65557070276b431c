"""Names of the ways to reduce a loss, as Keras 2 had them; Keras 3 takes their values."""

from __future__ import annotations


class Reduction:
    """The ways in which a loss becomes a scalar: `tf.keras.losses.Reduction.NONE` keeps the loss of each example."""

    AUTO = "sum_over_batch_size"
    NONE = "none"
    SUM = "sum"
    SUM_OVER_BATCH_SIZE = "sum_over_batch_size"
