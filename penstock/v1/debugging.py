"""Checks of values."""

from penstock.face.missing import guard as _guard
from penstock.ops.array.passthrough import check_numerics
from penstock.ops.array.passthrough import verify_tensor_all_finite as assert_all_finite
from penstock.ops.debugging.assertion import Assert
from penstock.ops.debugging.check_ops import (
    assert_equal,
    assert_greater,
    assert_greater_equal,
    assert_integer,
    assert_less,
    assert_less_equal,
    assert_near,
    assert_negative,
    assert_non_negative,
    assert_non_positive,
    assert_none_equal,
    assert_positive,
    assert_proper_iterable,
    assert_rank,
    assert_rank_at_least,
    assert_rank_in,
    assert_same_float_dtype,
    assert_scalar,
    assert_type,
    is_numeric_tensor,
)
from penstock.ops.debugging.check_shapes import assert_shapes
from penstock.ops.math.formulas import is_non_decreasing, is_strictly_increasing
from penstock.ops.math.unary import is_finite, is_inf, is_nan

__getattr__ = _guard(__name__)
