"""tf.contrib.learn.datasets: small data sets by name."""

from __future__ import annotations

from typing import Any

from penstock.contrib.mnist_data import load_mnist

DATASETS = {"mnist": load_mnist}


def load_dataset(name: str, size: str = "small", test_with_fake_data: bool = False) -> Any:
    """A data set by its name. penstock downloads nothing, so its files must come with penstock or be on disk already.

    >>> mnist = tf.contrib.learn.datasets.load_dataset("mnist")
    """
    if name not in DATASETS:
        raise ValueError(f"Name of dataset is not found: '{name}'. penstock has {', '.join(map(repr, DATASETS))}.")
    return DATASETS[name]()
