"""Random numbers. A kernel takes `key`, the state of a Philox generator, which moves on with every run.

The same state gives the same numbers on every device, and those of TensorFlow's kernels for the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock import philox as generator
from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import get_seed, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.jaxprs.symbols import as_size
from penstock.kernel import shapes
from penstock.kernel.types import FLOATS, INDEX, INDEX64, REALS, Array
from penstock.ops.array import reshaping, slicing
from penstock.ops.control import grouping
from penstock.ops.debugging import assertion
from penstock.ops.math import arithmetic, reduce
from penstock.ops.random import philox

_FLOAT32, _INT64 = dt.float32, dt.int64


def sizes(shape: Array) -> tuple[int, ...]:
    """The value of a shape input as a tuple of sizes."""
    if shape.ndim != 1:
        raise ValueError(f"shape must be a vector of sizes, received an array of rank {shape.ndim}")
    dims = tuple(map(as_size, shape))
    if any(d < 0 for d in dims):
        raise ValueError(f"Dimensions must be non-negative, received shape {list(dims)}")
    return dims


_from_shape = shapes.from_value(0)


@op(
    "RandomUniform",
    "T -> output: dtype",
    random=True,
    static="shape",
    no_gradient=True,
    shape=_from_shape,
    T=INDEX,
    dtype=FLOATS,
)
def random_uniform_op(shape: Array, *, seed: int = 0, seed2: int = 0, dtype: DType, key: Array) -> Array:
    return philox.uniform(key, sizes(shape), dtype)


@op(
    "RandomUniformInt",
    "T, Tout, Tout -> output: Tout",
    random=True,
    static="shape",
    no_gradient=True,
    shape=_from_shape,
    T=INDEX,
    Tout=INDEX,
)
def random_uniform_int(
    shape: Array, minval: Array, maxval: Array, *, seed: int = 0, seed2: int = 0, key: Array
) -> Array:
    dims = sizes(shape)
    if 0 not in dims:
        require(minval < maxval, "Need minval < maxval, got {} >= maxval", minval)
    return philox.integers_between(key, dims, minval, maxval)


@op(
    "RandomStandardNormal",
    "T -> output: dtype",
    random=True,
    static="shape",
    no_gradient=True,
    shape=_from_shape,
    T=INDEX,
    dtype=FLOATS,
)
def random_standard_normal(shape: Array, *, seed: int = 0, seed2: int = 0, dtype: DType, key: Array) -> Array:
    return philox.normal(key, sizes(shape), dtype)


@op(
    "TruncatedNormal",
    "T -> output: dtype",
    random=True,
    static="shape",
    no_gradient=True,
    shape=_from_shape,
    T=INDEX,
    dtype=FLOATS,
)
def truncated_normal_op(shape: Array, *, seed: int = 0, seed2: int = 0, dtype: DType, key: Array) -> Array:
    return philox.truncated_normal(key, sizes(shape), dtype)


def _blocks_of_words(shape: tuple[Any, ...]) -> Any:
    """A shuffle takes one word for each row."""
    return -(-shape[0] // 4) if shape and shape[0] > 1 else 0


@op(
    "RandomShuffle",
    "T -> output: T",
    random=True,
    reserves=_blocks_of_words,
    host=True,
    no_gradient=True,
    shape=shapes.unchanged,
)
def random_shuffle_op(value: np.ndarray, *, seed: int = 0, seed2: int = 0, key: Array) -> np.ndarray:
    return value[shuffled_rows(key, len(value))] if value.ndim else value


def shuffled_rows(state: Iterable[Any], count: int) -> list[int]:
    """The numbers up to `count` in the order into which a generator shuffles rows, by Fisher and Yates."""
    order = list(range(count))
    key, start, high = map(int, state)
    words = generator.words(key, start, high, -(-count // 4)).tolist()
    for i, word in zip(range(count - 1), words, strict=False):
        at = i + word % (count - i)
        order[i], order[at] = order[at], order[i]
    return order


def _blocks_of_doubles(shape: tuple[Any, ...]) -> Any:
    """For each row TensorFlow reserves two words per sample, and the samples in fours."""
    return 2 * philox.RESERVED * shape[0] * (-(-shape[1] // 4) * 4)


def _multinomial_shape(op: Operation) -> list[TensorShape]:
    logits = op.input_list[0].shape.with_rank(2)
    samples = constant_value(op.input_list[1])
    return [TensorShape.of((logits.as_list()[0], None if samples is None else int(samples)))]


@op(
    "Multinomial",
    "T, int32 -> output: output_dtype",
    random=True,
    reserves=_blocks_of_doubles,
    static="num_samples",
    no_gradient=True,
    shape=_multinomial_shape,
    T=REALS,
    output_dtype=INDEX64,
)
def multinomial_op(
    logits: Array, num_samples: Array, *, seed: int = 0, seed2: int = 0, output_dtype: DType = _INT64, key: Array
) -> Array:
    if logits.ndim != 2:
        raise ValueError(f"logits should be a matrix, received rank {logits.ndim}")
    samples = int(num_samples)
    if samples < 0:
        raise ValueError(f"num_samples should be nonnegative, received {samples}")
    rows, classes = logits.shape
    if rows and samples and not classes:
        raise ValueError("num_classes should be positive, received logits without columns")
    return draw_classes(key, logits, samples).astype(output_dtype.as_numpy_dtype)


def draw_classes(state: Array, logits: Array, samples: int) -> Array:
    """`samples` classes for each row of logits. A logit that is not finite has no chance."""
    wide = jnp.asarray(logits).astype(np.float64)
    finite = jnp.isfinite(wide)
    highest = jnp.max(jnp.where(finite, wide, -np.inf), axis=1, keepdims=True, initial=-np.inf)
    weights = jnp.where(finite, jnp.exp(wide - highest), 0)
    reached = jnp.cumsum(weights, axis=1)
    points = philox.uniform(state, (wide.shape[0], samples), dt.float64) * reached[:, -1:]
    found = jax.vmap(lambda ends, at: jnp.searchsorted(ends, at, side="right"))(reached, points)
    # Rounding may give the upper end itself.
    return jnp.minimum(found, wide.shape[1] - 1)


def shape_tensor(shape: Any) -> Tensor:
    """A shape argument as a tensor called `shape`: a list, a TensorShape, or a tensor."""
    empty = isinstance(shape, (list, tuple)) and not shape
    return convert_to_tensor(shape, dtype=dt.int32 if empty else None, name="shape")


def seeds(seed: int | None) -> dict[str, Any]:
    """The attrs `seed` and `seed2` of a new random node; 0 and 0 if no seed is set."""
    first, second = get_seed(seed)
    return {"seed": first or 0, "seed2": second or 0}


def random_uniform(
    shape: ShapeLike,
    minval: TensorLike = 0,
    maxval: TensorLike = None,
    dtype: DTypeLike = _FLOAT32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Uniform random numbers in [minval, maxval).

    >>> tf.random_uniform([2, 3], minval=-1.0, maxval=1.0)
    """
    dtype = as_dtype(dtype)
    if dtype not in (*FLOATS, *INDEX):
        raise ValueError(f"random_uniform: dtype must be floating, int32 or int64, received {dtype.name}.")
    if maxval is None:
        if dtype.is_integer:
            raise ValueError(f"random_uniform: maxval must be given for integer dtype {dtype.name}.")
        maxval = 1
    with name_scope(name, "random_uniform", [shape, minval, maxval]) as name:
        shape = shape_tensor(shape)
        from_zero = isinstance(minval, int) and minval == 0
        unit = from_zero and isinstance(maxval, int) and maxval == 1
        if not unit:
            minval = convert_to_tensor(minval, dtype=dtype, name="min")
            maxval = convert_to_tensor(maxval, dtype=dtype, name="max")
        attrs = seeds(seed)
        result: Tensor
        if dtype.is_integer:
            result = random_uniform_int(shape, minval, maxval, Tout=dtype, name=name, **attrs)
            return result
        result = random_uniform_op(shape, dtype=dtype, **attrs)
        if unit:
            return result
        if from_zero:
            return arithmetic.multiply(result, maxval)
        return arithmetic.add(result * (maxval - minval), minval, name=name)


