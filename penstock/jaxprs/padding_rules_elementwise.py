"""Rules of primitives that handle each position separately: padding stays padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.jaxprs.dims import is_symbolic
from penstock.jaxprs.padding_frame import Array, Frame, Padded, bind, resized, result_shape, rule

# These are zero if every operand is, so padding that is known to be zero stays zero.
_ZERO_FOR_ZERO = """
abs add add_any and asin asinh atan atanh cbrt ceil conj convert_element_type copy copy_p erf expm1 floor imag log1p max
min mul name neg or real reduce_precision round select_n sign sin sinh sqrt square stop_gradient sub tan tanh xor
"""

_OTHERS = """
acos acosh atan2 bessel_i0e bessel_i1e bitcast_convert_type clamp clz complex cos cosh digamma div eq eq_to erf_inv erfc
exp exp2 ge gt igamma igamma_grad_a igammac integer_pow is_finite le le_to lgamma log logistic lt lt_to mulhi ne
nextafter not one_minus_square polygamma population_count pow random_clone random_fold_in random_gamma random_seed
random_unwrap random_wrap regularized_incomplete_beta rem rsqrt shift_left shift_right_arithmetic shift_right_logical
threefry2x32 zeta
"""

_KEEPS_ZERO = frozenset(_ZERO_FOR_ZERO.split())


@rule(*_KEEPS_ZERO, *_OTHERS.split())
def elementwise(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    results = bind(equation, *(_fitting(frame, equation, operand) for operand in operands))
    if equation.primitive.name not in _KEEPS_ZERO:
        return results
    return Padded(results, result_shape(equation), _common_zero(equation, operands))


@rule("device_put", "optimization_barrier")
def unchanged(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    return bind(equation, *(operand.array for operand in operands))


def _fitting(frame: Frame, equation: Any, operand: Padded) -> Array:
    """The operand's array, resized if needed: equal sizes that are written differently may have different bounds."""
    array = operand.array
    wanted = result_shape(equation)
    if len(wanted) != len(operand.shape):  # a scalar, or a key with dimensions of its own
        return array
    for d, dim in enumerate(operand.shape):
        if is_symbolic(dim) and is_symbolic(wanted[d]):
            array = resized(array, d, frame.bounds.upper(wanted[d]))
    return array


def _common_zero(equation: Any, operands: list[Padded]) -> frozenset[int]:
    """The dimensions whose padding is zero in all operands; a literal zero is zero everywhere."""
    everywhere = frozenset(range(len(result_shape(equation))))
    values = zip(equation.invars, operands, strict=True)
    if equation.primitive.name == "select_n":
        next(values)  # skips the choice itself
    for variable, operand in values:
        literal = getattr(variable, "val", None)
        if literal is None or np.any(literal):
            everywhere &= operand.zero
    return everywhere
