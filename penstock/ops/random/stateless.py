"""Random numbers that depend on nothing but their seed: the same in every run, on every device, and in TensorFlow.

They come from the Philox generator, with TensorFlow's way of turning its words into numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.constant import constant_value, constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import OpDef, Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import FLOATS, INDEX, INDEX32, INDEX64, REALS, Array
from penstock.ops.array import reshaping
from penstock.ops.math import arithmetic
from penstock.ops.random import gamma_poisson, rejection
from penstock.ops.random import stateful as random
from penstock.ops.random.algorithms import Algorithm, algorithm_number, require_philox
from penstock.ops.random.philox import (
    integers,
    integers_between,
    key_and_counter,
    normal,
    state_of,
    truncated_normal,
    uniform,
)

_FLOAT32, _INT32, _INT64, _UINT64 = dt.float32, dt.int32, dt.int64, dt.uint64
_WHOLE = Types(dt.int32, dt.int64, dt.uint32, dt.uint64)


# Ops that take a key and a counter


@op(
    "StatelessRandomGetKeyCounter",
    "Tseed -> key: uint64, counter: uint64",
    no_gradient=True,
    shape=lambda op: [TensorShape.of((1,)), TensorShape.of((2,))],
    Tseed=INDEX64,
)
def get_key_counter(seed: Array) -> tuple[Array, Array]:
    return key_and_counter(seed)


_from_shape = shapes.from_value(0)


def _sized(name: str, draw: Any, types: Types, default: DType) -> OpDef:
    @op(
        name,
        "Tshape, uint64, uint64, int32 -> output: dtype",
        static="shape",
        no_gradient=True,
        shape=_from_shape,
        dtype=types,
        Tshape=INDEX32,
    )
    def kernel(shape: Array, key: Array, counter: Array, alg: Array, *, dtype: DType = default) -> Array:
        require_philox(alg)
        return draw(state_of(key, counter), random.sizes(shape), dtype)

    return kernel


def _full_int(state: Array, dims: tuple[int, ...], dtype: DType) -> Array:
    return integers(state, dims, dtype).astype(dtype.as_numpy_dtype)


stateless_random_uniform_v2 = _sized("StatelessRandomUniformV2", uniform, FLOATS, _FLOAT32)
stateless_random_normal_v2 = _sized("StatelessRandomNormalV2", normal, FLOATS, _FLOAT32)
stateless_truncated_normal_v2 = _sized("StatelessTruncatedNormalV2", truncated_normal, FLOATS, _FLOAT32)
stateless_random_uniform_full_int_v2 = _sized("StatelessRandomUniformFullIntV2", _full_int, _WHOLE, _UINT64)


@op(
    "StatelessRandomUniformIntV2",
    "Tshape, uint64, uint64, int32, dtype, dtype -> output: dtype",
    static="shape",
    no_gradient=True,
    shape=_from_shape,
    dtype=_WHOLE,
    Tshape=INDEX32,
)
def stateless_random_uniform_int_v2(
    shape: Array, key: Array, counter: Array, alg: Array, minval: Array, maxval: Array
) -> Array:
    require_philox(alg)
    dims = random.sizes(shape)
    require(minval < maxval, "Need minval < maxval, got minval = {}", minval)
    return integers_between(state_of(key, counter), dims, minval, maxval)


# Ops of TensorFlow 1 that take the seed itself, for old graphs


def _seeded(name: str, draw: Any) -> OpDef:
    @op(
        name,
        "T, Tseed -> output: dtype",
        static="shape",
        no_gradient=True,
        shape=_from_shape,
        dtype=FLOATS,
        T=INDEX32,
        Tseed=INDEX64,
    )
    def kernel(shape: Array, seed: Array, *, dtype: DType = _FLOAT32) -> Array:
        return draw(state_of(*key_and_counter(seed)), random.sizes(shape), dtype)

    return kernel


stateless_random_uniform_v1 = _seeded("StatelessRandomUniform", uniform)
stateless_random_normal_v1 = _seeded("StatelessRandomNormal", normal)
stateless_truncated_normal_v1 = _seeded("StatelessTruncatedNormal", truncated_normal)


@op(
    "StatelessRandomUniformInt",
    "T, Tseed, dtype, dtype -> output: dtype",
    static="shape",
    no_gradient=True,
    shape=_from_shape,
    dtype=INDEX,
    T=INDEX,
    Tseed=INDEX64,
)
def stateless_random_uniform_int_v1(shape: Array, seed: Array, minval: Array, maxval: Array) -> Array:
    kernel = stateless_random_uniform_int_v2.kernel
    return kernel(shape, *key_and_counter(seed), np.int32(Algorithm.PHILOX.value), minval, maxval)


# Other distributions


_DRAWN = (dt.float16, dt.float32, dt.float64, dt.int32, dt.int64)


def _multinomial_shape(op: Operation) -> list[TensorShape]:
    samples = constant_value(op.input_list[1])
    rows = op.input_list[0].shape.with_rank(2).as_list()[0]
    return [TensorShape.of((rows, None if samples is None else int(samples)))]


@op(
    "StatelessMultinomial",
    "T, int32, Tseed -> output: output_dtype",
    static="num_samples",
    no_gradient=True,
    shape=_multinomial_shape,
    T=REALS,
    Tseed=INDEX64,
    output_dtype=INDEX64,
)
def stateless_multinomial_op(logits: Array, num_samples: Array, seed: Array, *, output_dtype: DType = _INT64) -> Array:
    state = state_of(*key_and_counter(seed))
    return random.multinomial_op.kernel(logits, num_samples, output_dtype=output_dtype, key=state)


def _ends_shape(op: Operation) -> list[TensorShape]:
    return [constant_value_as_shape(op.input_list[0])]


@op(
    "StatelessRandomBinomial",
    "S, Tseed, T, T -> output: dtype",
    static="shape",
    no_gradient=True,
    shape=_ends_shape,
    S=INDEX,
    Tseed=INDEX64,
    T=Types(*_DRAWN, default=dt.float64),
    dtype=Types(*_DRAWN, default=dt.int64),
)
def stateless_random_binomial_op(
    shape: Array, seed: Array, counts: Array, probs: Array, *, dtype: DType = _INT64
) -> Array:
    drawn = rejection.binomial(state_of(*key_and_counter(seed)), counts, probs, random.sizes(shape))
    return drawn.astype(dtype.as_numpy_dtype)


@op(
    "StatelessRandomPoisson",
    "T, Tseed, Rtype -> output: dtype",
    static="shape",
    no_gradient=True,
    shape=_ends_shape,
    T=INDEX,
    Tseed=INDEX64,
    Rtype=Types(*_DRAWN),
    dtype=Types(*_DRAWN),
)
def stateless_random_poisson_op(shape: Array, seed: Array, lam: Array, *, dtype: DType) -> Array:
    state = state_of(*key_and_counter(seed))
    drawn = rejection.poisson(state, lam, random.sizes(shape))
    return drawn.astype(dtype.as_numpy_dtype)


@op(
    "StatelessRandomGammaV3",
    "shape_dtype, uint64, uint64, int32, dtype -> output: dtype",
    static="shape",
    grad=gamma_poisson.gamma_gradient,
    shape=_ends_shape,
    dtype=Types(dt.float16, dt.float32, dt.float64),
    shape_dtype=INDEX32,
)
def stateless_random_gamma_v3(shape: Array, key: Array, counter: Array, alg: Array, alpha: Array) -> Array:
    require_philox(alg)
    return rejection.gamma(state_of(key, counter), alpha, random.sizes(shape)).astype(alpha.dtype)


# Public functions


def stateless_uniform(
    shape: ShapeLike,
    seed: Any,
    minval: TensorLike = 0,
    maxval: TensorLike = None,
    dtype: DTypeLike = _FLOAT32,
    name: str | None = None,
    alg: Any = "auto_select",
) -> Tensor:
    """Uniform random numbers in [minval, maxval) that depend on `seed`, two integers, alone.

    >>> tf.random.stateless_uniform([2], seed=[1, 2])
    """
    kind, number = as_dtype(dtype), algorithm_number(alg)
    if maxval is None:
        if kind.is_integer and minval is not None:
            raise ValueError(f"stateless_uniform: maxval must be given for integer dtype {kind.name}.")
        maxval = None if kind.is_integer else 1
    with name_scope(name, "stateless_random_uniform", [shape, seed, minval, maxval]) as scope:
        dims = random.shape_tensor(shape)
        result: Tensor
        if kind.is_integer and minval is None:
            key, counter = get_key_counter(seed)
            result = stateless_random_uniform_full_int_v2(dims, key, counter, number, dtype=kind, name=scope)
            return result
        minval = convert_to_tensor(minval, dtype=kind, name="min")
        maxval = convert_to_tensor(maxval, dtype=kind, name="max")
        key, counter = get_key_counter(seed)
        if kind.is_integer:
            result = stateless_random_uniform_int_v2(dims, key, counter, number, minval, maxval, name=scope)
            return result
        drawn = stateless_random_uniform_v2(dims, key, counter, number, dtype=kind)
        return arithmetic.add(drawn * (maxval - minval), minval, name=scope)


def stateless_normal(
    shape: ShapeLike,
    seed: Any,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = _FLOAT32,
    name: str | None = None,
    alg: Any = "auto_select",
) -> Tensor:
    """Normal random numbers that depend on `seed`, two integers, alone: `tf.random.stateless_normal([2], [1, 2])`."""
    draw, label = stateless_random_normal_v2, "stateless_random_normal"
    return _scaled(draw, label, shape, seed, mean, stddev, dtype, name, alg)


def stateless_truncated_normal(
    shape: ShapeLike,
    seed: Any,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = _FLOAT32,
    name: str | None = None,
    alg: Any = "auto_select",
) -> Tensor:
    """`stateless_normal` without numbers further than two standard deviations from the mean."""
    draw, label = stateless_truncated_normal_v2, "stateless_truncated_normal"
    return _scaled(draw, label, shape, seed, mean, stddev, dtype, name, alg)


def _scaled(
    draw: OpDef,
    default_name: str,
    shape: Any,
    seed: Any,
    mean: Any,
    stddev: Any,
    dtype: Any,
    name: str | None,
    alg: Any,
) -> Tensor:
    with name_scope(name, default_name, [shape, seed, mean, stddev]) as scope:
        dims = random.shape_tensor(shape)
        mean = convert_to_tensor(mean, dtype=dtype, name="mean")
        stddev = convert_to_tensor(stddev, dtype=dtype, name="stddev")
        key, counter = get_key_counter(seed)
        drawn = draw(dims, key, counter, algorithm_number(alg), dtype=as_dtype(dtype))
        return arithmetic.add(drawn * stddev, mean, name=scope)


def stateless_multinomial(
    logits: TensorLike, num_samples: TensorLike, seed: Any, output_dtype: DTypeLike = _INT64, name: str | None = None
) -> Tensor:
    """`multinomial` that depends on `seed`, two integers, alone."""
    with name_scope(name, "stateless_multinomial", [logits, seed]):
        return _classes(logits, num_samples, seed, output_dtype)


def stateless_categorical(
    logits: TensorLike, num_samples: TensorLike, seed: Any, dtype: DTypeLike = _INT64, name: str | None = None
) -> Tensor:
    """`categorical` that depends on `seed`, two integers, alone: `stateless_categorical(logits, 5, [1, 2])`."""
    with name_scope(name, "stateless_categorical", [logits, seed]):
        return _classes(logits, num_samples, seed, dtype)


def _classes(logits: Any, num_samples: Any, seed: Any, dtype: Any) -> Tensor:
    logits = convert_to_tensor(logits, name="logits")
    drawn: Tensor = stateless_multinomial_op(logits, num_samples, seed, output_dtype=as_dtype(dtype or _INT64))
    return drawn


def stateless_binomial(
    shape: ShapeLike,
    seed: Any,
    counts: TensorLike,
    probs: TensorLike,
    output_dtype: DTypeLike = _INT32,
    name: str | None = None,
) -> Tensor:
    """The number of successes in `counts` tries of probability `probs`, depending on `seed` alone."""
    with name_scope(name, "stateless_random_binomial", [shape, seed, counts, probs]):
        dims = random.shape_tensor(shape)
        probs = convert_to_tensor(probs, dtype_hint=_FLOAT32, name="probs")
        counts = convert_to_tensor(counts, dtype_hint=probs.dtype.base_dtype, name="counts")
        drawn: Tensor = stateless_random_binomial_op(dims, seed, counts, probs, dtype=as_dtype(output_dtype))
        drawn.set_shape(constant_value_as_shape(dims))
        return drawn


def stateless_gamma(
    shape: ShapeLike,
    seed: Any,
    alpha: TensorLike,
    beta: TensorLike = None,
    dtype: DTypeLike = _FLOAT32,
    name: str | None = None,
) -> Tensor:
    """Gamma random numbers of `alpha` (shape) and `beta` (rate), depending on `seed` alone."""
    with name_scope(name, "stateless_random_gamma", [shape, seed, alpha, beta]):
        dims = random.shape_tensor(shape)
        alpha = convert_to_tensor(alpha, dtype=dtype, name="alpha")
        beta = convert_to_tensor(1 if beta is None else beta, dtype=dtype, name="beta")
        both = reshaping.broadcast_dynamic_shape(reshaping.shape(alpha), reshaping.shape(beta))
        alpha = reshaping.broadcast_to(alpha, both)
        key, counter = get_key_counter(seed)
        drawn: Any = stateless_random_gamma_v3(dims, key, counter, Algorithm.AUTO_SELECT.value, alpha)
        result: Tensor = arithmetic.maximum(np.finfo(alpha.dtype.as_numpy_dtype).tiny, drawn / beta)
        return result


def stateless_poisson(
    shape: ShapeLike, seed: Any, lam: TensorLike, dtype: DTypeLike = _INT32, name: str | None = None
) -> Tensor:
    """Poisson random numbers of rates `lam`, depending on `seed` alone."""
    with name_scope(name, "stateless_random_poisson", [shape, seed, lam]):
        dims = random.shape_tensor(shape)
        drawn: Tensor = stateless_random_poisson_op(dims, seed, lam, dtype=as_dtype(dtype))
        return drawn
