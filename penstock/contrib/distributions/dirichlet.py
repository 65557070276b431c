"""The Dirichlet distribution, the multinomial, and the multinomial with Dirichlet probabilities."""

from __future__ import annotations

from typing import Any

from penstock.contrib.distributions.base import Distribution, RegisterKL, checked, floats, next_seed
from penstock.contrib.distributions.bernoulli import logits_and_probs
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.ops.array import arranging, creation, joining, passthrough, ranges, reshaping, selection
from penstock.ops.debugging.check_ops import assert_positive
from penstock.ops.math import casting, compare, reduce, special, unary
from penstock.ops.nn import layer_parts
from penstock.ops.random import gamma_poisson
from penstock.ops.random import stateful as random


def _log_beta(concentration: Any) -> Any:
    total = reduce.reduce_sum(concentration, -1)
    return reduce.reduce_sum(special.lgamma(concentration), -1) - special.lgamma(total)


def _log_combinations(total: Any, counts: Any) -> Any:
    """The logarithm of the number of orders that give `counts`."""
    return special.lgamma(total + 1.0) - reduce.reduce_sum(special.lgamma(counts + 1.0), -1)


class _Vectors(Distribution):
    """Distributions of vectors; the last axis of the tensor `_along` is that of the vectors."""

    _along: Any

    @property
    def batch_shape(self) -> TensorShape:
        shape: TensorShape = self._along.shape
        return shape if shape.rank is None else TensorShape(shape.as_list()[:-1])

    @property
    def event_shape(self) -> TensorShape:
        shape: TensorShape = self._along.shape
        return TensorShape([None]) if shape.rank is None else TensorShape(shape.as_list()[-1:])

    def _batch_shape_tensor(self) -> Tensor:
        if self.batch_shape.is_fully_defined():
            return convert_to_tensor(self.batch_shape.as_list(), dtype=dt.int32, name="batch_shape")
        sizes: Any = reshaping.shape(self._along)
        batch: Tensor = sizes[:-1]
        return batch

    def _event_shape_tensor(self) -> Tensor:
        if self.event_shape.is_fully_defined():
            return convert_to_tensor(self.event_shape.as_list(), dtype=dt.int32, name="event_shape")
        sizes: Any = reshaping.shape(self._along)
        event: Tensor = sizes[-1:]
        return event


