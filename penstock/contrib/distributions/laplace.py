"""The Laplace distribution."""

from __future__ import annotations

import math as pymath
from typing import Any

import numpy as np

from penstock.contrib.distributions.base import FULLY_REPARAMETERIZED, Distribution, broadcast_ones, checked, floats
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import passthrough, selection
from penstock.ops.debugging.check_ops import assert_positive
from penstock.ops.math import compare, unary
from penstock.ops.random import stateful as random


class Laplace(Distribution):
    """Laplace around `loc` with scale `scale`: `tf.distributions.Laplace(0.0, 1.0)`."""

    reparameterization_type = FULLY_REPARAMETERIZED

    def __init__(
        self,
        loc: TensorLike,
        scale: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Laplace",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[loc, scale]) as scope:
            loc, scale = floats(loc=loc, scale=scale)
            with checked(validate_args, lambda: [assert_positive(scale)]):
                self._loc = passthrough.identity(loc, name="loc")
                self._scale = passthrough.identity(scale, name="scale")
        super().__init__(self._loc.dtype.base_dtype, scope, parameters, validate_args, allow_nan_stats)

    @property
    def loc(self) -> Any:
        return self._loc

    @property
    def scale(self) -> Any:
        return self._scale

    def _batch(self) -> list[Any]:
        return [self._loc, self._scale]

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        # The range excludes -1, where the logarithm is infinite.
        kind = self.dtype.as_numpy_dtype
        least = np.nextafter(kind(-1.0), kind(0.0))
        drawn: Any = random.random_uniform(self._drawn_shape(n), least, kind(1.0), self.dtype, seed=seed)
        return self.loc - self.scale * unary.sign(drawn) * unary.log1p(unary.negative(unary.abs(drawn)))

    def _z(self, value: Any) -> Any:
        return (value - self.loc) / self.scale

    def _log_prob(self, value: Any) -> Any:
        return unary.negative(unary.abs(self._z(value))) - (pymath.log(2.0) + unary.log(self.scale))

    def _log_tail(self, z: Any) -> Any:
        # Each branch gets only values that it is valid for.
        decayed: Any = unary.exp(unary.negative(unary.abs(z)))
        below, above = z - pymath.log(2.0), unary.log1p(-0.5 * decayed)
        return selection.where(compare.less(z, 0.0), below, above)

    def _cdf(self, value: Any) -> Any:
        z = self._z(value)
        return 0.5 + 0.5 * unary.sign(z) * (1.0 - unary.exp(unary.negative(unary.abs(z))))

    def _log_cdf(self, value: Any) -> Any:
        return self._log_tail(self._z(value))

    def _log_survival_function(self, value: Any) -> Any:
        return self._log_tail(-self._z(value))

    def _entropy(self) -> Any:
        return pymath.log(2.0) + 1.0 + unary.log(broadcast_ones(self.scale, self.loc))

    def _mean(self) -> Any:
        return broadcast_ones(self.loc, self.scale)

    def _mode(self) -> Any:
        return self._mean()

    def _stddev(self) -> Any:
        return pymath.sqrt(2.0) * broadcast_ones(self.scale, self.loc)
