"""Names of Keras that were experimental."""

from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.keras.sidecar import SidecarEvaluator

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