class Dirichlet(_Vectors):
    """Random probabilities: `tf.distributions.Dirichlet([1.0, 2.0, 3.0])`."""

    def __init__(
        self,
        concentration: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Dirichlet",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[concentration]) as scope:
            (given,) = floats(concentration=concentration)
            with checked(validate_args, lambda: [assert_positive(given)]):
                self._concentration: Any = passthrough.identity(given, name="concentration")
            self._total: Any = reduce.reduce_sum(self._concentration, -1)
        self._along = self._concentration
        super().__init__(self._concentration.dtype.base_dtype, scope, parameters, validate_args, allow_nan_stats)

    @property
    def concentration(self) -> Any:
        return self._concentration

    @property
    def total_concentration(self) -> Any:
        return self._total

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        drawn: Any = gamma_poisson.random_gamma([n], self.concentration, dtype=self.dtype, seed=seed)
        return drawn / reduce.reduce_sum(drawn, -1, keepdims=True)

    def _log_prob(self, value: Any) -> Any:
        return reduce.reduce_sum((self.concentration - 1.0) * unary.log(value), -1) - _log_beta(self.concentration)

    def _entropy(self) -> Any:
        size = casting.cast(self._event_shape_tensor()[0], self.dtype)  # type: ignore[index]
        spread = (self._total - size) * special.digamma(self._total)
        each = (self.concentration - 1.0) * special.digamma(self.concentration)
        return _log_beta(self.concentration) + spread - reduce.reduce_sum(each, -1)

    def _mean(self) -> Any:
        return self.concentration / reshaping.expand_dims(self._total, -1)

    def _variance(self) -> Any:
        mean = self._mean()
        total: Any = reshaping.expand_dims(self._total, -1)
        return mean * (1.0 - mean) / (1.0 + total)

    def _mode(self) -> Any:
        size = casting.cast(self._event_shape_tensor()[0], self.dtype)  # type: ignore[index]
        mode = (self.concentration - 1.0) / (reshaping.expand_dims(self._total, -1) - size)
        peaked = reduce.reduce_all(compare.greater(self.concentration, 1.0), -1, keepdims=True)
        everywhere = compare.logical_and(peaked, creation.ones_like(mode, dtype=dt.bool))
        return self._or_nan(everywhere, mode)


@RegisterKL(Dirichlet, Dirichlet)
def _kl_dirichlet_dirichlet(a: Dirichlet, b: Dirichlet, name: str | None = None) -> Any:
    with name_scope(name, "kl_dirichlet_dirichlet", [a.concentration, b.concentration]):
        total = reduce.reduce_sum(a.concentration, -1, keepdims=True)
        expected: Any = special.digamma(a.concentration) - special.digamma(total)
        moved = reduce.reduce_sum((a.concentration - b.concentration) * expected, -1)
        return moved - _log_beta(a.concentration) + _log_beta(b.concentration)


def _counts(logits: Any, totals: Any, n: Any, dtype: Any, seed: int | None) -> Any:
    """The counts of each class in `totals` draws from `logits` [..., classes], repeated `n` times."""
    sizes: Any = reshaping.shape(logits)
    classes = sizes[-1]
    most = casting.cast(reduce.reduce_max(totals), dt.int32)
    flat = reshaping.reshape(logits, joining.stack([-1, classes]))
    rows: Any = reshaping.shape(flat)
    drawn = random.multinomial(flat, n * most, seed=seed, output_dtype=dt.int32)
    drawn = reshaping.reshape(drawn, joining.stack([rows[0], n, most]))
    hot: Any = selection.one_hot(drawn, classes, dtype=dtype)
    limits = reshaping.reshape(casting.cast(totals, dt.int32), [-1, 1, 1, 1])
    used: Any = casting.cast(compare.less(reshaping.reshape(ranges.range(most), [1, 1, -1, 1]), limits), dtype)
    counts = arranging.transpose(reduce.reduce_sum(hot * used, 2), [1, 0, 2])
    return reshaping.reshape(counts, joining.concat([reshaping.reshape(n, [1]), sizes], 0))


class Multinomial(_Vectors):
    """The counts of each class in `total_count` draws: `tf.distributions.Multinomial(5.0, probs=[0.2, 0.8])`."""

    def __init__(
        self,
        total_count: TensorLike,
        logits: TensorLike = None,
        probs: TensorLike = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Multinomial",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[total_count, logits, probs]) as scope:
            self._total_count: Any = convert_to_tensor(total_count, name="total_count")
            self._logits, self._probs = logits_and_probs(logits, probs, validate_args, True)
            self._mean_: Any = reshaping.expand_dims(self._total_count, -1) * self._probs
        self._along = self._mean_
        super().__init__(self._probs.dtype.base_dtype, scope, parameters, validate_args, allow_nan_stats)

    @property
    def total_count(self) -> Any:
        return self._total_count

    @property
    def logits(self) -> Any:
        return self._logits

    @property
    def probs(self) -> Any:
        return self._probs

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        logits = self.logits + creation.zeros_like(self._mean_)
        totals = self.total_count * creation.ones_like(self._mean_[..., 0])
        return _counts(logits, totals, n, self.dtype, seed)

    def _log_prob(self, value: Any) -> Any:
        unnormalized: Any = reduce.reduce_sum(value * layer_parts.log_softmax(self.logits), -1)
        return unnormalized + _log_combinations(self.total_count, value)

    def _mean(self) -> Any:
        return passthrough.identity(self._mean_)

    def _variance(self) -> Any:
        return self._mean_ * (1.0 - self.probs)


class DirichletMultinomial(_Vectors):
    """A multinomial whose probabilities are drawn each time from a Dirichlet distribution.

    >>> tf.distributions.DirichletMultinomial(5.0, concentration=[1.0, 2.0])
    """

    def __init__(
        self,
        total_count: TensorLike,
        concentration: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "DirichletMultinomial",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[total_count, concentration]) as scope:
            self._total_count: Any = convert_to_tensor(total_count, name="total_count")
            (given,) = floats(concentration=concentration)
            with checked(validate_args, lambda: [assert_positive(given)]):
                self._concentration: Any = passthrough.identity(given, name="concentration")
            self._total: Any = reduce.reduce_sum(self._concentration, -1)
        self._along = self._concentration
        super().__init__(self._concentration.dtype.base_dtype, scope, parameters, validate_args, allow_nan_stats)

    @property
    def total_count(self) -> Any:
        return self._total_count

    @property
    def concentration(self) -> Any:
        return self._concentration

    @property
    def total_concentration(self) -> Any:
        return self._total

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        gammas = gamma_poisson.random_gamma([n], self.concentration, dtype=self.dtype, seed=seed)
        totals = self.total_count * creation.ones_like(gammas[..., 0])  # type: ignore[index]
        drawn = _counts(unary.log(gammas), totals, 1, self.dtype, next_seed(seed, "dirichlet_multinomial"))
        return drawn[0]

    def _log_prob(self, value: Any) -> Any:
        likelihood = _log_beta(self.concentration + value) - _log_beta(self.concentration)
        return likelihood + _log_combinations(self.total_count, value)

    def _mean(self) -> Any:
        return reshaping.expand_dims(self.total_count / self._total, -1) * self.concentration

    def _variance(self) -> Any:
        share = self.concentration / reshaping.expand_dims(self._total, -1)
        count, total = (reshaping.expand_dims(t, -1) for t in (self.total_count, self._total))
        spread: Any = (count + total) / (1.0 + total)  # type: ignore[operator]
        return count * share * (1.0 - share) * spread
