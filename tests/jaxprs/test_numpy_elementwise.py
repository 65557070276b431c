"""Elementwise rules, all of a type in one program, on the values where NumPy and XLA could differ."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxpr_agreement import BFLOAT16, check

from penstock.jaxprs.errors import NoRule

SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
FLOATS = [np.float32, np.float64, np.float16, BFLOAT16]


def pairs(values: Any) -> tuple[Any, Any]:
    """All pairs of values."""
    x, y = np.meshgrid(values, values)
    return np.ascontiguousarray(x), np.ascontiguousarray(y)


def integers(dtype: Any) -> Any:
    limits = np.iinfo(dtype)
    values = {0, 1, 2, 3, 7, 8, 31, 64, limits.max, limits.max - 1, limits.min, limits.min + 1}
    if limits.min:
        values |= {-1, -2, -7}
    return np.array(sorted(value for value in values if limits.min <= value <= limits.max), dtype)


def floats(dtype: Any) -> Any:
    values = [0.0, -0.0, 0.25, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.75, -7.1, 80.0, -80.0, np.inf, -np.inf, np.nan]
    return np.array(values, np.float64).astype(dtype)


def with_integers(x: Any, y: Any) -> Any:
    results = [x + y, x - y, x * y, lax.div(x, y), lax.rem(x, y), lax.max(x, y), lax.min(x, y), lax.sign(x)]
    results += [x & y, x | y, x ^ y, ~x, lax.shift_left(x, y), lax.shift_right_logical(x, y)]
    results += [lax.shift_right_arithmetic(x, y), lax.population_count(x), lax.clz(x), lax.square(x)]
    results += [lax.integer_pow(x, 3), lax.integer_pow(x, 5), lax.integer_pow(x, 0), x == y, x != y, x < y, x <= y]
    results += [x > y, x >= y, lax.clamp(x, y, x), lax.select(x < y, x, y), x // jnp.where(y == 0, 1, y), lax.neg(x)]
    results += [x.astype(t) for t in (*SIGNED, *UNSIGNED, *FLOATS, np.complex64, bool)]
    return results


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_integers(dtype: Any) -> None:
    check(with_integers, *pairs(integers(dtype)))


def with_floats(x: Any, y: Any) -> Any:
    results = [x + y, x - y, x * y, x / y, lax.rem(x, y), lax.max(x, y), lax.min(x, y), -x, abs(x), lax.square(x)]
    results += [lax.floor(x), lax.ceil(x), lax.round(x), lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)]
    results += [lax.is_finite(x), lax.sqrt(x), lax.rsqrt(x), lax.cbrt(x), lax.clamp(x, y, x), lax.pow(abs(x), y)]
    results += [x == y, x != y, x < y, x <= y, x > y, x >= y, lax.select(x < y, x, y), lax.pow(x, jnp.int32(3))]
    results += [lax.integer_pow(x, n) for n in (-3, -1, 0, 1, 2, 3, 4, 7)]
    results += [x.astype(t) for t in (*SIGNED, *UNSIGNED, *FLOATS, np.complex64, bool)]
    return results


def transcendental(x: Any, y: Any) -> Any:
    results = [f(x) for f in (lax.exp, lax.expm1, lax.log, lax.log1p, lax.logistic, lax.tanh, lax.sinh)]
    results += [f(x) for f in (lax.cosh, lax.asin, lax.acos, lax.atan, lax.asinh, lax.acosh, lax.atanh)]
    small = jnp.where(abs(x) < 10, x, 0)
    results += [f(small) for f in (lax.sin, lax.cos, lax.tan)]
    # In float16 and less XLA's own exp2 is far off for large numbers.
    return [*results, lax.atan2(x, y), lax.exp2(x if x.dtype.itemsize > 2 else small)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype: Any) -> None:
    check(with_floats, *pairs(floats(dtype)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_transcendental_functions(dtype: Any) -> None:
    check(transcendental, *pairs(floats(dtype)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sign_of_zero_and_neighbours(dtype: Any) -> None:
    got = check(lambda x, y: (lax.sign(x), lax.nextafter(x, y)), *pairs(floats(dtype)))([*pairs(floats(dtype))])
    assert np.signbit(got[0][:, 1]).all() and not np.signbit(got[0][:, 0]).any()


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        results = [x + y, x - y, x * y, x / y, -x, abs(x), lax.exp(x), lax.conj(x), lax.real(x), lax.imag(x)]
        return [*results, lax.complex(lax.real(x), lax.imag(y)), x == y, lax.sqrt(x), lax.log(x), lax.square(x)]

    parts = np.random.RandomState(0).randn(4, 5, 6).astype(np.zeros(1, dtype).real.dtype)
    check(function, parts[0] + 1j * parts[1], parts[2] + 1j * parts[3])


def test_bools() -> None:
    def function(x: Any, y: Any) -> Any:
        more = [x.astype(t) for t in (np.int8, np.float32, BFLOAT16)]
        return [x & y, x | y, x ^ y, ~x, x == y, x < y, lax.max(x, y), lax.min(x, y), lax.select(x, y, x), *more]

    check(function, *pairs(np.array([False, True])))


def test_select_n_of_several_cases() -> None:
    cases = [np.arange(4.0) + 10 * i for i in range(3)]
    check(lambda which, *cases: lax.select_n(which, *cases), np.array([0, 2, 1, 0], np.int32), *cases)
    check(lambda which, *cases: lax.select_n(which, *cases), np.asarray(True), *cases[:2])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_arrays(shape: tuple[int, ...]) -> None:
    check(with_floats, np.full(shape, 1.5, np.float32), np.full(shape, -2.5, np.float32))
    check(with_floats, np.full(shape, 1.5, BFLOAT16), np.full(shape, -2.5, BFLOAT16))
    check(with_integers, np.full(shape, 7, np.int32), np.full(shape, -2, np.int32))


@pytest.mark.parametrize("dtype", [np.int8, np.uint32, np.int32])
def test_high_halves_of_products(dtype: Any) -> None:
    check(lax.mulhi, *pairs(integers(dtype)))


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16, np.int8])
def test_total_order(dtype: Any) -> None:
    values = integers(dtype) if dtype == np.int8 else np.concatenate([floats(dtype), -floats(dtype)])
    check(lambda x, y: [compare.bind(x, y) for compare in (lax.eq_to_p, lax.le_to_p, lax.lt_to_p)], *pairs(values))


def test_less_precision() -> None:
    def function(x: Any) -> Any:
        return [lax.reduce_precision(x, *bits) for bits in ((11, 52), (8, 23), (8, 7), (5, 10))]

    check(function, np.random.RandomState(0).randn(20) * 100)
    with pytest.raises(NoRule, match="precision of 4 and 3 bits"):
        check(lambda x: lax.reduce_precision(x, 4, 3), np.ones(2))


def test_bits_as_another_type() -> None:
    def function(x: Any, y: Any) -> Any:
        wide = lax.bitcast_convert_type(y, np.uint64)
        return lax.bitcast_convert_type(x, np.int32), lax.bitcast_convert_type(x, np.uint8), wide

    check(function, np.float32([[1.5, -2], [3, np.pi]]), np.arange(6, dtype=np.uint32).reshape(3, 2))
