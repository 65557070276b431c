"""Losses of models."""

from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.keras.reduction import Reduction

__getattr__ = _guard(__name__, more="keras.losses")
__dir__ = _listing(__name__, more="keras.losses")
