"""Random numbers of the gamma and the Poisson distribution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import INDEX, Array
from penstock.ops.array import reshaping
from penstock.ops.math import arithmetic, elementwise_gradients
from penstock.ops.random import rejection
from penstock.ops.random.stateful import seeds, shape_tensor, sizes


def _with_parameters(index: int) -> Any:
    def rule(op: Operation) -> list[TensorShape]:
        return [constant_value_as_shape(op.input_list[0]).concatenate(op.input_list[index].shape)]

    return rule


def gamma_gradient(op: Operation, dy: Any) -> list[Any]:
    """The gradient for the shape parameter, the last input: the draw at the same quantile moves with it."""
    *others, alpha = op.input_list
    sample = op.outputs[0]
    of_each = arithmetic.multiply(random_gamma_grad(alpha, sample), dy)
    return [*[None] * len(others), elementwise_gradients.unbroadcast(alpha, sample, of_each, of_each)[0]]


@op("RandomGammaGrad", "T, T -> output: T", shape=shapes.broadcast, no_gradient=True, T=Types(dt.float32, dt.float64))
def random_gamma_grad(alpha: Array, sample: Array) -> Array:
    """The derivative of a draw from a gamma distribution by the distribution's shape (Figurnov et al., 2018)."""
    return jax.lax.random_gamma_grad(*jnp.broadcast_arrays(alpha, sample))


@op(
    "RandomGamma",
    "S, T -> output: T",
    random=True,
    static="shape",
    grad=gamma_gradient,
    shape=_with_parameters(1),
    S=INDEX,
    T=Types(dt.float16, dt.float32, dt.float64),
)
def random_gamma_op(shape: Array, alpha: Array, *, seed: int = 0, seed2: int = 0, key: Array) -> Array:
    return rejection.gamma(key, alpha, sizes(shape) + alpha.shape).astype(alpha.dtype)


_POISSON = (dt.float16, dt.float32, dt.float64, dt.int32, dt.int64)


@op(
    "RandomPoissonV2",
    "S, R -> output: dtype",
    random=True,
    static="shape",
    no_gradient=True,
    shape=_with_parameters(1),
    S=INDEX,
    R=Types(*_POISSON, default=dt.float64),
    dtype=_POISSON,
)
def random_poisson_v2(
    shape: Array, rate: Array, *, seed: int = 0, seed2: int = 0, dtype: DType = dt.int64, key: Array
) -> Array:
    drawn = rejection.poisson(key, rate, sizes(shape) + rate.shape)
    return drawn.astype(dtype.as_numpy_dtype)


def random_gamma(
    shape: ShapeLike,
    alpha: TensorLike,
    beta: TensorLike = None,
    dtype: DTypeLike = dt.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`shape` gamma random numbers for each pair of `alpha` (shape) and `beta` (rate).

    >>> tf.random_gamma([10], alpha=[0.5, 1.5])
    """
    with name_scope(name, "random_gamma", [shape, alpha, beta]):
        shape = shape_tensor(shape)
        alpha = convert_to_tensor(alpha, name="alpha", dtype=dtype)
        beta = convert_to_tensor(1 if beta is None else beta, name="beta", dtype=dtype)
        both = reshaping.broadcast_dynamic_shape(reshaping.shape(alpha), reshaping.shape(beta))
        attrs = seeds(seed)
        drawn = random_gamma_op(shape, reshaping.broadcast_to(alpha, both), **attrs)
        # Zero has probability zero, and most models would take its logarithm next.
        result: Tensor = arithmetic.maximum(np.finfo(alpha.dtype.as_numpy_dtype).tiny, drawn / beta)
        return result


def poisson(
    shape: ShapeLike, lam: TensorLike, dtype: DTypeLike = dt.float32, seed: int | None = None, name: str | None = None
) -> Tensor:
    """`random_poisson` with the order of arguments of TensorFlow 2: `tf.random.poisson([10], [0.5, 1.5])`."""
    return random_poisson(lam, shape, dtype, seed, name)


def random_poisson(
    lam: TensorLike, shape: ShapeLike, dtype: DTypeLike = dt.float32, seed: int | None = None, name: str | None = None
) -> Tensor:
    """`shape` Poisson random numbers for each rate in `lam`.

    >>> tf.random_poisson([0.5, 1.5], [10])
    """
    with name_scope(name, "random_poisson", [lam, shape]):
        shape = shape_tensor(shape)
        drawn: Tensor = random_poisson_v2(shape, lam, dtype=dtype, **seeds(seed))
        return drawn