def random_normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = _FLOAT32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normal random numbers.

    >>> tf.random_normal([784, 10], stddev=0.1)
    """
    return _scaled_normal(random_standard_normal, "random_normal", shape, mean, stddev, dtype, seed, name)


def truncated_normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = _FLOAT32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normal random numbers, none of them further than two standard deviations from the mean.

    >>> tf.truncated_normal([5, 5, 1, 32], stddev=0.1)
    """
    return _scaled_normal(truncated_normal_op, "truncated_normal", shape, mean, stddev, dtype, seed, name)


def _scaled_normal(
    draw: Any, default_name: str, shape: Any, mean: Any, stddev: Any, dtype: Any, seed: int | None, name: str | None
) -> Tensor:
    with name_scope(name, default_name, [shape, mean, stddev]) as name:
        shape = shape_tensor(shape)
        mean = convert_to_tensor(mean, dtype=dtype, name="mean")
        stddev = convert_to_tensor(stddev, dtype=dtype, name="stddev")
        drawn = draw(shape, dtype=dtype, **seeds(seed))
        return arithmetic.add(drawn * stddev, mean, name=name)


def random_shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """`value` with its rows (dimension 0) in random order.

    >>> tf.random_shuffle([1, 2, 3])
    """
    result: Tensor = random_shuffle_op(value, name=name, **seeds(seed))
    return result


