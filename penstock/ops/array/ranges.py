"""Ranges of numbers."""

from __future__ import annotations

import math as pymath
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.jaxprs.symbols import as_number, as_size, has_symbols, is_symbol
from penstock.kernel.types import FLOATS, INDEX32, INTS, Array
from penstock.ops.math import casting

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


@op(
    "Range",
    "Tidx, Tidx, Tidx -> output: Tidx",
    static="start limit delta",
    numpy=True,
    no_gradient=True,
    shape=_range_shape,
    Tidx=Types(*FLOATS, *(t for t in INTS if t is not dt.uint8), default=dt.int32),
)
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


@op(
    "LinSpace", "T, T, Tidx -> output: T", static="num", shape=_linspace_shape, no_gradient=True, T=FLOATS, Tidx=INDEX32
)
def linspace_op(start: Array, stop: Array, num: Array) -> Array:
    if num <= 0:
        raise ValueError(f"Requires num > 0: {int(num)}")
    return jnp.linspace(start, stop, int(num), dtype=start.dtype)


def range(
    start: TensorLike,
    limit: TensorLike = None,
    delta: TensorLike = 1,
    dtype: DTypeLike | None = None,
    name: str | None = "range",
) -> Tensor:
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
