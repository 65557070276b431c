"""Reading MNIST."""

from penstock.contrib.mnist_data import read_data_sets
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
