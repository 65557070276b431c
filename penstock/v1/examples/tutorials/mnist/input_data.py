"""Reading MNIST."""

from penstock.contrib.mnist_data import (
    DEFAULT_SOURCE_URL,
    DataSet,
    Datasets,
    dense_to_one_hot,
    extract_images,
    extract_labels,
    read_data_sets,
)
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
