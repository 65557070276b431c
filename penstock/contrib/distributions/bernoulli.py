"""The Bernoulli distribution."""

from __future__ import annotations

from typing import Any

from penstock.contrib.distributions.base import Distribution, RegisterKL, cast_counts, checked
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.scopes import name_scope
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array import creation, passthrough
from penstock.ops.debugging.check_ops import assert_less_equal, assert_non_negative
from penstock.ops.math import casting, compare, unary
from penstock.ops.nn import activation, cross_entropy, layer_parts
from penstock.ops.random import stateful as random


def logits_and_probs(logits: Any, probs: Any, validate: bool, over_classes: bool) -> tuple[Any, Any]:
    """Computes both from the one that is given."""
    if (probs is None) == (logits is None):
        raise ValueError("Must pass probs or logits, but not both.")
    if probs is None:
        logits = convert_to_tensor(logits, name="logits")
        return logits, layer_parts.softmax(logits, name="probs") if over_classes else unary.sigmoid(
            logits, name="probs"
        )
    probs = convert_to_tensor(probs, name="probs")
    if validate:
        one = creation.ones_like(probs)
        with checked(True, lambda: [assert_non_negative(probs), assert_less_equal(probs, one)]):
            probs = passthrough.identity(probs)
    logits = unary.log(probs)
    return (logits if over_classes else logits - unary.log1p(-probs)), probs


class Bernoulli(Distribution):
    """1 with probability `probs`, else 0: `tf.distributions.Bernoulli(probs=0.3)`."""

    def __init__(
        self,
        logits: TensorLike = None,
        probs: TensorLike = None,
        dtype: DTypeLike = dt.int32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Bernoulli",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self._logits, self._probs = logits_and_probs(logits, probs, validate_args, False)
        super().__init__(as_dtype(dtype), scope, parameters, validate_args, allow_nan_stats)

    @property
    def logits(self) -> Any:
        return self._logits

    @property
    def probs(self) -> Any:
        return self._probs

    def _batch(self) -> list[Any]:
        return [self._logits]

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        drawn = random.random_uniform(self._drawn_shape(n), dtype=self.probs.dtype.base_dtype, seed=seed)
        return casting.cast(compare.less(drawn, self.probs), self.dtype)

    def _log_prob(self, value: Any) -> Any:
        event = cast_counts(value, self.logits.dtype.base_dtype)
        if event.shape.rank is None or event.shape != self.logits.shape:
            logits = self.logits * creation.ones_like(event)
            event = event * creation.ones_like(self.logits)
        else:
            logits = self.logits
        return unary.negative(cross_entropy.sigmoid_cross_entropy_with_logits(labels=event, logits=logits))

    def _entropy(self) -> Any:
        return -self.logits * (unary.sigmoid(self.logits) - 1.0) + activation.softplus(-self.logits)

    def _mean(self) -> Any:
        return passthrough.identity(self.probs)

    def _variance(self) -> Any:
        return self._mean() * (1.0 - self.probs)

    def _mode(self) -> Any:
        return casting.cast(compare.greater(self.probs, 0.5), self.dtype)


@RegisterKL(Bernoulli, Bernoulli)
def _kl_bernoulli_bernoulli(a: Bernoulli, b: Bernoulli, name: str | None = None) -> Any:
    with name_scope(name, "kl_bernoulli_bernoulli", [a.logits, b.logits]):
        on = activation.softplus(-b.logits) - activation.softplus(-a.logits)
        off = activation.softplus(b.logits) - activation.softplus(a.logits)
        return unary.sigmoid(a.logits) * on + unary.sigmoid(-a.logits) * off
