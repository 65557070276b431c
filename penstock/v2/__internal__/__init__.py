"""Names that TensorFlow has for its own libraries; programs that ask for one find out if it is there."""

from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
