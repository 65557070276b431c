"""The indices of the largest and the smallest elements along an axis."""

from __future__ import annotations

import jax.numpy as jnp

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel.types import INDEX32, Array
from penstock.ops.math.reduce import ORDERED, renamed


def _arg_shape(op: Operation) -> list[TensorShape]:
    shape = op.input_list[0].shape
    axis = constant_value(op.input_list[1])
    if shape.rank is None:
        return [TensorShape.of(None)]
    if shape.rank <= 1:
        return [TensorShape.of(())]
    if axis is None:
        return [TensorShape.of((None,) * (shape.rank - 1))]
    if not -shape.rank <= int(axis) < shape.rank:
        raise ValueError(
            f"Dimension ({int(axis)}) must be in the range [{-shape.rank}, {shape.rank}), "
            f"where {shape.rank} is the number of dimensions in the input."
        )
    dims = shape.as_list()
    del dims[int(axis)]
    return [TensorShape.of(tuple(dims))]


@op(
    "ArgMax",
    "T, Tidx -> output: output_type",
    static="dimension",
    shape=_arg_shape,
    no_gradient=True,
    T=Types(*ORDERED, dt.bool),
    Tidx=Types(dt.int16, dt.int32, dt.int64, default=dt.int32),
    output_type=Types(dt.int16, dt.uint16, dt.int32, dt.int64),
)
def arg_max_op(input: Array, dimension: Array, *, output_type: DType = dt.int64) -> Array:
    return jnp.argmax(input, int(dimension)).astype(output_type.as_numpy_dtype)


@op(
    "ArgMin",
    "T, Tidx -> output: output_type",
    static="dimension",
    shape=_arg_shape,
    no_gradient=True,
    T=Types(*ORDERED, dt.bool),
    Tidx=INDEX32,
    output_type=Types(dt.int32, dt.int64),
)
def arg_min_op(input: Array, dimension: Array, *, output_type: DType = dt.int64) -> Array:
    return jnp.argmin(input, int(dimension)).astype(output_type.as_numpy_dtype)


def argmax(
    input: TensorLike,
    axis: TensorLike = None,
    name: str | None = None,
    dimension: TensorLike = None,
    output_type: DTypeLike = dt.int64,
) -> Tensor:
    """The index of the largest element along `axis`; of equal ones the first: `tf.argmax(logits, 1)`."""
    axis = renamed(axis, "axis", dimension, "dimension")
    index: Tensor = arg_max_op(input, 0 if axis is None else axis, output_type=output_type, name=name)
    return index


def argmin(
    input: TensorLike,
    axis: TensorLike = None,
    name: str | None = None,
    dimension: TensorLike = None,
    output_type: DTypeLike = dt.int64,
) -> Tensor:
    """The index of the smallest element along `axis`; of equal ones the first: `tf.argmin(distances, 1)`."""
    axis = renamed(axis, "axis", dimension, "dimension")
    index: Tensor = arg_min_op(input, 0 if axis is None else axis, output_type=output_type, name=name)
    return index


def arg_max(
    input: TensorLike, dimension: TensorLike, output_type: DTypeLike = dt.int64, name: str | None = None
) -> Tensor:
    """`tf.argmax` with TensorFlow's older signature."""
    return argmax(input, dimension, name=name, output_type=output_type)


def arg_min(
    input: TensorLike, dimension: TensorLike, output_type: DTypeLike = dt.int64, name: str | None = None
) -> Tensor:
    """`tf.argmin` with TensorFlow's older signature."""
    return argmin(input, dimension, name=name, output_type=output_type)
