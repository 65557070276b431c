"""Reading MNIST."""

from penstock.contrib.mnist_data import (
    DataSet,
    Datasets,
    dense_to_one_hot,
    extract_images,
    extract_labels,
    load_mnist,
    read_data_sets,
)
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
