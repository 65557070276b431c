"""The layers that K-FAC preconditions."""

from penstock.face.missing import guard as _guard
from penstock.optim.kfac_layers import LayerCollection

__getattr__ = _guard(__name__)
