"""Small datasets."""

from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing

__getattr__ = _guard(__name__, more="keras.datasets")
__dir__ = _listing(__name__, more="keras.datasets")
