"""Elementwise primitives: arithmetic, comparisons, logic, conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from penstock.jaxprs.numpy_rules import (
    NEW,
    RULES,
    VIEW,
    Kernel,
    Rule,
    Site,
    is_float,
    is_integer,
    is_narrow_float,
    rule,
    wider,
)

# Primitives that are a ufunc, for all types that jax has them for.
_UFUNCS = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.absolute,
    "square": np.square,
    "floor": np.floor,
    "ceil": np.ceil,
    "is_finite": np.isfinite,
    "nextafter": np.nextafter,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "eq": np.equal,
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "not": np.invert,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    # NumPy shifts out all bits if a count is negative or too large, as XLA does.
    "shift_left": np.left_shift,
}


def _ufunc(kernel: np.ufunc) -> Rule:
    return Rule(lambda site: kernel, NEW, broadcasts=True, overwrites=False)


RULES.update({name: _ufunc(kernel) for name, kernel in _UFUNCS.items()})


def elementwise(*names: str) -> Callable[[Callable[[Site], Any]], Callable[[Site], Any]]:
    return rule(*names, broadcasts=True)


def in_wider_type(site: Site, kernel: Kernel) -> Kernel:
    """`kernel`, computed in float32 if the result is of a narrower float type."""
    dtype = site.out_dtype()
    if not is_narrow_float(dtype):
        return kernel
    wide = wider(dtype)
    return lambda *operands: kernel(*[operand.astype(wide) for operand in operands]).astype(dtype)


@elementwise("div")
def div(site: Site) -> Kernel:
    dtype = site.out_dtype()
    if not is_integer(dtype):
        return np.true_divide
    ones = dtype.type(np.iinfo(dtype).max if dtype.kind == "u" else -1)

    def integer_division(x: Any, y: Any) -> Any:
        if dtype.kind == "u":
            quotient = np.floor_divide(x, y)
        else:
            # Without its remainder x is a multiple of y, so rounding down equals rounding towards zero.
            quotient = np.floor_divide(x - np.fmod(x, y), y)
        by_zero = np.equal(y, 0)
        return np.where(by_zero, ones, quotient) if by_zero.any() else quotient

    return integer_division


@elementwise("rem")
def rem(site: Site) -> Kernel:
    if not is_integer(site.out_dtype()):
        return np.fmod

    def remainder(x: Any, y: Any) -> Any:
        rest = np.fmod(x, y)
        by_zero = np.equal(y, 0)
        return np.where(by_zero, x, rest) if by_zero.any() else rest

    return remainder


def _shift_right(site: Site, kind: str) -> Kernel:
    dtype = site.out_dtype()
    if dtype.kind == kind:
        return np.right_shift
    other = np.dtype(f"{kind}{dtype.itemsize}")
    return lambda x, y: np.right_shift(np.asarray(x).view(other), np.asarray(y).view(other)).view(dtype)


@elementwise("shift_right_logical")
def shift_right_logical(site: Site) -> Kernel:
    return _shift_right(site, "u")


@elementwise("shift_right_arithmetic")
def shift_right_arithmetic(site: Site) -> Kernel:
    return _shift_right(site, "i")


@elementwise("sign")
def sign(site: Site) -> Kernel:
    # The sign of -0.0 is -0.0, unlike NumPy's.
    return (lambda x: np.copysign(np.sign(x), x)) if is_float(site.out_dtype()) else np.sign


@elementwise("round")
def round_(site: Site) -> Kernel:
    if int(site.param("rounding_method")) == 1:
        return np.rint

    def away_from_zero(x: Any) -> Any:
        whole = np.trunc(x)
        return whole + np.copysign((np.absolute(x - whole) >= 0.5).astype(x.dtype), x)

    return away_from_zero


@elementwise("rsqrt")
def rsqrt(site: Site) -> Kernel:
    one = site.out_dtype().type(1)
    return in_wider_type(site, lambda x: np.true_divide(one, np.sqrt(x)).astype(x.dtype, copy=False))


@elementwise("one_minus_square")
def one_minus_square(site: Site) -> Kernel:
    one = site.out_dtype().type(1)
    return lambda x: one - x * x


@elementwise("logistic")
def logistic(site: Site) -> Kernel:
    one = wider(site.out_dtype()).type(1)
    if site.ndim(0) == 0 or is_narrow_float(site.out_dtype()):
        return in_wider_type(site, lambda x: one / (one + np.exp(-x)))

    def kernel(x: Any) -> Any:
        result = np.negative(x)
        np.exp(result, result)
        np.add(result, one, result)
        return np.divide(one, result, result)

    return kernel


@elementwise("pow")
def pow_(site: Site) -> Kernel:
    dtype = site.out_dtype()
    if site.dtype(1) == dtype:
        return np.power
    return lambda x, y: np.power(x, y.astype(dtype))


@elementwise("integer_pow")
def integer_pow(site: Site) -> Kernel:
    exponent = int(site.param("y"))
    dtype = site.out_dtype()
    if exponent == 2:
        return np.square
    if exponent == 0:
        return lambda x: np.ones_like(x)

    def power(x: Any) -> Any:
        result: Any = None
        factor, left = x, abs(exponent)
        while True:
            if left & 1:
                result = factor if result is None else np.multiply(result, factor)
            left >>= 1
            if not left:
                break
            factor = np.square(factor)
        if exponent < 0:
            return np.reciprocal(result)
        return result if exponent != 1 else x.copy()

    return in_wider_type(site, power) if is_narrow_float(dtype) else power


def _total_order(x: Any) -> Any:
    """Maps floats to integers of the same order, in which -0.0 comes before 0.0, and NaN first or last, by its sign."""
    bits = np.asarray(x).view(f"i{x.dtype.itemsize}")
    # For negative floats a larger magnitude means a smaller value.
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def _in_total_order(compare: np.ufunc) -> Rule:
    def build(site: Site) -> Kernel:
        if not is_float(site.dtype()):
            return compare
        return lambda x, y: compare(_total_order(x), _total_order(y))

    return Rule(build, NEW, broadcasts=True, overwrites=False)


RULES.update(
    {
        name: _in_total_order(compare)
        for name, compare in {"eq_to": np.equal, "le_to": np.less_equal, "lt_to": np.less}.items()
    }
)


@elementwise("clamp")
def clamp(site: Site) -> Kernel:
    def kernel(low: Any, x: Any, high: Any) -> Any:
        return np.minimum(np.maximum(low, x), high)

    return kernel


def _select(which: Any, if_false: Any, if_true: Any) -> Any:
    return np.where(which, if_true, if_false)


def _one_of_two(which: Any, if_false: Any, if_true: Any) -> Any:
    """_select for scalars: loops have many, and `where` takes 6 us. The functions of reductions get arrays instead."""
    return _select(which, if_false, if_true) if which.ndim else (if_true if which else if_false).copy()


@elementwise("select_n")
def select_n(site: Site) -> Kernel:
    if site.dtype(0).kind == "b" and len(site.node.inputs) == 3:
        return _one_of_two if all(not value.shape for value in site.node.inputs) else _select
    if len(site.node.inputs) > 32:
        raise site.no_rule("more than 31 cases")
    return lambda which, *cases: np.choose(which, cases, mode="clip")


@elementwise("convert_element_type")
def convert_element_type(site: Site) -> Kernel:
    old, new = site.dtype(), site.out_dtype()
    if old.kind == "c" and new.kind != "c":
        if new.kind == "b":
            return lambda x: np.not_equal(x, 0)
        return lambda x: x.real.astype(new)
    if is_float(old) and is_integer(new):
        return _saturating(old, new)
    if new.kind == "b":
        return lambda x: np.not_equal(x, 0)
    return lambda x: x.astype(new)


def _saturating(old: np.dtype[Any], new: np.dtype[Any]) -> Kernel:
    """Converts floats to integers like XLA: values out of range become the nearest integer, NaN becomes 0."""
    limits = np.iinfo(new)
    wide = wider(old)
    # 2.0 ** bits, which floats can represent, unlike the largest integer itself; float16 cannot, hence the wider type.
    above = wide.type(float(limits.max) + 1) if new.itemsize > 1 else wide.type(limits.max + 1)
    below = wide.type(limits.min)

    def kernel(x: Any) -> Any:
        wide_x = np.asarray(x) if wide == old else x.astype(wide)
        inside = (wide_x > below) & (wide_x < above)
        if inside.all():
            return wide_x.astype(new)
        result = np.where(inside, wide_x, 0).astype(new)
        result = np.where(wide_x >= above, new.type(limits.max), result)
        return np.where(wide_x <= below, new.type(limits.min), result)

    return kernel


@elementwise("population_count")
def population_count(site: Site) -> Kernel:
    dtype = site.out_dtype()
    # bitwise_count counts the bits of the absolute value.
    bits = np.dtype(f"u{dtype.itemsize}")
    return lambda x: np.bitwise_count(x.view(bits)).astype(dtype)


@elementwise("clz")
def clz(site: Site) -> Kernel:
    dtype = site.out_dtype()
    bits = np.dtype(f"u{dtype.itemsize}")

    def kernel(x: Any) -> Any:
        filled = x.view(bits)
        for shift in (1, 2, 4, 8, 16, 32):
            if shift < 8 * dtype.itemsize:
                filled = filled | (filled >> bits.type(shift))
        return (8 * dtype.itemsize - np.bitwise_count(filled)).astype(dtype)

    return kernel


@elementwise("mulhi")
def mulhi(site: Site) -> Kernel:
    dtype = site.out_dtype()
    if dtype.itemsize == 8:
        raise site.no_rule("products of 64-bit integers need 128 bits")
    double = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
    bits = double.type(8 * dtype.itemsize)
    return lambda x, y: (np.multiply(x, y, dtype=double) >> bits).astype(dtype)


@elementwise("complex")
def complex_(site: Site) -> Kernel:
    dtype = site.out_dtype()

    def kernel(real: Any, imaginary: Any) -> Any:
        result = np.empty(np.broadcast_shapes(real.shape, imaginary.shape), dtype)
        result.real = real
        result.imag = imaginary
        return result

    return kernel


@elementwise("conj")
def conj(site: Site) -> Kernel:
    dtype = site.out_dtype()
    if site.dtype() != dtype:
        return lambda x: x.astype(dtype)
    return np.conjugate


@rule("real", memory=VIEW)
def real(site: Site) -> Kernel:
    return lambda x: x.real


@rule("imag", memory=VIEW)
def imag(site: Site) -> Kernel:
    return lambda x: x.imag


@rule("bitcast_convert_type")
def bitcast_convert_type(site: Site) -> Kernel:
    old, new = site.dtype(), site.out_dtype()
    if old.itemsize == new.itemsize:
        return lambda x: np.array(x, order="C").view(new)
    if old.itemsize > new.itemsize:
        return lambda x: np.array(x, order="C")[..., None].view(new)
    return lambda x: np.array(x, order="C").view(new)[..., 0]


# Exponent and mantissa bits of the types that NumPy rounds to.
_PRECISIONS = {
    (11, 52): np.dtype(np.float64),
    (8, 23): np.dtype(np.float32),
    (5, 10): np.dtype(np.float16),
    (8, 7): np.dtype(ml_dtypes.bfloat16),
}


@elementwise("reduce_precision")
def reduce_precision(site: Site) -> Kernel:
    bits = site.param("exponent_bits"), site.param("mantissa_bits")
    dtype, rounded = site.out_dtype(), _PRECISIONS.get(bits)
    if rounded is None:
        raise site.no_rule(f"precision of {bits[0]} and {bits[1]} bits")
    return lambda x: x.astype(rounded).astype(dtype)
