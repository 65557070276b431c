"""Assertions, and checks of numbers."""

from penstock.face.missing import guard as _guard
from penstock.ops.array.passthrough import check_numerics
from penstock.ops.debugging.check_ops import assert_proper_iterable, assert_same_float_dtype, is_numeric_tensor
from penstock.ops.debugging.v2 import (
    Assert,
    assert_all_finite,
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
    assert_rank,
    assert_rank_at_least,
    assert_rank_in,
    assert_scalar,
    assert_shapes,
    assert_type,
)

__getattr__ = _guard(__name__)
