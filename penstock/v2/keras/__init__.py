"""Keras, with penstock's variables, steps and preprocessing: `tf.keras`."""

import penstock.keras as _penstock
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.v2.keras import callbacks, layers, losses, utils
from penstock.v2.keras import tensors as _tensors

_tensors.install()

__getattr__ = _guard(__name__, more="keras")
__dir__ = _listing(__name__, more="keras")
