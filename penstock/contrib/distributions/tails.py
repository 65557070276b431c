"""The distribution function of the standard normal, accurate in both tails."""

from __future__ import annotations

import math as pymath
from typing import Any

import numpy as np

from penstock.ops.array import selection
from penstock.ops.math import arithmetic, compare, special, unary


def ndtr(x: Any) -> Any:
    """The probability of standard normal values up to `x`."""
    half = np.asarray(0.5 * pymath.sqrt(2.0), x.dtype.as_numpy_dtype)
    w = x * half
    z = unary.abs(w)
    far = selection.where(compare.greater(w, 0.0), 2.0 - special.erfc(z), special.erfc(z))
    doubled: Any = selection.where(compare.less(z, half), 1.0 + special.erf(w), far)
    return 0.5 * doubled


def log_ndtr(x: Any) -> Any:
    """The logarithm of `ndtr`, which does not underflow: far below zero it uses an asymptotic series."""
    lower, upper = (-20.0, 8.0) if x.dtype.as_numpy_dtype == np.float64 else (-10.0, 5.0)
    # Each branch gets only values that it is valid for, so that no gradient of the others is NaN.
    middle = unary.log(ndtr(arithmetic.maximum(x, lower)))
    below = selection.where(compare.greater(x, lower), middle, _series(arithmetic.minimum(x, lower)))
    return selection.where(compare.greater(x, upper), -ndtr(-x), below)


def _series(x: Any) -> Any:
    squared = unary.square(x)
    scale = -0.5 * squared - unary.log(-x) - 0.5 * pymath.log(2.0 * pymath.pi)
    one = 1.0 - 1.0 / squared + 3.0 / unary.square(squared) - 15.0 / (squared * unary.square(squared))
    return scale + unary.log(one)
