"""Models that Keras trains by itself and penstock on a cluster, from the same weights on the same batches.

As a script it trains one by Keras alone, without penstock, and prints the loss of each epoch:

    python keras_twins.py cnn digits.npz
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras

EPOCHS, STEPS, BATCH = 3, 4, 64
ROWS, WIDTH, WORDS = 1_000_000, 32, 10


def drawn(seed: int, scale: float) -> Callable[..., np.ndarray]:
    """An initializer that gives the same values in any process."""
    return lambda shape, dtype=None: (
        np.random.default_rng(seed).uniform(-scale, scale, shape).astype(dtype or "float32")
    )


def cnn() -> Any:
    """Convolutions, moving averages and a dense layer, on pictures of digits."""
    model = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.Conv2D(16, 3, activation="relu", kernel_initializer=drawn(1, 0.3)),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, "softmax", kernel_initializer=drawn(2, 0.2)),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def embedding() -> Any:
    """A table of a million rows, of which a batch uses a few hundred."""
    model = keras.Sequential(
        [
            keras.Input([WORDS], dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH, embeddings_initializer=drawn(3, 0.5)),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, "sigmoid", kernel_initializer=drawn(4, 0.5)),
        ]
    )
    model.compile(
        keras.optimizers.Adagrad(0.1, initial_accumulator_value=1e-6), "binary_crossentropy", metrics=["accuracy"]
    )
    return model


MODELS = {"cnn": cnn, "embedding": embedding}


def data(name: str, digits: str) -> tuple[np.ndarray, np.ndarray]:
    """The batches of an epoch, in order."""
    count = STEPS * BATCH
    if name == "cnn":
        with np.load(digits) as file:
            return file["images"][:count, ..., None].astype("float32") / 16, file["labels"][:count].astype("int32")
    ids = np.random.default_rng(0).integers(0, ROWS, [count, WORDS], dtype="int32")
    return ids, (ids[:, :1] % 2).astype("float32")


def trained(model: Any, *given: Any, **settings: Any) -> list[float]:
    """The loss of each epoch."""
    found = model.fit(*given, epochs=EPOCHS, shuffle=False, verbose=0, **settings).history["loss"]
    return [float(loss) for loss in found]


if __name__ == "__main__":
    which, path = sys.argv[1:]
    print(json.dumps(trained(MODELS[which](), *data(which, path), batch_size=BATCH)))
