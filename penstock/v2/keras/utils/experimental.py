"""Data of models that train on parameter servers."""

from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.keras.inputs import DatasetCreator

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
