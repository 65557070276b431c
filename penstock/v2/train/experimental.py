"""Names of `tf.train.experimental`."""

from penstock.face.missing import guard as _guard
from penstock.trackable.base import PythonState

__getattr__ = _guard(__name__)
