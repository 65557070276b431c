"""Student's t distribution."""

from __future__ import annotations

import math as pymath
from typing import Any

from penstock.contrib.distributions.base import Distribution, broadcast_ones, checked, floats, next_seed
from penstock.graph.convert import convert_to_tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, passthrough, reshaping, selection
from penstock.ops.debugging.check_ops import assert_positive
from penstock.ops.math import compare, special, unary
from penstock.ops.random import gamma_poisson
from penstock.ops.random import stateful as random


class StudentT(Distribution):
    """Student's t with `df` degrees of freedom: `tf.distributions.StudentT(5.0, 0.0, 1.0)`."""

    def __init__(
        self,
        df: TensorLike,
        loc: TensorLike,
        scale: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "StudentT",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[df, loc, scale]) as scope:
            df, loc, scale = floats(df=df, loc=loc, scale=scale)
            with checked(validate_args, lambda: [assert_positive(df)]):
                self._df = passthrough.identity(df, name="df")
            self._loc = passthrough.identity(loc, name="loc")
            self._scale = passthrough.identity(scale, name="scale")
        super().__init__(self._scale.dtype.base_dtype, scope, parameters, validate_args, allow_nan_stats)

    @property
    def df(self) -> Any:
        return self._df

    @property
    def loc(self) -> Any:
        return self._loc

    @property
    def scale(self) -> Any:
        return self._scale

    def _batch(self) -> list[Any]:
        return [self._df, self._loc, self._scale]

    def _all(self, tensor: Any) -> Any:
        """`tensor`, broadcast to the batch shape."""
        return tensor * creation.ones(self._batch_shape_tensor(), self.dtype)

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        normal: Any = random.random_normal(self._drawn_shape(n), dtype=self.dtype, seed=seed)
        chi: Any = gamma_poisson.random_gamma(
            [n], 0.5 * self._all(self.df), 0.5, self.dtype, seed=next_seed(seed, "student_t")
        )
        return normal * unary.rsqrt(chi / self.df) * self.scale + self.loc

    def _z(self, value: Any) -> Any:
        return (value - self.loc) / self.scale

    def _log_prob(self, value: Any) -> Any:
        normalization = (
            unary.log(unary.abs(self.scale))
            + 0.5 * unary.log(self.df)
            + 0.5 * pymath.log(pymath.pi)
            + special.lgamma(0.5 * self.df)
            - special.lgamma(0.5 * (self.df + 1.0))
        )
        return -0.5 * (self.df + 1.0) * unary.log1p(unary.square(self._z(value)) / self.df) - normalization

    def _cdf(self, value: Any) -> Any:
        z = (value - self.loc) / unary.abs(self.scale)
        share = self.df / (unary.square(z) + self.df)
        ones: Any = creation.ones_like(share)
        tail = 0.5 * special.betainc(0.5 * self.df * ones, 0.5 * ones, share)
        return selection.where(compare.less(broadcast_ones(z, share), 0.0), tail, 1.0 - tail)

    def _entropy(self) -> Any:
        half, more = 0.5 * self.df, 0.5 * (self.df + 1.0)
        log_beta = special.lgamma(half) + pymath.log(pymath.pi) / 2 - special.lgamma(more)
        entropy = (
            unary.log(unary.abs(self.scale))
            + 0.5 * unary.log(self.df)
            + log_beta
            + more * (special.digamma(more) - special.digamma(half))
        )
        return self._all(entropy)

    def _mean(self) -> Any:
        return self._or_nan(compare.greater(self._all(self.df), 1.0), self._all(self.loc))

    def _variance(self) -> Any:
        df = self._all(self.df)
        above = compare.greater(df, 2.0)
        # 1 replaces df - 2 where the formula does not hold.
        safe = selection.where(above, df - 2.0, creation.ones_like(df))
        infinite = creation.fill(reshaping.shape(df), convert_to_tensor(float("inf"), dtype=self.dtype))
        variance = selection.where(above, unary.square(self._all(self.scale)) * df / safe, infinite)
        return self._or_nan(compare.greater(df, 1.0), variance)

    def _mode(self) -> Any:
        return passthrough.identity(self.loc)
