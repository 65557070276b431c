"""The gamma and the exponential distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.contrib.distributions.base import (
    FULLY_REPARAMETERIZED,
    Distribution,
    RegisterKL,
    broadcast_ones,
    checked,
    floats,
)
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, passthrough
from penstock.ops.debugging.check_ops import assert_positive
from penstock.ops.math import compare, special, unary
from penstock.ops.random import gamma_poisson
from penstock.ops.random import stateful as random


class Gamma(Distribution):
    """Gamma with shape `concentration` and inverse scale `rate`: `tf.distributions.Gamma(3.0, 2.0)`."""

    def __init__(
        self,
        concentration: TensorLike,
        rate: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Gamma",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[concentration, rate]) as scope:
            concentration, rate = floats(concentration=concentration, rate=rate)
            with checked(validate_args, lambda: [assert_positive(concentration), assert_positive(rate)]):
                self._concentration = passthrough.identity(concentration, name="concentration")
                self._rate = passthrough.identity(rate, name="rate")
        super().__init__(self._rate.dtype.base_dtype, scope, parameters, validate_args, allow_nan_stats)

    @property
    def concentration(self) -> Any:
        return self._concentration

    @property
    def rate(self) -> Any:
        return self._rate

    def _batch(self) -> list[Any]:
        return [self._concentration, self._rate]

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        return gamma_poisson.random_gamma([n], self.concentration, self.rate, self.dtype, seed=seed)

    def _log_prob(self, value: Any) -> Any:
        normalization = special.lgamma(self.concentration) - self.concentration * unary.log(self.rate)
        return (self.concentration - 1.0) * unary.log(value) - self.rate * value - normalization

    def _cdf(self, value: Any) -> Any:
        shape = broadcast_ones(self.concentration, value * self.rate)
        return special.igamma(shape, broadcast_ones(self.rate * value, shape))

    def _entropy(self) -> Any:
        return (
            self.concentration
            - unary.log(self.rate)
            + special.lgamma(self.concentration)
            + (1.0 - self.concentration) * special.digamma(self.concentration)
        )

    def _mean(self) -> Any:
        return self.concentration / self.rate

    def _variance(self) -> Any:
        return self.concentration / unary.square(self.rate)

    def _stddev(self) -> Any:
        return unary.sqrt(self.concentration) / self.rate

    def _mode(self) -> Any:
        mode = (self.concentration - 1.0) / self.rate
        return self._or_nan(compare.greater(broadcast_ones(self.concentration, mode), 1.0), mode)


class Exponential(Gamma):
    """Exponential with mean 1 / `rate`: `tf.distributions.Exponential(2.0)`."""

    reparameterization_type = FULLY_REPARAMETERIZED

    def __init__(
        self, rate: TensorLike, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "Exponential"
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[rate]) as scope:
            (rate,) = floats(rate=rate)
        super().__init__(creation.ones_like(rate), rate, validate_args, allow_nan_stats, scope)
        self._parameters = {k: v for k, v in parameters.items() if k not in ("self", "__class__")}

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        # The range starts at the smallest number above zero, so that the logarithm is finite.
        least = np.finfo(self.dtype.as_numpy_dtype).tiny
        drawn = random.random_uniform(self._drawn_shape(n), least, 1.0, self.dtype, seed=seed)
        return -unary.log(drawn) / self.rate


@RegisterKL(Gamma, Gamma)
def _kl_gamma_gamma(a: Gamma, b: Gamma, name: str | None = None) -> Any:
    with name_scope(name, "kl_gamma_gamma", [a.rate, b.rate]):
        return (
            (a.concentration - b.concentration) * special.digamma(a.concentration)
            + special.lgamma(b.concentration)
            - special.lgamma(a.concentration)
            + b.concentration * unary.log(a.rate)
            - b.concentration * unary.log(b.rate)
            + a.concentration * (b.rate / a.rate - 1.0)
        )
