"""The normal distribution."""

from __future__ import annotations

import math as pymath
from typing import Any

from penstock.contrib.distributions.base import (
    FULLY_REPARAMETERIZED,
    Distribution,
    RegisterKL,
    broadcast_ones,
    checked,
    floats,
)
from penstock.contrib.distributions.tails import log_ndtr, ndtr
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import passthrough
from penstock.ops.debugging.check_ops import assert_positive
from penstock.ops.math import unary
from penstock.ops.math.special import ndtri_op
from penstock.ops.random import stateful as random


class Normal(Distribution):
    """Normal with mean `loc` and standard deviation `scale`: `tf.distributions.Normal(0.0, 1.0)`."""

    reparameterization_type = FULLY_REPARAMETERIZED

    def __init__(
        self,
        loc: TensorLike,
        scale: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Normal",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[loc, scale]) as scope:
            loc, scale = floats(loc=loc, scale=scale)
            with checked(validate_args, lambda: [assert_positive(scale)]):
                self._loc = passthrough.identity(loc, name="loc")
                self._scale = passthrough.identity(scale, name="scale")
        super().__init__(self._scale.dtype.base_dtype, scope, parameters, validate_args, allow_nan_stats)

    @property
    def loc(self) -> Any:
        return self._loc

    @property
    def scale(self) -> Any:
        return self._scale

    def _batch(self) -> list[Any]:
        return [self._loc, self._scale]

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        drawn: Any = random.random_normal(self._drawn_shape(n), 0.0, 1.0, self.dtype, seed=seed)
        return drawn * self.scale + self.loc

    def _z(self, x: Any) -> Any:
        with name_scope("standardize", values=[x]):
            return (x - self.loc) / self.scale

    def _log_prob(self, value: Any) -> Any:
        return -0.5 * unary.square(self._z(value)) - (0.5 * pymath.log(2.0 * pymath.pi) + unary.log(self.scale))

    def _cdf(self, value: Any) -> Any:
        with name_scope("ndtr"):
            return ndtr(self._z(value))

    def _log_cdf(self, value: Any) -> Any:
        return log_ndtr(self._z(value))

    def _survival_function(self, value: Any) -> Any:
        return ndtr(-self._z(value))

    def _log_survival_function(self, value: Any) -> Any:
        return log_ndtr(-self._z(value))

    def _quantile(self, value: Any) -> Any:
        return ndtri_op(value) * self.scale + self.loc

    def _entropy(self) -> Any:
        return 0.5 + 0.5 * pymath.log(2.0 * pymath.pi) + unary.log(broadcast_ones(self.scale, self.loc))

    def _mean(self) -> Any:
        return broadcast_ones(self.loc, self.scale)

    def _mode(self) -> Any:
        return self._mean()

    def _stddev(self) -> Any:
        return broadcast_ones(self.scale, self.loc)


@RegisterKL(Normal, Normal)
def _kl_normal_normal(a: Normal, b: Normal, name: str | None = None) -> Any:
    with name_scope(name, "kl_normal_normal", [a.loc, b.loc]):
        ratio = unary.square(a.scale / b.scale)
        return unary.square(a.loc - b.loc) / (2.0 * unary.square(b.scale)) + 0.5 * (ratio - 1.0 - unary.log(ratio))
