"""Layers that prepare data."""

from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.keras.preprocessing import IntegerLookup, Normalization, StringLookup, TextVectorization

__getattr__ = _guard(__name__, more="keras.layers")
__dir__ = _listing(__name__, more="keras.layers")
