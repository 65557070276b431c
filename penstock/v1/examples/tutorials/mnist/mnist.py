"""The network of the tutorial."""

from penstock.contrib.mnist_model import IMAGE_PIXELS, IMAGE_SIZE, NUM_CLASSES, evaluation, inference, loss, training
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
