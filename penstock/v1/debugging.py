"""Checks of values."""

from penstock.face.missing import guard as _guard
from penstock.ops.assertion import Assert
from penstock.ops.passthrough import check_numerics
from penstock.ops.passthrough import verify_tensor_all_finite as assert_all_finite
from penstock.ops.unary import is_finite, is_inf, is_nan

__getattr__ = _guard(__name__)
