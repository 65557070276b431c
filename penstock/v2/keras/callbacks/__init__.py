"""Callbacks: objects that are called as a model trains."""

from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.keras.callbacks import ModelCheckpoint, TensorBoard
from penstock.v2.keras.callbacks import experimental

__getattr__ = _guard(__name__, more="keras.callbacks")
__dir__ = _listing(__name__, more="keras.callbacks")
