"""The optimizer. Its `minimize` updates factors and inverses too, so there are no ops for that to run."""

from penstock.face.missing import guard as _guard
from penstock.optim.kfac import KFACOptimizer as KfacOptimizer

__getattr__ = _guard(__name__)
