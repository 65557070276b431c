"""The uniform distribution."""

from __future__ import annotations

import math as pymath
from typing import Any

from penstock.contrib.distributions.base import FULLY_REPARAMETERIZED, Distribution, checked, floats
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, passthrough, selection
from penstock.ops.debugging.check_ops import assert_less
from penstock.ops.math import compare, unary
from penstock.ops.random import stateful as random


class Uniform(Distribution):
    """Uniform in [low, high): `tf.distributions.Uniform(0.0, 1.0)`."""

    reparameterization_type = FULLY_REPARAMETERIZED

    def __init__(
        self,
        low: TensorLike = 0.0,
        high: TensorLike = 1.0,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Uniform",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[low, high]) as scope:
            low, high = floats(low=low, high=high)
            with checked(
                validate_args, lambda: [assert_less(low, high, message="uniform not defined when low >= high.")]
            ):
                self._low = passthrough.identity(low, name="low")
                self._high = passthrough.identity(high, name="high")
        super().__init__(self._low.dtype.base_dtype, scope, parameters, validate_args, allow_nan_stats)

    @property
    def low(self) -> Any:
        return self._low

    @property
    def high(self) -> Any:
        return self._high

    def range(self, name: str = "range") -> Any:
        """high - low."""
        with self._scope(name):
            return self.high - self.low

    def _batch(self) -> list[Any]:
        return [self._low, self._high]

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        drawn: Any = random.random_uniform(self._drawn_shape(n), dtype=self.dtype, seed=seed)
        return self.low + self.range() * drawn

    def _prob(self, value: Any) -> Any:
        spread = value * creation.ones_like(self.low) * creation.ones_like(self.high)
        outside = compare.logical_or(compare.less(spread, self.low), compare.greater_equal(spread, self.high))
        density = creation.ones_like(spread) / self.range()
        inside = selection.where(outside, creation.zeros_like(spread), density)
        return selection.where(unary.is_nan(spread), spread, inside)

    def _cdf(self, value: Any) -> Any:
        spread = value * creation.ones_like(self.low) * creation.ones_like(self.high)
        share = (spread - self.low) / self.range()
        above = selection.where(compare.greater_equal(spread, self.high), creation.ones_like(spread), share)
        return selection.where(compare.less(spread, self.low), creation.zeros_like(spread), above)

    def _entropy(self) -> Any:
        return unary.log(self.range())

    def _mean(self) -> Any:
        return (self.low + self.high) / 2.0

    def _variance(self) -> Any:
        return unary.square(self.range()) / 12.0

    def _stddev(self) -> Any:
        return self.range() / pymath.sqrt(12.0)
