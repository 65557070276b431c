"""The beta distribution."""

from __future__ import annotations

from typing import Any

from penstock.contrib.distributions.base import Distribution, RegisterKL, broadcast_ones, checked, floats, next_seed
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import passthrough
from penstock.ops.debugging.check_ops import assert_positive
from penstock.ops.math import compare, special, unary
from penstock.ops.random import gamma_poisson


class Beta(Distribution):
    """Beta on (0, 1): `tf.distributions.Beta(concentration1=2.0, concentration0=3.0)`."""

    def __init__(
        self,
        concentration1: TensorLike = None,
        concentration0: TensorLike = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Beta",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[concentration1, concentration0]) as scope:
            first, second = floats(concentration1=concentration1, concentration0=concentration0)
            with checked(validate_args, lambda: [assert_positive(first), assert_positive(second)]):
                self._concentration1 = passthrough.identity(first, name="concentration1")
                self._concentration0 = passthrough.identity(second, name="concentration0")
            self._total: Any = self.concentration1 + self.concentration0
        super().__init__(self._total.dtype.base_dtype, scope, parameters, validate_args, allow_nan_stats)

    @property
    def concentration1(self) -> Any:
        return self._concentration1

    @property
    def concentration0(self) -> Any:
        return self._concentration0

    @property
    def total_concentration(self) -> Any:
        return self._total

    def _batch(self) -> list[Any]:
        return [self._total]

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        ones = broadcast_ones(self.concentration1, self._total)
        others = broadcast_ones(self.concentration0, self._total)
        x: Any = gamma_poisson.random_gamma([n], ones, dtype=self.dtype, seed=seed)
        y: Any = gamma_poisson.random_gamma([n], others, dtype=self.dtype, seed=next_seed(seed, "beta"))
        return x / (x + y)

    def _log_beta(self) -> Any:
        return special.lgamma(self.concentration1) + special.lgamma(self.concentration0) - special.lgamma(self._total)

    def _log_prob(self, value: Any) -> Any:
        unnormalized = (self.concentration1 - 1.0) * unary.log(value)
        unnormalized = unnormalized + (self.concentration0 - 1.0) * unary.log1p(-value)
        return unnormalized - self._log_beta()

    def _cdf(self, value: Any) -> Any:
        whole = broadcast_ones(self._total, value)
        ones, others = broadcast_ones(self.concentration1, whole), broadcast_ones(self.concentration0, whole)
        return special.betainc(ones, others, broadcast_ones(value, whole))

    def _entropy(self) -> Any:
        return (
            self._log_beta()
            - (self.concentration1 - 1.0) * special.digamma(self.concentration1)
            - (self.concentration0 - 1.0) * special.digamma(self.concentration0)
            + (self._total - 2.0) * special.digamma(self._total)
        )

    def _mean(self) -> Any:
        return self.concentration1 / self._total

    def _variance(self) -> Any:
        return self._mean() * (1.0 - self._mean()) / (1.0 + self._total)

    def _mode(self) -> Any:
        mode = (self.concentration1 - 1.0) / (self._total - 2.0)
        return self._or_nan(
            compare.logical_and(
                compare.greater(broadcast_ones(self.concentration1, mode), 1.0),
                compare.greater(broadcast_ones(self.concentration0, mode), 1.0),
            ),
            mode,
        )


@RegisterKL(Beta, Beta)
def _kl_beta_beta(a: Beta, b: Beta, name: str | None = None) -> Any:
    with name_scope(name, "kl_beta_beta", [a.total_concentration, b.total_concentration]):

        def change(function: Any, which: str) -> Any:
            return function(getattr(b, which)) - function(getattr(a, which))

        def expected(which: str) -> Any:
            return special.digamma(getattr(a, which)) * (getattr(a, which) - getattr(b, which))

        return (
            change(special.lgamma, "concentration1")
            + change(special.lgamma, "concentration0")
            - change(special.lgamma, "total_concentration")
            + expected("concentration1")
            + expected("concentration0")
            - expected("total_concentration")
        )
