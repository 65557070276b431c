"""Normalization: Keras' own, which also adapts to datasets of penstock."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from penstock.data.dataset import Dataset
from penstock.graph.operation import Tensor


@keras.saving.register_keras_serializable("penstock")
class Normalization(keras.layers.Normalization):
    """Shifts and scales inputs to mean 0 and variance 1.

    >>> layer = tf.keras.layers.Normalization(axis=None)
    >>> layer.adapt(np.array([1.0, 2.0, 3.0]))
    >>> layer(tf.constant([1.0, 2.0, 3.0]))
    """

    def adapt(self, data: Any) -> None:
        """Learns mean and variance of an array, a tensor, or a dataset of batches, which is read once."""
        if isinstance(data, Dataset):
            parts = [np.asarray(batch[0] if isinstance(batch, tuple) else batch) for batch in data]
            data = np.stack(parts) if parts and parts[0].ndim == 0 else np.concatenate(parts)
        elif isinstance(data, (Tensor, list, tuple)):
            data = np.asarray(data)
        super().adapt(data)
