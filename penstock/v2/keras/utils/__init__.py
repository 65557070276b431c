"""Helpers of programs with Keras models."""

from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.keras.sidecar import SidecarEvaluator
from penstock.v2.keras.utils import experimental

__getattr__ = _guard(__name__, more="keras.utils")
__dir__ = _listing(__name__, more="keras.utils")