def multinomial(
    logits: TensorLike,
    num_samples: TensorLike,
    seed: int | None = None,
    name: str | None = None,
    output_dtype: DTypeLike | None = None,
) -> Tensor:
    """Draws `num_samples` classes for each row of unnormalised log probabilities.

    >>> tf.multinomial(tf.log([[0.5, 0.5]]), 5)
    """
    with name_scope(name, "multinomial", [logits]):
        return _draw_classes(logits, num_samples, output_dtype, seed)


def categorical(
    logits: TensorLike,
    num_samples: TensorLike,
    dtype: DTypeLike | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """The same as `multinomial`, with TensorFlow's newer order of arguments.

    >>> tf.random.categorical(tf.log([[0.5, 0.5]]), 5)
    """
    with name_scope(name, "categorical", [logits]):
        return _draw_classes(logits, num_samples, dtype, seed)


def _draw_classes(logits: Any, num_samples: Any, dtype: Any, seed: int | None) -> Tensor:
    logits = convert_to_tensor(logits, name="logits")
    drawn: Tensor = multinomial_op(logits, num_samples, output_dtype=dtype or _INT64, **seeds(seed))
    return drawn


def random_crop(value: TensorLike, size: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """A slice of shape `size` at a random place of `value`.

    >>> tf.random_crop(image, [24, 24, 3])
    """
    with name_scope(name, "random_crop", [value, size]) as name:
        value = convert_to_tensor(value, name="value")
        size = convert_to_tensor(size, dtype=dt.int32, name="size")
        shape: Any = reshaping.shape(value)
        fits = assertion.Assert(
            reduce.reduce_all(shape >= size), ["Need value.shape >= size, got ", shape, size], summarize=1000
        )
        shape = grouping.with_dependencies([fits], shape)
        limit = shape - size + 1
        drawn: Any = random_uniform(reshaping.shape(shape), dtype=size.dtype, maxval=size.dtype.max, seed=seed)
        result: Tensor = slicing.slice(value, drawn % limit, size, name=name)
        return result
