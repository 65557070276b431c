"""Special functions."""

from penstock.face.missing import guard as _guard
from penstock.ops.math.special import bessel_i0, bessel_i0e, bessel_i1, bessel_i1e

__getattr__ = _guard(__name__)
