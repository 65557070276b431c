"""Ranges of numbers, and counting how often numbers occur."""

from __future__ import annotations

import math as pymath
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import as_dtype
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.jaxprs.symbols import as_number, as_size, has_symbols, is_symbol
from penstock.kernel.types import FLOATS, INDEX32, INTS, Array
from penstock.ops.array import reshaping
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.math import arithmetic, casting, compare, reduce

_INT_OR_FLOAT = Types(dt.int32, dt.int64, dt.float32, dt.float64)
_RANGE_ORDER = (dt.int32, dt.int64, dt.float16, dt.bfloat16, dt.float32, dt.float64)


def _range_size(start: Any, limit: Any, delta: Any) -> Any:
    if delta == 0:
        raise ValueError("Requires delta != 0")
    if (delta > 0 and start > limit) or (delta < 0 and start < limit):
        order = "<=" if delta > 0 else ">="
        raise ValueError(f"Requires start {order} limit when delta {'>' if delta > 0 else '<'} 0: {start}/{limit}")
    if isinstance(start, float):
        size: int = pymath.ceil(abs((limit - start) / delta))
        return size
    return as_size(-((start - limit) // delta)) if delta > 0 else as_size(-((limit - start) // -delta))


def _range_shape(op: Operation) -> list[TensorShape]:
    for tensor in op.input_list:
        if tensor.shape.rank not in (None, 0):
            raise ValueError(f"Shape must be rank 0 but is rank {tensor.shape.rank}")
    values = [constant_value(t) for t in op.input_list]
    if any(v is None for v in values):
        return [TensorShape.of((None,))]
    return [TensorShape.of((_range_size(*(v.item() for v in values if v is not None)),))]


@op("Range", "Tidx, Tidx, Tidx -> output: Tidx", static="start limit delta", numpy=True, no_gradient=True,
    shape=_range_shape, Tidx=Types(*FLOATS, *(t for t in INTS if t is not dt.uint8), default=dt.int32))  # fmt: skip
def range_op(start: Array, limit: Array, delta: Array) -> Array:
    size = _range_size(start.item(), limit.item(), delta.item())
    if is_symbol(size) or has_symbols(start):
        return as_number(start.item()) + jnp.arange(size) * as_number(delta.item())
    steps = np.full(size, delta, start.dtype)
    steps[:1] = start
    return np.add.accumulate(steps, dtype=start.dtype)  # rounds after each step, as TensorFlow does


def _linspace_shape(op: Operation) -> list[TensorShape]:
    num = constant_value(op.input_list[2])
    if num is not None and num <= 0:
        raise ValueError(f"Requires num > 0: {int(num)}")
    return [TensorShape.of((None if num is None else int(num),))]


@op("LinSpace", "T, T, Tidx -> output: T", static="num", shape=_linspace_shape, no_gradient=True,
    T=FLOATS, Tidx=INDEX32)  # fmt: skip
def linspace_op(start: Array, stop: Array, num: Array) -> Array:
    if num <= 0:
        raise ValueError(f"Requires num > 0: {int(num)}")
    return jnp.linspace(start, stop, int(num), dtype=start.dtype)


@op("DenseBincount", "Tidx, Tidx, T -> output: T", static="size", grad=refuse_gradient, T=_INT_OR_FLOAT,
    Tidx=Types(dt.int32, dt.int64), shape=lambda op: [TensorShape.of((_known(op.input_list[1]),))])  # fmt: skip
def dense_bincount(input: Array, size: Array, weights: Array, *, binary_output: bool = False) -> Array:
    ones = jnp.ones(input.shape, weights.dtype)
    bins = jnp.zeros(int(size), weights.dtype)
    counts = bins.at[input].add(weights if weights.size else ones, mode="drop")
    return (counts != 0).astype(weights.dtype) if binary_output else counts


def _known(tensor: Tensor) -> int | None:
    value = constant_value(tensor)
    return None if value is None else int(value)


def range(start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str | None = "range") -> Tensor:
    """start, start + delta, ... below `limit`; `tf.range(3)` is [0, 1, 2]."""
    if limit is None:
        start, limit = 0, start
    with name_scope(name, "Range", [start, limit, delta]) as scope:
        given = {"start": start, "limit": limit, "delta": delta}
        tensors = [v if isinstance(v, Tensor) else convert_to_tensor(v, dtype, k) for k, v in given.items()]
        if dtype is None:
            types = [t.dtype.base_dtype for t in tensors]
            for found in types:
                if found not in _RANGE_ORDER:
                    raise ValueError(f"range: start, limit and delta must be numbers, received {found.name}.")
            dtype = max(types, key=_RANGE_ORDER.index)
        result: Tensor = range_op(*(casting.cast(t, dtype) for t in tensors), name=scope)
        return result


def bincount(
    arr: Any, weights: Any = None, minlength: Any = None, maxlength: Any = None, dtype: Any = dt.int32,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """How often each number from 0 up occurs, or the sum of its weights: `tf.bincount([0, 2, 2])` is [1, 0, 2]."""
    with name_scope(name, "bincount", [arr, weights]):
        arr = convert_to_tensor(arr, name="arr", dtype=dt.int32)
        any_given = casting.cast(compare.greater(reshaping.size(arr), 0), dt.int32)
        size = arithmetic.mul(any_given, arithmetic.add_v2(reduce.reduce_max(arr), 1, name="add"), name="mul")
        if minlength is not None:
            size = arithmetic.maximum(convert_to_tensor(minlength, dtype=dt.int32, name="minlength"), size)
        if maxlength is not None:
            size = arithmetic.minimum(convert_to_tensor(maxlength, dtype=dt.int32, name="maxlength"), size)
        flat = reshaping.reshape(arr, [-1])
        if weights is None:
            weights = make_constant(np.zeros(0, as_dtype(dtype).as_numpy_dtype), as_dtype(dtype))
        else:
            weights = reshaping.reshape(convert_to_tensor(weights, name="weights"), [-1])
        counts: Tensor = dense_bincount(flat, size, weights)
        return counts
