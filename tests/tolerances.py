"""The largest error of a computed sum of products, by its number of terms, on any machine.

A sum of n products, added up in any order, with or without fused multiplication, errs by at most about n u m: u is the
unit roundoff, and m the magnitude, which is the sum of the products' absolute values (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1). Here m is the largest of a whole result, since convolutions by Winograd's method or
by Fourier transforms spread the errors of large values to their neighbours.

    exact = a.astype(np.float64) @ b
    magnitude = np.abs(a.astype(np.float64)) @ np.abs(b)
    assert_near(found, exact, terms=a.shape[1], magnitude=magnitude)
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

TF32 = 2.0**-10  # 10 bits after the point, and the rest may be cut off rather than rounded


def unit_roundoff(dtype: Any) -> float:
    """2^-24 for float32, 2^-53 for float64; for a complex type that of its parts."""
    return float(np.finfo(dtype).eps) / 2


def factor_roundoff(dtype: Any = np.float32) -> float:
    """The relative error of a factor before it is multiplied, at jax's present precision on its default device.

    It is that of TF32 for float32 on a GPU, unless the precision is "highest" (see conftest.py), and 0 elsewhere.
    """
    precise = jax.config.jax_default_matmul_precision in ("highest", "float32")
    single = np.dtype(dtype) in (np.float32, np.complex64)
    return TF32 if single and not precise and jax.default_backend() == "gpu" else 0.0


def limit(terms: float, magnitude: Any, dtype: Any = np.float32, factors: float | None = None) -> float:
    """The largest error of a sum of `terms` products with that `magnitude`; `factors` is the error of each factor."""
    factors = factor_roundoff(dtype) if factors is None else factors
    # A complex product is four real ones in two sums of two.
    count = 2 * terms + 2 if np.dtype(dtype).kind == "c" else terms + 1
    return (2 * factors + count * unit_roundoff(dtype)) * float(np.max(np.abs(magnitude), initial=0))


# The logarithm of gamma is 0 at 1 and 2, where XLA computes it from five terms of up to 7.
LOG_GAMMA = limit(5, 7.0, factors=0.0)


def assert_near(found: Any, exact: Any, *, terms: float, magnitude: Any, what: str = "") -> None:
    """Asserts that a float result is the `exact` one up to the rounding of sums of `terms` products."""
    found = np.asarray(found)
    np.testing.assert_allclose(found, exact, rtol=0, atol=limit(terms, magnitude, found.dtype), err_msg=what)
