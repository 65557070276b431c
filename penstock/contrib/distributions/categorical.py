"""The categorical distribution."""

from __future__ import annotations

from typing import Any

from penstock.contrib.distributions.base import Distribution, RegisterKL
from penstock.contrib.distributions.bernoulli import logits_and_probs
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array import arranging, creation, joining, ranges, reshaping, selection
from penstock.ops.math import argmax, casting, compare, reduce, unary
from penstock.ops.nn import cross_entropy, layer_parts
from penstock.ops.random import stateful as random


class Categorical(Distribution):
    """One of several classes: `tf.distributions.Categorical(probs=[0.2, 0.3, 0.5])`."""

    def __init__(
        self,
        logits: TensorLike = None,
        probs: TensorLike = None,
        dtype: DTypeLike = dt.int32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Categorical",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[logits, probs]) as scope:
            self._logits, self._probs = logits_and_probs(logits, probs, validate_args, True)
            if self._logits.shape.rank == 0:
                raise ValueError("Categorical: logits must have at least one dimension, the classes.")
        super().__init__(as_dtype(dtype), scope, parameters, validate_args, allow_nan_stats)

    @property
    def logits(self) -> Any:
        return self._logits

    @property
    def probs(self) -> Any:
        return self._probs

    @property
    def event_size(self) -> Any:
        """The number of classes."""
        static = None if self._logits.shape.rank is None else self._logits.shape.as_list()[-1]
        if static is not None:
            return convert_to_tensor(static, dtype=dt.int32, name="event_size")
        sizes: Any = reshaping.shape(self._logits)
        return sizes[-1]

    @property
    def batch_shape(self) -> TensorShape:
        shape: TensorShape = self._logits.shape
        return shape if shape.rank is None else TensorShape(shape.as_list()[:-1])

    def _batch_shape_tensor(self) -> Tensor:
        if self.batch_shape.is_fully_defined():
            return convert_to_tensor(self.batch_shape.as_list(), dtype=dt.int32, name="batch_shape")
        sizes: Any = reshaping.shape(self._logits)
        batch: Tensor = sizes[:-1]
        return batch

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        flat = self.logits
        if flat.shape.rank != 2:
            flat = reshaping.reshape(flat, joining.stack([-1, self.event_size]))
        kind = dt.int64 if self.dtype.size > 4 else dt.int32
        drawn = random.multinomial(flat, n, seed=seed, output_dtype=kind)
        drawn = casting.cast(drawn, self.dtype) if self.dtype != kind else drawn
        return reshaping.reshape(arranging.transpose(drawn), self._drawn_shape(n))

    def _matched(self, value: Any, per_class: Any) -> tuple[Any, Any]:
        """Classes, and values per class, in matching shapes: [..., ] and [..., classes]."""
        if value.shape.rank is not None and value.shape == TensorShape(per_class.shape.as_list()[:-1]):
            return value, per_class
        per_class = per_class * creation.ones_like(reshaping.expand_dims(value, -1), dtype=per_class.dtype.base_dtype)
        return value * creation.ones_like(per_class[..., 0], dtype=value.dtype.base_dtype), per_class

    def _log_prob(self, value: Any) -> Any:
        value = casting.cast(value, dt.int32) if not value.dtype.is_integer else value
        value, logits = self._matched(value, self.logits)
        return unary.negative(cross_entropy.sparse_softmax_cross_entropy_with_logits(labels=value, logits=logits))

    def _cdf(self, value: Any) -> Any:
        value, probs = self._matched(value, self.probs)
        classes = casting.cast(ranges.range(self.event_size), value.dtype.base_dtype)
        below = compare.less(
            classes + creation.zeros_like(probs, dtype=classes.dtype), reshaping.expand_dims(value, -1)
        )
        return reduce.reduce_sum(selection.where(below, probs, creation.zeros_like(probs)), -1)

    def _entropy(self) -> Any:
        return unary.negative(reduce.reduce_sum(layer_parts.log_softmax(self.logits) * self.probs, -1))

    def _mode(self) -> Any:
        return casting.cast(argmax.argmax(self.logits, -1), self.dtype)


@RegisterKL(Categorical, Categorical)
def _kl_categorical_categorical(a: Categorical, b: Categorical, name: str | None = None) -> Any:
    with name_scope(name, "kl_categorical_categorical", [a.logits, b.logits]):
        difference: Any = layer_parts.log_softmax(a.logits) - layer_parts.log_softmax(b.logits)  # type: ignore[operator]
        return reduce.reduce_sum(layer_parts.softmax(a.logits) * difference, -1)
