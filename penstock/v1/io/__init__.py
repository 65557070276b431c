"""`tf.io`."""

from penstock.face.missing import guard as _guard
from penstock.v1.io import gfile

__getattr__ = _guard(__name__)
