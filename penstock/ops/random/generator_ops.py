"""Ops of `tf.random.Generator`: its state is a variable of int64, first the counter, then the key."""

from __future__ import annotations

import math as pymath
import secrets
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.dtype import DType
from penstock.graph.opdef import OpDef, Types, op
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.types import FLOATS, INDEX, INDEX64, Array
from penstock.ops.random import philox, rejection
from penstock.ops.random.algorithms import require_philox
from penstock.ops.random.stateful import sizes

_WHOLE = Types(dt.int32, dt.int64, dt.uint32, dt.uint64)
_COUNTED = Types(dt.float16, dt.float32, dt.float64, dt.int32, dt.int64)


def _opened(resource: Array, alg: Array) -> Array:
    """The state of the generator that a variable holds, as kernels take it: the key, then the counter."""
    require_philox(alg)
    if resource.dtype != np.int64:
        raise ValueError(f"dtype of RNG state variable must be int64, not {resource.dtype}")
    if resource.ndim != 1 or resource.shape[0] < 3:
        raise ValueError(f"The state of a Philox generator is a vector of at least 3, received {list(resource.shape)}")
    words = jnp.asarray(resource).astype(np.uint64)
    return jnp.stack([words[2], words[0], words[1]])


def _moved(resource: Array, blocks: Any) -> Array:
    """The variable after so many blocks of the generator."""
    words = jnp.asarray(resource).astype(np.uint64)
    low = words[0] + jnp.asarray(blocks).astype(np.uint64)
    high = words[1] + (low < words[0]).astype(np.uint64)
    return jnp.concatenate([jnp.stack([low, high]), words[2:]]).astype(np.int64)


@op(
    "RngReadAndSkip",
    "resource, int32, uint64 -> value: int64",
    writes="resource",
    no_gradient=True,
    shape=lambda op: [TensorShape.of((None,))],
)
def rng_read_and_skip(resource: Array, alg: Array, delta: Array) -> tuple[Array, Array]:
    """Reads the state, and moves it on as if `delta` numbers were drawn."""
    _opened(resource, alg)
    return _moved(resource, delta * np.uint64(philox.RESERVED)), jnp.asarray(resource)


@op("RngSkip", "resource, int64, int64 ->", writes="resource", no_gradient=True)
def rng_skip(resource: Array, algorithm: Array, delta: Array) -> Array:
    _opened(resource, algorithm)
    return _moved(resource, delta * np.int64(philox.RESERVED))


@op(
    "NonDeterministicInts",
    "shape_dtype -> output: dtype",
    host=True,
    stateful=True,
    static="shape",
    no_gradient=True,
    shape=shapes.from_value(0),
    shape_dtype=INDEX64,
    dtype=_WHOLE,
)
def non_deterministic_ints(shape: np.ndarray, *, dtype: DType = dt.int64) -> np.ndarray:
    """Integers that the operating system draws."""
    dims = sizes(shape)
    data = secrets.token_bytes(pymath.prod(dims) * dtype.size)
    return np.frombuffer(data, dtype.as_numpy_dtype).reshape(dims).copy()


_from_shape = shapes.from_value(2)


def _stateful(name: str, draw: Any, types: Types | tuple[DType, ...], default: DType) -> OpDef:
    @op(
        name,
        "resource, int64, shape_dtype -> output: dtype",
        writes="resource",
        static="shape",
        no_gradient=True,
        shape=_from_shape,
        shape_dtype=INDEX64,
        dtype=types,
    )
    def kernel(resource: Array, algorithm: Array, shape: Array, *, dtype: DType = default) -> tuple[Array, Array]:
        state, dims = _opened(resource, algorithm), sizes(shape)
        drawn = draw(state, dims, dtype).astype(dtype.as_numpy_dtype)
        return _moved(resource, pymath.prod(dims) * philox.RESERVED), drawn

    return kernel


stateful_uniform = _stateful("StatefulUniform", philox.uniform, FLOATS, dt.float32)
stateful_standard_normal_v2 = _stateful("StatefulStandardNormalV2", philox.normal, FLOATS, dt.float32)
stateful_truncated_normal = _stateful("StatefulTruncatedNormal", philox.truncated_normal, FLOATS, dt.float32)
stateful_uniform_full_int = _stateful("StatefulUniformFullInt", philox.integers, _WHOLE, dt.uint64)


@op(
    "StatefulUniformInt",
    "resource, int64, shape_dtype, dtype, dtype -> output: dtype",
    writes="resource",
    static="shape",
    no_gradient=True,
    shape=_from_shape,
    shape_dtype=INDEX64,
    dtype=_WHOLE,
)
def stateful_uniform_int(
    resource: Array, algorithm: Array, shape: Array, minval: Array, maxval: Array
) -> tuple[Array, Array]:
    state, dims = _opened(resource, algorithm), sizes(shape)
    require(minval < maxval, "Need minval < maxval, got minval = {}", minval)
    drawn = philox.integers_between(state, dims, minval, maxval)
    return _moved(resource, pymath.prod(dims) * philox.RESERVED), drawn


@op(
    "StatefulRandomBinomial",
    "resource, int64, S, T, T -> output: dtype",
    writes="resource",
    static="shape",
    no_gradient=True,
    shape=_from_shape,
    S=INDEX,
    T=Types(*_COUNTED, default=dt.float64),
    dtype=Types(*_COUNTED, default=dt.int64),
)
def stateful_random_binomial(
    resource: Array, algorithm: Array, shape: Array, counts: Array, probs: Array, *, dtype: DType = dt.int64
) -> tuple[Array, Array]:
    state, dims = _opened(resource, algorithm), sizes(shape)
    parameters = jnp.broadcast_shapes(counts.shape, probs.shape)
    if len(parameters) > len(dims) or dims[len(dims) - len(parameters) :] != parameters:
        raise ValueError(
            f"shape {list(dims)} must end with that of counts and probs, which broadcast to {list(parameters)}"
        )
    sets = pymath.prod(parameters)
    samples = pymath.prod(dims) // sets if sets else 0
    drawn = rejection.binomial(state, counts, probs, dims).astype(dtype.as_numpy_dtype)
    # TensorFlow reserves 100 numbers for each sample, two to a block.
    return _moved(resource, sets * 2 * 100 * (samples + 3) // 4 * philox.RESERVED), drawn
