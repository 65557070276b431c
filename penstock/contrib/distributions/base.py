"""Distribution: the methods that all families share, and the divergences between families."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value, constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.ops.array import creation, joining, passthrough, reshaping
from penstock.ops.array.selection import where
from penstock.ops.debugging.assertion import Assert
from penstock.ops.math import casting, reduce, unary

Parameters = dict[str, Any]


class ReparameterizationType:
    """Tells if gradients flow from samples to parameters."""

    def __init__(self, rep_type: str) -> None:
        self._rep_type = rep_type

    def __repr__(self) -> str:
        return f"<Reparameterization Type: {self._rep_type}>"


FULLY_REPARAMETERIZED = ReparameterizationType("FULLY_REPARAMETERIZED")
NOT_REPARAMETERIZED = ReparameterizationType("NOT_REPARAMETERIZED")


class Distribution:
    """A batch of independent distributions of one family.

    Samples have the shape `sample_shape + batch_shape + event_shape`. A family implements the methods with an
    underscore that it has formulas for.

    >>> normal = tf.distributions.Normal(loc=0.0, scale=1.0)
    >>> normal.log_prob(normal.sample(10))
    """

    reparameterization_type = NOT_REPARAMETERIZED

    def __init__(
        self, dtype: DType, name: str, parameters: Parameters, validate_args: bool, allow_nan_stats: bool
    ) -> None:
        self._dtype, self._name = dtype, name if name.endswith("/") else f"{name}/"
        self._parameters = {k: v for k, v in parameters.items() if k not in ("self", "__class__")}
        self._validate_args, self._allow_nan_stats = validate_args, allow_nan_stats

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def parameters(self) -> Parameters:
        return dict(self._parameters)

    @property
    def validate_args(self) -> bool:
        return self._validate_args

    @property
    def allow_nan_stats(self) -> bool:
        return self._allow_nan_stats

    def copy(self, **override_parameters_kwargs: Any) -> Any:
        """The same distribution with some parameters replaced: `normal.copy(scale=2.0)`."""
        return type(self)(**{**self._parameters, **override_parameters_kwargs})

    # Shapes.

    def _batch(self) -> list[Any]:
        """Tensors whose broadcast shape is the batch shape."""
        raise NotImplementedError(f"{type(self).__name__} has no batch shape.")

    @property
    def batch_shape(self) -> TensorShape:
        shape = TensorShape(())
        for tensor in self._batch():
            shape = reshaping.broadcast_static_shape(shape, tensor.shape)
        return shape

    @property
    def event_shape(self) -> TensorShape:
        return TensorShape(())

    def _batch_shape_tensor(self) -> Tensor:
        if self.batch_shape.is_fully_defined():
            return convert_to_tensor(self.batch_shape.as_list(), dtype=dt.int32, name="batch_shape")
        shape, *rest = [reshaping.shape(tensor) for tensor in self._batch()]
        for other in rest:
            shape = reshaping.broadcast_dynamic_shape(shape, other)
        return shape

    def _event_shape_tensor(self) -> Tensor:
        return convert_to_tensor(self.event_shape.as_list(), dtype=dt.int32, name="event_shape")

    def batch_shape_tensor(self, name: str = "batch_shape_tensor") -> Tensor:
        """The batch shape as a tensor."""
        with self._scope(name):
            return self._batch_shape_tensor()

    def event_shape_tensor(self, name: str = "event_shape_tensor") -> Tensor:
        """The event shape as a tensor."""
        with self._scope(name):
            return self._event_shape_tensor()

    def is_scalar_event(self, name: str = "is_scalar_event") -> Tensor:
        """Tells if one event is a number."""
        with self._scope(name):
            return convert_to_tensor(self.event_shape.rank == 0, name="is_scalar_event")

    def is_scalar_batch(self, name: str = "is_scalar_batch") -> Tensor:
        """Tells if there is only one distribution."""
        with self._scope(name):
            return convert_to_tensor(self.batch_shape.rank == 0, name="is_scalar_batch")

    # Samples.

    def _sample_n(self, n: Any, seed: int | None) -> Any:
        """`n` samples, along a new first axis."""
        raise NotImplementedError(f"{type(self).__name__} cannot be sampled.")

    def sample(self, sample_shape: ShapeLike = (), seed: int | None = None, name: str = "sample") -> Any:
        """Random events: `normal.sample([3, 2])` draws a batch for each of 3 x 2 positions."""
        with self._scope(name):
            sizes = convert_to_tensor(sample_shape, dtype=dt.int32, name="sample_shape")
            known = constant_value(sizes)
            if sizes.shape.rank == 0:
                vector = reshaping.reshape(sizes, [1]) if known is None else convert_to_tensor(known.reshape(1))
                sizes = vector
            count: Any = int(known.prod()) if known is not None else reduce.reduce_prod(sizes)
            drawn = self._sample_n(count, seed)
            inner: Any = reshaping.shape(drawn)
            result = reshaping.reshape(drawn, joining.concat([sizes, inner[1:]], 0))
            static = constant_value_as_shape(sizes)
            result.set_shape(static.concatenate(self.batch_shape).concatenate(self.event_shape))
            return result

    def _drawn_shape(self, n: Any) -> Any:
        """The shape of `n` samples of the whole batch."""
        if isinstance(n, int) and self.batch_shape.is_fully_defined():
            return [n, *self.batch_shape.as_list()]
        first = [n] if isinstance(n, int) else reshaping.reshape(n, [1])
        return joining.concat([first, self._batch_shape_tensor()], 0)

    # Probabilities.

    def _value(self, value: Any) -> Any:
        preferred = self.dtype
        return convert_to_tensor(value, name="value", preferred_dtype=preferred)

    def log_prob(self, value: TensorLike, name: str = "log_prob") -> Any:
        """The logarithm of the density, or of the probability, at `value`."""
        with self._scope(name):
            value = self._value(value)
            if self._has("_log_prob"):
                return self._log_prob(value)
            return unary.log(self._prob(value))

    def prob(self, value: TensorLike, name: str = "prob") -> Any:
        """The density, or the probability, at `value`."""
        with self._scope(name):
            value = self._value(value)
            if self._has("_prob"):
                return self._prob(value)
            return unary.exp(self._log_prob(value))

    def cdf(self, value: TensorLike, name: str = "cdf") -> Any:
        """The probability of values up to `value`."""
        with self._scope(name):
            return self._any_cdf(self._value(value))

    def _any_cdf(self, value: Any) -> Any:
        return self._cdf(value) if self._has("_cdf") else unary.exp(self._log_cdf(value))

    def log_cdf(self, value: TensorLike, name: str = "log_cdf") -> Any:
        """The logarithm of the probability of values up to `value`."""
        with self._scope(name):
            value = self._value(value)
            return self._log_cdf(value) if self._has("_log_cdf") else unary.log(self._cdf(value))

    def survival_function(self, value: TensorLike, name: str = "survival_function") -> Any:
        """The probability of values above `value`."""
        with self._scope(name):
            value = self._value(value)
            if self._has("_survival_function"):
                return self._survival_function(value)
            return 1.0 - self._any_cdf(value)

    def log_survival_function(self, value: TensorLike, name: str = "log_survival_function") -> Any:
        """The logarithm of the probability of values above `value`."""
        with self._scope(name):
            value = self._value(value)
            if self._has("_log_survival_function"):
                return self._log_survival_function(value)
            return unary.log1p(-self._any_cdf(value))

    def quantile(self, value: TensorLike, name: str = "quantile") -> Any:
        """The value up to which the probability is `value`."""
        with self._scope(name):
            return self._quantile(self._value(value))

    # Statistics.

    def entropy(self, name: str = "entropy") -> Any:
        """The entropy in nats."""
        with self._scope(name):
            return self._entropy()

    def mean(self, name: str = "mean") -> Any:
        """The mean."""
        with self._scope(name):
            return self._mean()

    def mode(self, name: str = "mode") -> Any:
        """The most likely value."""
        with self._scope(name):
            return self._mode()

    def variance(self, name: str = "variance") -> Any:
        """The variance."""
        with self._scope(name):
            return self._variance() if self._has("_variance") else unary.square(self._stddev())

    def stddev(self, name: str = "stddev") -> Any:
        """The standard deviation."""
        with self._scope(name):
            return self._stddev() if self._has("_stddev") else unary.sqrt(self._variance())

    def kl_divergence(self, other: Distribution, name: str = "kl_divergence") -> Any:
        """The divergence of `other` from this distribution, in nats; see `kl_divergence`."""
        with self._scope(name):
            return kl_divergence(self, other, allow_nan_stats=self._allow_nan_stats)

    def cross_entropy(self, other: Distribution, name: str = "cross_entropy") -> Any:
        """The entropy plus the divergence of `other`."""
        with self._scope(name):
            return self._entropy() + kl_divergence(self, other, allow_nan_stats=self._allow_nan_stats)

    # Methods that families implement.

    def _has(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(Distribution, method)

    def _lacks(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{what} is not implemented for the distribution {type(self).__name__}.")

    def _log_prob(self, value: Any) -> Any:
        raise self._lacks("log_prob")

    def _prob(self, value: Any) -> Any:
        raise self._lacks("prob")

    def _cdf(self, value: Any) -> Any:
        raise self._lacks("cdf")

    def _log_cdf(self, value: Any) -> Any:
        raise self._lacks("log_cdf")

    def _survival_function(self, value: Any) -> Any:
        raise self._lacks("survival_function")

    def _log_survival_function(self, value: Any) -> Any:
        raise self._lacks("log_survival_function")

    def _quantile(self, value: Any) -> Any:
        raise self._lacks("quantile")

    def _entropy(self) -> Any:
        raise self._lacks("entropy")

    def _mean(self) -> Any:
        raise self._lacks("mean")

    def _mode(self) -> Any:
        raise self._lacks("mode")

    def _variance(self) -> Any:
        raise self._lacks("variance")

    def _stddev(self) -> Any:
        raise self._lacks("stddev")

    @contextmanager
    def _scope(self, name: str) -> Iterator[None]:
        with name_scope(self._name), name_scope(name):
            yield

    def _or_nan(self, defined: Any, value: Any) -> Any:
        """`value` where it is defined and NaN elsewhere, or an error if NaN is not allowed."""
        if not self._allow_nan_stats:
            check = Assert(reduce.reduce_all(defined), [f"{self._name}: a statistic is undefined for the parameters."])
            with control_dependencies([check]):
                return passthrough.identity(value)
        nan = creation.fill(reshaping.shape(value), convert_to_tensor(float("nan"), dtype=value.dtype.base_dtype))
        return where(defined, value, nan)

    def __repr__(self) -> str:
        return (
            f"<tf.distributions.{type(self).__name__} '{self._name}' batch_shape={self.batch_shape} "
            f"event_shape={self.event_shape} dtype={self.dtype.name}>"
        )


def floats(**given: Any) -> list[Tensor]:
    """Parameters as tensors of one floating type; ValueError if they have other types."""
    tensors = {name: convert_to_tensor(value, name=f"{name}/input") for name, value in given.items()}
    types = {tensor.dtype.base_dtype for tensor in tensors.values()}
    if len(types) > 1 or not next(iter(types)).is_floating:
        found = {name: tensor.dtype.name for name, tensor in tensors.items()}
        raise ValueError(f"Parameters of a distribution must be of one floating type, received {found}.")
    return list(tensors.values())


def checked(validate: bool, checks: Callable[[], list[Any]]) -> Any:
    """Control dependencies on `checks()`, if arguments should be validated."""
    return control_dependencies(checks() if validate else [])


def next_seed(seed: int | None, salt: str) -> int | None:
    """Another seed for the next draw of the same sample."""
    return None if seed is None else (seed * 1000003 + sum(map(ord, salt))) & 0x7FFFFFFF


def broadcast_ones(tensor: Any, like: Any) -> Any:
    """`tensor`, broadcast to the common shape of both."""
    return tensor * creation.ones_like(like)


# Divergences.

_DIVERGENCES: dict[tuple[type, type], Callable[..., Any]] = {}


class RegisterKL:
    """Registers the divergence of two families: `@tf.distributions.RegisterKL(Normal, Normal)`."""

    def __init__(self, dist_cls_a: type, dist_cls_b: type) -> None:
        self._key = dist_cls_a, dist_cls_b

    def __call__(self, kl_fn: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(kl_fn):
            raise TypeError(f"kl_fn must be callable, received: {kl_fn}")
        if self._key in _DIVERGENCES:
            names = [cls.__name__ for cls in self._key]
            raise ValueError(f"KL({names[0]} || {names[1]}) has already been registered.")
        _DIVERGENCES[self._key] = kl_fn
        return kl_fn


def kl_divergence(
    distribution_a: Distribution, distribution_b: Distribution, allow_nan_stats: bool = True, name: str | None = None
) -> Any:
    """KL(a || b): the expectation under a of log a - log b.

    >>> tf.distributions.kl_divergence(Normal(0.0, 1.0), Normal(1.0, 2.0))
    """
    for left in type(distribution_a).__mro__:
        for right in type(distribution_b).__mro__:
            found = _DIVERGENCES.get((left, right))
            if found is not None:
                with name_scope("KullbackLeibler"):
                    return found(distribution_a, distribution_b, name=name)
    raise NotImplementedError(
        f"No KL(distribution_a || distribution_b) registered for distribution_a type {type(distribution_a).__name__} "
        f"and distribution_b type {type(distribution_b).__name__}"
    )


def cast_counts(value: Any, dtype: DType) -> Any:
    """Integers as floats, for formulas."""
    return value if value.dtype.base_dtype == dtype else casting.cast(value, dtype)
