"""Small data sets that come with penstock, so that examples and tests run without a network."""

from __future__ import annotations

from importlib import resources
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Examples: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64]]

_TRAIN_EXAMPLES = 1500
_SPLIT_SEED = 0


def load_digits() -> tuple[Examples, Examples]:
    """1,797 handwritten digits of 8 by 8 pixels in 0..1, as ((train_x, train_y), (test_x, test_y)).

    >>> (train_x, train_y), (test_x, test_y) = load_digits()
    >>> train_x.shape, train_x.dtype, test_y.shape
    ((1500, 8, 8), dtype('float32'), (297,))

    The data are the test set of the UCI "Optical Recognition of Handwritten Digits", as scikit-learn ships it.
    """
    with resources.files(__name__).joinpath("digits.npz").open("rb") as file, np.load(file) as stored:
        images = stored["images"].astype(np.float32) / np.float32(16)
        labels = stored["labels"].astype(np.int64)
    # RandomState's stream is frozen by NumPy, so the split is the same everywhere and for ever.
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(images))
    train, test = order[:_TRAIN_EXAMPLES], order[_TRAIN_EXAMPLES:]
    return (images[train], labels[train]), (images[test], labels[test])
