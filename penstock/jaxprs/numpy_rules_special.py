"""Special functions and Fourier transforms, using SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are needed

from penstock.jaxprs.numpy_rules import NEW, RULES, Kernel, Rule, Site, rule, wider
from penstock.jaxprs.numpy_rules_elementwise import elementwise, in_wider_type

_FUNCTIONS = {
    "erf": "erf",
    "erfc": "erfc",
    "erf_inv": "erfinv",
    "igamma": "gammainc",
    "igammac": "gammaincc",
    "regularized_incomplete_beta": "betainc",
    "bessel_i0e": "i0e",
    "bessel_i1e": "i1e",
    "zeta": "zeta",
}


def _scipy_rule(name: str) -> Rule:
    return Rule(lambda site: in_wider_type(site, getattr(scipy.special, name)), NEW, broadcasts=True, overwrites=False)


RULES.update({primitive: _scipy_rule(name) for primitive, name in _FUNCTIONS.items()})


@elementwise("lgamma")
def lgamma(site: Site) -> Kernel:
    # At minus infinity SciPy returns minus infinity.
    return in_wider_type(site, lambda x: np.where(np.isinf(x), np.abs(x), scipy.special.gammaln(x)))


@elementwise("digamma")
def digamma(site: Site) -> Kernel:
    def kernel(x: Any) -> Any:
        # SciPy returns infinities at 0; XLA treats all poles alike.
        return np.where(x == 0, np.nan, scipy.special.psi(x)).astype(x.dtype)

    return in_wider_type(site, kernel)


@elementwise("polygamma")
def polygamma(site: Site) -> Kernel:
    dtype = wider(site.out_dtype())

    def kernel(order: Any, x: Any) -> Any:
        n = np.asarray(order, np.float64)
        sign = np.where(n % 2 == 0, -1.0, 1.0)
        value = sign * scipy.special.gamma(n + 1) * scipy.special.zeta(n + 1, np.asarray(x, np.float64))
        return np.where(n == 0, scipy.special.psi(x), value).astype(dtype)

    return in_wider_type(site, kernel)


@rule("fft")
def fft(site: Site) -> Kernel:
    kind, lengths = int(site.param("fft_type")), tuple(site.param("fft_lengths"))
    dtype = site.out_dtype()
    axes = tuple(range(-len(lengths), 0))
    transform = (scipy.fft.fftn, scipy.fft.ifftn, scipy.fft.rfftn, scipy.fft.irfftn)[kind]
    if 0 in site.out_shape():
        shape = site.out_shape()
        return lambda x: np.zeros(shape, dtype)
    return lambda x: transform(x, lengths, axes).astype(dtype, copy=False)
